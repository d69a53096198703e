"""A decision takes a short way through the package: few calls, few modules, and one way down and up."""

import pytest

from tests.waiters import untraced
from tools.walk import WALKS


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_as_short_as_is_wanted(name):
    _, take, wanted = WALKS[name]
    with untraced():
        walk = take()
    assert walk.calls, "nothing was recorded"
    assert walk.figures.is_within(wanted), "\n".join([f"{walk.figures}, not {wanted}:", *walk.lines()])
