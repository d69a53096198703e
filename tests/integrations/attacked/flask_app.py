"""The attacked Flask application."""

from flask import Flask, request

from ratekeeper.integrations.flask import RateLimiter
from tests.integrations.attacked.limits import OPTIONS, STATIC, shown

app = Flask(__name__, static_folder=STATIC)
limit, options = OPTIONS.get("limit"), {name: value for name, value in OPTIONS.items() if name != "limit"}
limiter = RateLimiter(app, application=limit, **options)


@app.route("/login", methods=["GET", "POST"])
def login():
    return shown("login" if request.method == "POST" else "form")


def add(path, name, **options):
    app.add_url_rule(path, name, lambda **_: shown(name), **options)


add("/users/<id>", "user", methods=["GET", "OPTIONS"])
add("/slack", "slack", strict_slashes=False)
add("/any/cheap", "cheap")
add("/any/<path:rest>", "any")
add("/mine", "mine", methods=["POST"])
add("/named", "named")
add("/keyed", "keyed")
add("/other", "other")
add("/healthz", "health")
add("/open/<path:rest>", "open")
