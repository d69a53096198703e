"""Rate limits for any ASGI application, as one plain middleware class.

    app = RateLimitMiddleware(app, "100/minute", exempt=["/healthz"])

HTTP requests and WebSocket connections are limited. Streams and lifespan events pass through unchanged.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.http import Admission, Answer, AsyncGate, Reply, Route
from ratekeeper.http.asgi_types import AsgiApp, Message, Receive, Scope, Send
from ratekeeper.http.headers import NAMES, encode
from ratekeeper.http.reports import Report
from ratekeeper.http.request import HeaderMapping
from ratekeeper.http.routes import Limit
from ratekeeper.http.url_paths import below
from ratekeeper.http.users import user_id
from ratekeeper.integrations.cors import Cors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ratekeeper.http import Options

__all__ = ["RateLimitMiddleware", "Route", "ScopeRequest"]

_MAX_HELD_BYTES = 65_536  # of a body, read while its request is held; the rest stays in the socket
_POLICY_VIOLATION = 1008
_LAST = ("http.response.body", "http.response.pathsend")  # the messages that end a response, unless more_body is set
_NAMES = frozenset(name.lower().encode() for name in NAMES)


class ScopeRequest:
    """An ASGI scope as a request of `ratekeeper.http`."""

    __slots__ = ("_own_root_path", "scope")

    def __init__(self, scope: Scope, own_root_path: str = "") -> None:
        """`own_root_path` is the one that the application sets, whatever the server says."""
        self.scope: Scope = scope
        self._own_root_path = own_root_path

    @property
    def raw(self) -> Scope:
        return self.scope

    @property
    def method(self) -> str:
        return self.scope.get("method", "WEBSOCKET")  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        return below(self.root_path, self.scope["path"])

    @property
    def root_path(self) -> str:
        return self._own_root_path or self.scope.get("root_path") or ""

    @property
    def context(self) -> Scope:
        return self.scope

    @property
    def peer(self) -> str | None:
        client = self.scope.get("client")
        return client[0] if client else None

    @property
    def user_id(self) -> str | None:
        """The user that an authentication middleware has put in the scope, or the one in the request's state."""
        return user_id(self.scope.get("user")) or user_id(self.scope.get("state", {}).get("user"))

    @property
    def headers(self) -> Mapping[str, str]:
        return HeaderMapping((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.scope["headers"])

    def header(self, name: str) -> Sequence[str]:
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for known, value in self.scope["headers"] if known == wanted]


class RateLimitMiddleware:
    """Limits an application. `limit` and the options are those of `ratekeeper.http.Gate`."""

    request_type: type[ScopeRequest] = ScopeRequest
    """What the gate and the application's functions get."""

    def __init__(self, app: AsgiApp, limit: Limit = None, **options: Unpack[Options]) -> None:
        self.app = app
        self._root_path = _own_root_path(app)
        self._cors = Cors(app)
        try:
            self.gate = self.make_gate(limit, options)
        except Exception as error:
            if not _is_built_by_starlette():
                raise
            self.gate = _FailedGate(error)

    def make_gate(self, limit: Limit, options: Options) -> AsyncGate:
        """Return the gate; an error fails the start of the server."""
        return AsyncGate(limit, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, connection or lifespan."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await (self._live(scope, receive, send) if kind == "lifespan" else self.app(scope, receive, send))
            return
        gate = self.gate
        is_options = scope.get("method") == "OPTIONS"
        if is_options and not gate.count_preflights and await self._cors.answers(scope, receive, send):
            return
        request = self.request_type(scope, self._root_path)
        admission = await gate.admit(request, correctable=False)
        if admission is None:
            await self.app(scope, receive, send)
            return
        decision = admission.decision
        if not decision.allowed:
            answer = functools.partial(refuse, gate.denial(request, admission))
            # Around the denial of a preflight, CORSMiddleware would answer it.
            await (answer if is_options and gate.count_preflights else self._cors.around(answer))(scope, receive, send)
        elif decision.delay:
            await self._hold(request, admission, receive, send)
        elif admission.taken is not None and admission.settles:
            await self._settle(request, admission, receive, send)
        else:  # nearly always
            await self.app(scope, receive, _telling(gate.report(scope, admission), send))

    async def _settle(self, request: ScopeRequest, admission: Admission, receive: Receive, send: Send) -> None:
        """Serve a request, and settle its cost if the route has a settle function."""
        report = self.gate.report(request.scope, admission)
        settlement = _SettledSender(self.gate, request, admission, _telling(report, send))
        try:
            await self.app(request.raw, receive, settlement.send)
        finally:
            await settlement.finish()

    async def _hold(self, request: ScopeRequest, admission: Admission, receive: Receive, send: Send) -> None:
        """Hold a request for its delay; if the client disconnects meanwhile, drop the request."""
        listener = _Listener(receive)
        try:
            try:
                has_disconnected = await listener.disconnects_within(admission.decision.delay)
            finally:
                self.gate.leave(admission)
            if not has_disconnected:
                await self._settle(request, admission, listener.receive, send)
        finally:
            listener.close()

    def check(self) -> None:
        """Raise what is wrong with the limits; called when the server starts."""
        if isinstance(self.gate, _FailedGate):
            raise self.gate.error

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a lifespan."""
        try:
            self.check()
        except Exception as error:  # noqa: BLE001 - whatever it is, the application cannot start
            await receive()  # lifespan.startup
            message = f"{type(error).__name__}: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            raise error.with_traceback(None) from None  # for test clients
        else:
            await self.app(scope, receive, self._closing(send))

    def _closing(self, send: Send) -> Send:
        async def close_at_the_end(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self.gate.close()
            await send(message)

        return close_at_the_end


class _FailedGate(AsyncGate):
    """Takes the place of a gate that could not be made, until the server can be told.

    Starlette creates its middleware when the server first calls the application. If that raised an exception, the
    server would assume that the application does not support lifespan events, and go on with an error per request.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def admit(self, *_: Any, **__: Any) -> Admission | None:
        raise self.error.with_traceback(None)  # each time anew, or it would grow


def _is_built_by_starlette() -> bool:
    """Tell whether Starlette or FastAPI is creating its middleware."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "build_middleware_stack":
            return True
        frame = frame.f_back
    return False


def _own_root_path(app: Any) -> str:
    """Return the root path that the application, or one that it wraps, sets itself, as FastAPI(root_path=...) does."""
    for _ in range(100):
        own = getattr(app, "root_path", None)
        if isinstance(own, str):
            return own
        app = getattr(app, "app", None)
    return ""


async def refuse(reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
    """Deny a request, or a WebSocket connection before it is accepted."""
    start: Message = {"status": reply.status, "headers": encode(reply.headers)}
    if scope["type"] == "http":
        await send({"type": "http.response.start", **start})
        await send({"type": "http.response.body", "body": reply.body})
        return
    await receive()  # websocket.connect
    if "websocket.http.response" in (scope.get("extensions") or ()):
        await send({"type": "websocket.http.response.start", **start})
        await send({"type": "websocket.http.response.body", "body": reply.body})
    else:
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": "rate limit exceeded"})


def _telling(report: Report, send: Send) -> Send:
    """Add headers to the start of a response; headers that are set already are kept."""

    def tell(message: Message) -> Awaitable[None]:  # not a coroutine, which would cost time for every chunk of a stream
        if message["type"] in ("http.response.start", "websocket.accept"):
            given = [*(message.get("headers") or ())]  # which may be an iterator
            own = report.encoded_fields()
            for name, _ in given:
                if name in _NAMES:
                    own = [field for field in own if field[0] != name]
            message = {**message, "headers": [*given, *own]}
        return send(message)

    return tell


class _SettledSender:
    """Sends a response on, and settles the cost when it is complete."""

    def __init__(self, gate: AsyncGate, request: ScopeRequest, admission: Admission, send: Send) -> None:
        self._gate = gate
        self._request = request
        self._admission = admission
        self._send = send
        self._status = 500  # if the application raises an exception
        self._size = 0
        self._settled = False

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._status = message["status"]
        elif kind == "websocket.accept":
            self._status = 101
        self._size += _size(message)
        await self._send(message)
        if kind in _LAST and not message.get("more_body"):
            await self.finish()  # before the application's background tasks

    async def finish(self) -> None:
        if not self._settled:
            self._settled = True
            answer = Answer(self._status, self._size)
            settling = asyncio.ensure_future(self._gate.settle(self._request, self._admission, answer))
            _settling.add(settling)
            settling.add_done_callback(_settling.discard)
            await asyncio.shield(settling)  # frameworks cancel the sender when the client disconnects


def _size(message: Message) -> int:
    """Return the number of bytes or characters in a message."""
    if message["type"] == "http.response.pathsend":  # a file that the server reads itself
        with suppress(OSError):  # the server reports a missing file
            return Path(message["path"]).stat().st_size
    return len(message.get("body") or message.get("bytes") or message.get("text") or "")


_settling: set[asyncio.Future[None]] = set()  # a loop holds its tasks weakly


class _Listener:
    """Notices when the client disconnects, and keeps what it sends until then for the application."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: deque[Message] = deque()
        self._size = 0
        self._coming: asyncio.Future[Message] | None = None

    async def disconnects_within(self, seconds: float) -> bool:
        """Wait this long, or until the client disconnects; tell whether it did."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while (left := ends - loop.time()) > 0:
            if self._size >= _MAX_HELD_BYTES:
                await asyncio.sleep(left)
                break
            if self._coming is None:
                self._coming = asyncio.ensure_future(self._receive())
            done, _ = await asyncio.wait([self._coming], timeout=left)
            if done:
                message = self._coming.result()
                self._coming = None
                if message["type"].endswith(".disconnect"):
                    return True
                self._kept.append(message)
                self._size += len(message.get("body", b""))
        return False

    async def receive(self) -> Message:
        """Return the messages that were kept, then new ones."""
        if self._kept:
            return self._kept.popleft()
        coming, self._coming = self._coming, None
        return await (self._receive() if coming is None else coming)

    def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
