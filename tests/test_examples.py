import doctest
import importlib
import pkgutil

import pytest

import ratekeeper

ELSEWHERE = {"ratekeeper.integrations.celery", "ratekeeper.integrations.arq"}  # run in environments of their own
FOUND = {module.name for module in pkgutil.walk_packages(ratekeeper.__path__, "ratekeeper.")}
MODULES = ["ratekeeper", *sorted(FOUND - ELSEWHERE)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_a_module_hold(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_in_the_places_that_newcomers_read_first():
    for name in ("ratekeeper", "ratekeeper.limiter", "ratekeeper.rules", "ratekeeper.rates", "ratekeeper.testing"):
        assert doctest.testmod(importlib.import_module(name)).attempted > 0
