"""What a route needs and no more: requests, responses, a router, and problems (RFC 9457) for errors."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from ratekeeper.http.headers import EncodedFields

_Name = TypeVar("_Name", bytes, str)
_Body = TypeVar("_Body")
_any_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
MAX_BODY = 64 * 1024
MAX_PARTS = 1_000  # of a body that arrives in parts: the smallest chunk takes as long as a large one
JSON = b"application/json"
PROBLEM = b"application/problem+json"
HTML = b"text/html; charset=utf-8"

CLOSE = [(b"connection", b"close")]
NO_STORE = (b"cache-control", b"no-store")
_UNREADABLE_ELSEWHERE: EncodedFields = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FOR_PAGES: EncodedFields = [
    (b"content-security-policy", _POLICY),
    (b"referrer-policy", b"no-referrer"),
    *_UNREADABLE_ELSEWHERE,
]
"""Security headers for pages: they run nothing from other origins, and other origins cannot embed or read them."""
FOR_DATA: EncodedFields = [
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    NO_STORE,
    *_UNREADABLE_ELSEWHERE,
]
"""Security headers for data: nothing to run, nothing to cache."""


class Problem(Exception):
    """An error that becomes the response; `field` names the invalid part of the request."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
        reasons: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers
        self.reasons = reasons
        """All that is wrong, if there is more to say than one sentence."""

    def response(self) -> Response:
        """Return the response with the problem document."""
        return Response(self.status, msgspec.json.encode(self.document()), self.headers, PROBLEM)

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        document: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            document["field"] = self.field
        if self.reasons:
            document["reasons"] = self.reasons
        return document


class Response:
    """A response. `headers` are bytes with lower-case names; security headers are added automatically.

    JSON is never cached; other content may be, as its headers say.
    """

    __slots__ = ("body", "common", "own", "status")

    def __init__(
        self, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = (), content_type: bytes = JSON
    ) -> None:
        self.status = status
        self.body = body
        is_data = content_type is JSON or content_type is PROBLEM
        self.own: EncodedFields = [(b"content-type", content_type), *headers]
        self.common = FOR_DATA if is_data else FOR_PAGES


def json_response(value: Any, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = ()) -> Response:
    """Return a JSON response; infinite numbers become null."""
    return Response(status, msgspec.json.encode(value), headers)


class ServiceRequest:
    """One HTTP request."""

    __slots__ = (
        *("_body", "_read", "client", "headers", "method", "max_bytes", "params", "path", "query_string", "repeated"),
    )

    def __init__(  # noqa: PLR0917 - keywords would cost as much as the rest
        self,
        method: str,
        path: str,
        query_string: bytes,
        headers: dict[bytes, bytes],
        repeated: Collection[bytes],
        client: str | None,
        read: ReadBody,
    ) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.headers = headers
        """Values by lower-case name; when a name occurs twice, the last one wins."""
        self.repeated = repeated
        """The names that occur more than once."""
        self.client = client
        """The address of the peer."""
        self.params: Mapping[str, str] = {}
        """The values of the path's {names}."""
        self.max_bytes = MAX_BODY
        """The size that the body may have."""
        self._read = read
        self._body: bytes | None = None

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; when a name occurs twice, the last one wins."""
        try:
            pairs = parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise Problem(400, "the query has more than 100 parameters") from None
        return dict(pairs)

    async def body(self) -> bytes:
        """Return the body; raise a problem if it is larger than `max_bytes`."""
        if self._body is None:
            declared = self.headers.get(b"content-length", b"0")
            if len(declared) > 20 or int(declared) > self.max_bytes:  # a server lets only digits through
                raise too_large(f"{self.max_bytes} bytes")
            self._body = await self._read(self)
        return self._body

    async def decoded(self, decoder: msgspec.json.Decoder[_Body]) -> _Body:
        """Return the body as a decoder reads it."""
        return decode(decoder, await self.body())

    async def json(self) -> Any:
        """Return the body as plain data; an empty body is None."""
        return await self.decoded(_any_decoder) if await self.body() else None


ReadBody = Callable[[ServiceRequest], Awaitable[bytes]]


def repeated(names: Iterable[_Name]) -> list[_Name]:
    """Return the names that occur more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def decode(decoder: msgspec.json.Decoder[_Body], content: bytes) -> _Body:
    """Decode a body; refuse a field that is given twice, because a proxy may have seen the other value."""
    try:
        body = decoder.decode(content)
        _find_repeated(content.decode().lstrip())  # which is JSON, of a bounded depth
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error, decoder) from None
    return body


def _check_fields(fields: list[tuple[str, Any]]) -> None:
    if len(dict(fields)) < len(fields):
        name = repeated(name for name, _ in fields)[0][:100]
        raise Problem(400, f"the field {name!r} is given more than once", field=name)


_find_repeated = json.JSONDecoder(object_pairs_hook=_check_fields, parse_int=str, parse_float=str).raw_decode


def _unreadable(error: Exception, decoder: msgspec.json.Decoder[Any]) -> Problem:
    """Return the problem for a body that cannot be decoded."""
    detail, _, at = str(error).partition(" - at `$")
    field = at.rstrip("`").lstrip(".") or None
    unknown = re.search(r"unknown field `(.*)`", detail)
    if unknown and field is None:
        field = unknown[1]
        detail = f"unknown field; the fields are {', '.join(decoder.type.__struct_fields__)}"
    elif unknown:
        field = f"{field}.{unknown[1]}"
    if isinstance(error, msgspec.ValidationError):
        return Problem(400, f"{field or 'the body'}: {detail}", field=field)
    return Problem(400, f"the body is not JSON: {error}")


def too_large(most: str) -> Problem:
    """Return the problem for a large body. The rest of it is not read, so the connection must close."""
    return Problem(413, f"the body must have at most {most}", headers=CLOSE)


async def joined(parts: AsyncIterable[bytes], max_bytes: int) -> bytes:
    """Return a body that arrives in parts; raise a problem if it is too large or has too many."""
    read: list[bytes] = []
    size = 0
    async for part in parts:
        read.append(part)
        size += len(part)
        if size > max_bytes:
            raise too_large(f"{max_bytes} bytes")
        if len(read) > MAX_PARTS:
            raise too_large(f"{MAX_PARTS} parts")
    return b"".join(read)


Handler = Callable[[ServiceRequest], Awaitable[Response]]


class Endpoint(NamedTuple):
    """A handler, and whether it needs the token."""

    handler: Handler
    needs_token: bool = False


class Router:
    """Finds the endpoint for a request."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Endpoint]]] = {}

    def add(self, method: str, path: str, handler: Handler, *, needs_token: bool = False) -> None:
        """Add a handler for a method and a path, in which {name} matches one segment.

        A later handler for the same method and path replaces an earlier one. With `needs_token`, requests must send
        the token or, if the service has none, come from this machine.
        """
        if "{" in path:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
            methods = self._patterns.setdefault(path, (re.compile(pattern), {}))[1]
        else:
            methods = self._exact.setdefault(path, {})
        methods[method] = Endpoint(handler, needs_token)

    def find(self, request: ServiceRequest) -> Endpoint:
        """Return the endpoint, or raise a problem if there is none."""
        methods = self._exact.get(request.path)
        if methods is None:
            methods = self._match(request)
        route = methods.get(request.method)
        if route is None and request.method == "HEAD":
            route = methods.get("GET")
        if route is None:
            allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
            raise Problem(
                405,
                f"{request.path} does not support {request.method}; use {' or '.join(allowed)}",
                headers=[(b"allow", ", ".join(allowed).encode())],
            )
        return route

    def _match(self, request: ServiceRequest) -> dict[str, Endpoint]:
        for pattern, methods in self._patterns.values():
            match = pattern.fullmatch(request.path)
            if match:
                request.params = match.groupdict()
                return methods
        raise Problem(404, f"{request.path} not found")
