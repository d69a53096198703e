"""Every vector on every driver, exact to the microsecond."""

import json
from pathlib import Path

import pytest

from tests.conformance.kit import rule_of
from tests.conformance.model import Answer, Model, model_of

FILES = sorted((Path(__file__).parent / "vectors").glob("*.json"))


def vectors(file):
    return json.loads(file.read_text())


def wrong_steps(subject, vector):
    """Play a vector's steps and yield those with another answer than expected."""
    for number, step in enumerate(vector["steps"]):
        if isinstance(subject, Model):
            subject.guess = Answer(**step["expect"]) if "expect" in step else None
        answer = getattr(subject, step["op"])(step["at_us"], step["cost"])
        if "expect" in step:
            expected = Answer(**step["expect"])
            if answer != expected:
                yield f"{vector['name']}, step {number}, {step['op']} {step['cost']}: {answer}, not {expected}"


def test_there_are_vectors_of_every_algorithm_and_mode():
    rules = [vector["rule"] for file in FILES for vector in vectors(file)]
    assert {(rule["algorithm"], rule.get("mode")) for rule in rules} == {
        ("fixed-window", None),
        ("sliding-window-log", None),
        ("sliding-window-counter", None),
        ("token-bucket", None),
        ("leaky-bucket", "policing"),
        ("leaky-bucket", "shaping"),
    }
    assert sum(len(vector["steps"]) for file in FILES for vector in vectors(file)) == 5_692


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_vector_is_answered_exactly(driver, file):
    wrong = [
        f"{file.name}: {step}"
        for vector in vectors(file)
        for step in wrong_steps(driver.subject(rule_of(vector["rule"])), vector)
    ]
    assert wrong == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_model_answers_every_vector_as_well(file):
    wrong = [step for vector in vectors(file) for step in wrong_steps(model_of(vector["rule"]), vector)]
    assert wrong == []
