"""The Flask application that real servers run."""

import collections
import os

from flask import Blueprint, Flask, Response, request

from ratekeeper import FixedWindow
from ratekeeper.http import by_header
from ratekeeper.integrations.flask import RateLimiter

LONG = "400 days"  # a window that does not end while the tests run
PLANS = {"free": "1/day", "house": None}
seen = collections.Counter()
limiter = RateLimiter(default={"three": FixedWindow(3, LONG)}, key=by_header("x-client"), on_error="raise", deadline=10)
views = Blueprint("views", __name__)


def chunks(count, client):
    try:
        for number in range(count):
            yield f"{number}\n"
    finally:
        seen[f"ended {client}"] += 1


@views.get("/")
def hello():
    return "hello"


@views.get("/healthz")
@limiter.exempt
def health():
    return "hello"


@views.get("/seen")
@limiter.exempt
def how_many():
    return str(seen[request.args["client"]])


@views.get("/stream")
def stream():
    return Response(chunks(100, request.headers["x-client"]), mimetype="text/plain")


@views.get("/long")
def long():
    return Response(chunks(10_000_000, request.headers["x-client"]), mimetype="text/plain")


@views.get("/sized")
@limiter.limit(
    FixedWindow(1000, LONG),
    cost=lambda request: int((request.header("x-cost") or ["100"])[0]),
    settle=lambda request, answer: answer.size,
)
def sized():
    return Response(chunks(100, request.headers["x-client"]), mimetype="text/plain")


@views.get("/not-modified")
def not_modified():
    return Response(status=304, headers={"ETag": '"1"'})


@views.get("/fails")
def fails():
    raise LookupError("the view failed")


@views.post("/echo")
def echo():
    return request.get_data()


@views.get("/plan")
@limiter.limit(lambda request: PLANS[request.raw.headers["x-plan"]])
def plan():
    return "hello"


@views.get("/concurrent")
@limiter.limit(FixedWindow(50, LONG))
async def concurrent():
    return "hello"


@views.get("/shaped")
@limiter.limit("leaky-bucket 50/s burst 20 shaping")
def shaped():
    return "hello"


@views.get("/brief")
@limiter.limit("fixed-window 2/s")
def brief():
    return "hello"


def create_app():
    app = Flask(__name__)
    app.config["RATELIMIT_STORAGE_URI"] = os.environ["RATEKEEPER_STORE"]
    limiter.init_app(app)
    app.register_blueprint(views)
    return app


app = create_app()
