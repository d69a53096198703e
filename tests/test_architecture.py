"""How the package hangs together: imports point one way, modules stay small, the public names are the promised ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ratekeeper
import ratekeeper.http
import ratekeeper.stores
import ratekeeper.testing

SOURCE = Path(ratekeeper.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
OUTSIDE = ("simulate", "integrations", "service", "playground", "operate.py", "cli.py")
CORE = [path for path in MODULES if path.relative_to(SOURCE).parts[0] not in OUTSIDE]
INTEGRATIONS = sorted((SOURCE / "integrations").glob("*.py"))
FRAMEWORKS = {  # what each integration needs besides ourselves
    "asgi": set(),
    "starlette": {"starlette"},
    "fastapi": {"fastapi", "starlette"},
    "httpx": {"httpx"},
    "requests": {"requests", "urllib3"},
    "wsgi": set(),
    "flask": {"flask", "werkzeug"},
    "django": {"django", "asgiref"},
    "django_settlement": {"asgiref"},
    "rest_framework": {"rest_framework"},
}

PUBLIC = {
    *("Limiter", "AsyncLimiter", "Decision"),
    *("FixedWindow", "SlidingWindowLog", "SlidingWindowCounter", "TokenBucket", "LeakyBucket"),
    *("parse", "RatekeeperError", "InvalidRule", "RateLimited", "StoreUnavailable"),
}

# What each layer may not know; a name stands for the module and everything inside of it.
FORBIDDEN = {
    "decision": {"algorithms", "stores", "limiter", "waiting", "rules", "http", "integrations", "service"},
    "errors": {"algorithms", "stores", "limiter", "waiting", "rules", "http", "integrations", "service"},
    "rates": {"algorithms", "stores", "limiter", "waiting", "rules", "http", "integrations", "service"},
    "keys": {"algorithms", "stores", "limiter", "waiting", "rules", "http", "integrations", "service"},
    "clock": {"algorithms", "stores", "limiter", "waiting", "rules", "http", "integrations", "service"},
    "algorithms": {"stores", "limiter", "waiting", "rules", "clock", "testing", "http", "integrations", "service"},
    "rules": {"stores", "limiter", "waiting", "clock", "testing", "http", "integrations", "service"},
    "stores": {"limiter", "waiting", "rules", "testing", "http", "integrations", "service"},
    "waiting": {"limiter", "testing", "http", "integrations", "service"},
    "fallback": {"limiter", "waiting", "rules", "testing", "http", "integrations", "service"},
    "limiter": {"testing", "http", "integrations", "service"},
    "http": {"testing", "integrations", "service"},
    "testing": {"limiter", "stores", "algorithms", "waiting", "http", "integrations", "service"},
}


def name_of(path):
    return str(path.relative_to(SOURCE))


def is_for_types_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree):
    """Give every module that a tree imports when it runs, as dotted names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be followed"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not is_for_types_only(node):
            yield from imports(node)


def parts_known_by(path):
    """Give the parts of the package that a file imports, such as "stores" for ratekeeper.stores.memory."""
    names = imports(ast.parse(path.read_text("utf-8")))
    return {name.split(".")[1] for name in names if name.startswith("ratekeeper.")}


def test_there_are_modules_to_look_at():
    assert {"limiter.py", "waiting.py", "algorithms/bucket.py", "stores/memory.py"} <= set(map(name_of, MODULES))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert parts_known_by(path) & FORBIDDEN.get(part, set()) == set()


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_knows_neither_the_simulation_nor_the_command_line(path):
    assert parts_known_by(path) & {"simulate", "operate", "cli"} == set()


@pytest.mark.parametrize("path", CORE, ids=name_of)
def test_the_core_imports_nothing_outside_of_the_standard_library(path):
    roots = {name.split(".")[0] for name in imports(ast.parse(path.read_text("utf-8")))}
    client = {"redis", "hiredis", "async_timeout"} if name_of(path) == "stores/redis/connect.py" else set()
    assert roots - set(sys.stdlib_module_names) - {"ratekeeper"} <= client


@pytest.mark.parametrize("path", INTEGRATIONS, ids=name_of)
def test_an_integration_needs_its_framework_only(path):
    roots = {name.split(".")[0] for name in imports(ast.parse(path.read_text("utf-8")))}
    assert roots - set(sys.stdlib_module_names) - {"ratekeeper"} <= FRAMEWORKS.get(path.stem, set())


def test_only_a_redis_store_needs_the_redis_client():
    code = """
import sys
sys.modules["redis"] = None  # as if it were not installed
import ratekeeper
assert ratekeeper.Limiter("1/s").hit("k")
try:
    ratekeeper.Limiter("1/s", "redis://localhost")
except ratekeeper.StoreUnavailable as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'ratekeeper[redis]'" in said


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_needs_scrolling_for_minutes(path):
    assert len(path.read_text("utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))


def test_the_public_names_are_the_promised_ones():
    assert set(ratekeeper.__all__) == PUBLIC
    assert len(ratekeeper.__all__) == len(PUBLIC)


@pytest.mark.parametrize(
    "module", [ratekeeper, ratekeeper.http, ratekeeper.stores, ratekeeper.testing], ids=lambda it: it.__name__
)
def test_every_public_name_is_there(module):
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_stores_and_the_helpers_for_tests_are_the_promised_ones():
    assert set(ratekeeper.stores.__all__) == {"MemoryStore", "RedisStore", "AsyncRedisStore", "Store", "from_url"}
    assert ratekeeper.testing.__all__ == ["ManualClock"]


def test_the_package_is_typed():
    assert (SOURCE / "py.typed").exists()
