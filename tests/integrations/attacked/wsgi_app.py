"""The attacked WSGI applications: one by hand that routes as liberally as any framework, by itself and mounted."""

import posixpath

from werkzeug.middleware.dispatcher import DispatcherMiddleware

from ratekeeper.integrations.wsgi import RateLimitMiddleware
from tests.integrations.attacked.limits import OPTIONS, shown

VIEWS = {f"/{name}": name for name in ("slack", "mine", "named", "keyed", "other")}
VIEWS |= {"/any/cheap": "cheap", "/healthz": "health", "/static/big.txt": "file"}


def view_of(method, path):
    """Which view serves a path: case, repeated slashes and dots make no difference to it."""
    path = posixpath.normpath("/" + path.lower().strip("/ \n"))
    if path == "/login":
        return "login" if method == "POST" else "form"
    if path in VIEWS:
        return VIEWS[path]
    if path.startswith("/users/") and path.count("/") == 2:
        return "user"
    for start, view in {"/any/": "any", "/open/": "open"}.items():
        if path.startswith(start):
            return view
    return None


def application(environ, start_response):
    view = view_of(environ["REQUEST_METHOD"].upper(), environ["PATH_INFO"])
    start_response("200 OK" if view else "404 Not Found", [("Content-Type", "text/plain")])
    return [shown(view).encode()]


limited = RateLimitMiddleware(application, **OPTIONS)
app = DispatcherMiddleware(limited, {"/mounted": RateLimitMiddleware(application, **OPTIONS)})
