"""Rate limits for any WSGI application, as one plain middleware class.

    app = RateLimitMiddleware(app, "100/minute", exempt=["/healthz"])

Streams pass through unchanged. A request that a shaping bucket holds occupies its thread.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ratekeeper.http import Admission, Answer, Gate, Reply, Route
from ratekeeper.http.headers import NAMES, Fields
from ratekeeper.http.reports import Report
from ratekeeper.http.request import HeaderMapping
from ratekeeper.http.routes import Limit

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = ["EnvironRequest", "RateLimitMiddleware", "Route"]

_NAMES = frozenset(map(str.lower, NAMES))
_WITHOUT_PREFIX = ("CONTENT_TYPE", "CONTENT_LENGTH")  # the headers whose variables do not begin with HTTP_
MAX_HELD = 10  # the default of max_waiters here: each held request occupies a thread


class RateLimitMiddleware:
    """Limits an application. `limit` and the options are those of `ratekeeper.http.Gate`."""

    def __init__(self, app: WSGIApplication, limit: Limit = None, **options: Unpack[Options]) -> None:
        options.setdefault("max_waiters", MAX_HELD)
        self.app = app
        self.gate = Gate(limit, **options)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        gate = self.gate
        request = EnvironRequest(environ)
        admission = gate.admit(request, correctable=False)
        if admission is None:
            return self.app(environ, start_response)
        if not admission.decision.allowed:
            return refuse(start_response, gate.denial(request, admission))
        if admission.decision.delay:
            gate.hold(admission)
        report = gate.report(environ, admission)
        if admission.settles:
            return self._settled(request, admission, report, start_response)

        def start(status: str, headers: Fields, exc_info: Any = None) -> Callable[[bytes], object]:
            return start_response(status, told(headers, report.fields()), exc_info)

        return self.app(environ, start)

    def _settled(
        self, request: EnvironRequest, admission: Admission, report: Report, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve a request, and settle its cost when the response has been sent."""
        status_code = 500  # if the application raises an exception
        written = 0  # through write(), as only old applications do

        def start(status: str, headers: Fields, exc_info: Any = None) -> Callable[[bytes], object]:
            nonlocal status_code
            status_code = int(status[:3])
            write = start_response(status, told(headers, report.fields()), exc_info)

            def count(chunk: bytes) -> object:
                nonlocal written
                written += len(chunk)
                return write(chunk)

            return count

        def settle(size: int) -> None:
            self.gate.settle(request, admission, Answer(status_code, written + size))

        try:
            return Counted(self.app(request.environ, start), settle)
        except BaseException:
            settle(0)
            raise


class EnvironRequest:
    """A WSGI environ as a request of `ratekeeper.http`; `raw` is the framework's own request, if there is one.

    It has all other attributes of the framework's request as well. WSGI servers join header lines with the same name,
    so a header has at most one value here.
    """

    __slots__ = ("environ", "raw")

    def __init__(self, environ: WSGIEnvironment, raw: Any = None) -> None:
        self.environ = environ
        self.raw: Any = environ if raw is None else raw

    @property
    def method(self) -> str:
        return self.environ["REQUEST_METHOD"]  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return _decoded(self.environ.get("PATH_INFO") or "/")

    @property
    def root_path(self) -> str:
        return _decoded(self.environ.get("SCRIPT_NAME") or "")

    @property
    def context(self) -> MutableMapping[str, Any]:
        return self.environ

    @property
    def peer(self) -> str | None:
        return self.environ.get("REMOTE_ADDR") or None

    @property
    def user_id(self) -> str | Awaitable[str | None] | None:
        return self.environ.get("REMOTE_USER") or None

    @property
    def headers(self) -> Mapping[str, str]:
        if self.raw is not self.environ:
            return self.raw.headers  # type: ignore[no-any-return]
        lines = ((_header(variable), value) for variable, value in self.environ.items())
        return HeaderMapping((name, value) for name, value in lines if name is not None)

    def header(self, name: str) -> Sequence[str]:
        value = self.environ.get(_variable(name))
        return () if value is None else (value,)

    def __getattr__(self, name: str) -> Any:
        if name not in ("environ", "raw") and self.raw is not self.environ:
            return getattr(self.raw, name)
        raise AttributeError(f"the request has no attribute {name!r}; see its `raw`", name=name, obj=self)


class Counted:
    """A body that is passed on, and reports its size in bytes at its end."""

    def __init__(self, body: Iterable[bytes], at_end: Callable[[int], None]) -> None:
        self._body = body
        self._at_end = at_end
        self._size = 0
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._body:
            self._size += len(chunk)
            yield chunk

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._at_end(self._size)


def refuse(start_response: StartResponse, reply: Reply) -> Iterable[bytes]:
    """Deny a request."""
    start_response(f"{reply.status} {_phrase(reply.status)}", reply.headers)
    return [reply.body]


def told(headers: Fields, fields: Fields) -> Fields:
    """Add headers; those that are set already are kept."""
    kept = [lower for name, _ in headers if (lower := name.lower()) in _NAMES]
    return headers + ([field for field in fields if field[0].lower() not in kept] if kept else fields)


def _decoded(path: str) -> str:
    return path if path.isascii() else path.encode("latin-1").decode("utf-8", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Denied"


def _header(variable: str) -> str | None:
    """Return the name of the header that a variable of the environ has."""
    if variable.startswith("HTTP_"):
        return variable[5:].replace("_", "-")
    return variable.replace("_", "-") if variable in _WITHOUT_PREFIX else None


@functools.lru_cache(maxsize=256)
def _variable(header: str) -> str:
    name = header.upper().replace("-", "_")
    return name if name in _WITHOUT_PREFIX else f"HTTP_{name}"
