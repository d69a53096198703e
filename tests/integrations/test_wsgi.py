"""The WSGI middleware."""

import io
import wsgiref.util
import wsgiref.validate

import pytest

from ratekeeper import FixedWindow, InvalidRule, StoreUnavailable
from ratekeeper.http import Answer, Headers, Reply, by_api_key, by_path, by_user
from ratekeeper.integrations.wsgi import EnvironRequest, RateLimitMiddleware, Route
from tests import servers
from tests.integrations.behaviour import OnAServer
from tests.integrations.processes import GUNICORN, STORES, Process

MINUTE = FixedWindow(1, "400 days")


@pytest.fixture(scope="module", params=STORES)
def server(request):
    with Process("-m", *GUNICORN, "tests.integrations.wsgi_app:app", store=request.param) as server:
        yield server


class TestOnAServer(OnAServer):
    pass


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def call(app, path="/", **environ):
    """Call a WSGI application as the standard says; return the status, the headers and the body."""
    environ = {"PATH_INFO": path, "REMOTE_ADDR": "192.0.2.1", "QUERY_STRING": "", "SCRIPT_NAME": "", **environ}
    wsgiref.util.setup_testing_defaults(environ)
    environ["wsgi.input"], environ["wsgi.errors"] = io.BytesIO(), io.StringIO()
    started = []

    def start_response(status, headers, exc_info=None):
        started[:] = [status, headers]
        return lambda chunk: None

    chunks = wsgiref.validate.validator(app)(environ, start_response)
    try:
        body = b"".join(chunks)
    finally:
        chunks.close()
    status, headers = started
    assert len(headers) == len(dict(headers))
    return status, dict(headers), body


def test_it_keeps_to_the_standard():
    app = RateLimitMiddleware(hello, MINUTE)
    status, headers, body = call(app)
    assert (status, headers["X-RateLimit-Remaining"], body) == ("200 OK", "0", b"hello")
    status, headers, body = call(app)
    assert (status, headers["Content-Length"]) == ("429 Too Many Requests", str(len(body)))


def test_what_the_application_says_itself_stays():
    def says(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain"), ("x-ratelimit-remaining", "many")])
        return [b"hello"]

    _, headers, _ = call(RateLimitMiddleware(says, MINUTE, headers=Headers(draft=None)))
    assert {name: value for name, value in headers.items() if "remaining" in name.lower()} == {
        "x-ratelimit-remaining": "many"
    }


def test_an_answer_may_have_a_status_that_nobody_knows():
    app = RateLimitMiddleware(hello, MINUTE, deny=lambda request, decision: Reply(499, [("Content-Type", "x/y")], b""))
    call(app)
    assert call(app)[0] == "499 Denied"


def test_an_application_that_raises_is_settled_as_a_failure():
    def fails(environ, start_response):
        raise LookupError

    answers = []
    app = RateLimitMiddleware(fails, MINUTE, settle=lambda request, answer: answers.append(answer))
    with pytest.raises(LookupError):
        call(app)
    assert answers == [Answer(500, 0)]


def test_what_is_written_past_the_body_counts_for_the_settlement():
    def writes(environ, start_response):
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"123")
        return [b"45"]

    answers = []
    call(RateLimitMiddleware(writes, MINUTE, settle=lambda request, answer: answers.append(answer)))
    assert answers == [Answer(200, 5)]


def test_a_store_that_is_away_is_no_reason_to_fail():
    app = RateLimitMiddleware(hello, MINUTE, store=f"redis://127.0.0.1:{servers.free_port()}")
    assert [call(app)[0] for _ in range(2)] == ["200 OK", "429 Too Many Requests"]


@pytest.mark.parametrize(("on_error", "status"), [("open", "200 OK"), ("closed", "429 Too Many Requests")])
def test_a_store_that_is_away_follows_on_error(on_error, status):
    app = RateLimitMiddleware(hello, MINUTE, store=f"redis://127.0.0.1:{servers.free_port()}", on_error=on_error)
    assert [call(app)[0] for _ in range(2)] == [status, status]


def test_a_store_that_is_away_raises_if_asked_to():
    app = RateLimitMiddleware(hello, MINUTE, store=f"redis://127.0.0.1:{servers.free_port()}", on_error="raise")
    with pytest.raises(StoreUnavailable):
        call(app)


def test_few_requests_hold_a_thread_at_a_time():
    app = RateLimitMiddleware(hello, "leaky-bucket 1/minute burst 100 shaping", max_waiters_per_key=100)
    admissions = [app.gate.admit(EnvironRequest({"REMOTE_ADDR": "192.0.2.1"})) for _ in range(12)]
    assert [admission.decision.allowed for admission in admissions] == [True] * 11 + [False]


@pytest.mark.parametrize(
    ("key", "environ", "same"),
    [
        (by_user(), [{"REMOTE_USER": "ada"}, {"REMOTE_USER": "bob"}], False),
        (by_user(), [{}, {"REMOTE_USER": ""}], True),
        (by_api_key(), [{"HTTP_X_API_KEY": "a"}, {"HTTP_X_API_KEY": "b"}], False),
        (by_path(), [{"PATH_INFO": "/\xc3\xa9"}, {"PATH_INFO": "/e"}], False),
    ],
)
def test_clients_are_told_apart(key, environ, same):
    app = RateLimitMiddleware(hello, MINUTE, key=key)
    _, second = [call(app, **each)[0] for each in environ]
    assert second == ("429 Too Many Requests" if same else "200 OK")


def test_a_request_is_seen_as_it_came():
    request = EnvironRequest(
        {
            "REQUEST_METHOD": "PUT",
            "PATH_INFO": "/caf\xc3\xa9",
            "REMOTE_ADDR": "",
            "CONTENT_LENGTH": "5",
            "HTTP_A_B": "1",
        }
    )
    assert (request.method, request.path, request.peer, request.user_id) == ("PUT", "/café", None, None)
    assert [request.header(name) for name in ("content-length", "a-b", "x")] == [("5",), ("1",), ()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": "many"}, "route '\\*': cannot read rule 'many'"),
        ({"routes": [Route("/a", "0/s")]}, "route '/a': rule '0/s'"),
        ({"max_waiters": -1}, "max_waiters must be an int of at least 0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, message):
    with pytest.raises(InvalidRule, match=message):
        RateLimitMiddleware(hello, **options)
