"""Attacks on the service: what a caller without the token sends, and with which status it is answered.

Each is sent as it stands, on a connection of its own, to a service that has a token. Whatever the answer is, it must
come soon and leave the usage of `VICTIM` and the service as they were. To add an attack, add a line to a list.
"""

import gzip
import json

VICTIM = "the victim"
RULES = [  # the victim has used 4 units of each
    "fixed-window 10/30d",
    "sliding-window-log 10/30d",
    "sliding-window-counter 10/30d",
    "token-bucket 1/3d burst 10",
    "leaky-bucket 1/3d burst 10",
    "leaky-bucket 1/3d burst 10 shaping",
]
OTHER = "fixed-window 1000000/us"
CLOSED = 0  # the connection is closed without an answer
JSON = ("content-type: application/json",)


def http(line, *fields, body=b"", host="host: localhost"):
    """Return a request: its first line, its header fields, and its body, which is JSON unless it is bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
    fields = [*([host] if host else []), *fields]
    if content and not any(field.lower().startswith(("content-length", "transfer-encoding")) for field in fields):
        fields.append(f"content-length: {len(content)}")
    return "\r\n".join([f"{line} HTTP/1.1", *fields, "", ""]).encode("latin-1") + content


def post(path, body, *fields, **more):
    return http(f"POST {path}", *JSON, *fields, body=body, **more)


def hit(**body):
    """A hit, by default on another client's key."""
    return post("/v1/hit", {"key": "mallory", "rule": OTHER} | body)


def named(name, rule=OTHER, **body):
    return post("/v1/hit", {"key": VICTIM, "rules": {name: rule}} | body)


def keyed(key):
    return post("/v1/hit", {"key": key, "rule": RULES[0], "cost": 3})


def batch(*requests):
    return post("/v1/hit/batch", {"requests": requests})


def raw(content):
    """A hit whose body json.dumps would not make."""
    return post("/v1/hit", content if isinstance(content, bytes) else content.encode())


def chunked(content, *fields, size=1, extension="", trailers="", path="/v1/hit"):
    """A request whose body comes in chunks of so many bytes."""
    chunks = [content[at : at + size].encode() for at in range(0, len(content), size)]
    body = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension.encode(), chunk) for chunk in chunks)
    return post(path, body + b"0\r\n" + trailers.encode() + b"\r\n", "transfer-encoding: chunked", *fields)


A_HIT = {"key": VICTIM, "rule": RULES[0], "cost": 3}
NAMES = {
    **{f"another rule named {text}": (named(text), 400) for text in RULES},
    **{
        f"a bucket of 10^12 named {text}": (named(text, "token-bucket 1000000/s burst 1000000000000", cost=10**12), 400)
        for text in RULES
    },
    "another rule named in other words": (named("fixed-window 10/month"), 200),
    "a policy's name": (named("api/user"), 200),
    "no name": (named(""), 400),
    "a name of 101 characters": (named("x" * 101), 400),
    "a name of many bytes": (named("\N{CRAB}" * 100), 200),
    "a name with a line break": (named("x\r\nset-cookie: injected=1"), 200),
    "a name with quotes": (named('x";r=99;t=0,"y'), 200),
    "a name with NUL": (named("x\0y"), 200),
    "33 names": (post("/v1/hit", {"key": VICTIM, "rules": {f"{n}": OTHER for n in range(33)}}), 400),
}
KEYS = {
    "no key": (keyed(""), 400),
    "no parts": (keyed([]), 400),
    "empty parts": (keyed(["", ""]), 400),
    "17 parts": (keyed(["x"] * 17), 400),
    "16 parts": (keyed(["x"] * 16), 200),
    "15,000 empty parts": (keyed([""] * 15_000), 400),
    "1 KiB": (keyed("x" * 1024), 200),
    "1 KiB + 1": (keyed("x" * 1025), 400),
    "1 KiB + 1 of two bytes each": (keyed("é" * 513), 400),
    "null": (keyed(None), 400),
    "a truth": (keyed(True), 400),
    "a float": (keyed(1.5), 400),
    "an object": (keyed({VICTIM: 1}), 400),
    "a float that is whole": (keyed(1.0), 400),
    "a truth as a part": (keyed([True]), 400),
    "null as a part": (keyed([None]), 400),
    "parts in parts": (keyed([[VICTIM]]), 400),
    "a large number": (keyed(10**30), 200),
    "a number of 5,000 digits": (raw('{"key": ' + "9" * 5_000 + ', "rule": "1/s"}'), 400),
    "the victim as a part": (keyed([VICTIM]), 200),
    "the victim and NUL": (keyed(VICTIM + "\0"), 200),
    "the victim in braces": (keyed("{" + VICTIM + "}"), 200),
    "the victim, percent-encoded": (keyed("the%20victim"), 200),
    "the victim in another case": (keyed(VICTIM.upper()), 200),
    "the victim and a space": (keyed(VICTIM + " "), 200),
    "NUL in two bytes": (raw(b'{"key": "\xc0\x80", "rule": "1/s"}'), 400),
    "half a character in UTF-8": (raw(b'{"key": "\xed\xa0\x80", "rule": "1/s"}'), 400),
    "half a character": (raw('{"key": "\\ud800", "rule": "1/s"}'), 400),
    "a line break": (keyed("x\r\nDEL ratekeeper"), 200),
}
PATHS = {
    **{
        f"/v1/{name} without the token": (post(f"/v1/{name}", A_HIT), 401)
        for name in ("reset", "charge", "refund", "inspect")
    },
    **{
        f"{call} without the token": (http(call, *JSON, body={}), 401)
        for call in (
            *("PUT /v1/policies", "POST /v1/policies/reload", "PUT /v1/overrides/x", "DELETE /v1/overrides/x"),
            *("GET /v1/policies", "GET /v1/policies/history", "GET /v1/overrides", "GET /v1/audit", "POST /v1/explain"),
        )
    },
    "a policy, and a rule of its name": (hit(policy="api", attributes={"user": VICTIM}), 400),
    "attributes without a policy": (hit(attributes={"user": VICTIM}), 400),
    **{
        f"{path}": (post(path, A_HIT), status)
        for path, status in {
            "/v1/reset/": 404,
            "//v1/reset": 404,
            "/v1//reset": 404,
            "/V1/RESET": 404,
            "/v1/./reset": 404,
            "/v1/x/../reset": 404,
            "/v1/reset;x": 404,
            "/v1/reset%00": 404,
            "/v1/reset%0a": 404,
            "/v1/reset%20": 404,
            "/v1/reset%2f": 404,
            "/v1%2freset": 401,  # which is the same path
            "/v1/%72eset": 401,
            "/v1/%2572eset": 404,
            "/v1/re%00set": 404,
            "/v1/reset%ff": 404,
            "/v1/reset?token=x": 401,
            "/v1/reset?authorization=Bearer%20x": 401,
            "/v1/reset#x": 401,
            "http://localhost/v1/reset": 401,
            "http://evil.example/v1/reset": 401,
            "http://user:password@localhost:99999/v1/reset": 401,
            "https://localhost//v1/reset": 404,
            "v1/reset": 400,
            "*": 404,
            "/v1/hit?" + "&".join(["a=1"] * 101): 400,
            "/v1/hit?always_200=2": 400,
            "/v1/hit?always_200=%00": 400,
            "/" + "x" * 20_000: 431,
            "/static/../serve.py": 404,
            "/static/%2e%2e/visitors.py": 404,
            "/static/..%2fvisitors.py": 404,
            "/static//etc/passwd": 404,
            "/api/rate-limit/%0a": 400,
            "/api/rate-limit/../../etc/passwd": 404,
        }.items()
    },
}

METHODS = {
    "lower case": (http("post /v1/reset", *JSON, body=A_HIT), 405),
    "GET": (http("GET /v1/reset"), 405),
    "GET with a body": (http("GET /v1/hit", *JSON, body=A_HIT), 405),
    "HEAD": (http("HEAD /v1/reset"), 405),
    "PUT": (http("PUT /v1/reset", *JSON, body=A_HIT), 405),
    "DELETE": (http("DELETE /v1/hit"), 405),
    "OPTIONS": (http("OPTIONS /v1/reset"), 405),
    "TRACE": (http("TRACE /v1/hit"), 405),
    "CONNECT": (http("CONNECT localhost:80"), 404),
    "one that nobody knows": (http("RESET /v1/hit", *JSON, body=A_HIT), 405),
    "another in a header": (post("/v1/hit", {"key": "x", "rule": "1/s"}, "x-http-method-override: DELETE"), 200),
    "another in a field": (hit(_method="DELETE"), 400),
    "with a NUL": (http("PO\0ST /v1/hit", *JSON, body=A_HIT), 400),
    "none": (http(" /v1/hit", *JSON, body=A_HIT), 400),
    "of 10 KB": (http("X" * 10_000 + " /v1/hit"), 405),
}
HEADERS = {
    **{
        what: (post("/v1/reset", A_HIT, *fields, host=host), status)
        for what, (host, fields, status) in {
            "no host": ("", [], 421),
            "an empty host": ("host:", [], 421),
            "another host": ("host: evil.example", [], 421),
            "a host that looks like ours": ("host: localhost.evil.example", [], 421),
            "a host that looks like an address": ("host: 127.0.0.1.evil.example", [], 421),
            "a host with a user": ("host: localhost@evil.example", [], 421),
            "a host with two ports": ("host: localhost:80:80", [], 421),
            "a host with a bad port": ("host: localhost:x", [], 421),
            "a host with a path": ("host: localhost/x", [], 421),
            "half an address": ("host: [::1", [], 421),
            "a host with a dot": ("host: localhost.", [], 421),
            "a list of hosts": ("host: localhost, evil.example", [], 421),
            "bytes as a host": ("host: \xff", [], 421),
            "two hosts": ("host: localhost", ["host: evil.example"], 400),
            "two hosts, the other first": ("host: evil.example", ["host: localhost"], 400),
            "two hosts in other cases": ("host: localhost", ["HOST: localhost"], 400),
            "an origin": ("host: localhost", ["origin: http://evil.example"], 403),
            "a null origin": ("host: localhost", ["origin: null"], 403),
            "an origin that looks like ours": ("host: localhost", ["origin: http://localhost.evil.example"], 403),
            "our origin with another port": ("host: localhost", ["origin: http://localhost:1"], 403),
            "two origins": ("host: localhost", ["origin: http://evil.example", "origin: http://localhost"], 400),
            "another site": ("host: localhost", ["sec-fetch-site: cross-site"], 403),
            "the same site": ("host: localhost", ["sec-fetch-site: same-site"], 403),
            "a site in another case": ("host: localhost", ["sec-fetch-site: SAME-ORIGIN"], 403),
            "two sites": ("host: localhost", ["sec-fetch-site: cross-site", "sec-fetch-site: none"], 400),
            "a proxy that says it is local": ("host: localhost", ["x-forwarded-for: 127.0.0.1"], 401),
            "a proxy that says another host": ("host: localhost", ["x-forwarded-host: localhost"], 401),
            "a path to rewrite to": ("host: localhost", ["x-original-url: /healthz", "x-rewrite-url: /healthz"], 401),
            "no token": ("host: localhost", ["authorization:"], 401),
            "an empty token": ("host: localhost", ["authorization: Bearer"], 401),
            "an empty token and a space": ("host: localhost", ["authorization: Bearer "], 401),
            "another token": ("host: localhost", ["authorization: Bearer open"], 401),
            "a longer token": ("host: localhost", ["authorization: Bearer open sesame!"], 401),
            "the token in another case": ("host: localhost", ["authorization: Bearer OPEN SESAME"], 401),
            "the token as a password": ("host: localhost", ["authorization: Basic b3Blbjpvc2VzYW1l"], 401),
            "bytes as a token": ("host: localhost", ["authorization: Bearer \xff\xfe"], 401),
            "two tokens": ("host: localhost", ["authorization: Bearer a", "authorization: Bearer b"], 400),
            "a token in a cookie": ("host: localhost", ["cookie: authorization=open sesame"], 401),
            "a token elsewhere": (
                "host: localhost",
                ["x-authorization: Bearer open sesame", "token: open sesame"],
                401,
            ),
            "150 headers": ("host: localhost", [f"x-{n}: y" for n in range(150)], 431),
            "20 KB of headers": ("host: localhost", ["x: " + "y" * 20_000], 431),
            "a folded header": ("host: localhost", ["x: y", " authorization: Bearer open sesame"], 400),
            "a header with a space before its colon": ("host: localhost", ["authorization : Bearer x"], 400),
            "a header with NUL": ("host: localhost", ["x: \0"], 400),
            "a header without a name": ("host: localhost", [": x"], 400),
            "a header without a colon": ("host: localhost", ["authorization"], 400),
            "an upgrade": ("host: localhost", ["connection: upgrade", "upgrade: websocket"], 401),
            "a WebSocket": (
                "host: localhost",
                [
                    *("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
                    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
                ],
                401,
            ),
            "headers that end here": ("host: localhost", ["connection: host, origin, x-forwarded-for"], 401),
            "an upgrade to HTTP/2": ("host: localhost", ["connection: upgrade, http2-settings", "upgrade: h2c"], 401),
        }.items()
    },
    **{
        f"content-type {kind}": (http("POST /v1/hit", *([f"content-type: {kind}"] if kind else []), body=A_HIT), 415)
        for kind in (
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonp",
        )
    },
    "two content types": (post("/v1/hit", A_HIT, "content-type: text/plain"), 400),
    "two lengths": (post("/v1/hit", A_HIT, "content-length: 5", "content-length: 60"), 400),
    "a negative length": (post("/v1/hit", A_HIT, "content-length: -1"), 400),
    "a length with a sign": (post("/v1/hit", A_HIT, "content-length: +60"), 400),
    "a length in hex": (post("/v1/hit", A_HIT, "content-length: 0x3c"), 400),
    "a length of 30 digits": (post("/v1/hit", A_HIT, "content-length: " + "9" * 30), 400),
    "a length of 10 GB": (post("/v1/hit", A_HIT, "content-length: 10000000000"), 413),
    "a length of 64 KiB + 1": (post("/v1/hit", A_HIT, "content-length: 65537"), 413),
    "a length and chunks": (post("/v1/hit", A_HIT, "content-length: 5", "transfer-encoding: chunked"), 400),
    "chunks twice": (post("/v1/hit", b"0\r\n\r\n", "transfer-encoding: chunked", "transfer-encoding: chunked"), 400),
    "an unknown encoding": (post("/v1/hit", A_HIT, "transfer-encoding: gzip"), 400),
    "chunks that are not the last encoding": (post("/v1/hit", A_HIT, "transfer-encoding: chunked, gzip"), 400),
    "chunks with extensions": (chunked(json.dumps(A_HIT | {"key": "x"}), size=9, extension=";a=b"), 200),
    "a chunk with an extension of 20 KB": (chunked("{}", extension=";a=" + "b" * 20_000), 400),
    "the token behind the chunks": (
        chunked(json.dumps(A_HIT), trailers="authorization: Bearer open sesame\r\n", path="/v1/reset"),
        401,
    ),
    "chunks in capitals behind a control character": (
        post("/v1/hit", b"0\r\n\r\n", "transfer-encoding: \x0bCHUNKED"),
        400,
    ),
    "a chunk of a bad size": (post("/v1/hit", b"xyz\r\n", "transfer-encoding: chunked"), 400),
    "a chunk of a huge size": (post("/v1/hit", b"fffffffffffffffff\r\n", "transfer-encoding: chunked"), 400),
    "HTTP/1.0": (b"POST /v1/reset HTTP/1.0\r\n\r\n", 421),
    "HTTP/0.9": (b"GET /v1/live\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", CLOSED),
    "HTTP/9": (b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100 + b"\r\n\r\n", 400),
    "noise": (bytes(range(256)) * 4, 400),
    "line ends without CR": (b"GET /v1/reset HTTP/1.1\nhost: localhost\n\n", 405),
}
RULE = {"algorithm": "fixed-window", "limit": 5, "window": 60}
BODIES = {
    "none": (post("/v1/hit", b"", "content-length: 0"), 400),
    "no JSON": (raw("{"), 400),
    "900 chunks of one byte": (chunked(json.dumps({"key": "x", "rule": "1000/s"}).rjust(900)), 200),
    "2,000 chunks of one byte": (chunked(json.dumps({"key": "x", "rule": "1000/s"}).rjust(2_000)), 413),
    "compressed": (post("/v1/hit", gzip.compress(json.dumps(A_HIT).encode()), "content-encoding: gzip"), 400),
    "a list": (raw("[]"), 400),
    "a number": (raw("1e999"), 400),
    "NaN": (raw('{"key": "x", "rule": "1/s", "cost": NaN}'), 400),
    "no UTF-8": (raw(b'{"key": "\xff", "rule": "1/s"}'), 400),
    "UTF-16": (raw('{"key": "x", "rule": "1/s"}'.encode("utf-16")), 400),
    "a byte order mark": (raw(b'\xef\xbb\xbf{"key": "x", "rule": "1/s"}'), 400),
    "two values": (raw('{"key": "x", "rule": "1/s"}{"key": "the victim", "rule": "1/s"}'), 400),
    "60,000 brackets": (raw("[" * 60_000), 400),
    "10,000 objects in each other": (raw('{"rules":' * 7_000), 400),
    "64 KiB of rules": (hit(rule="1/s;" * 15_000), 400),
    "33 rules": (hit(rule=";".join(["1/s"] * 33)), 400),
    "two rules": (hit(rule="1/s;2/s"), 400),
    "64 KiB of spaces in a rule": (hit(rule="1" + " " * 60_000 + "/s"), 400),
    "a rule of many durations": (hit(rule="1/" + "1s" * 99), 200),
    "32 rules that are slow to read": (
        post("/v1/hit", {"key": "x", "rules": {f"{n}": "1/" + "1s" * 98 + f"{n}x" for n in range(32)}}),
        400,
    ),
    "1,000 rules by name": (post("/v1/hit", {"key": "x", "rules": {f"{n}": "1/s" for n in range(1_000)}}), 400),
    "fields of no rule": (hit(color="red"), 400),
    "a prefix": (hit(prefix="ratekeeper:playground"), 400),
    "a store": (hit(store="redis://evil.example"), 400),
    "a group": (hit(group="x"), 400),
    "a key twice": (raw('{"key": "x", "key": "the victim", "rule": "1/s"}'), 400),
    "a key twice, once escaped": (raw('{"key": "x", "k\\u0065y": "ada", "rule": "1/s"}'), 400),
    "a cost twice": (raw('{"key": "x", "cost": 1, "rule": "1/s", "cost": 2}'), 400),
    "two keys": (post("/v1/hit", {"key": "x", "keys": {"a": VICTIM}, "rules": {"a": RULES[0]}}), 400),
    "a rule and rules": (post("/v1/hit", {"key": VICTIM, "rule": RULES[0], "rules": {"a": "1/s"}}), 400),
    **{f"a cost of {cost!r}": (hit(cost=cost), 400) for cost in (0, -1, -(2**63), 1.0, 1.5, "1", True, [1], {})},
    "a cost of 2^64": (hit(cost=2**64), 429),
    "a cost of 5,000 digits": (raw('{"key": "x", "rule": "1/s", "cost": ' + "9" * 5_000 + "}"), 400),
    "a cost that is negative for one rule": (
        post("/v1/hit", {"key": VICTIM, "rules": {"a": RULES[0], "b": OTHER}, "cost": {"a": -4, "b": 1}}),
        400,
    ),
    "a cost of 0 for all rules": (post("/v1/hit", {"key": VICTIM, "rules": {"a": RULES[0]}, "cost": {"a": 0}}), 400),
    **{
        f"a limit of {limit!r}": (post("/v1/hit", {"key": "x", **RULE, "limit": limit}), 400)
        for limit in (0, -1, 1.5, "5", 10**13)
    },
    **{
        f"a window of {window!r}": (post("/v1/hit", {"key": "x", **RULE, "window": window}), 400)
        for window in (0, -1, 1e-9, 5e-324, 1e308, "", "1y" * 99)
    },
    "a window of 1e999": (raw('{"key": "x", "algorithm": "fixed-window", "limit": 5, "window": 1e999}'), 400),
    "an algorithm of 10,000 characters": (hit(algorithm="x" * 10_000), 400),
}
BATCHES = {
    "no requests": (batch(), 200),
    "1,001 requests": (batch(*[{}] * 1_001), 400),
    "more than 512 KiB": (batch("x" * (512 * 1024)), 413),
    "of chunks without end": (
        http("POST /v1/hit/batch", *JSON, "transfer-encoding: chunked", body=b"20000\r\n" + b" " * 2**17 + b"\r\n")
        + (b"20000\r\n" + b" " * 2**17 + b"\r\n") * 5,
        413,
    ),
    "another rule under the victim's name": (batch({"key": VICTIM, "rules": {RULES[0]: OTHER}}), 200),
    "hits on another key of the victim's rules": (batch(*[{"key": "x", "rule": rule} for rule in RULES] * 100), 200),
    "requests that are lists": (batch(*[[]] * 1_000), 200),
    "requests that are none": (batch(None, 1, "x", True, [], {}, {"key": VICTIM}), 200),
    "a key twice": (post("/v1/hit/batch", b'{"requests":[{"key":"x","key":"the victim","rule":"1/s"}]}'), 200),
    "requests twice": (post("/v1/hit/batch", b'{"requests":[],"requests":[{"key":"x","rule":"1/s"}]}'), 400),
    "requests and another field": (post("/v1/hit/batch", {"requests": [], "token": "x"}), 400),
    "no batch": (post("/v1/hit/batch", A_HIT), 400),
    "a list": (post("/v1/hit/batch", [A_HIT]), 400),
    "a batch in a batch": (batch({"requests": [A_HIT]}), 200),
    "500,000 brackets": (post("/v1/hit/batch", b'{"requests":' + b"[" * 500_000 + b"}"), 400),
    "1,000 rules that are slow to read": (
        batch(*[{"key": "x", "rule": "1/" + "1s" * 98 + f"{n}x"} for n in range(1_000)]),
        200,
    ),
    "as many rules as there is room for": (
        batch(*[{"key": "x", "rules": {str(n): f"{32 * each + n + 1}/s" for n in range(32)}} for each in range(1_000)]),
        200,
    ),
    "1,000 rules": (batch(*[{"key": "x", "rule": f"{n + 1}/s"} for n in range(1_000)]), 200),
    "resets": (batch({"key": VICTIM, "rule": RULES[0], "operation": "reset"}), 200),
}
PLAYGROUND = {
    "a burst in a long window": (
        post("/api/compare", {"traffic": "burst", "rate": 1e6, "duration": "1ms", "window": "400 days"}),
        400,
    ),
    "a rate below all floats": (post("/api/compare", {"traffic": "poisson", "rate": 5e-324}), 400),
    "a rate above all": (post("/api/compare", {"rate": 1e308}), 400),
    "10^12 units at once": (post("/api/compare", {"traffic": "drawn", "slices": [2_000], "cost": 10**12}), 200),
    "a long time": (post("/api/compare", {"duration": "400 days", "window": 1e-6}), 400),
    "many slices": (post("/api/compare", {"traffic": "drawn", "slices": [0] * 15_000}), 400),
    "a count of 10^9": (post("/api/rate-limit/fixed-window/burst", {"count": 10**9}), 400),
    "a limit of 10^12 and as large a cost": (
        post("/api/rate-limit/token-bucket", {"config": {"maxTokens": 10**12}, "cost": 10**12}),
        400,
    ),
    "an algorithm that is a path": (post("/api/rate-limit/..%2f..%2fv1%2freset", {}), 404),
    "the visitor of somebody else": (
        post("/api/rate-limit/reset", {}, "cookie: ratekeeper_visitor=" + "0" * 32 + ".9999999999." + "0" * 64),
        200,
    ),
    "a visitor without end": (post("/api/rate-limit/reset", {}, "cookie: " + "ratekeeper_visitor=x;" * 700), 200),
}
RESET = post("/v1/reset", A_HIT)
PIPELINES = {  # requests that a server might take for a part of others, or the other way round; the first is answered
    "a reset behind a hit": (hit() + RESET, 200),
    "a reset behind chunks": (chunked(json.dumps({"key": "x", "rule": OTHER})) + RESET, 200),
    "a reset behind the chunks of a GET": (
        http("GET /v1/live", "transfer-encoding: chunked", body=b"0\r\n\r\n") + RESET,
        200,
    ),
    "a reset in the body of a GET": (http("GET /v1/live", body=RESET), 200),
    "a reset in the body of what is refused": (http("PUT /v1/hit", *JSON, body=RESET), 405),
    "a reset in a body of another kind": (http("POST /v1/hit", "content-type: text/plain", body=RESET), 415),
    "a reset behind half a request": (http("POST /v1/hit", *JSON, "content-length: 5") + RESET, 400),
    "noise behind twenty hits": (hit() * 20 + bytes(range(256)), 200),
}
LISTS = {
    "name": NAMES,
    "key": KEYS,
    "path": PATHS,
    "method": METHODS,
    "header": HEADERS,
    "body": BODIES,
    "pipeline": PIPELINES,
    "batch": BATCHES,
    "playground": PLAYGROUND,
}
