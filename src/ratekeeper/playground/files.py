"""The static files of the page, read once and revalidated by ETag."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from ratekeeper.service.web import HTML, Response, ServiceRequest

if TYPE_CHECKING:
    from ratekeeper.service.web import Handler, Router

_TYPES = {
    ".html": HTML,
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_ASK_AGAIN = (b"cache-control", b"no-cache")


def mount(router: Router) -> None:
    """Add a route for each file, and the page at /."""
    for file in files("ratekeeper.playground").joinpath("static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            router.add("GET", path, _serving(file.read_bytes(), kind))


def _serving(content: bytes, kind: bytes) -> Handler:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'.encode()
    headers = [(b"etag", etag), _ASK_AGAIN]

    async def serve(request: ServiceRequest) -> Response:
        if etag in request.headers.get(b"if-none-match", b""):
            return Response(304, b"", headers, kind)
        return Response(200, content, headers, kind)

    return serve
