"""docs/moving.md: each ratekeeper line is run, and each ratekeeper program does what the page says."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from django.test import RequestFactory, override_settings
from flask import Flask

from ratekeeper.http import Gate
from ratekeeper.integrations.django import RateLimitMiddleware
from ratekeeper.integrations.flask import RateLimiter

PAGE = (Path(__file__).parent.parent / "docs" / "moving.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROWS = [
    (section, re.match(r"`(.+?)`(?= \||[:,]? )", row)[1])
    for section, text in SECTIONS.items()
    for row in re.findall(r"^\| .+? \| (`.+ \|)$", text, re.MULTILINE)
]


def program(section):
    """Run our program in a section, and return its names."""
    names = {"__name__": "moving"}
    exec(re.search(r"```python\n# ratekeeper\n(.*?)```", SECTIONS[section], re.DOTALL)[1], names)
    return names


def test_the_page_has_all_five():
    assert list(SECTIONS) == ["slowapi", "Flask-Limiter", "django-ratelimit", "limits", "throttled-py"]
    for section, text in SECTIONS.items():
        lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
        assert len(lines) == len([row for row in ROWS if row[0] == section]) >= 12


@pytest.mark.parametrize(("section", "line"), ROWS)
def test_a_line_works(section, line):
    names = program(section)
    if line.startswith("RATELIMIT_"):
        settings = {}
        exec(line, settings)
        app = Flask("moving")
        app.config.update({name: value for name, value in settings.items() if name.startswith("RATELIMIT_")})
        RateLimiter(app)
    elif line.startswith("RATEKEEPER"):
        exec(line, names)
        with override_settings(RATEKEEPER=names["RATEKEEPER"]):
            RateLimitMiddleware(names["login"])
    elif line.startswith("@"):
        exec(f"{line}\n{'async ' * (section == 'slowapi')}def decorated(request): ...", names)
    elif re.match(r"application=", line):
        exec(f"RateLimiter({line})", names)
    elif re.match(r"\w+=", line):  # an option
        exec(f"Gate({line})" if line.startswith("limit=") else f"Gate('1/s', {line})", {**names, "Gate": Gate})
    else:
        exec(line, names)


def test_the_program_for_slowapi_limits():
    async def main():
        transport = httpx.ASGITransport(program("slowapi")["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://moving") as client:
            return [(await client.get("/home")).status_code for _ in range(6)]

    assert asyncio.run(main()) == [200] * 5 + [429]


def test_the_program_for_flask_limiter_limits():
    client = program("Flask-Limiter")["app"].test_client()
    assert [client.get("/slow").status_code for _ in range(2)] == [200, 429]
    assert {client.get("/ping").status_code for _ in range(51)} == {200}


def test_the_program_for_django_ratelimit_limits():
    login = program("django-ratelimit")["login"]
    with override_settings(RATEKEEPER={}):
        assert [login(RequestFactory().post("/")).status_code for _ in range(6)] == [200] * 5 + [429]
        assert login(RequestFactory().get("/")).status_code == 200


@pytest.mark.parametrize("section", ["limits", "throttled-py"])
def test_the_program_for_a_library_decides(section):
    assert program(section)["allowed"] is True
