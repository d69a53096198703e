"""Generated traces: every driver gives the same answers as the model, step by step."""

import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conformance import strategies
from tests.conformance.kit import DRIVERS, exact, rule_of
from tests.conformance.model import Answer, Layers, Verdict, model_of
from tests.conformance.strategies import ALGORITHMS, START_US, Step, limit_of, span_us

TRACES = 5 * settings().max_examples  # for each algorithm


class Play:
    """A trace played on the model and on every driver at once."""

    def __init__(self, rule, start, drivers=DRIVERS):
        self.model = model_of(rule)
        self.forgetful = copy.copy(self.model)  # a store may forget what has expired, or may not have come to it
        self.subjects = {driver.name: driver.subject(rule_of(rule)) for driver in drivers}
        self.clock = self.latest = start
        self.answer = Answer(True, 0, 0, 0, 0)
        self.hits = []  # when, how much, and when the key would then have been forgotten

    def step(self, step):
        self.move(step.wait)
        if step.operation in ("hit", "peek"):
            self.ask(step.operation, step.cost)
        elif step.operation == "give_back":
            self.give_back()
        else:
            self.change(step.operation, step.cost)

    def move(self, wait):
        if isinstance(wait, str):
            name, _, early = wait.partition(" - ")
            moment = self.answer.retry_after_us if name == "retry" else self.answer.reset_after_us
            wait = max(0, (moment or 0) - bool(early))
        self.clock += wait
        if self.is_doubtful():
            self.clock = self.latest
        self.latest = max(self.latest, self.clock)
        self.forgetful.expire(self.clock)

    def is_doubtful(self):
        """After a step back beyond the time at which something expired, both answers are right."""
        one, other = self.model, self.forgetful
        return one.used(self.clock) != other.used(self.clock) or one.untouched(self.clock) != other.untouched(
            self.clock
        )

    def ask(self, operation, cost):
        answers = {name: getattr(subject, operation)(self.clock, cost) for name, subject in self.subjects.items()}
        self.model.guess = next(iter(answers.values()))
        self.answer = getattr(self.model, operation)(self.clock, cost)
        assert answers == dict.fromkeys(answers, self.answer), (operation, self.clock, cost)
        if operation == "hit" and self.answer.allowed:
            self.forgetful.consume(self.clock, cost)
            self.hits.append((self.clock, cost, self.clock + self.answer.reset_after_us))

    def change(self, operation, *arguments):
        for model in (self.model, self.forgetful):
            getattr(model, operation)(self.clock, *arguments)
        answers = [getattr(subject, operation)(self.clock, *arguments) for subject in self.subjects.values()]
        self.ask("peek", 1)
        if operation in ("charge", "refund"):  # which return the state of the key afterwards
            standing = (self.answer.remaining, self.answer.reset_after_us)
            assert {(answer.remaining, answer.reset_after_us) for answer in answers} == {standing}

    def give_back(self):
        if self.hits and not self.model.untouched(self.clock):
            charged, cost, ends = self.hits.pop()
            self.change("give_back", cost, charged, ends)


FOUND = {  # by random search
    "sliding-window-log": (  # a clock that steps back after a give-back that came too late
        {"algorithm": "sliding-window-log", "limit": 2, "window_us": 2},
        START_US,
        [Step(0, "hit", 1), Step(0, "hit", 1), Step(1, "charge", 1), Step(1, "give_back", 1), Step(-1, "hit", 1)],
    )
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_driver_answers_as_the_model_does(algorithm):
    @settings(max_examples=TRACES)
    @given(strategies.traces(algorithm))
    def check(trace):
        rule, start, steps = trace
        play = Play(rule, start)
        for step in steps:
            play.step(step)

    if algorithm in FOUND:
        check = example(FOUND[algorithm])(check)
    check()


@st.composite
def layered_traces(draw):
    """Draw two or three named rules, now and then the same one twice, and steps with a cost for each."""
    first = draw(strategies.rules())
    others = draw(st.lists(st.just(first) | strategies.rules(), min_size=1, max_size=2))
    rules = dict(zip(draw(st.permutations(["user", "tenant", "all"])), [first, *others], strict=False))
    waits = st.one_of(*(strategies.waits(span_us(rule), limit_of(rule)) for rule in rules.values()))
    cost_of_each = st.fixed_dictionaries(
        {}, optional={name: st.just(0) | strategies.costs(limit_of(rule)) for name, rule in rules.items()}
    ).filter(lambda costs: any(costs.get(name, 1) for name in rules))
    costs = st.one_of(strategies.costs(min(map(limit_of, rules.values()))), cost_of_each)
    operations = st.sampled_from(["hit"] * 9 + ["peek"] * 2 + ["charge", "refund", "reset"])
    return rules, draw(st.lists(st.tuples(waits, operations, costs), min_size=3, max_size=20))


def verdict_of(decision):
    layers = {name: exact(layer) for name, layer in decision.layers.items()}
    for name, layer in decision.layers.items():
        assert layer.rule == name
    return Verdict(decision.rule, decision.limit, exact(decision), layers)


class LayeredPlay:
    """A trace on several rules, played on the model and on every driver at once."""

    def __init__(self, rules):
        self.plays = {name: Play(rule, START_US, drivers=()) for name, rule in rules.items()}
        self.model = Layers({name: play.model for name, play in self.plays.items()})
        self.forgetful = Layers({name: play.forgetful for name, play in self.plays.items()})
        rules = {name: rule_of(rule) for name, rule in rules.items()}
        self.subjects = {driver.name: driver.subject(rules) for driver in DRIVERS}
        self.keys = {name: f"{name}'s" for name in rules}  # on a cluster these are on different nodes
        self.verdict = Verdict("", 0, Answer(True, 0, 0, 0, 0), {})
        self.clock = self.latest = START_US

    def step(self, wait, operation, cost):
        self.move(wait)
        costs = {name: cost if isinstance(cost, int) else cost.get(name, 1) for name in self.plays}
        costs = {name: units for name, units in costs.items() if units}
        decisions = {
            name: subject.call(operation, self.clock, cost, self.keys) for name, subject in self.subjects.items()
        }
        if operation in ("hit", "peek"):
            self.compare(operation, costs, decisions)
        else:
            for model in (self.model, self.forgetful):
                getattr(model, operation)(self.clock, costs)
            everything = dict.fromkeys(self.plays, 1)
            self.compare(
                "peek",
                everything,
                {name: subject.call("peek", self.clock, 1, self.keys) for name, subject in self.subjects.items()},
            )

    def move(self, wait):
        plays = self.plays.values()
        for play in plays:
            play.answer = self.verdict.answer
            play.clock, play.latest = self.clock, self.latest
            play.move(wait)
        self.clock = max(play.clock for play in plays)  # where one of them is doubtful, the latest
        self.latest = max(self.latest, self.clock)

    def compare(self, operation, costs, decisions):
        verdicts = {name: verdict_of(decision) for name, decision in decisions.items()}
        guess = next(iter(verdicts.values()))
        for name, model in self.model.models.items():
            model.guess = guess.layers.get(name)
        self.verdict = getattr(self.model, operation)(self.clock, costs)
        assert verdicts == dict.fromkeys(verdicts, self.verdict), (operation, self.clock, costs)
        if operation == "hit" and self.verdict.answer.allowed:
            self.forgetful.charge(self.clock, costs)


@settings(max_examples=TRACES)
@given(layered_traces())
def test_every_driver_answers_as_the_model_does_on_several_rules(trace):
    rules, steps = trace
    play = LayeredPlay(rules)
    for step in steps:
        play.step(*step)
