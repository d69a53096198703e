"""Each step in Lua reads as the one in Python: the same functions, in the same order, with the same names."""

import ast
import re
import sys
from pathlib import Path

import pytest

from ratekeeper.algorithms import ALGORITHMS

# What Redis does not need: how a rule is made and described, and how a state is read.
ONLY_IN_PYTHON = {"of", "load", "dump", "restore", "share", "words", "packed", "parts", "shared"}
STEPS = {"usage_at", "decide", "charge", "refund", "give_back", "expires_at"}


def module_of(algorithm):
    """Return the file with the steps in Python: the rule's own, or that of the class that it inherits them from."""
    owner = next(kind for kind in algorithm.__mro__ if "decide" in vars(kind))
    return Path(sys.modules[owner.__module__].__file__)


def functions_in_python(path):
    """Return the functions that take a state, in order; the underscore of private ones is removed."""
    tree = ast.parse(path.read_text("utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    stateful = {"state", "log", "level", "count", "start"}
    nodes = [node for node in nodes if stateful & {argument.arg for argument in node.args.args}]
    return [node.name.strip("_") for node in sorted(nodes, key=lambda node: node.lineno)]


def functions_in_lua(algorithm):
    return re.findall(r"^(?:local function |function step\.)(\w+)", algorithm.lua(), re.MULTILINE)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.algorithm)
def test_lua_has_the_functions_of_python_in_the_same_order_with_the_same_names(algorithm):
    python = [name for name in functions_in_python(module_of(algorithm)) if name not in ONLY_IN_PYTHON]
    lua = functions_in_lua(algorithm)
    assert set(python) >= STEPS
    assert [name for name in lua if name in python] == python


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.algorithm)
def test_the_lua_says_which_module_it_follows(algorithm):
    path = module_of(algorithm)
    assert path.name in algorithm.lua().split("\n", 1)[0]
    assert path.with_suffix(".lua").read_text("utf-8") == algorithm.lua()
