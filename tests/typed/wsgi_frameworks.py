"""What users of WSGI, Flask and Django write, checked with mypy --strict as they would; nothing here is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from flask import Blueprint, Flask
from flask.typing import ResponseReturnValue
from flask.views import MethodView
from rest_framework.views import APIView

from ratekeeper import FixedWindow, TokenBucket
from ratekeeper.http import Answer, Headers, Request, by_address, by_user, first_of
from ratekeeper.integrations.django import RateLimitMiddleware as DjangoMiddleware
from ratekeeper.integrations.django import limited
from ratekeeper.integrations.flask import RateLimiter, RateLimitExceeded
from ratekeeper.integrations.rest_framework import RateLimitThrottle
from ratekeeper.integrations.wsgi import RateLimitMiddleware, Route

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def plan(request: Request) -> str | None:
    return None if request.header("x-house") else "100/minute"


def settle(request: Request, answer: Answer) -> int:
    return answer.size


# --- WSGI


def bare(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b""]


app: WSGIApplication = RateLimitMiddleware(
    bare,
    plan,
    routes=[Route("/files/*", TokenBucket(1_000_000, 1000), cost=100, settle=settle)],
    exempt=["/healthz"],
    key=first_of(by_user(), by_address(["10.0.0.0/8"])),
    headers=Headers(legacy=False),
    store="memory://",
    on_error="open",
    max_waiters=4,
)
RateLimitMiddleware(bare, max_waiters="4")  # type: ignore[arg-type]

# --- Flask

flask = Flask(__name__)
limiter = RateLimiter(flask, default="100/minute", application=FixedWindow(1000, "1h"), key=by_address())
later = RateLimiter()
later.init_app(flask)
blueprint = limiter.limit("60/hour", methods=["GET"])(Blueprint("some", __name__))
blueprint.add_url_rule("/", view_func=limiter.exempt(lambda: "free"))


class Items(MethodView):
    decorators = [limiter.limit("10/minute", per_method=True, override_defaults=False, shadow=True)]  # noqa: RUF012

    def get(self) -> ResponseReturnValue:
        with limiter.limit("5/minute", deny="Slow down, please.") as decision:
            return "" if decision is None else str(decision.remaining)


@flask.get("/search/<query>")
@limiter.limit(plan, cost=2, name="search")
def search(query: str) -> ResponseReturnValue:
    return query


@limiter.limit("5/minute", settle=settle)
async def fetch() -> str:
    return "fetched"


@flask.errorhandler(RateLimitExceeded)
def too_many(error: RateLimitExceeded) -> ResponseReturnValue:
    return {"try again in": error.decision.retry_after}, 429


search(1)  # type: ignore[arg-type]

# --- Django


@limited("5/minute", key=by_user(), methods=["POST"])
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


@limited(plan, name="reports")
async def report(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse()


@method_decorator(limited("5/minute"), name="dispatch")
class Page(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return login(request)


middleware = DjangoMiddleware(login)
login("request")  # type: ignore[arg-type]


class Burst(RateLimitThrottle):
    limit = "60/minute"
    key = by_address()
    cost = 2
    scope = "burst"


class Api(APIView):
    throttle_classes = (Burst,)
