"""The programs that the lines of slowapi's patterns stand in, and those of ours."""

from compare.moving.page import OURS, THEIRS
from compare.moving.peer import Peer

_THEIR_IMPORTS = """
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from slowapi.util import get_ipaddr, get_remote_address
from starlette.applications import Starlette
"""
_OUR_IMPORTS = """
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from ratekeeper.http import Headers, Reply, by_address, by_header, by_path, combine
from ratekeeper.integrations.fastapi import RateLimitExceeded, RateLimitMiddleware, Route, limited
from ratekeeper.testing import reset_limiters
from starlette.applications import Starlette
"""
_THEIR_LIMITER = """
app = FastAPI()
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
"""

PEER = Peer(
    packages=("slowapi", "fastapi", "httpx"),
    extras="fastapi,redis",
    client="asgi",
    frames={
        (THEIRS, "program"): _THEIR_IMPORTS + "{lines}",
        (THEIRS, "view"): f"""{_THEIR_IMPORTS}
limiter = Limiter(key_func=get_remote_address)
{_THEIR_LIMITER}

@app.api_route("/a", methods=["GET", "POST"])
{{lines}}
async def a(request: Request, response: Response):
    return "a"

@app.get("/b/{{number}}")
{{lines}}
async def b(request: Request, response: Response):
    return "b"
""",
        (THEIRS, "option"): f"""{_THEIR_IMPORTS}
options = dict({{lines}})
limiter = Limiter(**{{"key_func": get_remote_address, "default_limits": ["2/minute"], **options}})
{_THEIR_LIMITER}
app.add_middleware(SlowAPIMiddleware)

@app.get("/a")
async def a(request: Request):
    return "a"

@app.get("/b/{{number}}")
async def b(request: Request):
    return "b"
""",
        (OURS, "program"): _OUR_IMPORTS + "{lines}",
        (OURS, "view"): f"""{_OUR_IMPORTS}
app = FastAPI()

@app.api_route("/a", methods=["GET", "POST"])
{{lines}}
async def a():
    return "a"

@app.get("/b/{{number}}")
{{lines}}
async def b():
    return "b"
""",
        (OURS, "option"): f"""{_OUR_IMPORTS}
app = FastAPI()
app.add_middleware(RateLimitMiddleware, **{{"default": "2/minute", **dict({{lines}})}})

@app.api_route("/a", methods=["GET", "POST"])
async def a():
    return "a"

@app.get("/b/{{number}}")
async def b():
    return "b"
""",
    },
)
