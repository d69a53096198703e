"""docs/moving.md: our side of each pattern answers what the page says. `make compare` tries out the others' as well."""

import json
import os
import subprocess
import sys

import pytest

from compare.moving.both import WRONG, Result
from compare.moving.page import OURS, PAGE, Pattern, patterns, sections, untried
from compare.moving.peer import MODULES
from tests import servers


@pytest.fixture(scope="module")
def server():
    server = servers.RedisServer(servers.programs()[servers.newest()])
    yield server
    server.stop()


@pytest.mark.parametrize("name", MODULES)
def test_ours_answers_as_the_page_says(name, server):
    # in a process of its own, because a program may reset all limiters of its process
    command = [sys.executable, "-W", "error", "-m", "compare.moving.trial", name, OURS]
    environment = {**os.environ, "COMPARE_REDIS": f"redis://127.0.0.1:{server.port}"}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=300)
    found = patterns(name)
    answers = [(pattern.ours, answer) for pattern, answer in zip(found, json.loads(run.stdout), strict=True)]
    assert answers == [(pattern.ours, pattern.answers) for pattern in found]


def test_everything_on_the_page_is_tried():
    page = PAGE.read_text("utf-8")
    found = [pattern for name in MODULES for pattern in patterns(name)]
    assert list(sections()) == list(MODULES)
    assert page.count("<!--") == len(found)
    assert page.count("```python\n# ratekeeper\n") == page.count("\n<!--")
    assert [row for name in MODULES for row in untried(name)] == []


@pytest.mark.parametrize(
    ("theirs", "ours", "differs", "is_wrong"),
    [
        ("200", "200", "", False),
        ("429", "200", "", True),
        ("429", "200", "it counts", False),
        ("200", "200", "it counts", True),  # it no longer does
        ("429", "429", "", True),  # the page says 200
    ],
)
def test_a_difference_that_the_page_does_not_name_is_wrong(theirs, ours, differs, is_wrong):
    pattern = Pattern("@theirs", "@ours", "GET /a", ["200"], differs)
    assert (Result(pattern, [theirs], [ours]).verdict == WRONG) == is_wrong
