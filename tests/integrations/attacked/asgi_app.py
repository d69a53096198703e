"""The attacked applications on Starlette and FastAPI: by themselves, and mounted with limits of their own."""

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, WebSocketRoute
from starlette.routing import Route as Path
from starlette.staticfiles import StaticFiles

from ratekeeper.integrations.fastapi import RateLimitMiddleware
from tests.integrations.attacked.limits import OPTIONS, STATIC, shown


def view(name):
    async def answer(request):
        return PlainTextResponse(shown(name))

    return answer


class Login(HTTPEndpoint):
    get, post = (staticmethod(view(name)) for name in ("form", "login"))


async def chat(websocket):
    await websocket.accept()
    await websocket.send_text(shown("chat"))
    await websocket.close()


def paths():
    return [
        Path("/login", Login),
        Path("/users/{id}", view("user"), methods=["GET", "OPTIONS"]),
        Path("/slack", view("slack")),
        Path("/slack/", view("slack")),
        Path("/any/cheap", view("cheap")),
        Path("/any/{rest:path}", view("any")),
        Path("/mine", view("mine"), methods=["POST"]),
        Path("/named", view("named")),
        Path("/keyed", view("keyed")),
        Path("/other", view("other")),
        Path("/healthz", view("health")),
        WebSocketRoute("/chat/live", chat),
        Path("/open/{rest:path}", view("open")),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


limits = Middleware(RateLimitMiddleware, **OPTIONS)
mounted = Starlette(routes=paths(), middleware=[limits])


class KeepsTheApplication(CORSMiddleware):
    """Keeps the application under a name of its own, and sends it all requests."""

    def __init__(self, app, **options):
        super().__init__(app, **options)
        self.inner = app

    async def __call__(self, scope, receive, send):
        await self.inner(scope, receive, send)


cors = Middleware(CORSMiddleware, allow_origins=["*"])
starlette = Starlette(routes=[Mount("/mounted", mounted), *paths()], middleware=[limits, cors])


def fastapi(**options):
    app = FastAPI(root_path="/api", **options)
    app.router.routes += paths()
    return app


def limited_fastapi():
    return fastapi(middleware=[limits, Middleware(KeepsTheApplication)])


def wrapped_fastapi():
    """The limits around the framework, instead of inside of it."""
    return RateLimitMiddleware(KeepsTheApplication(GZipMiddleware(fastapi())), **OPTIONS)
