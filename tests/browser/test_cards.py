"""Every card in a real browser: each button does what it says, and the picture shows the real state."""

import re

from playwright.sync_api import expect

from tests.browser.cards import SLOW, Card, all_cards
from tests.browser.conftest import REFUSED, hold


def test_a_request_is_answered_and_drawn_as_a_peek_sees_it(page):
    for card in all_cards(page):
        card.press("Send request")
        expect(card.answers).to_have_text([re.compile("allowed, 9 left")])
        card.agrees(9)


def test_bursts_fill_the_limit_and_what_is_beyond_is_denied(page):
    for card in all_cards(page):
        card.press("Burst 10")
        expect(card.answers).to_have_count(10)
        card.agrees(0)
        card.root.get_by_text("Another burst").click()
        card.field("count").fill("3")
        card.root.get_by_label("all at once").check()
        card.press("Send burst")
        expect(card.answers).to_have_count(13)
        expect(card.root.locator(".answers .denied")).to_have_count(3)
        expect(card.answers.first).to_have_text(re.compile("denied, retry in "))
        card.agrees(0)


def test_the_cost_is_taken_whole(page):
    for card in all_cards(page):
        card.field("cost").fill("4")
        card.press("Send request")
        expect(card.answers).to_have_count(1)
        card.agrees(6)


def test_a_shaped_burst_says_when_each_request_departs(page):
    card = Card(page, "leaky-bucket-shaping")
    card.press("Burst 10")
    expect(card.root.locator(".answers .queued")).to_have_count(9)
    expect(card.answers.first).to_have_text(re.compile("queued, departs in 1250 min, 0 left"))


def test_reset_empties_every_card(page):
    cards = all_cards(page)
    for card in cards:
        card.press("Burst 10")
        expect(card.answers).to_have_count(10)
    page.get_by_role("button", name="Reset all counters").click()
    expect(page.get_by_text("All counters have been reset.")).to_be_visible()
    for card in cards:
        expect(card.answers).to_have_count(0)
        card.agrees(10)


def test_bad_numbers_are_refused_beside_their_field_by_the_server(visitor):
    for card in all_cards(visitor.open()):
        for field, bad in zip((*SLOW[card.name], "cost"), ("abc", "-1", "0"), strict=True):
            good = card.field(field).input_value()
            card.field(field).fill(bad)
            expect(card.error(field)).to_contain_text(field)
            expect(card.field(field)).to_have_attribute("aria-invalid", "true")
            card.field(field).fill(good)
            expect(card.error(field)).to_be_empty()
        card.root.get_by_text("Another burst").click()
        card.field("count").fill("51")
        card.press("Send burst")
        expect(card.error("count")).to_have_text("count must be a whole number from 1 to 50, not 51")
        assert card.state()["peek"]["remaining"] == 10
    assert all(REFUSED in text for text in visitor.complaints)
    visitor.complaints.clear()


def test_an_older_answer_says_nothing_after_a_newer_one(visitor):
    page = visitor.open()
    card = Card(page, "token-bucket")
    held = hold(page, "**/api/rate-limit/token-bucket")
    for cost in ("0", "1"):
        card.field("cost").fill(cost)
        with page.expect_request("**/api/rate-limit/token-bucket"):
            card.press("Send request")
    refused, admitted = held
    admitted.continue_()
    expect(card.answers).to_have_count(1)
    expect(card.error("cost")).to_be_empty()
    page.evaluate(
        """() => {
            window.said = [];
            const note = () => window.said.push(document.getElementById("token-bucket-cost-error").textContent);
            new MutationObserver(note).observe(document.getElementById("token-bucket-cost-error"), {childList: true});
        }"""
    )
    with page.expect_response("**/api/rate-limit/token-bucket") as late:
        refused.continue_()
    late.value.finished()
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")  # the page has read the answer by then
    assert page.evaluate("window.said") == []
    assert all(REFUSED in text for text in visitor.complaints)
    visitor.complaints.clear()


def test_what_is_wrong_with_a_burst_stays_until_another_is_sent(visitor):
    page = visitor.open()
    card = Card(page, "token-bucket")
    card.root.get_by_text("Another burst").click()
    card.field("count").fill("51")
    card.press("Send burst")
    expect(card.error("count")).not_to_be_empty()
    for _ in range(2):
        with page.expect_response("**/api/rate-limit/token-bucket/state") as asked:
            pass
        asked.value.finished()
    expect(card.error("count")).not_to_be_empty()
    expect(card.field("count")).to_have_attribute("aria-invalid", "true")
    card.field("count").fill("5")
    card.press("Send burst")
    expect(card.error("count")).to_be_empty()
    visitor.complaints.clear()


def test_two_tabs_share_the_key_and_both_show_the_truth(visitor):
    for first, second in zip(*(all_cards(visitor.open()) for _ in range(2)), strict=True):
        for card in (first, second):
            card.button("Burst 10").dispatch_event("click")  # a click in a background tab takes long
        for card in (first, second):
            expect(card.answers).to_have_count(10)
            card.agrees(0)
        allowed = [card.root.locator(".answers li:not(.denied)").count() for card in (first, second)]
        assert sum(allowed) == 10


def test_a_moving_picture_follows_the_server(page):
    card = Card(page, "token-bucket", {"maxTokens": "10", "refillRate": "0.5"})
    card.press("Burst 10")
    expect(card.answers).to_have_count(10)
    expect(card.root.locator(".remaining")).to_have_text("1")  # a token has been refilled without a request
    before, tokens, after = card.drawn(), card.state()["state"]["tokens"], card.drawn()
    slack = 0.25  # half a second's refill: a snapshot is never that old
    assert after - slack < 10 - tokens < before + slack


def test_what_the_store_holds_is_shown(page):
    for card in all_cards(page):
        card.press("Send request")
        expect(card.answers).to_have_count(1)
        card.root.get_by_text("What the store holds").click()
        held = card.root.locator("dd")
        state = card.state()
        expect(held.nth(0)).to_have_text(state["key"])
        expect(held.nth(1)).to_have_text(state["raw"])
        expect(held.nth(2)).to_have_text(re.compile(r"^\d+ (s|min)$"))
        expect(held.nth(3)).to_have_text(f"{state['bytes']} bytes")
        card.root.get_by_text("The Lua that Redis runs").click()
        expect(card.root.locator(".lua .keyword").filter(has_text="function").first).to_be_visible()


def test_the_enter_key_sends_a_request(page):
    card = Card(page, "token-bucket")
    card.field("cost").focus()
    page.keyboard.press("Enter")
    expect(card.answers).to_have_count(1)
