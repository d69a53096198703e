"""The Django middleware and decorator, and the REST framework's throttle."""

import asyncio
import contextlib
import time
from pathlib import Path

import django
import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.http import HttpResponse, StreamingHttpResponse
from django.template.backends.django import DjangoTemplates
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings
from django.urls import ResolverMatch, path
from django.utils.decorators import method_decorator
from django.views import View

from ratekeeper import FixedWindow, InvalidRule, StoreUnavailable
from ratekeeper.http import Answer, Notices, Route, by_user
from ratekeeper.integrations.django import RateLimitMiddleware, limited

django.setup()

from django.contrib.auth.models import User  # noqa: E402 - only now there are models
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from ratekeeper.integrations.rest_framework import RateLimitThrottle  # noqa: E402
from tests import inside, servers  # noqa: E402
from tests.integrations.behaviour import OnAServer, assert_told_once  # noqa: E402
from tests.integrations.processes import GUNICORN, STORES, UVICORN, Process  # noqa: E402

ONE = FixedWindow(1, "400 days")

SERVERS = {
    "gunicorn": ("-m", *GUNICORN, "django.core.wsgi:get_wsgi_application()"),
    "runserver": ("-m", "django", "runserver", "--noreload", "{port}"),
    "uvicorn": ("-m", *UVICORN, "--factory", "django.core.asgi:get_asgi_application"),
}
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.integrations.django_settings"}


@pytest.fixture(scope="module", params=[(server, store) for server in SERVERS for store in STORES], ids=" on ".join)
def server(request):
    name, store = request.param
    views = {"ASYNC_VIEWS": "yes"} if name == "uvicorn" else {}
    with Process(*SERVERS[name], store=store, **SETTINGS, **views) as server:
        yield server


class TestOnAServer(OnAServer):
    def test_a_throttle_of_the_rest_framework_denies(self, http):
        answers = [http.get("/rest/three") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert_told_once(answers[0], 2)
        assert int(answers[3].headers["retry-after"]) > 0


# --- without a server


@pytest.fixture(scope="module", autouse=True)
def project():
    """The project, with a database for its users."""
    call_command("migrate", verbosity=0)
    yield
    connections.close_all()
    Path(settings.DATABASES["default"]["NAME"]).unlink()


@pytest.fixture
def configured():
    """A function that changes the setting until the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(override_settings(RATEKEEPER=options))


def hello(request):
    return HttpResponse("hello")


async def async_hello(request):
    return HttpResponse("hello")


def through(get_response, **environ):
    """Ask the middleware in front of a view, sync or async, and return the response."""
    if iscoroutinefunction(get_response):
        return asyncio.run(RateLimitMiddleware(get_response)(AsyncRequestFactory().get("/", **environ)))
    return RateLimitMiddleware(get_response)(RequestFactory().get("/", **environ))


@pytest.fixture(params=[hello, async_hello])
def view(request):
    return request.param


def ask(view, method="get", **environ):
    """Ask a view itself, sync or async, and return the response."""
    factory = AsyncRequestFactory() if iscoroutinefunction(view) else RequestFactory()
    response = view(getattr(factory, method)("/", **environ))
    return asyncio.run(response) if iscoroutinefunction(view) else response


def test_a_limited_view_counts_for_itself(configured, view):
    configured()
    one, other = limited(ONE)(view), limited(ONE, name="other")(view)
    assert [ask(each).status_code for each in (one, other, one, other)] == [200, 200, 429, 429]


def test_views_that_are_limited_under_one_name_count_together_sync_and_async(configured):
    configured()
    views = [limited(ONE, name="shared")(each) for each in (hello, async_hello)]
    assert [ask(each).status_code for each in views] == [200, 429]


def test_a_limit_may_be_for_some_methods(configured, view):
    configured()
    posts = limited(ONE, methods=["POST"])(view)
    assert [ask(posts, method).status_code for method in ("post", "post", "get")] == [200, 429, 200]


def test_a_limit_may_count_each_method_for_itself(configured, view):
    configured(per_method=False)
    each = limited(ONE, per_method=True)(view)
    assert [ask(each, method).status_code for method in ("post", "get", "post", "get")] == [200, 200, 429, 429]


def test_a_limit_may_have_a_denial_of_its_own(configured, view):
    configured(deny="of the project")
    of_the_project, own = limited(ONE, name="a")(view), limited(ONE, name="b", deny="of the view")(view)
    denials = [[ask(each) for _ in range(2)][1].content.decode() for each in (of_the_project, own)]
    assert "of the project" in denials[0]
    assert "of the view" in denials[1]


def test_a_limited_view_stays_sync_or_async(view):
    assert iscoroutinefunction(limited(ONE)(view)) == iscoroutinefunction(view)
    assert limited(ONE)(view).__name__ == view.__name__


def test_an_async_function_may_find_the_key_for_an_async_view(configured):
    async def key(request):
        return "all"

    configured()
    view = limited(ONE, key=key)(async_hello)
    assert [ask(view, REMOTE_ADDR=f"192.0.2.{n}").status_code for n in (1, 2)] == [200, 429]


def test_classes_that_are_limited_count_for_themselves(configured):
    configured()
    limit = method_decorator(limited(ONE), name="dispatch")
    one, other = (limit(type(name, (View,), {"get": lambda self, request: HttpResponse()})) for name in "ab")

    def get(cls):
        request = RequestFactory().get("/")
        request.resolver_match = ResolverMatch(cls.as_view(), (), {})
        return cls.as_view()(request).status_code

    assert [get(one), get(other), get(one)] == [200, 200, 429]


@pytest.mark.parametrize(("outer", "inner"), [(10, 2), (2, 10)])
def test_the_tighter_of_two_limits_is_reported(configured, view, outer, inner):
    configured(limit={"outer": FixedWindow(outer, "400 days")})
    limited_view = limited({"inner": FixedWindow(inner, "400 days")})(view)
    tight = "outer" if outer < inner else "inner"
    for status, remaining in ((200, "1"), (200, "0"), (429, "0")):
        response = through(limited_view)
        assert (response.status_code, response.headers["X-RateLimit-Remaining"]) == (status, remaining)
        assert response.headers["RateLimit-Policy"] == f'"{tight}";q=2;w=34560000'


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_decorator_that_is_tighter_is_reported_when_its_view_raises(configured, client):
    def fails(request):
        raise LookupError

    configured(limit={"outer": FixedWindow(10, "400 days")})
    urls = [path("", limited({"inner": ONE})(fails))]
    with override_settings(ROOT_URLCONF=type("Urls", (), {"urlpatterns": urls})):
        response = client(raise_request_exception=False).get("/")
        response = asyncio.run(response) if client is AsyncClient else response
    assert (response.status_code, response.headers["RateLimit-Policy"]) == (500, '"inner";q=1;w=34560000')


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_who_is_signed_in_is_told_apart(configured, kind):
    configured(limit=ONE, key=by_user(), on_error="raise")
    User.objects.all().delete()
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))
    statuses = []
    for user in (ada, bob, ada, None, None):
        client = kind()
        if user is not None:
            client.force_login(user)
        response = client.get("/")
        statuses.append((asyncio.run(response) if kind is AsyncClient else response).status_code)
    assert statuses == [200, 200, 429, 200, 429]


def test_it_can_be_switched_off(configured, view):
    notices = Notices()
    configured(limit=ONE, enabled=False, notices=notices)
    assert [through(limited(ONE)(view)).status_code for _ in range(2)] == [200, 200]
    assert notices.counts["unlimited"] == 4  # the middleware's and the view's


@pytest.mark.parametrize(("rules", "statuses"), [("0/m", [429, 429]), ("nonsense", [200, 429]), (None, [200, 200])])
def test_a_function_s_bad_rules_never_mean_no_limit(configured, view, rules, statuses):
    notices = Notices()
    configured(limit=ONE, routes=[Route("/", None)], notices=notices)  # which the decorator does not use
    assert [through(limited(lambda request: rules)(view)).status_code for _ in range(2)] == statuses
    assert notices.counts == {
        "degraded": 2 if rules == "nonsense" else 0,
        "skipped": 0,
        "shared": 0,
        "unlimited": 2 if rules is None else 0,
        "shadow_denied": 0,
    }


def test_functions_may_be_given_by_their_dotted_names(configured, view):
    configured(limit=ONE, key="tests.integrations.test_django.everybody")
    assert [through(view, REMOTE_ADDR=f"192.0.2.{n}").status_code for n in (1, 2)] == [200, 429]


def everybody(request):
    return "everybody"


@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 429]), ("open", [200, 200]), ("closed", [429, 429])]
)
def test_a_store_that_is_away_is_no_reason_to_fail(configured, view, on_error, expected):
    configured(limit=ONE, store=f"redis://127.0.0.1:{servers.free_port()}", on_error=on_error)
    assert [through(view).status_code for _ in range(2)] == expected


def test_a_store_that_is_away_raises_if_asked_to(configured, view):
    configured(limit=ONE, store=f"redis://127.0.0.1:{servers.free_port()}", on_error="raise")
    with pytest.raises(StoreUnavailable):
        through(view)


def test_an_async_view_under_wsgi_is_limited_on_redis(configured):
    configured(store=servers.shared(servers.newest()).url, on_error="raise", prefix=f"test {time.time_ns()}")
    view = async_to_sync(limited(ONE)(async_hello))
    assert [view(RequestFactory().get("/")).status_code for _ in range(2)] == [200, 429]
    assert inside.loops(inside.django_store(settings.RATEKEEPER["store"])) == {}  # no connection is left behind


def test_a_shaped_async_view_is_held(configured):
    configured()
    view = limited("leaky-bucket 100/s burst 5 shaping")(async_hello)
    assert [ask(view).status_code for _ in range(3)] == [200] * 3


# --- settlement

STREAM = ["12", "345"]


async def async_stream():
    for chunk in STREAM:
        yield chunk


BODIES = {
    "whole": lambda: HttpResponse("12345", status=201),
    "stream": lambda: StreamingHttpResponse(STREAM, status=201),
    "async stream": lambda: StreamingHttpResponse(async_stream(), status=201),
}


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("make", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_is_settled_by_its_size(configured, make, is_async):
    async def async_view(request):
        return make()

    answers = []
    configured(limit=ONE, settle=lambda request, answer: answers.append(answer))
    if is_async:

        async def serve():
            response = await RateLimitMiddleware(async_view)(AsyncRequestFactory().get("/"))
            body = b"".join([chunk async for chunk in response]) if response.streaming else response.content
            await sync_to_async(response.close)()
            return body

        body = asyncio.run(serve())
    else:
        response = RateLimitMiddleware(lambda request: make())(RequestFactory().get("/"))
        body = b"".join(response)
        response.close()
    assert (body, answers) == (b"12345", [Answer(201, 5)])


TEMPLATES = DjangoTemplates({"NAME": "django", "DIRS": [], "APP_DIRS": False, "OPTIONS": {}})


class Rest(APIView):
    def get(self, request):
        return Response({"a": 1}, status=201)


def template(request):
    return SimpleTemplateResponse(TEMPLATES.from_string("{{ x }}"), {"x": "1234567"}, status=201)


async def async_template(request):
    return template(request)


@pytest.mark.parametrize("view", [template, Rest.as_view(), async_template], ids=["template", "REST", "async"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_what_is_rendered_after_the_view_is_settled_by_its_size(configured, view, client):
    async def ask_twice():
        return [await AsyncClient().get("/") for _ in range(2)]

    configured()
    answers = []
    view = limited(ONE, settle=lambda request, answer: answers.append(answer) or 0, name=str(view))(view)
    with override_settings(ROOT_URLCONF=type("Urls", (), {"urlpatterns": [path("", view)]})):
        responses = [Client().get("/") for _ in range(2)] if client is Client else asyncio.run(ask_twice())
    assert [(response.status_code, len(response.content)) for response in responses] == [(201, 7)] * 2
    assert answers == [Answer(201, 7)] * 2


def test_an_async_view_under_wsgi_that_is_rendered_later_leaves_no_connection_behind(configured):
    configured(store=servers.shared(servers.newest()).url, on_error="raise", prefix=f"test {time.time_ns()}")
    view = limited(ONE, settle=lambda request, answer: 0)(async_template)
    with override_settings(ROOT_URLCONF=type("Urls", (), {"urlpatterns": [path("", view)]})):
        assert [Client().get("/").status_code for _ in range(2)] == [201, 201]
    assert inside.loops(inside.django_store(settings.RATEKEEPER["store"])) == {}


def test_a_view_that_raises_is_settled_as_a_failure(configured):
    def fails(request):
        raise LookupError

    async def async_fails(request):
        raise LookupError

    configured()
    for view in (fails, async_fails):
        answers = []
        with pytest.raises(LookupError):
            ask(
                limited(ONE, settle=lambda request, answer, answers=answers: answers.append(answer), name=str(view))(
                    view
                )
            )
        assert answers == [Answer(500, 0)]


# --- the REST framework


def rest(*throttles, **environ):
    class Api(APIView):
        throttle_classes = throttles

        def get(self, request):
            return Response({})

    return Api.as_view()(RequestFactory().get("/", **environ))


def test_a_throttle_has_its_rate_from_the_settings(configured):
    configured()

    class Scoped(RateLimitThrottle):
        scope = "scoped"

    responses = [rest(Scoped) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert responses[2].headers["RateLimit-Policy"] == '"fixed-window 2/day";q=2;w=86400'


@pytest.mark.parametrize(
    ("on_error", "expected"), [("local", [200, 429]), ("open", [200, 200]), ("closed", [429, 429])]
)
def test_a_throttle_whose_store_is_away_follows_on_error(configured, on_error, expected):
    configured(store=f"redis://127.0.0.1:{servers.free_port()}", on_error=on_error)

    class Daily(RateLimitThrottle):
        limit = ONE

    assert [rest(Daily).status_code for _ in range(2)] == expected


def test_the_tightest_of_several_throttles_is_told_and_the_longest_wait(configured):
    configured()

    class Tight(RateLimitThrottle):
        limit = "fixed-window 1/400days"

    class Wide(RateLimitThrottle):
        limit = "fixed-window 1/day; 100/day"

    rest(Tight, Wide)
    response = rest(Tight, Wide)
    assert response.headers["X-RateLimit-Remaining"] == "0"
    assert int(response.headers["Retry-After"]) > 86400


@pytest.mark.parametrize(("outer", "inner"), [(10, 2), (2, 10)])
def test_the_tighter_of_the_middleware_and_a_throttle_is_reported(configured, outer, inner):
    configured(limit={"outer": FixedWindow(outer, "400 days")})

    class Inner(RateLimitThrottle):
        limit = {"inner": FixedWindow(inner, "400 days")}  # noqa: RUF012 - as users write it

    class Api(APIView):
        throttle_classes = (Inner,)

        def get(self, request):
            return Response({})

    with override_settings(ROOT_URLCONF=type("Urls", (), {"urlpatterns": [path("", Api.as_view())]})):
        responses = [Client().get("/") for _ in range(3)]
    assert [(each.status_code, each.headers["X-RateLimit-Remaining"]) for each in responses] == [
        (200, "1"),
        (200, "0"),
        (429, "0"),
    ]
    tight = "outer" if outer < inner else "inner"
    assert {each.headers["RateLimit-Policy"] for each in responses} == {f'"{tight}";q=2;w=34560000'}


def test_a_throttle_that_can_never_admit_states_no_time(configured):
    configured()

    class Dear(RateLimitThrottle):
        limit = "10/day"

        @staticmethod
        def cost(request):
            return 11

    response = rest(Dear)
    assert (response.status_code, "Retry-After" in response.headers) == (429, False)


def test_a_throttle_may_not_limit_a_request(configured):
    configured()

    class Free(RateLimitThrottle):
        @staticmethod
        def limit(request):
            return None

    assert "X-RateLimit-Limit" not in rest(Free).headers


def test_a_throttle_holds_what_is_shaped(configured):
    configured()

    class Shaped(RateLimitThrottle):
        limit = "leaky-bucket 100/s burst 5 shaping"

    assert [rest(Shaped).status_code for _ in range(3)] == [200] * 3


# --- bad input fails at start-up


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ({"limit": "many"}, InvalidRule, "route '\\*': cannot read rule 'many'"),
        ({"limits": "1/s"}, InvalidRule, "settings.RATEKEEPER: there is no option 'limits'"),
        ({"exempt": iter(["/a"])}, TypeError, "settings.RATEKEEPER\\['exempt'\\] must be a list"),
        ({"key": "nowhere.key"}, InvalidRule, "nowhere"),
        ({"store": "mongodb://x"}, InvalidRule, "has an unknown scheme"),
        (["1/s"], TypeError, "settings.RATEKEEPER must be a dict"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once(view, setting, error, message):
    with override_settings(RATEKEEPER=setting), pytest.raises(error, match=message):
        RateLimitMiddleware(view)


def test_a_limit_that_cannot_work_is_refused_where_it_is_written():
    with pytest.raises(InvalidRule, match="cannot read rule 'many'"):
        limited("many")(hello)
    with pytest.raises(TypeError, match="key is a coroutine function, which cannot be awaited here"):
        limited(ONE, key=async_hello)(hello)


def test_a_setting_that_cannot_work_is_refused_where_a_view_is_limited(configured):
    configured(key=async_hello)
    limited(ONE)(async_hello)
    with pytest.raises(TypeError, match="key is a coroutine function, which cannot be awaited here"):
        limited(ONE)(hello)


def test_a_throttle_that_cannot_work_is_refused_where_it_is_written():
    with pytest.raises(InvalidRule, match="cannot read rule 'many'"):
        type("Many", (RateLimitThrottle,), {"limit": "many"})
    with pytest.raises(InvalidRule, match="DEFAULT_THROTTLE_RATES has no rate for its scope 'nowhere'"):
        type("Nowhere", (RateLimitThrottle,), {"scope": "nowhere"})
