"""An algorithm that is added by the recipe in CONTRIBUTING works wherever algorithms are used.

The tests follow the recipe in a copy of the tree, with the files in `added/`, and use that copy.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ratekeeper.algorithms import BY_NAME
from tests import servers

# These may name an algorithm outside of `algorithms/`: an example, and the strategies of Flask-Limiter.
NAMED = {
    ("service/openapi.py", "token-bucket"),
    ("integrations/flask_settings.py", "fixed-window"),
    ("integrations/flask_settings.py", "moving-window"),
    ("integrations/flask_settings.py", "sliding-window-counter"),
}
ROOT = Path(__file__).parent.parent.parent
ADDED = Path(__file__).parent / "added"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Follow the recipe in a copy, and return a function that runs Python on it."""
    copy = tmp_path_factory.mktemp("added")
    nothing_made = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "ratekeeper", copy / "src" / "ratekeeper", ignore=nothing_made)
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=nothing_made)
    # 1. the rule, and its step in Lua beside it
    algorithms = copy / "src" / "ratekeeper" / "algorithms"
    for name in ("gcra.py", "gcra.lua"):
        shutil.copy(ADDED / name, algorithms)
    shutil.copy(ROOT / "pyproject.toml", copy)
    # 2. the list, the map, and what the module may import
    leaky = "from ratekeeper.algorithms.leaky_bucket"
    insert(algorithms / "__init__.py", leaky, f"from ratekeeper.algorithms.gcra import Gcra\n{leaky}")
    insert(algorithms / "__init__.py", "    LeakyBucket,\n)", "    LeakyBucket,\n    Gcra,\n)")
    insert(algorithms / "__init__.py", "- `token_bucket`", "- `gcra`: one moment a key\n- `token_bucket`")
    package = '    "algorithms": (\n'
    its_line = '    "algorithms.gcra": "algorithms.rule algorithms.window rates",\n'
    insert(copy / "tests" / "test_architecture.py", package, f'{its_line}{package}        "algorithms.gcra "\n')
    # 3. what it means
    model = "class " + (ADDED / "model.py").read_text("utf-8").partition("class ")[2]
    with (copy / "tests" / "conformance" / "model.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{model}")

    # coverage does not measure the copy
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}

    def run(*arguments, status=0, **environment):
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env={**inherited, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == status, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.fixture(scope="module")
def redis():
    return servers.shared(servers.newest()).url


@pytest.fixture(scope="module")
def seen(python, redis):
    return json.loads(python("-m", "tests.algorithms.added.uses", redis))


def insert(path, before, after):
    text = path.read_text("utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, after), "utf-8")


def passed(said):
    return int(re.search(r"(\d+) passed", said)[1])


def texts_in(path):
    """Return the string constants of a Python file, and all the text of another."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return [name for name in BY_NAME if name in text]
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]


def test_nothing_but_the_algorithms_names_them():
    source = ROOT / "src" / "ratekeeper"
    files = [path for kind in ("py", "lua", "js", "html", "css") for path in source.rglob(f"*.{kind}")]
    others = [path for path in files if path.parent.name != "algorithms"]
    named = {(path.relative_to(source).as_posix(), text) for path in others for text in texts_in(path)}
    assert {(path, text) for path, text in named if text in BY_NAME} == NAMED


def test_the_conformance_kit_passes_on_every_store(python):
    said = python(*PYTEST, "-k", "gcra", "tests/conformance", HYPOTHESIS_PROFILE="few")
    assert passed(said) >= 12


def test_its_steps_and_states_are_tested(python):
    folder = [f"tests/algorithms/{path.name}" for path in Path(__file__).parent.glob("test_*.py")]
    folder.remove("tests/algorithms/test_added.py")
    assert passed(python(*PYTEST, "-k", "gcra", *folder)) >= 12


def test_tests_that_meet_all_algorithms_need_no_other_change(python):
    python(
        *PYTEST,
        "tests/test_architecture.py::test_a_module_imports_only_what_the_table_allows",
        "tests/test_architecture.py::test_the_map_of_a_package_names_its_modules",
        "tests/test_rules.py::test_an_error_quotes_the_bad_part_and_says_what_is_accepted",
        "tests/test_cli.py::test_json_is_for_programs",
        "tests/playground/test_compare.py::test_the_boundary_attack_doubles_the_fixed_window_and_no_other",
        "tests/playground/test_demo.py::test_an_unknown_algorithm_is_400_and_says_which_there_are",
        "tests/service/test_bad_bodies.py::test_a_value_that_cannot_be_used_is_a_problem_that_names_its_field",
    )


def test_it_is_a_value_with_a_text(seen):
    assert seen["repr"] == "Gcra(limit=6, window=60)"
    assert (seen["text"], seen["reads back"]) == ("gcra 6/minute", True)
    assert seen["half of it"] == "gcra 3/minute"
    assert seen["made"]


def test_headers_tell_its_limit_and_window(seen):
    assert seen["headers"] == {"RateLimit-Policy": '"user";q=6;w=60', "RateLimit": '"user";r=4;t=20'}


def test_redis_holds_it_under_its_short_name(seen):
    assert seen["name on Redis"] == "ratekeeper:gc::6/minute:{k}"
    assert seen["words"] == ["untouched_at"]


def test_the_service_takes_it_by_fields_and_as_a_text(seen):
    assert (seen["hit"]["allowed"], seen["hit"]["remaining"], seen["hit"]["rule"]) == (True, 5, "gcra 6/minute")
    assert seen["hit by text"]["remaining"] == 4
    assert (seen["by a limit"]["remaining"], seen["by a limit"]["rule"]) == (3, "gcra 6/minute")
    assert (seen["without a limit"]["field"], seen["without a limit"]["status"]) == ("limit", 400)
    assert seen["with a burst"]["detail"].endswith("only a token-bucket or a leaky-bucket has a burst, not a gcra")
    assert seen["described"] == 3  # wherever a rule may be given


def test_the_page_gets_what_it_shows_of_it(seen):
    (listed,) = seen["listed"]
    assert (listed["id"], listed["title"], listed["picture"]) == ("gcra", "GCRA", "bar")
    assert [field["name"] for field in listed["fields"]] == ["maxRequests", "windowSeconds"]
    assert listed["example"]["python"] == "Gcra(limit=100, window=60)"
    assert (seen["demo"]["allowed"], seen["demo"]["remaining"]) == (True, 5)
    assert (seen["state"]["peek"]["remaining"], seen["state"]["resetAfter"]) == (6, 0.0)  # for another visitor
    assert seen["script"].startswith("-- GCRA: gcra.py on Redis")
    assert seen["compared"][-1] == "GCRA"
    assert len(seen["compared"]) == 7


def test_the_commands_take_it(python, redis):
    cli = ("-m", "ratekeeper.cli")
    hit = (*cli, "hit", "gcra 2/hour", "cli", "--cost", "2", "--store", redis, "--deadline", "30", "--json")
    assert json.loads(python(*hit))["remaining"] == 0
    assert json.loads(python(*hit, status=1))["allowed"] is False
    rules = json.loads(python(*cli, "simulate", "--json"))["rules"]
    assert rules[-1]["name"] == "gcra 10/10s"
    (alone,) = json.loads(python(*cli, "simulate", "gcra 5/s", "--json"))["rules"]
    assert alone["admitted"]["requests"] > 0
