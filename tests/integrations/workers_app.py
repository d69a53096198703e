"""An application, for WSGI and for ASGI, whose answers tell which process of a server they come from."""

import os

from ratekeeper import FixedWindow
from ratekeeper.integrations import asgi, wsgi

LIMIT = {"all": FixedWindow(200, "400 days")}  # a window that does not end while the tests run
OPTIONS = {"store": os.environ["RATEKEEPER_STORE"], "exempt": ["/healthz"], "on_error": "closed", "deadline": 10}


def application(_, start_response):
    start_response("200 OK", [])
    return [b"done"]


limited = wsgi.RateLimitMiddleware(application, LIMIT, **OPTIONS)


def wsgi_app(environ, start_response):
    def start(status, headers, exc_info=None):
        return start_response(status, [*headers, ("x-process", str(os.getpid()))], exc_info)

    return limited(environ, start)


async def async_application(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


async_limited = asgi.RateLimitMiddleware(async_application, LIMIT, **OPTIONS)


async def asgi_app(scope, receive, send):
    async def tell(message):
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-process", str(os.getpid()).encode())]
        await send(message)

    await (async_limited if scope["type"] == "http" else async_application)(scope, receive, tell)
