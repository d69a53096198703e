"""What newcomers write by mistake: it is refused with what to write instead or, if it cannot be, logged."""

import pytest
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.views import View
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Blueprint, Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as StarletteRoute

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Gate, Route
from ratekeeper.integrations import django
from ratekeeper.integrations.fastapi import RateLimit, RateLimitMiddleware, limited
from ratekeeper.integrations.flask import RateLimiter

ONE = FixedWindow(1, "400 days")
TWO = FixedWindow(2, "400 days")


def statuses(app, path="/a"):
    client = TestClient(app) if isinstance(app, Starlette) else app.test_client()
    return [client.get(path).status_code for _ in range(2)]


# --- FastAPI and Starlette


@pytest.mark.parametrize("router", [FastAPI, APIRouter])
def test_a_limit_above_the_route_s_decorator_is_logged(router, caplog):
    app = FastAPI()
    routes = app if router is FastAPI else APIRouter()

    @limited(ONE)
    @routes.get("/a")
    async def view():
        return "a"

    if routes is not app:
        app.include_router(routes)
    assert statuses(app) == [200, 200]  # the route calls the view itself
    assert "view' was a route before it was limited; write @limited(...) below the route's decorator" in caplog.text


def test_limits_below_the_route_s_decorator_are_not_logged(caplog):
    app = FastAPI()

    @app.get("/a")
    @limited(TWO)
    @limited(ONE)
    async def view():
        return "a"

    assert statuses(app) == [200, 429]
    assert caplog.text == ""


def test_a_limit_above_the_endpoint_of_a_starlette_route_is_logged(caplog):
    def view(request):
        return PlainTextResponse("a")

    routes = [StarletteRoute("/a", view)]
    limited(ONE)(view)
    assert statuses(Starlette(routes=routes)) == [200, 200]
    assert "was a route before it was limited" in caplog.text


def test_a_decorator_without_a_limit_is_refused():
    app = FastAPI()
    with pytest.raises(TypeError, match=r"write limits as in @limited\('10/minute'\)"):

        @app.get("/a")
        @limited
        async def view():
            return "a"

    async def another(request):
        return PlainTextResponse("a")

    with pytest.raises(TypeError, match=r"write it as in @limited\('10/minute'\)"):
        statuses(Starlette(routes=[StarletteRoute("/a", limited(another))]))


def test_a_dependency_is_declared_with_depends():
    app = FastAPI()
    with pytest.raises(TypeError, match=r"write dependencies=\[Depends\(RateLimit"):
        app.get("/a", dependencies=[RateLimit(ONE)])(lambda: "a")
    with pytest.raises(TypeError, match=r"or dependencies=\[Depends\(RateLimit"):
        app.get("/a", dependencies=[Depends(limited(ONE))])(lambda: "a")


def test_a_test_client_raises_the_error_of_a_middleware():
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limit="ten per minute")
    with pytest.raises(InvalidRule, match="ten per minute"), TestClient(app):
        pass


# --- Flask


@pytest.mark.parametrize("when", ["at once", "later", "in a blueprint"])
def test_a_limit_above_the_route_of_flask_is_logged_with_the_first_request(when, caplog):
    app = Flask(__name__)
    limiter = RateLimiter(None if when == "later" else app)
    routes = Blueprint("some", __name__) if when == "in a blueprint" else app
    limiter.limit(ONE)(routes.get("/a")(lambda: "a"))
    if routes is not app:
        app.register_blueprint(routes)
    if when == "later":
        limiter.init_app(app)
    assert statuses(app) == [200, 200]  # the route calls the view itself
    assert caplog.text.count("is not limited; write its limit below @app.route(...), not above") == 1
    assert limiter.notices.counts["unlimited"] == 1


def test_limits_in_the_right_order_are_not_logged(caplog):
    app = Flask(__name__)
    limiter = RateLimiter(app)
    view = limiter.limit(TWO)(limiter.limit(ONE)(lambda: "a"))
    app.add_url_rule("/a", "a", view)
    app.add_url_rule("/b", "b", view.__wrapped__.__wrapped__)  # without limits, on purpose
    assert statuses(app) == [200, 429]
    assert limiter.notices.counts["unlimited"] == 0


def test_a_limit_of_flask_without_its_rules_is_refused():
    app = Flask(__name__)
    limiter = RateLimiter(app)
    with pytest.raises(AttributeError, match=r"write it with a limit, as in @limiter.limit\('10/minute'\)"):
        app.get("/a")(limiter.limit(lambda: "a"))


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (["1/day"], {}, "app must be a Flask application, not '1/day'; pass limits as default="),
        ([], {"limit": "1/day"}, "there is no option 'limit'; the options are default, application, "),
        ([], {"default_limits": ["1/day"]}, r"there is no option 'default_limits' \(did you mean 'default'\?\)"),
    ],
)
def test_the_extension_says_which_options_it_has(arguments, options, error):
    with pytest.raises(TypeError, match=error):
        RateLimiter(*arguments, **options)


def test_an_application_is_limited_once():
    app = Flask(__name__)
    limiter = RateLimiter(app, default=TWO)
    with pytest.raises(RuntimeError, match="would count each request twice"):
        limiter.init_app(app)


# --- Django


class Page(View):
    def get(self, request):
        return HttpResponse("a")

    @django.limited(ONE)
    def post(self, request):
        return HttpResponse("a")


def test_a_limited_class_is_refused():
    with pytest.raises(TypeError, match=r"Page is a class; write @method_decorator\(limited\(...\), name='dispatch'\)"):
        django.limited(ONE)(Page)


def test_a_method_is_limited_with_method_decorator():
    with pytest.raises(TypeError, match=r"on a method, write @method_decorator\(limited\(...\)\)"):
        Page.as_view()(RequestFactory().post("/"))


def test_a_decorator_of_django_without_a_limit_is_refused():
    with pytest.raises(TypeError, match=r"write it as in @limited\('10/minute'\)"):
        django.limited(lambda request: HttpResponse("a"))(RequestFactory().get("/"))


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (
            {"LIMIT": "1/day"},
            r"settings.RATEKEEPER: there is no option 'LIMIT' \(did you mean 'limit'\?\); the options",
        ),
        ({"limit": ONE, "key": "ip"}, "settings.RATEKEEPER: 'key' must be a function or its dotted name, not 'ip'"),
    ],
)
def test_a_mistake_in_the_setting_is_named(setting, error):
    with override_settings(RATEKEEPER=setting), pytest.raises(InvalidRule, match=error):
        django.RateLimitMiddleware(lambda request: HttpResponse("a"))


@override_settings(RATEKEEPER={"limit": ONE, "deny": "Slow down, please."})
def test_the_setting_takes_the_text_of_denials():
    middleware = django.RateLimitMiddleware(lambda request: HttpResponse("a"))
    assert b"Slow down, please." in [middleware(RequestFactory().get("/")).content for _ in range(2)][1]


# --- everywhere


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/users/<int:id>", r"has its parts in braces, as in '/users/\{id\}', unlike '/users/<int:id>'"),
        ("/login/.*", r"is no regular expression; for all below it, write '\*', unlike '/login/.\*'"),
    ],
)
def test_a_path_that_would_match_nothing_is_refused(path, error):
    with pytest.raises(InvalidRule, match=error):
        Route(path, ONE)


@pytest.mark.parametrize(("limit", "cost"), [(ONE, 2), ({"a": ONE, "b": TWO}, {"a": 1, "b": 3})])
def test_a_cost_that_no_request_can_pay_is_refused(limit, cost):
    with pytest.raises(InvalidRule, match=r"cost \d is above the limit of 'fixed-window ./400d', so every request"):
        Gate(limit, cost=cost)


def test_a_cost_may_be_above_the_limit_of_a_rule_that_is_only_tried_out():
    assert Gate({"a": ONE, "b": TWO}, cost={"a": 2}, shadow=["a"])


def test_an_unknown_option_is_named_with_all_that_there_are():
    with pytest.raises(
        TypeError, match=r"there is no option 'storage_uri' \(did you mean 'store'\?\); the options are"
    ):
        Gate(ONE, storage_uri="memory://")
