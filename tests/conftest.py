"""How the suite runs: the same examples each time, or with HYPOTHESIS_PROFILE=explore random ones."""

import contextlib
import os
import signal

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests import servers
from tests.waiters import untraced

settings.register_profile(  # `make test`: the same each time, however busy the machine is
    "default",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("few", settings.get_profile("default"), max_examples=10)  # for a kit inside of a test
settings.register_profile(  # `make explore`: other examples each time; what failed is in .hypothesis and tried first
    "explore",
    settings.get_profile("default"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    max_examples=int(os.environ.get("EXAMPLES", "100")),
)
settings.register_profile(  # it is enough to know that a mutant fails, so nothing is shrunk or explained
    "mutants", settings.get_profile("default"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "default")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.integrations.django_settings")  # some modules read it at once
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # background processes ignore Ctrl-C, which some tests send
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Mark the tests that generate examples, also where a test makes one for each of its parameters."""
    for item in items:
        function = item.function
        if getattr(function, "is_hypothesis_test", False) or "given" in function.__code__.co_names:
            item.add_marker(pytest.mark.generated)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Measure no coverage of generated examples: it doubles their time, and other tests reach the same lines."""
    with untraced() if pyfuncitem.get_closest_marker("generated") else contextlib.nullcontext():
        return (yield)


def pytest_xdist_auto_num_workers():
    """One more than there are cores: many tests wait for a server or a browser."""
    return (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter):
    versions = ", ".join(servers.programs())
    terminalreporter.write_line(f"Redis or Valkey {versions}; redis-py {redis.__version__}")
