"""Thin adapters of `ratekeeper.http` to frameworks and HTTP clients. Each module needs only its own framework.

Reading order:

- `asgi`: the ASGI middleware; `starlette` adds limits for single endpoints, and `fastapi` dependencies and OpenAPI
- `endpoints`: which endpoint a request will come to; `application_options`: what limits of endpoints have in common
- `cors`: preflights and denials, if limits come before CORS
- `wsgi`: the WSGI middleware; `flask` and `django` build on its request, `rest_framework` on `django`
- `views`: limits that are declared for single views, and which of them replace the defaults; `decorator_order` finds
  views that were limited too late
- `flask_requests`: what limits do with a request of Flask; `flask_settings` reads the settings of Flask-Limiter;
  `django_settlement` finds out when a Django response has been sent
- `httpx`, `httpx2`, `requests`: for requests that you send, on `ratekeeper.http.outgoing`; the first two share
  `transports`
- `celery`, `arq`: for tasks in queues; both share `postponing`

Every server integration does the same: it adapts the request, asks the gate to admit it, then either denies it or
passes it on with headers, and settles the cost once the response has been sent.
"""
