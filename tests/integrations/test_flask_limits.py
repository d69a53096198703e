"""The Flask extension: which limits apply to a view, with their options; the settings of Flask-Limiter."""

import pytest
from flask import Blueprint, request
from flask.views import MethodView

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Reply, Route
from ratekeeper.integrations.flask import RateLimiter, RateLimitExceeded
from tests import inside
from tests.integrations.test_flask import an_app, statuses

ONE = FixedWindow(1, "400 days")
TWO = FixedWindow(2, "400 days")
THREE = FixedWindow(3, "400 days")
BOTH = ["GET", "POST"]


def add(app, path, limited, **options):
    """Add a view with this limit."""
    app.add_url_rule(path, view_func=limited(lambda: "hello"), endpoint=path[1:], **options)


def asked(app, *requests):
    """The statuses of requests such as "POST /a"."""
    client = app.test_client()
    return [client.open(path, method=method).status_code for method, path in map(str.split, requests)]


# --- which limits apply


def test_a_limit_for_some_methods_replaces_the_default_for_these_only():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    add(app, "/c", limiter.limit(TWO, methods=["post"]), methods=BOTH)
    assert asked(app, "POST /c", "POST /c", "POST /c", "GET /c", "GET /c") == [200, 200, 429, 200, 429]


def test_a_limit_for_get_replaces_the_default_for_head_as_well():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    add(app, "/c", limiter.limit(TWO, methods=["GET"]))
    assert asked(app, "GET /c", "HEAD /c", "HEAD /c", "GET /c") == [200, 200, 429, 429]


def test_a_limit_may_leave_the_default_in_force():
    limiter = RateLimiter(default=TWO)
    app = an_app(limiter)
    add(app, "/c", limiter.limit(THREE, override_defaults=False))
    assert statuses(app, "/c", "/c", "/c") == [200, 200, 429]


def test_the_methods_of_a_class_replace_the_default():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)

    class View(MethodView):
        @limiter.limit(TWO)
        def get(self):
            return "got"

        def post(self):
            return "posted"

    app.add_url_rule("/c", view_func=View.as_view("c"))
    requests = ("GET /c", "HEAD /c", "GET /c", "POST /c", "POST /c")
    assert asked(app, *requests) == [200, 200, 429, 200, 429]


def test_a_limit_of_another_extension_replaces_no_default():
    limiter, other = RateLimiter(default=ONE), RateLimiter()
    app = an_app(limiter)
    other.init_app(app)
    add(app, "/c", other.limit(TWO))
    assert statuses(app, "/c", "/c") == [200, 429]


def nested(limiter, app, **limits):
    """An application with /outer and /outer/inner; the limits are those of their blueprints."""
    outer, inner = Blueprint("outer", __name__, url_prefix="/outer"), Blueprint("inner", __name__, url_prefix="/inner")
    for blueprint, name in ((outer, "outer"), (inner, "inner")):
        blueprint.add_url_rule("/", view_func=lambda: "hello", endpoint="view", methods=BOTH)
        if name in limits:
            limits[name](blueprint)
    outer.register_blueprint(inner)
    app.register_blueprint(outer)


def test_a_blueprint_may_leave_outer_limits_in_force():
    limiter = RateLimiter(default=THREE)
    app = an_app(limiter)
    nested(limiter, app, outer=limiter.limit(ONE), inner=limiter.limit(TWO, override_defaults=False))
    assert asked(app, "GET /outer/inner/", "GET /outer/inner/") == [200, 429]  # the limit of the outer one
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    nested(limiter, app, inner=limiter.limit(TWO, override_defaults=False))
    assert asked(app, "GET /outer/inner/", "GET /outer/inner/") == [200, 429]  # the default


def test_a_blueprint_s_limit_for_some_methods_leaves_the_others_to_the_default():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    nested(limiter, app, outer=limiter.limit(TWO, methods=["POST"]))
    assert asked(app, "GET /outer/", "GET /outer/") == [200, 429]
    assert asked(app, "POST /outer/", "POST /outer/", "POST /outer/") == [200, 200, 429]


def test_a_default_and_the_limit_of_the_application_may_have_options_of_their_own():
    limiter = RateLimiter(
        default=Route("*", ONE, per_method=True, key=lambda: "all"),
        application=Route("*", "100/day", cost=30, deny="too much", name=""),
    )
    app = an_app(limiter)
    app.add_url_rule("/c", "c", lambda: "c", methods=BOTH)
    assert asked(app, "GET /c", "POST /c", "GET /c", "GET /a") == [200, 200, 429, 429]
    assert app.test_client().get("/a").json["detail"] == "too much"


def test_a_default_with_a_name_counts_all_views_together():
    assert statuses(an_app(RateLimiter(default=Route("*", TWO, name="all"))), "/a", "/b", "/a") == [200, 200, 429]


@pytest.mark.parametrize("value", [1, "no"])
def test_whether_a_limit_overrides_is_true_or_false(value):
    with pytest.raises(TypeError, match="override_defaults must be True or False, not"):
        RateLimiter().limit(ONE, override_defaults=value)


# --- options of one limit


def test_each_method_may_have_its_own_budget():
    limiter = RateLimiter()
    app = an_app(limiter)
    add(app, "/c", limiter.limit(ONE, per_method=True), methods=BOTH)
    assert asked(app, "GET /c", "POST /c", "HEAD /c", "POST /c") == [200, 200, 429, 429]


def test_a_limit_may_have_its_own_text():
    limiter = RateLimiter(default=ONE, deny="usual")
    app = an_app(limiter)
    add(app, "/c", limiter.limit(ONE, deny=lambda request, decision: f"chill, {request.raw.args['who']}!"))
    app.errorhandler(RateLimitExceeded)(lambda error: (error.description, 429))
    client = app.test_client()
    texts = [[client.get(path).text for _ in range(2)][1] for path in ("/a", "/c?who=Ada")]
    assert texts == ["usual", "chill, Ada!"]


def test_a_limit_may_have_its_own_response():
    limiter = RateLimiter()
    app = an_app(limiter)
    add(app, "/c", limiter.limit(ONE, deny=lambda request, decision: Reply(418, [], b"teapot")))
    assert statuses(app, "/c", "/c") == [200, 418]


def test_functions_without_arguments_use_the_context_of_flask():
    def user():
        return request.args.get("user")

    limiter = RateLimiter(key=user, exempt=[lambda: request.args.get("user") == "root"])
    app = an_app(limiter)
    add(app, "/c", limiter.limit(lambda: ONE if request.args["user"] != "ada" else TWO))
    paths = [f"/c?user={name}" for name in ("ada", "ada", "ada", "bob", "bob", "root", "root")]
    assert statuses(app, *paths) == [200, 200, 429, 200, 429, 200, 200]


@pytest.mark.parametrize("strategy", [None, "fixed-window"])
def test_rules_may_come_from_a_function_of_the_key(strategy):
    limiter = RateLimiter(default=lambda key: "1/day" if key == "all" else "2/day", key=lambda: "all")
    assert statuses(an_app(limiter, RATELIMIT_STRATEGY=strategy), "/a", "/a") == [200, 429]


@pytest.mark.parametrize("strategy", [None, "fixed-window"])
def test_rules_may_come_from_a_function_without_arguments(strategy):
    app = an_app(RateLimiter(default=lambda: "1/day"), RATELIMIT_STRATEGY=strategy)
    assert statuses(app, "/a", "/a") == [200, 429]


# --- a part of a view


def app_with_a_part(limit):
    """An application whose view /c limits a part of itself, with what `limit` returns for each request."""
    limiter = RateLimiter(default="5000/day")
    app = an_app(limiter)

    @app.get("/c")
    def c():
        if "part" not in request.args:
            return "whole"
        with limit(limiter) as decision:
            return "none" if decision is None else str(decision.remaining)

    return app


@pytest.mark.parametrize("rules", [TWO, [TWO], "2/day", lambda: TWO])
def test_a_part_of_a_view_may_be_limited(rules):
    app = app_with_a_part(lambda limiter: limiter.limit(rules))
    client = app.test_client()
    assert [client.get("/c?part=1").text for _ in range(2)] == ["1", "0"]
    denied = client.get("/c?part=1")
    assert (denied.status_code, denied.headers["X-RateLimit-Limit"]) == (429, "2")
    assert client.get("/c").text == "whole"


def test_parts_that_share_a_name_share_their_budget():
    app = app_with_a_part(lambda limiter: limiter.limit(TWO, name="upload"))
    assert [app.test_client().get("/c?part=1").text for _ in range(2)] == ["1", "0"]


def test_limits_that_are_made_anew_for_each_request_do_not_pile_up():
    app = app_with_a_part(lambda limiter: limiter.limit("2000/day", key=lambda: "k"))
    client = app.test_client()
    for _ in range(1100):
        client.get("/c?part=1")
    assert client.get("/c?part=1").text == "899"
    assert inside.gates_of_views(app) <= 1000


def test_a_part_is_not_limited_while_limits_are_switched_off():
    limiter = RateLimiter(enabled=False)
    app = an_app(limiter)

    @app.get("/c")
    def c():
        with limiter.limit(ONE) as decision:
            return str(decision)

    assert [app.test_client().get("/c").text for _ in range(2)] == ["None", "None"]


def test_an_error_inside_of_a_limited_part_is_raised():
    limiter = RateLimiter()
    app = an_app(limiter)

    @app.get("/c")
    def c():
        with limiter.limit(ONE):
            raise LookupError

    assert statuses(app, "/c") == [500]


# --- the settings of Flask-Limiter


def test_more_settings_of_flask_limiter_are_known():
    app = an_app(
        RateLimiter(),
        RATELIMIT_KEY_FUNC=lambda: request.headers.get("x-client"),
        RATELIMIT_DEFAULT="1/day",
        RATELIMIT_DEFAULTS_PER_METHOD=True,
        RATELIMIT_APPLICATION="10/day",
        RATELIMIT_APPLICATION_COST=3,
        RATELIMIT_HEADER_RETRY_AFTER_VALUE="delta-seconds",
        RATELIMIT_HEADER_LIMIT="X-RateLimit-Limit",
        RATELIMIT_FAIL_ON_FIRST_BREACH=True,
        RATELIMIT_STORAGE_OPTIONS={},
        RATELIMIT_META=None,
    )
    app.add_url_rule("/c", "c", lambda: "c", methods=BOTH)
    client = app.test_client()

    def ask(method, path, who):
        return client.open(path, method=method, headers={"x-client": who}).status_code

    seen = [ask("GET", "/c", "ada"), ask("POST", "/c", "ada"), ask("GET", "/c", "ada"), ask("GET", "/a", "ada")]
    assert seen == [200, 200, 429, 429]  # the last one by the limit of the application, at a cost of 3 each
    assert ask("GET", "/c", "bob") == 200


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("RATELIMIT_STORAGE_URL", "redis://localhost", "use RATELIMIT_STORAGE_URI"),
        ("RATELIMIT_STORAGE_OPTIONS", {"socket_timeout": 1}, r"use a store object, RateLimiter\(store="),
        ("RATELIMIT_REQUEST_IDENTIFIER", lambda: "x", "use name= of a limit, or key="),
        ("RATELIMIT_HEADER_LIMIT", "X-Limit", r"use headers=Headers\(...\)"),
        ("RATELIMIT_HEADER_RETRY_AFTER", "X-Retry", r"use headers=Headers\(...\)"),
        ("RATELIMIT_HEADER_RETRY_AFTER_VALUE", "http-date", "use 'delta-seconds'"),
        ("RATELIMIT_IN_MEMORY_FALLBACK", "1/minute", "use RATELIMIT_ON_ERROR = 'local'"),
        ("RATELIMIT_FAIL_ON_FIRST_BREACH", False, "use one limit with several rules"),
        ("RATELIMIT_ON_BREACH_CALLBACK", print, "use deny="),
        ("RATELIMIT_META", "2/hour", "use a second rule with a longer window"),
        ("RATELIMIT_ON_META_BREACH_CALLBACK", print, "use deny="),
        ("RATELIMIT_DEFAULTS_EXEMPT_WHEN", print, "use a function of the request: default=lambda request"),
        ("RATELIMIT_APPLICATION_EXEMPT_WHEN", print, "use a function of the request: application=lambda request"),
        ("RATELIMIT_DEFAULTS_DEDUCT_WHEN", print, r"use default=Route\(.*settle="),
        ("RATELIMIT_APPLICATION_DEDUCT_WHEN", print, r"use application=Route\(.*settle="),
        ("RATELIMIT_DEFAULTS_PER_METHOD", True, "needs RATELIMIT_DEFAULT; or write default=Route"),
        ("RATELIMIT_APPLICATION_COST", 2, "needs RATELIMIT_APPLICATION; or write application=Route"),
        ("RATELIMIT_DEFALT", "1/minute", "is not a setting of this extension"),
    ],
)
def test_a_setting_that_has_no_meaning_is_rejected_with_what_to_use_instead(name, value, instead):
    with pytest.raises(InvalidRule, match=f"{name} .*{instead}"):
        an_app(RateLimiter(), **{name: value})
