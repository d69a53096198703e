"""Limited applications that pages of other origins may use, with the limits and CORS in either order."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from ratekeeper import FixedWindow
from ratekeeper.integrations.fastapi import RateLimitMiddleware

TWO = FixedWindow(2, "400 days")
asked: list[str] = []


def application(path, *middleware):
    limited = FastAPI()
    limited.get("/")(lambda: "hello")
    for kind, options in middleware:
        limited.add_middleware(kind, **options)
    app.mount(path, limited)


class Noting:
    """Notes the method of each request."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and not scope["path"].startswith("/asked"):
            asked.append(f"{scope['method']} {scope['path']}")
        await self.app(scope, receive, send)


app = FastAPI()
app.add_middleware(Noting)
app.get("/healthz")(lambda: "hello")
app.get("/asked")(lambda: asked)
limits = RateLimitMiddleware, {"limit": TWO}
cors = (
    CORSMiddleware,
    {
        "allow_origins": ["*"],
        "allow_headers": ["x-a"],
        "expose_headers": ["Retry-After", "RateLimit"],
        "max_age": 0,  # so that each request has a preflight of its own
    },
)
application("/limits-first", cors, limits)
application("/cors-first", limits, cors)
