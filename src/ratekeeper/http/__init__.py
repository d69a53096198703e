"""Rate limits over HTTP, independent of any framework: for servers, and for clients.

Reading order, server side:

- `request`: a request as the rest sees it; each integration adapts its framework's own
- `client_keys`, `address`: key functions, which say who is limited; `claims`: what a client claims, as a part of a key;
  `users`: the id of a user
- `headers`, `problem`: the headers of a response and the body of a denial; `structured` is the syntax of the headers
- `http_limiter`: a limiter together with the headers that report its decisions; `header_writers` are for
  policies, whose rules differ from request to request
- `routes`: a `Route` as an application writes it; `url_paths`: what its path matches; `route_limits`: the same with its
  limiters, ready for decisions; `chosen_rules`: rules that a function of the request returns; `exemptions`: functions
  that exempt requests
- `request_attributes`: what a request says of itself to a policy; `policy_limits`: a policy as the limit of a route
- `limiter_maker`: makes the limiters of a gate
- `matching`: finds the routes of a request
- `admitting`: the flows that decide on a request; `admission`: what comes of it, and how it is settled; `held_requests`
  bounds how many are delayed
- `reports`: what a response reports, if its request came to several limits
- `gate`: `Gate` and `AsyncGate`, the interface for integrations; `gate_options`: the options of all integrations;
  `asgi_types`: the types of the ASGI interface

Client side:

- `parse`: the limits in a response's headers
- `outgoing`: the flow of a request that waits for its budget and is sent; `backoff` remembers what servers asked for,
  and `settlement` corrects costs

Words: a *gate* decides whether a request may pass; an *admission* is its decision together with what belongs to it;
to *settle* is to correct an estimated cost to the real one; a request is *held* while it waits for a shaping delay.
"""

from ratekeeper.http.admission import Admission
from ratekeeper.http.client_keys import by_address, by_api_key, by_header, by_path, by_user, combine, digest, first_of
from ratekeeper.http.gate import AsyncGate, Gate
from ratekeeper.http.gate_options import Options
from ratekeeper.http.headers import Headers, HeaderWriter
from ratekeeper.http.outgoing import by_host
from ratekeeper.http.parse import QuotaPolicy, ServerLimits, ServiceLimit, parse_headers
from ratekeeper.http.problem import body, problem
from ratekeeper.http.reports import current_decision
from ratekeeper.http.request import Answer, Reply, Request
from ratekeeper.http.routes import Route
from ratekeeper.notices import Notices
from ratekeeper.rules import with_headroom

__all__ = [
    "Admission",
    "Answer",
    "AsyncGate",
    "Gate",
    "HeaderWriter",
    "Headers",
    "Notices",
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
    "current_decision",
    "digest",
    "first_of",
    "parse_headers",
    "problem",
    "with_headroom",
]
