import json

import pytest

from ratekeeper import FixedWindow, Limiter
from ratekeeper.http import body, problem
from ratekeeper.testing import ManualClock


def a_denial(name="daily", cost=1):
    limiter = Limiter({"other": FixedWindow(100, 60), name: FixedWindow(1, 60)}, clock=ManualClock(1_700_000_023.5))
    limiter.hit("k")
    return limiter.hit("k", cost)


def test_a_denial_is_a_problem_of_the_registered_type():
    assert problem(a_denial()) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Try again in 17 seconds.",
        "violated-policies": ["daily"],
    }


def test_a_limiter_of_one_rule_names_that():
    limiter = Limiter({"only": FixedWindow(1, 60)})
    limiter.hit("k")
    assert problem(limiter.hit("k"))["violated-policies"] == ["only"]


def test_a_cost_that_never_fits_is_not_told_to_come_back():
    assert problem(a_denial(cost=2))["detail"] == "This request cannot be admitted."


PROBLEM, TEXT, HTML = "application/problem+json", "text/plain; charset=utf-8", "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    {
        "": PROBLEM,
        "*/*": PROBLEM,
        "application/json": PROBLEM,
        "application/*": PROBLEM,
        "image/png": PROBLEM,
        "text/plain": TEXT,
        "text/*": TEXT,
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": HTML,
        "TEXT/HTML": HTML,
        "text/html;q=0.1, text/plain;q=0.2": TEXT,
        "text/html;q=0": PROBLEM,
        "text/html;q=x, text/plain;q=0.1": TEXT,
        "text/html;q=nan": PROBLEM,
        "text/html;level=1": HTML,
        ",;,": PROBLEM,
    }.items(),
)
def test_the_form_of_the_body_follows_accept(accept, expected):
    assert body(a_denial(), accept).content_type == expected


def test_the_problem_is_json():
    assert json.loads(body(a_denial()).content)["status"] == 429


def test_the_text_is_plain():
    assert body(a_denial(), "text/plain").content == b"Too many requests. Try again in 17 seconds.\n"


def test_the_page_is_html():
    assert b"<p>Try again in 17 seconds.</p>" in body(a_denial(), "text/html").content
