"""The programs that the lines of Flask-Limiter's patterns stand in, and those of ours."""

from compare.moving.page import OURS, THEIRS
from compare.moving.peer import Peer

# `current_user` stands for that of Flask-Login: the user whom the header X-User names.
_IMPORTS = """
from flask import Blueprint, Flask, Response, current_app, g, jsonify, make_response, request
from flask.views import MethodView
from types import SimpleNamespace
from werkzeug.local import LocalProxy
from werkzeug.middleware.proxy_fix import ProxyFix

current_user = LocalProxy(lambda: SimpleNamespace(
    username=request.headers.get("X-User", "anonymous"), is_admin=request.headers.get("X-User") == "root"
))
"""
_THEIR_IMPORTS = f"""{_IMPORTS}
from flask_limiter import ApplicationLimit, ExemptionScope, Limit, Limiter, MetaLimit, RequestLimit, RouteLimit
from flask_limiter.constants import HeaderNames
from flask_limiter.util import get_remote_address
"""
_OUR_IMPORTS = f"""{_IMPORTS}
from ratekeeper.http import Headers, Reply, by_address, by_header, by_path, combine
from ratekeeper.integrations.flask import RateLimiter, RateLimitExceeded, Route
from ratekeeper.testing import reset_limiters
"""
_LIMITED = """
@app.route("/a", methods=["GET", "POST"])
{lines}
def a():
    return ("a", 404) if "X-Missing" in request.headers else "a"

@app.get("/b/<number>")
{lines}
def b(number):
    return "b"

@app.get("/c")
def c():
    return "c"
"""
_VIEWS = _LIMITED.replace("{lines}\n", "")
_SETTINGS = """
{lines}
app = Flask("program")
app.config.update(
    {"RATELIMIT_DEFAULT": "2/minute", "RATELIMIT_STORAGE_URI": "memory://"}
    | {name: value for name, value in globals().items() if name.startswith("RATELIMIT_")}
)
"""

PEER = Peer(
    packages=("flask-limiter", "flask"),
    extras="flask,redis",
    client="flask",
    frames={
        (THEIRS, "program"): f"{_THEIR_IMPORTS}{{lines}}",
        (THEIRS, "view"): f"""{_THEIR_IMPORTS}
app = Flask("program")
limiter = Limiter(get_remote_address, app=app, storage_uri="memory://")
{_LIMITED}""",
        (THEIRS, "option"): f"""{_THEIR_IMPORTS}
app = Flask("program")
options = {{"key_func": get_remote_address, "default_limits": ["2/minute"], "storage_uri": "memory://"}}
limiter = Limiter(app=app, **{{**options, **dict({{lines}})}})
{_VIEWS}""",
        (THEIRS, "setting"): f"""{_THEIR_IMPORTS}{_SETTINGS}
limiter = Limiter(app.config.get("RATELIMIT_KEY_FUNC", get_remote_address), app=app)
{_VIEWS}""",
        (OURS, "program"): f"{_OUR_IMPORTS}{{lines}}",
        (OURS, "view"): f"""{_OUR_IMPORTS}
app = Flask("program")
limiter = RateLimiter(app)
{_LIMITED}""",
        (OURS, "option"): f"""{_OUR_IMPORTS}
app = Flask("program")
limiter = RateLimiter(app, **{{"default": "2/minute", **dict({{lines}})}})
{_VIEWS}""",
        (OURS, "setting"): f"""{_OUR_IMPORTS}{_SETTINGS}
limiter = RateLimiter(app)
{_VIEWS}""",
    },
)
