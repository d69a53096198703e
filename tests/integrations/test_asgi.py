"""The ASGI middleware by itself: what cannot be shown through a server and a client."""

import asyncio

import pytest
from starlette.responses import FileResponse

from ratekeeper import AsyncLimiter, FixedWindow, InvalidRule, StoreUnavailable
from ratekeeper.http import Headers, by_address, by_user
from ratekeeper.integrations.asgi import RateLimitMiddleware, Route, ScopeRequest, user_id
from ratekeeper.testing import ManualClock
from tests import inside
from tests.servers import free_port

ONE = FixedWindow(1, 60)
MESSAGES = [
    {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]},
    {"type": "http.response.body", "body": b"hello", "more_body": False},
]


async def hello(scope, receive, send):
    for message in MESSAGES:
        await send(message)


def a_scope(kind="http", **given):
    scope = {"type": kind, "path": "/", "headers": [], "client": ("192.0.2.1", 5), "extensions": {}}
    return {**scope, **({"method": "GET"} if kind == "http" else {}), **given}


def serve(app, scope, *events):
    """Serve one scope, and return what was sent."""
    sent = []
    waiting = list(events)

    async def receive():
        if not waiting:
            await asyncio.Event().wait()  # for ever
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


def test_lifespan_passes_through():
    async def app(scope, receive, send):
        assert await receive() == {"type": "lifespan.startup"}
        await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    sent = serve(RateLimitMiddleware(app, ONE), {"type": "lifespan"}, {"type": "lifespan.startup"})
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_application_without_lifespan_may_say_so():
    async def app(scope, receive, send):
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        serve(RateLimitMiddleware(app, ONE), {"type": "lifespan"})


def test_a_scope_of_another_type_passes_through():
    middleware = RateLimitMiddleware(hello, ONE)
    assert [serve(middleware, {"type": "other"}) for _ in range(2)] == [MESSAGES, MESSAGES]


def test_what_the_application_sends_is_not_changed_in_place():
    serve(RateLimitMiddleware(hello, ONE), a_scope())
    assert MESSAGES[0]["headers"] == [(b"content-type", b"text/plain")]


def test_what_the_application_says_itself_is_not_said_twice():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-ratelimit-limit", b"7")]})
        await send({"type": "http.response.body"})

    headers = serve(RateLimitMiddleware(app, ONE), a_scope())[0]["headers"]
    assert [value for name, value in headers if name.lower() == b"x-ratelimit-limit"] == [b"7"]
    assert b"ratelimit" in dict(headers)


def test_an_answer_without_headers_gets_them():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})

    middleware = RateLimitMiddleware(app, ONE, headers=Headers(draft=None), clock=ManualClock(0))
    assert serve(middleware, a_scope())[0]["headers"] == [
        (b"x-ratelimit-limit", b"1"),
        (b"x-ratelimit-remaining", b"0"),
        (b"x-ratelimit-reset", b"60"),
    ]


def test_headers_that_can_be_read_only_once_are_kept():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": iter([(b"x-ratelimit-limit", b"7")])})
        await send({"type": "http.response.body"})

    headers = serve(RateLimitMiddleware(app, ONE), a_scope())[0]["headers"]
    assert [value for name, value in headers if name == b"x-ratelimit-limit"] == [b"7"]


def test_all_headers_can_be_off():
    middleware = RateLimitMiddleware(hello, ONE, headers=Headers.off())
    assert serve(middleware, a_scope()) == MESSAGES


def test_a_limiter_may_be_given():
    middleware = RateLimitMiddleware(hello, AsyncLimiter(ONE))
    assert [serve(middleware, a_scope())[0]["status"] for _ in range(2)] == [200, 429]


def test_a_websocket_is_closed_where_it_cannot_be_answered():
    middleware = RateLimitMiddleware(hello, ONE)
    serve(middleware, a_scope("websocket"))
    assert serve(middleware, a_scope("websocket"), {"type": "websocket.connect"}) == [
        {"type": "websocket.close", "code": 1008, "reason": "rate limit exceeded"}
    ]


def test_a_websocket_is_answered_where_it_can_be():
    middleware = RateLimitMiddleware(hello, ONE)
    serve(middleware, a_scope("websocket"))
    scope = a_scope("websocket", extensions={"websocket.http.response": {}})
    start, body = serve(middleware, scope, {"type": "websocket.connect"})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert body["type"] == "websocket.http.response.body"


def test_websockets_have_a_method_of_their_own():
    middleware = RateLimitMiddleware(hello, None, routes=[Route("/", ONE, methods=["websocket"])])
    assert len([serve(middleware, a_scope()) for _ in range(3)]) == 3
    serve(middleware, a_scope("websocket"))
    assert serve(middleware, a_scope("websocket"), {"type": "websocket.connect"})[0]["type"] == "websocket.close"


class User:
    def __init__(self, name, *, is_authenticated=True):
        self.is_authenticated = is_authenticated
        self.display_name = name


class Member(User):
    identity = 7


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, None),
        ("ada", "ada"),
        (User("ada"), "ada"),
        (User("", is_authenticated=False), None),
        (Member("ada"), "7"),
    ],
)
def test_the_user_is_whom_the_authentication_left_in_the_scope(user, expected):
    assert user_id(user) == expected


def test_users_are_told_apart():
    middleware = RateLimitMiddleware(hello, ONE, key=by_user())
    assert [serve(middleware, a_scope(user=user))[0]["status"] for user in ("a", "b", "a")] == [200, 200, 429]


def test_a_unix_socket_has_no_peer():
    middleware = RateLimitMiddleware(hello, ONE, unidentified="deny")
    assert serve(middleware, a_scope(client=None))[0]["status"] == 429


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b"203.0.113.9, 198.51.100.1"], "address:198.51.100.1"),
        ([b"203.0.113.9", b"198.51.100.1"], "address:10.0.0.1"),
        ([b"\xff\x00, 198.51.100.1"], "address:198.51.100.1"),
        ([], "address:10.0.0.1"),
    ],
)
def test_a_client_behind_a_proxy_is_found_in_the_scope(lines, expected):
    scope = a_scope(client=("10.0.0.1", 5), headers=[(b"x-forwarded-for", line) for line in lines])
    assert by_address(["10.0.0.0/8"])(ScopeRequest(scope)) == expected


# --- settlement


def settled(app, scope=None, **options):
    """Serve one request that is estimated at 10 of 100; return what the settlement was told, and what is left."""
    answers = []

    def settle(request, answer):
        answers.append(tuple(answer))
        return 0

    middleware = RateLimitMiddleware(app, FixedWindow(100, 60), cost=10, settle=settle, **options)
    try:
        serve(middleware, scope or a_scope())
    except LookupError:
        answers.append("raised")
    headers = serve(middleware, a_scope())[0].get("headers")
    return answers[:2], dict(headers or ()).get(b"x-ratelimit-remaining")


def test_a_settlement_is_told_the_status_and_the_size():
    assert settled(hello) == ([(200, 5), (200, 5)], b"90")


def test_a_file_that_the_server_sends_by_itself_counts_with_its_size(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 70)
    order = []

    async def app(scope, receive, send):
        assert "http.response.pathsend" in scope["extensions"]
        await FileResponse(tmp_path / "file")(scope, receive, send)
        order.append("background")

    def settle(request, answer):
        order.append(tuple(answer))

    scope = a_scope(extensions={"http.response.pathsend": {}})
    sent = serve(RateLimitMiddleware(app, ONE, settle=settle), scope)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.pathsend"]
    assert order == [(200, 70), "background"]


def test_a_file_that_is_gone_is_left_to_the_server(tmp_path):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.pathsend", "path": str(tmp_path / "gone")})

    answers = []
    sent = serve(RateLimitMiddleware(app, ONE, settle=lambda _, answer: answers.append(tuple(answer))), a_scope())
    assert (sent[1]["path"], answers) == (str(tmp_path / "gone"), [(200, 0)])


def test_an_application_that_fails_is_settled_as_a_500():
    calls = []

    async def app(scope, receive, send):
        calls.append(scope)
        if len(calls) == 1:
            raise LookupError
        await hello(scope, receive, send)

    assert settled(app) == ([(500, 0), "raised"], b"90")


def test_a_settlement_does_not_wait_for_background_work():
    order = []

    async def app(scope, receive, send):
        await hello(scope, receive, send)
        order.append("background")

    def settle(request, answer):
        order.append("settled")

    serve(RateLimitMiddleware(app, ONE, settle=settle), a_scope())
    assert order == ["settled", "background"]


def test_a_settlement_under_way_survives_the_end_of_its_request():
    async def main():
        asked, may_go_on, settled = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def settle(request, answer):
            asked.set()
            await may_go_on.wait()
            settled.set()
            return 1

        async def send(message):
            pass

        middleware = RateLimitMiddleware(hello, ONE, settle=settle)
        request = asyncio.create_task(middleware(a_scope(), asyncio.Event().wait, send))
        await asked.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        may_go_on.set()
        await settled.wait()
        return request.cancelled()

    assert asyncio.run(main())


def test_a_websocket_is_settled_when_it_ends():
    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "four"})
        await send({"type": "websocket.send", "bytes": b"three"})

    answers, _ = settled(app, a_scope("websocket"))
    assert answers[0] == (101, 9)


# --- shaping

SHAPING = "leaky-bucket 20/s burst 10 shaping"


async def echo(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body + scope["path"].encode()})


def chunk(body, *, more):
    return {"type": "http.request", "body": body, "more_body": more}


def test_what_comes_while_a_request_is_held_is_kept():
    middleware = RateLimitMiddleware(echo, SHAPING)
    events = [chunk(b"a", more=True), chunk(b"b" * 70_000, more=True), chunk(b"c", more=False)]
    for _ in range(2):  # the second is held
        assert serve(middleware, a_scope(), *events)[1]["body"] == b"a" + b"b" * 70_000 + b"c/"


def test_who_leaves_while_held_never_reaches_the_application():
    middleware = RateLimitMiddleware(hello, "leaky-bucket 1/hour burst 10 shaping")
    serve(middleware, a_scope())
    assert serve(middleware, a_scope(), chunk(b"a", more=False), {"type": "http.disconnect"}) == []
    assert inside.number_held(middleware.gate) == 0


def test_what_comes_after_the_hold_reaches_the_application():
    async def main():
        came = asyncio.Event()

        async def receive():
            await came.wait()
            return chunk(b"late", more=False)

        async def app(scope, receive, send):
            asyncio.get_running_loop().call_soon(came.set)
            await echo(scope, receive, send)

        sent = []

        async def send(message):
            sent.append(message)

        middleware = RateLimitMiddleware(app, SHAPING)
        came.set()
        await middleware(a_scope(), receive, send)
        came.clear()
        await middleware(a_scope(), receive, send)
        return sent[-1]["body"]

    assert asyncio.run(main()) == b"late/"


def test_a_held_request_that_is_cancelled_makes_room():
    async def main():
        middleware = RateLimitMiddleware(hello, "leaky-bucket 1/hour burst 10 shaping", max_waiters=1)
        never = asyncio.Event()

        async def send(message):
            pass

        await middleware(a_scope(), never.wait, send)
        held = asyncio.create_task(middleware(a_scope(), never.wait, send))
        await asyncio.sleep(0)
        assert inside.number_held(middleware.gate) == 1
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        return inside.number_held(middleware.gate)

    assert asyncio.run(main()) == 0


# --- while the store is away


def away(on_error):
    return RateLimitMiddleware(hello, ONE, store=f"redis://127.0.0.1:{free_port()}", on_error=on_error)


@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 429]), ("open", [200, 200]), ("closed", [429, 429])]
)
def test_while_the_store_is_away_on_error_decides(on_error, expected):
    middleware = away(on_error)
    assert [serve(middleware, a_scope())[0]["status"] for _ in range(2)] == expected


def test_it_raises_only_if_asked_to():
    with pytest.raises(StoreUnavailable):
        serve(away("raise"), a_scope())


def test_a_malformed_rule_fails_at_start_up():
    with pytest.raises(InvalidRule, match="route 'POST /login': cannot read rule 'five a minute'"):
        RateLimitMiddleware(hello, routes=[Route("/login", "five a minute", methods=["POST"])])
