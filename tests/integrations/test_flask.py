"""The Flask extension."""

import pytest
from flask import Blueprint, Flask, Response, g
from flask.views import MethodView

from ratekeeper import FixedWindow, InvalidRule
from ratekeeper.http import Answer, Headers, Route, by_header
from ratekeeper.integrations.flask import RateLimiter, RateLimitExceeded
from tests import servers
from tests.integrations.behaviour import OnAServer
from tests.integrations.processes import GUNICORN, STORES, Process

ONE = FixedWindow(1, "400 days")
TWO = FixedWindow(2, "400 days")


@pytest.fixture(scope="module", params=STORES)
def server(request):
    with Process("-m", *GUNICORN, "tests.integrations.flask_app:app", store=request.param) as server:
        yield server


class TestOnAServer(OnAServer):
    pass


def an_app(limiter, **config):
    """An application with two views, /a and /b."""
    app = Flask(__name__)
    app.config.update(config)
    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    app.add_url_rule("/b", "b", lambda: "b")
    return app


def statuses(app, *paths, **options):
    client = app.test_client()
    return [client.get(path, **options).status_code for path in paths]


def test_a_default_counts_for_each_view():
    assert statuses(an_app(RateLimiter(default=ONE)), "/a", "/a", "/b", "/b") == [200, 429, 200, 429]


def test_a_limit_on_the_application_counts_for_all_views_together():
    assert statuses(an_app(RateLimiter(application=TWO)), "/a", "/b", "/a", "/none") == [200, 200, 429, 429]


def test_what_is_not_found_has_no_default():
    assert statuses(an_app(RateLimiter(default=ONE)), "/none", "/none") == [404, 404]


def test_static_files_have_no_default():
    assert statuses(an_app(RateLimiter(default=ONE)), "/static/none", "/static/none") == [404, 404]


def test_a_view_that_is_named_static_has_its_default(tmp_path):
    app = an_app(RateLimiter(default=ONE))
    for name, folder in (("views", None), ("files", tmp_path)):
        blueprint = Blueprint(name, __name__, url_prefix=f"/{name}", static_folder=folder)
        if folder is None:
            blueprint.add_url_rule("/", "static", lambda: "a view")
        app.register_blueprint(blueprint)
    assert statuses(app, "/views/", "/views/") == [200, 429]
    assert statuses(app, "/files/static/none", "/files/static/none") == [404, 404]
    bare = Flask(__name__, static_folder=None)
    RateLimiter(bare, default=ONE)
    bare.add_url_rule("/", "static", lambda: "a view")
    assert statuses(bare, "/", "/") == [200, 429]


@pytest.mark.parametrize(("rules", "expected"), [("0/m", [429, 429]), ("nonsense", [200, 429]), (None, [200, 200])])
def test_a_function_s_bad_rules_never_mean_no_limit(rules, expected):
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    app.add_url_rule("/c", view_func=limiter.limit(lambda request: rules)(lambda: "c"), endpoint="c")
    assert statuses(app, "/c", "/c") == expected
    assert limiter.notices.counts["degraded"] == (2 if rules == "nonsense" else 0)
    assert limiter.notices.counts["unlimited"] == (2 if rules is None else 0)


def test_the_tightest_limit_is_told():
    client = an_app(RateLimiter(default=TWO, application="1000/day")).test_client()
    assert client.get("/a").headers["X-RateLimit-Limit"] == "2"


def test_a_view_may_have_a_limit_of_its_own():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    app.add_url_rule("/c", view_func=limiter.limit(TWO)(lambda: "c"), endpoint="c")
    assert statuses(app, "/c", "/c", "/c") == [200, 200, 429]


def test_a_view_may_have_several_limits():
    limiter = RateLimiter(key=by_header("x-client"))
    app = an_app(limiter)

    @app.get("/c")
    @limiter.limit(TWO, key=lambda request: "all")
    @limiter.limit(ONE)
    def c():
        return "c"

    client = app.test_client()
    assert [client.get("/c", headers={"x-client": who}).status_code for who in "aabc"] == [200, 429, 429, 429]


def test_a_limit_may_be_for_some_methods():
    limiter = RateLimiter()
    app = an_app(limiter)
    app.add_url_rule(
        "/c", view_func=limiter.limit(ONE, methods=["POST"])(lambda: "c"), endpoint="c", methods=["GET", "POST"]
    )
    client = app.test_client()
    assert [client.post("/c").status_code, client.post("/c").status_code, client.get("/c").status_code] == [
        200,
        429,
        200,
    ]


def test_views_that_are_limited_under_one_name_count_together():
    limiter = RateLimiter()
    app = an_app(limiter)
    shared = limiter.limit(ONE, name="database")
    app.add_url_rule("/c", view_func=shared(lambda: "c"), endpoint="c")
    app.add_url_rule("/d", view_func=shared(lambda: "d"), endpoint="d")
    assert statuses(app, "/c", "/d", "/a") == [200, 429, 200]


def test_the_methods_of_a_class_count_for_themselves():
    limiter = RateLimiter()
    app = an_app(limiter)

    class View(MethodView):
        @limiter.limit(ONE)
        def get(self):
            return "got"

        @limiter.limit(ONE)
        def post(self):
            return "posted"

    app.add_url_rule("/c", view_func=View.as_view("c"))
    client = app.test_client()
    assert [client.get("/c").status_code, client.post("/c").status_code, client.get("/c").status_code] == [
        200,
        200,
        429,
    ]


def test_classes_that_are_limited_count_for_themselves():
    limiter = RateLimiter()
    app = an_app(limiter)

    class View(MethodView):
        decorators = (limiter.limit(ONE),)

        def get(self):
            return "got"

    app.add_url_rule("/c", view_func=View.as_view("c"))
    app.add_url_rule("/d", view_func=View.as_view("d"))
    assert statuses(app, "/c", "/d", "/c") == [200, 200, 429]


def a_blueprint(name, *paths):
    blueprint = Blueprint(name, __name__)
    for path in paths:
        blueprint.add_url_rule(path, path[1:], lambda: "x")
    return blueprint


def test_a_blueprint_is_limited_view_by_view():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    blueprint = a_blueprint("some", "/c", "/d")
    blueprint.add_url_rule("/e", view_func=limiter.limit(ONE)(lambda: "e"), endpoint="e")
    app.register_blueprint(limiter.limit(TWO)(blueprint))
    assert statuses(app, "/c", "/c", "/c", "/d", "/e", "/e") == [200, 200, 429, 200, 200, 429]


def test_a_blueprint_is_limited_as_a_whole_under_a_name():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter)
    blueprint = a_blueprint("some", "/c", "/d")
    limiter.limit(TWO, name="some")(blueprint)
    app.register_blueprint(blueprint, name="other")
    assert statuses(app, "/c", "/d", "/c") == [200, 200, 429]


def test_the_innermost_of_nested_blueprints_counts():
    limiter = RateLimiter()
    app = an_app(limiter)
    outer, inner = a_blueprint("outer", "/c"), a_blueprint("inner", "/d")
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    limiter.limit(ONE)(outer)
    limiter.limit(TWO)(inner)
    assert statuses(app, "/c", "/c", "/d", "/d", "/d") == [200, 429, 200, 200, 429]


def test_views_and_blueprints_may_be_exempt():
    limiter = RateLimiter(default=ONE, application=ONE)
    app = an_app(limiter)
    app.add_url_rule("/c", view_func=limiter.exempt(lambda: "c"), endpoint="c")
    app.register_blueprint(limiter.exempt(a_blueprint("some", "/d")))
    assert statuses(app, "/c", "/c", "/d", "/d") == [200, 200, 200, 200]


def test_paths_may_be_exempt_and_have_rules():
    limiter = RateLimiter(default=ONE, exempt=["/a"], routes=[Route("/b*", TWO, name="")])
    assert statuses(an_app(limiter), "/a", "/a", "/b", "/b") == [200, 200, 200, 429]


def test_paths_may_come_from_what_can_be_read_once():
    limiter = RateLimiter(default=ONE, exempt=iter(["/a"]))
    assert statuses(an_app(limiter), "/a", "/a", "/b", "/b") == [200, 200, 200, 429]


def test_an_error_handler_may_answer_a_denial():
    app = an_app(RateLimiter(default=ONE))

    @app.errorhandler(429)
    def handle(error):
        assert isinstance(error, RateLimitExceeded)
        return f"{error.decision.limit} {error.description}", 429

    client = app.test_client()
    client.get("/a")
    answer = client.get("/a")
    assert answer.text.startswith("1 Rate limit exceeded; try again in")
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.headers.getlist("X-RateLimit-Remaining") == ["0"]


def test_a_key_function_sees_the_context_of_the_request():
    limiter = RateLimiter(default=ONE, key=lambda request: g.user)
    app = Flask(__name__)
    app.before_request(lambda: setattr(g, "user", "ada"))
    limiter.init_app(app)
    app.add_url_rule("/a", "a", lambda: "a")
    assert statuses(app, "/a", "/a") == [200, 429]


def test_one_extension_serves_several_applications():
    limiter = RateLimiter(default=ONE)
    one, other = an_app(limiter), an_app(limiter)
    assert statuses(one, "/a", "/a") + statuses(other, "/a", "/a") == [200, 429, 200, 429]


def test_a_view_of_an_application_that_was_forgotten_says_so():
    app = Flask(__name__)
    app.config["PROPAGATE_EXCEPTIONS"] = True
    app.add_url_rule("/a", view_func=RateLimiter().limit(ONE)(lambda: "a"), endpoint="a")
    with pytest.raises(RuntimeError, match="init_app was not called"):
        app.test_client().get("/a")


def test_an_answer_that_is_not_a_stream_is_settled_by_its_size():
    answers = []
    limiter = RateLimiter(default=ONE, settle=lambda request, answer: answers.append(answer))
    app = an_app(limiter)
    app.add_url_rule("/c", "c", lambda: Response("12345", 201))
    app.test_client().get("/c").close()
    assert answers == [Answer(201, 5)]


# --- the configuration


def test_the_config_has_what_users_of_flask_limiter_know():
    app = an_app(
        RateLimiter(),
        RATELIMIT_DEFAULT="2/day",
        RATELIMIT_STRATEGY="fixed-window",
        RATELIMIT_APPLICATION=["3/day"],
        RATELIMIT_STORAGE_URI="memory://",
        RATELIMIT_KEY_PREFIX="mine",
        RATELIMIT_IN_MEMORY_FALLBACK_ENABLED=True,
        RATELIMIT_HEADERS_ENABLED=True,
        RATELIMIT_DEADLINE=0.2,
    )
    client = app.test_client()
    assert client.get("/a").headers["RateLimit-Policy"] == '"fixed-window 2/day";q=2;w=86400'
    assert statuses(app, "/a", "/a", "/b") == [200, 429, 429]  # the second denial is the application's


def test_the_constructor_counts_more_than_the_config():
    app = an_app(RateLimiter(default=ONE, headers=Headers()), RATELIMIT_DEFAULT=TWO, RATELIMIT_HEADERS_ENABLED=False)
    assert app.test_client().get("/a").headers["X-RateLimit-Limit"] == "1"


def test_it_can_be_switched_off():
    limiter = RateLimiter(default=ONE)
    app = an_app(limiter, RATELIMIT_ENABLED=False)
    app.add_url_rule("/c", view_func=limiter.limit(ONE)(lambda: "c"), endpoint="c")
    assert statuses(app, "/a", "/a", "/c", "/c") == [200, 200, 200, 200]
    assert limiter.notices.counts["unlimited"] == 4


def test_headers_can_be_switched_off():
    client = an_app(RateLimiter(default=ONE), RATELIMIT_HEADERS_ENABLED=False).test_client()
    client.get("/a")
    answer = client.get("/a")
    assert (answer.status_code, "Retry-After" in answer.headers, "RateLimit" in answer.headers) == (429, False, False)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ("5/day, token-bucket 2/day", ['"sliding-window-log 5/day"', '"token-bucket 2/day burst 2"']),
        ([FixedWindow(2, 60), "5/day"], ['"fixed-window 2/minute"', '"sliding-window-log 5/day"']),
        ({"mine": "5/day"}, ['"mine"']),
        (lambda request: "5/day", ['"sliding-window-log 5/day"']),
    ],
)
def test_the_strategy_is_for_rates_that_name_no_algorithm(rules, names):
    client = an_app(RateLimiter(default=rules), RATELIMIT_STRATEGY="moving-window").test_client()
    policies = client.get("/a").headers["RateLimit-Policy"].split(", ")
    assert [policy.split(";")[0] for policy in policies] == names


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [200, 429]),
        ({"RATELIMIT_IN_MEMORY_FALLBACK_ENABLED": True}, [200, 429]),
        ({"RATELIMIT_SWALLOW_ERRORS": True}, [200, 200]),
        ({"RATELIMIT_ON_ERROR": "closed"}, [429, 429]),
        ({"RATELIMIT_ON_ERROR": "raise"}, [500, 500]),
    ],
)
def test_what_happens_while_the_store_is_away_is_configured(config, expected):
    config = {"RATELIMIT_STORAGE_URI": f"redis://127.0.0.1:{servers.free_port()}", **config}
    assert statuses(an_app(RateLimiter(default=ONE), **config), "/a", "/a") == expected


# --- bad input fails at start-up


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"RATELIMIT_DEFAULT": "many"}, "cannot read rule 'many'"),
        ({"RATELIMIT_APPLICATION": "0/s"}, "rule '0/s'"),
        ({"RATELIMIT_STRATEGY": "elastic"}, "RATELIMIT_STRATEGY must be one of fixed-window, .* not 'elastic'"),
        ({"RATELIMIT_STORAGE_URI": "mongodb://x"}, "store 'mongodb://x' has an unknown scheme"),
        ({"RATELIMIT_MEAT": "1/day"}, "RATELIMIT_MEAT is not a setting of this extension"),
    ],
)
def test_a_config_that_cannot_work_is_refused_at_once(config, message):
    with pytest.raises(InvalidRule, match=message):
        an_app(RateLimiter(), **config)


def test_a_limit_that_cannot_work_is_refused_where_it_is_written():
    with pytest.raises(InvalidRule, match="cannot read rule 'many'"):
        RateLimiter().limit("many")
    with pytest.raises(TypeError, match="key must take one argument, the request"):
        RateLimiter(key=lambda one, two: "k")
