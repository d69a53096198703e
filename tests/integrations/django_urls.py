"""The views that real servers serve: the same routes sync and, under ASGI, async."""

import asyncio
import collections
import os

from django.http import HttpResponse, HttpResponseNotModified, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from rest_framework.response import Response
from rest_framework.views import APIView

from ratekeeper import FixedWindow
from ratekeeper.integrations.django import limited
from ratekeeper.integrations.rest_framework import RateLimitThrottle

LONG = "400 days"
PLANS = {"free": "1/day", "house": None}
seen = collections.Counter()

for_plan = limited(lambda request: PLANS[request.raw.headers["x-plan"]])
for_size = limited(
    FixedWindow(1000, LONG),
    cost=lambda request: int((request.header("x-cost") or ["100"])[0]),
    settle=lambda request, answer: answer.size,
)
for_fifty = limited(FixedWindow(50, LONG))
for_shaping = limited("leaky-bucket 50/s burst 20 shaping")
for_brief = limited("fixed-window 2/s")


def chunks(count, client):
    try:
        for number in range(count):
            yield f"{number}\n"
    finally:
        seen[f"ended {client}"] += 1


async def async_chunks(count, client):
    try:
        for number in range(count):
            yield f"{number}\n"
            await asyncio.sleep(0)  # other tasks run, and the disconnect of the client is noticed
    finally:
        seen[f"ended {client}"] += 1


def hello(request):
    return HttpResponse("hello")


async def async_hello(request):
    return HttpResponse("hello")


def how_many(request):
    return HttpResponse(str(seen[request.GET["client"]]))


def stream(request):
    return StreamingHttpResponse(chunks(100, request.headers["x-client"]))


async def async_stream(request):
    return StreamingHttpResponse(async_chunks(100, request.headers["x-client"]))


def long(request):
    return StreamingHttpResponse(chunks(10_000_000, request.headers["x-client"]))


async def async_long(request):
    return StreamingHttpResponse(async_chunks(10_000_000, request.headers["x-client"]))


def not_modified(request):
    response = HttpResponseNotModified()
    response.headers["ETag"] = '"1"'
    return response


def fails(request):
    raise LookupError("the view failed")


async def async_fails(request):
    raise LookupError("the view failed")


@csrf_exempt
def echo(request):
    return HttpResponse(request.body)


class ByClient(RateLimitThrottle):
    limit = {"three": FixedWindow(3, LONG)}  # noqa: RUF012 - as users write it

    @staticmethod
    def key(request):
        return request.raw.headers["x-client"]


class Rest(APIView):
    throttle_classes = (ByClient,)

    def get(self, request):
        return Response({"hello": "world"})


is_async = "ASYNC_VIEWS" in os.environ
hello_view, stream_view = (async_hello, async_stream) if is_async else (hello, stream)
urlpatterns = [
    path("", hello_view),
    path("healthz", hello),
    path("seen", how_many),
    path("stream", stream_view),
    path("long", async_long if is_async else long),
    path("sized", for_size(stream_view)),
    path("not-modified", not_modified),
    path("fails", async_fails if is_async else fails),
    path("echo", echo),
    path("plan", for_plan(hello_view)),
    path("concurrent", for_fifty(hello_view)),
    path("shaped", for_shaping(hello_view)),
    path("brief", for_brief(hello_view)),
    path("rest/three", Rest.as_view()),
]
