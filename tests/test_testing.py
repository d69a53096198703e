"""What is offered for tests of applications: `reset_limiters`, the fixture `fresh_limits`, and docs/testing.md."""

import asyncio
import gc
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratekeeper import AsyncLimiter, Limiter, StoreUnavailable
from ratekeeper.http import AsyncGate, Gate
from ratekeeper.stores import AsyncRedisStore, MemoryStore
from ratekeeper.testing import ManualClock, reset_limiters
from tests import inside, servers
from tests.faces import FACES
from tests.http.requests import a_request

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "testing.md"
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = """
[pytest]
filterwarnings =
    error
    ignore:Using .httpx. with .starlette.testclient. is deprecated
"""
PROJECT = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project_settings"
urlpatterns = []
MIDDLEWARE = ["ratekeeper.integrations.django.RateLimitMiddleware"]
RATEKEEPER = {"limit": "1/day"}
"""


@pytest.fixture(params=FACES.values(), ids=FACES)
def face(request):
    return request.param


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    """Leave alone the limiters that other tests have left behind, perhaps on servers that have been stopped."""
    inside.forget_limiters(monkeypatch)


def run(directory, **environment):
    """Run pytest in a process of its own, and return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COVERAGE_", "PYTEST_"))}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=directory,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


# All limiters of the process


def test_every_limiter_is_reset_whatever_its_store(face, tmp_path):
    url = servers.shared(servers.newest()).url
    strict = {"on_error": "raise", "deadline": 30, "prefix": f"reset {tmp_path}"}
    limiters = [face("5/hour"), face("5/hour", f"sqlite:///{tmp_path}/limits.db"), face("5/hour", url, **strict)]
    for limiter in limiters:
        limiter.hit("k")
    reset_limiters()
    assert [limiter.peek("k").remaining for limiter in limiters] == [5, 5, 5]
    for limiter in limiters:
        limiter.close()


@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_limiters_of_integrations_are_reset(kind):
    gate = kind("fixed-window 1/day", clock=ManualClock())

    def admits():
        admission = gate.admit(a_request())
        return (admission if kind is Gate else asyncio.run(admission)).decision.allowed

    assert [admits(), admits()] == [True, False]
    reset_limiters()
    assert [admits(), admits()] == [True, False]


def test_it_may_be_called_while_an_event_loop_runs():
    async def main():
        limiter = AsyncLimiter("5/hour")
        await limiter.hit("k")
        reset_limiters()
        return (await limiter.peek("k")).remaining

    assert asyncio.run(main()) == 5


def test_the_event_loop_of_the_thread_stays_as_it_is():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    limiter = AsyncLimiter(
        "5/hour", AsyncRedisStore(servers.shared(servers.newest()).url), on_error="raise", deadline=30
    )
    reset_limiters()
    assert asyncio.get_event_loop() is loop
    loop.run_until_complete(limiter.store.close())
    asyncio.set_event_loop(None)
    loop.close()


def test_a_limiter_that_is_switched_off_or_gone_is_left_alone():
    store = MemoryStore()
    off = Limiter("5/hour", store, enabled=False)
    gone = Limiter("6/hour", store)
    gone.hit("k")
    del gone
    gc.collect()
    reset_limiters()
    assert (off.notices.counts["unlimited"], store.size) == (0, 1)


def test_a_store_that_does_not_answer_is_an_error():
    limiter = Limiter("5/hour", f"redis://127.0.0.1:{servers.free_port()}")
    with pytest.raises(StoreUnavailable):
        reset_limiters()
    limiter.close()


# The fixture


def test_the_fixture_is_there_for_those_who_import_it_and_pytest_is_not_imported_before():
    code = """
import sys
import ratekeeper.testing
assert "pytest" not in sys.modules
from ratekeeper.testing import fresh_limits
assert "pytest" in sys.modules
try:
    ratekeeper.testing.no_such_thing
except AttributeError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "module 'ratekeeper.testing' has no attribute 'no_such_thing'\n"


def test_without_pytest_the_fixture_says_what_is_missing():
    code = """
import sys
sys.modules["pytest"] = None  # as if it were not installed
from ratekeeper.testing import ManualClock, reset_limiters
reset_limiters()
try:
    from ratekeeper.testing import fresh_limits
except ImportError as error:
    print(error)
"""
    assert "pytest" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


# The page


def test_every_snippet_of_the_page_runs(tmp_path):
    files = FILE.findall(PAGE.read_text("utf-8"))
    assert PAGE.read_text("utf-8").count("```python") == len(files) == len(dict(files))
    for name, content in files:
        (tmp_path / name).write_text(content)
    (tmp_path / "project_settings.py").write_text(PROJECT)
    django = {"DJANGO_SETTINGS_MODULE": "project_settings", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    said = run(tmp_path, REDIS_URL=servers.shared(servers.newest()).url, **django)
    assert re.search(r"^12 passed", said, re.MULTILINE), said
