"""The examples, each served by a real server."""

import uuid

import httpx
import pytest

from tests.integrations.processes import GUNICORN, STORES, UVICORN, Process


def statuses(http, method, path, times, **options):
    return [http.request(method, path, **options).status_code for _ in range(times)]


@pytest.mark.parametrize("store", STORES)
def test_the_flask_example_runs(store):
    with (
        Process("-m", *GUNICORN, "examples.flask_app:app", store=store) as server,
        httpx.Client(base_url=server.url, headers={"x-api-key": str(uuid.uuid4())}) as http,
    ):
        assert http.get("/search").headers["x-ratelimit-limit"] == "100"
        assert statuses(http, "POST", "/login", 6) == [200] * 5 + [429]
        assert http.post("/login").json()["error"] == "too many requests"
        assert statuses(http, "GET", "/export", 11) == [200] * 10 + [429]
        assert http.get("/export").headers["ratelimit-policy"] == '"rows";q=1000;w=86400'


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    "command",
    [
        ("-m", *GUNICORN, "examples.django_app:application"),
        ("-m", *UVICORN, "examples.django_app:asgi_application"),
        ("examples/django_app.py", "runserver", "--noreload", "{port}"),
    ],
    ids=["gunicorn", "uvicorn", "runserver"],
)
def test_the_django_example_runs(command, store):
    with (
        Process(*command, store=store) as server,
        httpx.Client(base_url=server.url, headers={"x-api-key": str(uuid.uuid4())}) as http,
    ):
        assert http.get("/search").headers["x-ratelimit-limit"] == "100"
        assert statuses(http, "GET", "/login", 6)[-1] == 429
        assert statuses(http, "GET", "/report", 3) == [200, 200, 429]
        assert statuses(http, "GET", "/export/users", 11) == [200] * 10 + [429]
