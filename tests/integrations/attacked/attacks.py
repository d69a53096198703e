"""The one list of ways to write a request that are tried on every integration. To try another one, add a line.

A path may be written in many ways, and each server and framework reads some of them as the same: whatever runs a
view must count under the view's rule, and an exemption is for the path as it stands only.
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
    "an exempt path behind": lambda path: path + "/../open/x",
    # letters
    "upper case": str.upper,
    "a capital": lambda path: path[:-1] + path[-1].upper(),
    "full-width letters": lambda path: (
        "/" + "".join(quote(chr(ord(each) + 0xFEE0)) if each.isalpha() else each for each in path[1:])
    ),
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


def other_spellings(path: str) -> Iterator[tuple[str, bytes]]:
    """Every way to ask for something that is not quite this path."""
    for name, spell in SPELLINGS.items():
        if name not in SAME and spell(path) != path:
            yield name, head("GET", spell(path))


def head(method: str, target: str, *headers: str) -> bytes:
    """The head of a request, without the line that ends it."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def ask(port: int, request: bytes, client: str) -> bytes:
    """Send a request as it is, in the name of a client, and return all of the answer."""
    start, end, body = request.partition(b"\r\n\r\n")
    if not end:
        start = start.removesuffix(b"\r\n")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"%b\r\nX-Client: %b\r\n\r\n%b" % (start, client.encode(), body))
        answer = b""
        while True:
            try:
                more = connection.recv(65_536)
            except ConnectionResetError:
                return answer
            if not more:
                return answer
            answer += more
