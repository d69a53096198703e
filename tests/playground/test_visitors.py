"""What is remembered about visitors is bounded."""

from ratekeeper import FixedWindow
from ratekeeper.playground import visitors
from ratekeeper.playground.visitors import Visitors


def test_the_latest_rules_of_a_visitor_are_remembered():
    known = Visitors()
    for limit in range(1, visitors.MAX_USED_RULES + 2):
        known.remember("ada", FixedWindow(limit, 1))
    rules = known.used("ada")
    assert [rules[0], len(rules)] == [FixedWindow(2, 1), visitors.MAX_USED_RULES]


def test_the_latest_visitors_are_remembered(monkeypatch):
    monkeypatch.setattr(visitors, "MAX_VISITORS", 2)
    known = Visitors()
    for name in ("ada", "bob", "cy"):
        known.remember(name, FixedWindow(1, 1))
    assert [len(known.used(name)) for name in ("ada", "bob", "cy")] == [0, 1, 1]


def test_all_visitors_together_have_a_bounded_number_of_rules():
    known = Visitors()
    rules = [FixedWindow(limit, 1) for limit in range(1, visitors.MAX_USED_RULES + 1)]
    names = [f"visitor {number}" for number in range(400)]  # with 25,600 rules
    for name in names:
        for rule in rules:
            known.remember(name, rule)
            known.remember(name, rule)
    remembered = [len(known.used(name)) for name in names]
    assert sum(remembered) <= visitors.MAX_REMEMBERED
    assert remembered == [0] * 88 + [64] * 312
