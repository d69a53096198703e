"""Paths that applications may read in several ways: limits apply to each of them, and none is a way around a limit."""

import json

import pytest

from ratekeeper.policies import Policies
from ratekeeper.testing import ManualClock


def limiter(rules, overrides=()):
    """A limiter by rules on paths: each has a limit, or that and its key."""
    given = [{"name": name, "limit": limit, "key": "all", "when": {"path": path}} for name, path, limit in rules]
    overridden = [{"when": {"path": path}, "limits": limits} for path, limits in overrides]
    text = json.dumps({"policies": {"api": {"rules": given, "overrides": overridden}}})
    return Policies.load(text).limiter("api", clock=ManualClock(0))


def limits_of(decision):
    """The limits that a request has met, by rule."""
    layers = decision.layers or {decision.rule: decision}
    return {rule: layer.limit for rule, layer in layers.items() if rule}


ANY = [("any", "/any/*", "fixed-window 3/day")]


@pytest.mark.parametrize(
    "path",
    [
        *("/any/free/", "/any/free//", "/any/FREE", "/any//free", "/any/./free", "/any/x/../free", "/any/free\n"),
        *("/any/\uff46ree", "/any/../any/free", "/any/free/x/.."),
    ],
)
@pytest.mark.parametrize("limits", ["unlimited", {"any": "unlimited"}, {"any": "token-bucket 9/s"}])
def test_what_an_override_frees_is_the_path_as_it_is_written(path, limits):
    api = limiter(ANY, [("/any/free", limits)])
    assert limits_of(api.hit({"path": "/any/free"})).get("any") in (None, 9)
    assert limits_of(api.hit({"path": path})).get("any") == 3


@pytest.mark.parametrize("path", ["/open/../any/x", "/any/../open/x", "/OPEN/../any/x"])
def test_a_path_that_leads_elsewhere_meets_the_limits_of_both(path):
    api = limiter(ANY, [("/open/*", "unlimited")])
    assert limits_of(api.hit({"path": path})) == {"any": 3}


@pytest.mark.parametrize("path", ["/any/x", "//any/x", "/ANY/x", "/any/x/", "/./any/x", "\\any\\x"])
def test_what_an_override_blocks_is_blocked_however_it_is_written(path):
    api = limiter(ANY, [("/any/x", "blocked")])
    decision = api.hit({"path": path})
    assert (decision.allowed, decision.limit) == (False, 0)
    assert api.hit({"path": "/any/y"}).remaining == 2


@pytest.mark.parametrize("path", ["/any/x/", "/any/X"])
@pytest.mark.parametrize("larger", ["/any/x", "/any/*"])
def test_of_two_limits_that_count_together_the_stricter_one_applies_once(path, larger):
    api = limiter(ANY, [("/any/x", {"any": "fixed-window 9/day" if larger == "/any/x" else "fixed-window 2/day"})])
    decision = api.hit({"path": path})
    assert (decision.limit, decision.remaining) == ((3, 2) if larger == "/any/x" else (2, 1))


def test_a_limit_in_another_window_is_charged_as_well():
    api = limiter(ANY, [("/any/x", {"any": "fixed-window 9/hour"})])
    assert api.hit({"path": "/any/x"}).remaining == 8
    assert api.hit({"path": "/any/x/"}).remaining == 2
    assert api.peek({"path": "/any/x"}).remaining == 7


def test_a_path_in_unusual_letters_is_free_as_it_is_written():
    api = limiter(ANY, [("/any/Free/", "unlimited")])
    free = api.hit({"path": "/any/Free/"})
    assert (free.allowed, free.limit) == (True, None)
    assert api.hit({"path": "/any/free"}).limit == 3


@pytest.mark.parametrize(("pattern", "path"), [("*", "/x"), ("*.json", "/x.json"), ("/x/*", "/x"), ("/x/*", "/x/")])
def test_a_pattern_frees_what_it_matches_as_it_is_written(pattern, path):
    api = limiter([("all", "*", "fixed-window 3/day")], [(pattern, "unlimited")])
    assert api.hit({"path": path}).limit is None


def test_a_path_has_one_key_however_it_is_written():
    text = {"rules": [{"name": "path", "limit": "fixed-window 9/day", "key": "{path}", "when": {"path": "/any/*"}}]}
    api = Policies.load(json.dumps({"policies": {"api": text}})).limiter("api", clock=ManualClock(0))
    assert [api.hit({"path": path}).remaining for path in ("/any/x", "/any/x/", "//any/./x")] == [8, 7, 6]
