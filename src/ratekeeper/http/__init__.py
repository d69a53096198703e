"""Rate limits over HTTP, with no framework in it: headers, client keys, the answer to a denial, and a client's view.

To read it: `headers` is what an answer says, `problem` the body of a denial, `parse` what a client reads; `request` is
what is known of a request, `address` and `keys` say whose it is; `routes` is what an application writes down, and
`gate` is the way of a request past all of it, which every integration shares. `outgoing` is the caller's side: a
request that waits, is sent and is settled, with `holds` and `settlement`.
"""

from ratekeeper.http.admission import Admission
from ratekeeper.http.client_keys import by_address, by_api_key, by_header, by_path, by_user, combine, digest, first_of
from ratekeeper.http.gate import AsyncGate, Gate, Options
from ratekeeper.http.headers import Headers, HeaderWriter
from ratekeeper.http.outgoing import by_host
from ratekeeper.http.parse import QuotaPolicy, ServerLimits, ServiceLimit, parse_headers
from ratekeeper.http.problem import body, problem
from ratekeeper.http.request import Answer, Reply, Request
from ratekeeper.http.routes import Route

__all__ = [
    "Admission",
    "Answer",
    "AsyncGate",
    "Gate",
    "HeaderWriter",
    "Headers",
    "Options",
    "QuotaPolicy",
    "Reply",
    "Request",
    "Route",
    "ServerLimits",
    "ServiceLimit",
    "body",
    "by_address",
    "by_api_key",
    "by_header",
    "by_host",
    "by_path",
    "by_user",
    "combine",
    "digest",
    "first_of",
    "parse_headers",
    "problem",
]
