"""The Django middleware and decorator, and the REST framework's throttle."""

import pytest

from tests.integrations.behaviour import OnAServer, assert_told_once
from tests.integrations.processes import GUNICORN, STORES, UVICORN, Process

SERVERS = {
    "gunicorn": ("-m", *GUNICORN, "django.core.wsgi:get_wsgi_application()"),
    "runserver": ("-m", "django", "runserver", "--noreload", "{port}"),
    "uvicorn": ("-m", *UVICORN, "--factory", "django.core.asgi:get_asgi_application"),
}
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.integrations.django_settings"}


@pytest.fixture(scope="module", params=[(server, store) for server in SERVERS for store in STORES], ids=" on ".join)
def server(request):
    name, store = request.param
    views = {"ASYNC_VIEWS": "yes"} if name == "uvicorn" else {}
    with Process(*SERVERS[name], store=store, **SETTINGS, **views) as server:
        yield server


class TestOnAServer(OnAServer):
    def test_a_throttle_of_the_rest_framework_denies(self, http):
        answers = [http.get("/rest/three") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert_told_once(answers[0], 2)
        assert int(answers[3].headers["retry-after"]) > 0
