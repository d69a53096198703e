"""An invalid rule stops the server when it starts, with a message; it does not answer 500 to everything."""

import os
import signal
import subprocess
import sys

import pytest

from tests import servers
from tests.integrations.processes import GRANIAN, GUNICORN, ROOT, UVICORN

PATIENCE = 30  # seconds; a server that has not ended by then would go on serving
APPS = {
    "FastAPI": """
        from fastapi import FastAPI
        from ratekeeper.integrations.fastapi import RateLimitMiddleware
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, limit="nonsense")
    """,
    "FastAPI, the middleware for ASGI": """
        from fastapi import FastAPI
        from ratekeeper.integrations.asgi import RateLimitMiddleware
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, limit="nonsense")
    """,
    "FastAPI, another middleware around it": """
        from fastapi import FastAPI
        from ratekeeper.integrations.fastapi import RateLimitMiddleware
        from starlette.middleware.gzip import GZipMiddleware
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, limit="nonsense")
        app.add_middleware(GZipMiddleware)
    """,
    "FastAPI, the default": """
        from fastapi import FastAPI
        from ratekeeper.integrations.fastapi import RateLimitMiddleware
        app = FastAPI()
        app.add_middleware(RateLimitMiddleware, default="nonsense")
    """,
    "Starlette": """
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from ratekeeper.integrations.starlette import RateLimitMiddleware
        app = Starlette(middleware=[Middleware(RateLimitMiddleware, limit="nonsense")])
    """,
    "ASGI": """
        from ratekeeper.integrations.asgi import RateLimitMiddleware
        async def hello(scope, receive, send):
            raise RuntimeError("no lifespan")
        app = RateLimitMiddleware(hello, "nonsense")
    """,
    "WSGI": """
        from ratekeeper.integrations.wsgi import RateLimitMiddleware
        app = RateLimitMiddleware(lambda environ, start_response: [], "nonsense")
    """,
    "Flask": """
        from flask import Flask
        from ratekeeper.integrations.flask import RateLimiter
        app = Flask(__name__)
        RateLimiter(app, default="nonsense")
    """,
    "Flask, a view that does not suit the settings": """
        from flask import Flask
        from ratekeeper.integrations.flask import RateLimiter
        limiter = RateLimiter()
        @limiter.limit("10/s burst 20")
        def hello():
            return "hello"
        app = Flask(__name__)
        app.config["RATELIMIT_STRATEGY"] = "fixed-window"
        limiter.init_app(app)
        app.add_url_rule("/", view_func=hello)
    """,
    "Flask, a view that does not suit the settings, later": """
        from flask import Flask
        from ratekeeper.integrations.flask import RateLimiter
        limiter = RateLimiter()
        app = Flask(__name__)
        app.config["RATELIMIT_STRATEGY"] = "fixed-window"
        limiter.init_app(app)
        app.add_url_rule("/", view_func=limiter.limit("10/s burst 20")(lambda: "hello"))
    """,
    "Django": """
        SECRET_KEY = "for tests"
        ROOT_URLCONF = __name__
        INSTALLED_APPS = ["ratekeeper.integrations.django.RatekeeperConfig"]
        MIDDLEWARE = ["ratekeeper.integrations.django.RateLimitMiddleware"]
        RATEKEEPER = {"limit": "nonsense"}
        urlpatterns = []
    """,
}
GRANIAN_WSGI = [part.replace("asgi", "wsgi") for part in GRANIAN]
WSGI = [name for name in APPS if name.startswith(("WSGI", "Flask"))]
ASGI = [name for name in APPS if name.startswith(("FastAPI", "Starlette", "ASGI"))]
CASES = [
    *((UVICORN, "bad:app", name) for name in ASGI),
    *((GRANIAN, "bad:app", name) for name in ("FastAPI", "ASGI")),
    *((GUNICORN, "bad:app", name) for name in WSGI),
    (GRANIAN_WSGI, "bad:app", "Flask"),
    (GUNICORN, "django.core.wsgi:get_wsgi_application()", "Django"),
    ((*UVICORN, "--factory"), "django.core.asgi:get_asgi_application", "Django"),
    (("django", "check"), "--force-color", "Django"),
]


@pytest.mark.parametrize(
    ("command", "app", "name"), CASES, ids=lambda part: part[0] if isinstance(part, tuple) else part
)
def test_a_bad_rule_ends_the_server(tmp_path, command, app, name):
    lines = APPS[name].splitlines()
    (tmp_path / "bad.py").write_text("\n".join(line[8:] for line in lines), "utf-8")
    words = [part.format(port=servers.free_port()).replace("critical", "error") for part in command]
    process = subprocess.Popen(
        [sys.executable, "-m", *words, app],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "bad"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # granian logs on standard output
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode != 0
    message = "only a token-bucket or a leaky-bucket has a burst" if "suit" in name else "cannot read rule 'nonsense'"
    assert message in said
