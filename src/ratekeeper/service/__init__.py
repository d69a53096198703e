"""The HTTP service: the library's operations over HTTP, and the page that shows them.

To read it: `web` is what a route needs (request, response, router, problems); `app` is the ASGI application and what
all routes share; `bodies` reads what a request asks for, `api` answers it, `guards` turns away whom it is not for;
`live` counts; `openapi` describes it; `asgi` and `rsgi` are the servers' side; `serve` is the command. Needs
`ratekeeper[server]`.
"""

DEADLINE = 0.1  # seconds that Redis has for a decision, unless told
