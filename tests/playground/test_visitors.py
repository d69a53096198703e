"""What is remembered of visitors is bounded."""

from ratekeeper import FixedWindow
from ratekeeper.playground import visitors
from ratekeeper.playground.visitors import Visitors


def test_the_latest_rules_of_a_visitor_are_remembered():
    known = Visitors()
    for limit in range(1, visitors.MOST_RULES + 2):
        known.remember("ada", FixedWindow(limit, 1))
    rules = known.used("ada")
    assert [rules[0], len(rules)] == [FixedWindow(2, 1), visitors.MOST_RULES]


def test_the_latest_visitors_are_remembered(monkeypatch):
    monkeypatch.setattr(visitors, "MOST_VISITORS", 2)
    known = Visitors()
    for name in ("ada", "bob", "cy"):
        known.remember(name, FixedWindow(1, 1))
    assert [len(known.used(name)) for name in ("ada", "bob", "cy")] == [0, 1, 1]
