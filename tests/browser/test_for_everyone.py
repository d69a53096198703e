"""The page for everyone: screen readers, keyboards, less motion, dark and light, phone to wide screen."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from ratekeeper.algorithms import all_of
from tests.browser.cards import Card, all_cards
from tests.browser.conftest import REFUSED

_FRAMES_WITH_CHANGES = """() => new Promise((resolve) => {
    let [frames, changes, changed] = [0, 0, false];
    new MutationObserver(() => { changed = true; }).observe(document.getElementById("cards"),
        {attributes: true, subtree: true, characterData: true, childList: true});
    const next = () => {
        if (changed) changes += 1;
        changed = false;
        frames += 1;
        if (frames < 20) requestAnimationFrame(next);
        else resolve(changes);
    };
    requestAnimationFrame(next);
})"""

_NAME = """() => {
    const node = document.activeElement;
    return node.id || node.getAttribute("aria-label") || node.textContent;
}"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(visit, site, scheme, width):
    page = visit(site, color_scheme=scheme, viewport={"width": width, "height": 900}).open()
    for card in all_cards(page):
        card.press("Burst 10")
        card.press("Send request")
        expect(card.answers).to_have_count(11)
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    expect(page.locator(".lua .keyword").first).to_be_visible()
    found = Axe().run(page).response["violations"]
    serious = {
        each["id"]: [node["html"][:120] for node in each["nodes"]]
        for each in found
        if each["impact"] in ("serious", "critical")
    }
    assert serious == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_button_can_be_read_under_the_pointer(visit, site, scheme):
    page = visit(site, color_scheme=scheme).open()
    for name in ("Send request", "Burst 10"):
        button = page.get_by_role("button", name=name).first
        button.hover()
        ink, ground = button.evaluate("(b) => [getComputedStyle(b).color, getComputedStyle(b).backgroundColor]")
        assert ink != ground


def test_nothing_is_wider_than_the_screen(page):
    for width in (1920, 1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_table_of_the_comparison_is_seen_whole_on_every_screen(page):
    table = page.get_by_role("table", name="Totals of the comparison")
    for width in (1280, 768, 600, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        expect(table.get_by_role("row")).to_have_count(1 + len(all_of(10, 10_000_000)))
        expect(table.get_by_role("columnheader")).to_have_count(6)
        cut = """(table) => [...table.querySelectorAll("th, td")]
            .filter((cell) => cell.scrollWidth > cell.clientWidth || cell.getBoundingClientRect().right > innerWidth)
            .map((cell) => cell.textContent)"""
        assert table.evaluate(cut) == []
        assert table.evaluate("(table) => table.scrollWidth <= table.parentElement.clientWidth")


def test_a_burst_is_told_to_who_hears_the_page(page):
    card = Card(page, "fixed-window")
    card.press("Burst 10")
    expect(card.root.get_by_role("status")).to_have_text("10 sent: 10 allowed, 0 denied")


def test_the_same_answer_again_is_told_again(page):
    card = Card(page, "fixed-window")
    card.field("cost").fill("11")
    status = card.root.get_by_role("status")
    card.press("Send request")
    expect(status).to_have_text("denied: the cost exceeds the limit")
    status.evaluate(
        """(node) => {
            window.told = 0;
            new MutationObserver(() => { window.told += 1; }).observe(node, {childList: true});
        }"""
    )
    card.press("Send request")
    expect(card.answers).to_have_count(2)
    assert page.evaluate("window.told") == 1


def test_a_refused_request_is_told_to_who_hears_the_page(visitor):
    page = visitor.open()
    card = Card(page, "fixed-window")
    card.field("cost").fill("0")
    card.press("Send request")
    expect(card.root.get_by_role("status")).to_contain_text("cost must be a whole number")
    page.fill("#compare-limit", "0")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#compare [role=status]")).to_contain_text("limit must be")
    assert all(REFUSED in text for text in visitor.complaints)
    visitor.complaints.clear()


def test_pictures_have_their_numbers_as_text(page):
    card = Card(page, "fixed-window")
    card.press("Send request")
    expect(page.get_by_role("img", name="Fixed window: 9 of 10 left")).to_be_visible()


def test_everything_is_reached_with_the_keyboard_in_order(page):
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the algorithms")).to_be_focused()
    page.keyboard.press("Enter")
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(_NAME))
    assert reached == [
        *("reset", "fixed-window-maxRequests", "fixed-window-windowSeconds", "fixed-window-cost"),
        *("Send request", "Burst 10", "Another burst"),
        "Fixed window: answers",
    ]


def test_pictures_move_in_every_frame(page):
    assert page.evaluate(_FRAMES_WITH_CHANGES) >= 15


def test_pictures_hold_still_for_who_wants_less_motion(visit, site):
    page = visit(site, reduced_motion="reduce").open()
    assert page.evaluate(_FRAMES_WITH_CHANGES) < 10
