"""The one list of hostile requests, tried on every integration. To try another one, add a line.

A path may be written in many ways, and each server and framework reads some of them as the same: whatever runs a
view must count under the view's rule, and an exemption is for the path as it stands only. No header, body, name or key
gives a client more than its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import quote

# Ways to write a path such as "/any/cheap", in the bytes that go over the line.
SPELLINGS = {
    "plain": lambda path: path,
    # percent-encoding
    "a letter encoded": lambda path: f"{path[:-1]}%{ord(path[-1]):02x}",
    "all encoded": lambda path: "/" + "".join(f"%{ord(letter):02X}" for letter in path[1:]),
    "all encoded with its slashes": lambda path: "".join(f"%{ord(letter):02x}" for letter in path),
    "slashes encoded": lambda path: "/" + quote(path[1:], safe=""),
    "encoded twice": lambda path: f"{path[:-1]}%25{ord(path[-1]):02x}",
    "a slash in UTF-8 of two bytes": lambda path: "/%c0%af" + path[1:],
    # the end
    "a newline": lambda path: path + "%0a",
    "two newlines": lambda path: path + "%0a%0a",
    "a carriage return": lambda path: path + "%0d",
    "a carriage return and a newline": lambda path: path + "%0d%0a",
    "a NUL": lambda path: path + "%00",
    "a space": lambda path: path + "%20",
    "a tab": lambda path: path + "%09",
    "a space that does not break": lambda path: path + "%c2%a0",
    "a line separator": lambda path: path + "%e2%80%a8",
    "no UTF-8": lambda path: path + "%ff",
    "a suffix": lambda path: path + ".json",
    "a dot": lambda path: path + ".",
    "a parameter": lambda path: path + ";v=1",
    "a parameter encoded": lambda path: path + "%3bv=1",
    "an empty parameter": lambda path: path + ";",
    "an empty query": lambda path: path + "?",
    "a query": lambda path: path + "?next=/other",
    "a query encoded": lambda path: path + "%3fnext",
    "a fragment": lambda path: path + "#other",
    "a fragment encoded": lambda path: path + "%23other",
    "a percent sign": lambda path: path + "%",
    "half an escape": lambda path: path + "%2",
    # slashes
    "a slash at the end": lambda path: path + "/",
    "two slashes at the end": lambda path: path + "//",
    "a slash at the end encoded": lambda path: path + "%2f",
    "two slashes": lambda path: "/" + path,
    "three slashes": lambda path: "//" + path,
    "two slashes, one encoded": lambda path: "/%2f" + path[1:],
    "slashes doubled": lambda path: path.replace("/", "//"),
    "slashes inside doubled": lambda path: "/" + path[1:].replace("/", "//"),
    "no slash": lambda path: path[1:],
    "backslashes": lambda path: path.replace("/", "\\"),
    "backslashes inside": lambda path: "/" + path[1:].replace("/", "\\"),
    "backslashes encoded": lambda path: "/" + path[1:].replace("/", "%5c"),
    "a slash and a backslash encoded": lambda path: "/%5c" + path[1:],
    "a full-width slash": lambda path: path.replace("/", "%ef%bc%8f"),
    # dots
    "a dot in front": lambda path: "/." + path,
    "an encoded dot in front": lambda path: "/%2e" + path,
    "a dot inside": lambda path: path.replace("/", "/./"),
    "a dot behind": lambda path: path + "/.",
    "up from the root": lambda path: "/.." + path,
    "up from elsewhere": lambda path: "/other/.." + path,
    "up from elsewhere encoded": lambda path: "/other/%2e%2e" + path,
    "up from elsewhere and a slash encoded": lambda path: "/other%2f..%2f" + path[1:],
    "up from what is exempt": lambda path: "/open/.." + path,
    "up from what is static": lambda path: "/static/.." + path,
    "down and up": lambda path: path + "/x/..",
    "up with a parameter": lambda path: "/other/..;" + path,
    "out of its first segment": lambda path: f"/{path.split('/')[1]}/../elsewhere",
    "an exempt path behind": lambda path: path + "/../open/x",
    # letters
    "upper case": str.upper,
    "a capital": lambda path: path[:-1] + path[-1].upper(),
    "full-width letters": lambda path: (
        "/" + "".join(quote(chr(ord(each) + 0xFEE0)) if each.isalpha() else each for each in path[1:])
    ),
    "an i with a dot for each i": lambda path: path.replace("i", "%c4%b0"),
    "an i without a dot for each i": lambda path: path.replace("i", "%c4%b1"),
    "a long s for each s": lambda path: path.replace("s", "%c5%bf"),
    "a Kelvin sign for each k": lambda path: path.replace("k", "%e2%84%aa"),
    "a combining accent": lambda path: path + "%cc%81",
    # the whole address
    "with the scheme and the host": lambda path: "http://localhost" + path,
    "with a scheme in upper case": lambda path: "HTTP://localhost" + path,
    "with the scheme and two slashes": lambda path: "http://localhost/" + path,
    "with a user and a port": lambda path: "http://exempt@localhost:80" + path,
    "with a host without a scheme": lambda path: "//localhost" + path,
    "with the scheme in the path": lambda path: "/http://localhost" + path,
    # below what applications are mounted at
    "above the root path": lambda path: path.removeprefix("/api"),
    "below the root path": lambda path: "/api" + path,
    "below the root path twice": lambda path: "/api/api" + path,
    "below the root path and a slash": lambda path: "/api/" + path,
    "below the root path, encoded": lambda path: "/%61pi" + path,
    "below the root path, in upper case": lambda path: "/API" + path,
    "below the root path, with a newline": lambda path: f"/api{path}%0a",
    "out of the root path": lambda path: "/api/.." + path,
    "below a mount": lambda path: "/mounted" + path,
    "below a mount, with a newline": lambda path: f"/mounted{path}%0a",
    "below a mount and two slashes": lambda path: "/mounted/" + path,
    "below two slashes and a mount": lambda path: "//mounted" + path,
}
# The same path to every server: what is exempt may be asked for like this.
SAME = {
    *("plain", "a letter encoded", "all encoded", "all encoded with its slashes", "slashes encoded"),
    *("an empty query", "a query", "a fragment"),
    *("with the scheme and the host", "with a scheme in upper case", "with a user and a port"),
    "above the root path",
}

# Ways to write a method.
METHODS = {
    "POST": ("POST", "post", "Post", "pOST"),
    "GET": ("GET", "get", "Get", "HEAD", "head"),
}

# Headers by which some framework or proxy takes another method or path.
HEADERS = {
    "another method": "X-HTTP-Method-Override: {method}",
    "another method, as Microsoft calls it": "X-HTTP-Method: {method}",
    "another method, as Rails calls it": "X-Method-Override: {method}",
    "another URL": "X-Original-URL: {path}",
    "another URL, as IIS calls it": "X-Rewrite-URL: {path}",
    "another prefix": "X-Forwarded-Prefix: {path}",
    "another script": "X-Script-Name: {path}",
    "a script": "SCRIPT_NAME: {path}",
    "a script with a hyphen": "Script-Name: {path}",
    "a path": "Path-Info: {path}",
}


# Other ways to ask for a WebSocket.
HANDSHAKES = {
    "in upper case": (b"Upgrade: websocket", b"UPGRADE: WEBSOCKET"),
    "or something else": (b"Upgrade: websocket", b"Upgrade: h2c, websocket"),
    "twice": (b"Upgrade: websocket", b"Upgrade: websocket\r\nUpgrade: websocket"),
    "of an old version": (b"Version: 13", b"Version: 8"),
    "without a version": (b"Sec-WebSocket-Version: 13\r\n", b""),
    "of a protocol": (b"Version: 13", b"Version: 13\r\nSec-WebSocket-Protocol: chat"),
    "with an extension": (b"Version: 13", b"Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate"),
    "from a page": (b"Version: 13", b"Version: 13\r\nOrigin: https://page.example"),
    "in HTTP/1.0": (b"HTTP/1.1", b"HTTP/1.0"),
    **{f"with {method}": (b"GET ", method.encode() + b" ") for method in ("get", "POST", "HEAD", "OPTIONS", "CONNECT")},
}


# Headers that say who the client is, or that a server or the limits may trip over. Each is tried on a client who is
# known by the address of the socket and has used up what it has.
CLAIMS = {
    "X-Forwarded-For": [b"X-Forwarded-For: 198.51.100.1"],
    "X-Forwarded-For in many lines": [b"X-Forwarded-For: 198.51.100.%d" % number for number in range(50)],
    "X-Forwarded-For with garbage": [b'X-Forwarded-For: ,,;"unknown", 2001:db8::/64, [::1'],
    "X_Forwarded_For": [b"X_Forwarded_For: 198.51.100.1"],
    "Forwarded": [b'Forwarded: for="[2001:db8::1]:80";proto=https'],
    "X-Real-IP": [b"X-Real-IP: 198.51.100.1"],
    "True-Client-IP": [b"True-Client-IP: 198.51.100.1"],
    "X-Client-IP": [b"X-Client-IP: 198.51.100.1"],
    "CF-Connecting-IP": [b"CF-Connecting-IP: 198.51.100.1"],
    "REMOTE_ADDR": [b"REMOTE_ADDR: 198.51.100.1"],
    "Remote-Addr": [b"Remote-Addr: 198.51.100.1"],
    "REMOTE_USER": [b"REMOTE_USER: ada"],
    "Remote-User": [b"Remote-User: ada"],
    "Authorization": [b"Authorization: Basic YWRhOmFkYQ=="],
    "Via": [b"Via: 1.1 198.51.100.1"],
    "another host": [b"X-Forwarded-Host: exempt.example"],
    "another scheme": [b"X-Forwarded-Proto: https", b"X-Forwarded-Ssl: on"],
    "headers of the answer": [b"X-RateLimit-Remaining: 9", b"Retry-After: 0", b"RateLimit: other;r=9"],
}
TROUBLE = {
    "a long value": [b"X-Long: " + b"x" * 60_000],
    "a long name": [b"X-" + b"x" * 60_000 + b": x"],
    "many headers": [b"X-%d: x" % number for number in range(2000)],
    "many headers of one name": [b"X-Many: x"] * 500,
    "two hosts": [b"Host: exempt.example"],
    "two clients": [b"X-Client: another"],
    "a folded line": [b"X-Folded: a\r\n b"],
    "a folded line with a tab": [b"X-Folded: a\r\n\tb"],
    "a fold in the first line": [b" X-Folded: a"],
    "a carriage return": [b"X-Return: a\rb"],
    "a newline alone": [b"X-Newline: a\nX-Client: another"],
    "a NUL": [b"X-Nul: a\0b"],
    "no UTF-8": [b"X-Bytes: \xff\xfe"],
    "UTF-8": ["X-Letters: \u00fc\u20ac\U0001f600".encode()],
    "UTF-8 in a name": ["X-\u00fc: x".encode()],
    "no name": [b": x"],
    "no colon": [b"X-Client"],
    "a blank before the colon": [b"X-Client : another"],
    "an empty value": [b"X-Empty:"],
    "a long Accept": [b"Accept: " + b"text/html;q=0.1," * 3000],
    "an Accept with odd qualities": [b"Accept: text/html;q=nan, text/plain;q=inf, */*;q=1e400, a/b;q=-1, ;;,,"],
    "an Accept with no UTF-8": [b"Accept: \xff\xfe/\xfd"],
    "Expect": [b"Expect: 100-continue"],
    "Expect something else": [b"Expect: nothing"],
    "an upgrade to HTTP/2": [b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"],
    "half an upgrade to a WebSocket": [b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"],
    "headers that end here": [b"Connection: X-Client, close"],
}
_NEXT = b"POST /mine HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"  # hidden in a body
BODIES = {
    "a body": ([b"Content-Length: 3"], b"abc"),
    "a large body": ([b"Content-Length: 300000"], b"x" * 300_000),
    "a body that is too short": ([b"Content-Length: 10"], b"abc"),
    "a body that is too long": ([b"Content-Length: 3"], b"abcdef"),
    "a body in chunks": ([b"Transfer-Encoding: chunked"], b"3\r\nabc\r\n0\r\n\r\n"),
    "chunks that are none": ([b"Transfer-Encoding: chunked"], b"zz\r\nabc\r\n"),
    "a huge chunk": ([b"Transfer-Encoding: chunked"], b"ffffffffffffffff\r\nabc\r\n"),
    "two lengths": ([b"Content-Length: 3", b"Content-Length: 0"], b"abc"),
    "a negative length": ([b"Content-Length: -1"], b"abc"),
    "a length with a sign": ([b"Content-Length: +3"], b"abc"),
    "a request in the body": ([b"Content-Length: %d" % len(_NEXT)], _NEXT),
    "a request behind no body": ([b"Content-Length: 0"], _NEXT),
    "a request behind the chunks": (
        [b"Transfer-Encoding: chunked", b"Content-Length: %d" % (len(_NEXT) + 5)],
        b"0\r\n\r\n" + _NEXT,
    ),
    "a request behind chunks in disguise": (
        [b"Transfer-Encoding: \x0bchunked", b"Content-Length: 5"],
        b"0\r\n\r\n" + _NEXT,
    ),
    "JSON": ([b"Content-Type: application/json", b"Content-Length: 2"], b"{}"),
}


# What a client may claim to be, where an application makes a key or the name of a rule of it. All are different.
VALID_CLAIMS = [
    *("a", "A", "a ", " a", "ä", "a\u0308", "x" * 100, "0", "-1", "None", "null", "true", "%61", "%00", "a b", "a/b"),
    *("\0", "\r\nX-Injected: yes", "\nX-Injected: yes", "a;b", "a,b", 'a"b', "a\\b", "a:b", "a}b", "{a}", "*", "\x7f"),
    *("\u20ac", "\U0001f600", "\u2028", "\ufeff", "\ufffd", "<script>", "'; DROP TABLE usage; --", "../../etc/passwd"),
    *("unidentified", "b'unidentified'", "ratekeeper:other", "other", "fixed-window 1/400d", "__proto__", "(1, 2)"),
]
INVALID_CLAIMS = ["", "x" * 3000, "\u20ac" * 800]

UNFINISHED = {"a body that is too short", "a huge chunk"}
"""What a server may wait for the rest of."""


def dressed(method: str, path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to dress up a request for a path."""
    plain = head(method, path)
    for name, lines in (CLAIMS | TROUBLE).items():
        yield name, plain + b"".join(line + b"\r\n" for line in lines)
    for name, (lines, body) in BODIES.items():
        yield name, plain + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
    yield "two requests at once", plain.replace(b"close", b"keep-alive") + b"\r\n" + plain + b"\r\n"
    yield "a request behind a PROXY line", b"PROXY TCP4 198.51.100.1 198.51.100.2 1 80\r\n" + plain
    yield "HTTP/0.9", b"%b %b" % (method.encode(), path.encode())
    yield "HTTP/2.0", plain.replace(b"HTTP/1.1", b"HTTP/2.0")
    yield "HTTP/9.9", plain.replace(b"HTTP/1.1", b"HTTP/9.9")
    yield "an empty line in front", b"\r\n" + plain
    yield "no host", plain.replace(b"Host: localhost\r\n", b"")


def spelled(method: str, path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to write a path and a method: its name, and the request without the name of the client."""
    for name, spell in SPELLINGS.items():
        yield name, head(method, spell(path))
    for other in METHODS[method]:
        yield f"method {other}", head(other, path)
        yield f"method {other} and a newline", head(other, path + "%0a")


def disguised(method: str, path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to ask for a path with a method that is said elsewhere than in the first line."""
    for name, header in HEADERS.items():
        for sent in ("GET", "POST"):
            yield f"{sent} with {name}", head(sent, path, header.format(method=method, path=path))
            yield f"{sent} of what is open with {name}", head(sent, "/open/x", header.format(method=method, path=path))
    yield "HTTP/1.0", head(method, path).replace(b"HTTP/1.1", b"HTTP/1.0")
    yield "a body", head(method, path, "Content-Length: 3") + b"\r\nabc"
    form = ("Content-Type: application/x-www-form-urlencoded", f"Content-Length: {8 + len(method)}")
    yield "a form with another method", head("POST", path, *form) + b"\r\n_method=" + method.encode()


def preflights(method: str, path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to ask for a path with what looks like a CORS preflight, which need not be counted."""
    lines = ("Origin: https://page.example", f"Access-Control-Request-Method: {method}")
    for sent in ("OPTIONS", "options", "Options"):
        yield f"{sent} of a preflight", head(sent, path, *lines)
        yield f"{sent} of a preflight, and a newline", head(sent, path + "%0a", *lines)
    for name, header in HEADERS.items():
        yield f"a preflight with {name}", head("OPTIONS", path, *lines, header.format(method=method, path=path))
        yield (
            f"a preflight of what is open with {name}",
            head("OPTIONS", "/open/x", *lines, header.format(method=method, path=path)),
        )
    yield f"a preflight sent as {method}", head(method, path, *lines)
    yield "an empty origin", head("OPTIONS", path, "Origin:", lines[1])
    yield "no method", head("OPTIONS", path, lines[0], "Access-Control-Request-Method:")
    yield "two origins", head("OPTIONS", path, lines[0], *lines)
    yield "a body", head("OPTIONS", path, *lines, "Content-Length: 3") + b"\r\nabc"


def handshakes(path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to ask for a WebSocket at a path."""
    for name, spell in SPELLINGS.items():
        yield name, handshake(spell(path))
    for name, (usual, unusual) in HANDSHAKES.items():
        yield name, handshake(path).replace(usual, unusual)
        yield f"{name}, and a newline", handshake(path + "%0a").replace(usual, unusual)
    for name, header in HEADERS.items():
        for sent in (path, "/open/x"):
            yield f"{sent} with {name}", handshake(sent, header.format(method="GET", path=path))


def handshake(target: str, *headers: str) -> bytes:
    """A request for a WebSocket, without the line that ends it."""
    lines = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    return head("GET", target, *lines, *headers).replace(b"Connection: close", b"Connection: Upgrade")


def other_spellings(path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to ask for something that is not quite this path."""
    for name, spell in SPELLINGS.items():
        if name not in SAME and spell(path) != path:
            yield name, head("GET", spell(path))


def head(method: str, target: str, *headers: str) -> bytes:
    """The head of a request, without the line that ends it."""
    lines = [f"{method} {target} HTTP/1.1", "Connection: close", "Host: localhost", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def ask(port: int, request: bytes, client: str, patience: float = 30, *, head_only: bool = False) -> bytes:
    """Send a request as it is, in the name of a client; return all of the answer that comes, or its head at least."""
    start, end, body = request.partition(b"\r\n\r\n")
    if not end:
        start = start.removesuffix(b"\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
        answer = b""
        try:
            connection.sendall(b"%b\r\nX-Client: %b\r\n\r\n%b" % (start, client.encode(), body))
            while more := connection.recv(65_536):
                answer += more
                if head_only and b"\r\n\r\n" in answer:
                    break
        except (ConnectionError, TimeoutError):  # it was refused, or the server waits for more of it
            pass
        return answer
