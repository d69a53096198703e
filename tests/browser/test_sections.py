"""Compare, choose and live, in a real browser."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from ratekeeper.algorithms import all_of
from ratekeeper.simulate import PATTERNS
from tests import servers
from tests.browser.cards import Card
from tests.browser.conftest import REFUSED, hold, service


def table(page):
    return page.locator("#compare tbody").inner_text()


def test_the_double_burst_of_the_fixed_window_is_seen(page):
    rows = page.locator("#compare tbody tr")
    expect(rows).to_have_count(len(all_of(10, 10_000_000)))
    expect(rows.nth(0)).to_have_text(re.compile(r"Fixed window.*20 ▲"))
    expect(page.locator(".lanes svg")).to_contain_text("peak 20 in any 10 s ▲")


def test_a_link_reproduces_the_exact_run(visitor):
    page, other = visitor.open(), visitor.open()
    page.fill("#compare-limit", "7")
    page.select_option("#compare-traffic", "poisson")
    page.fill("#compare-seed", "42")
    for traffic in (*PATTERNS, "drawn"):
        with page.expect_response("**/api/compare"):
            page.select_option("#compare-traffic", traffic)
        link = page.locator("#compare .link")
        expect(link).to_have_attribute("href", re.compile(f"traffic={traffic}&limit=7"))
        with other.expect_response("**/api/compare"):
            other.goto(f"{visitor.url}/{link.get_attribute('href')}")
        expect(other.locator("#compare .link")).to_have_attribute("href", link.get_attribute("href"))
        assert table(other) == table(page)
        assert other.locator(".lanes").inner_html() == page.locator(".lanes").inner_html()


def test_a_link_to_a_traffic_that_there_is_not_runs_the_boundary_attack_and_says_so(visitor):
    page = visitor.open("#compare?traffic=rain&limit=7")
    assert (page.input_value("#compare-traffic"), page.input_value("#compare-limit")) == ("boundary", "7")
    expect(page.locator("#compare .link")).to_have_attribute("href", re.compile("traffic=boundary&limit=7"))


def test_traffic_is_drawn_with_the_mouse(page):
    page.select_option("#compare-traffic", "drawn")
    board = page.locator(".board")
    board.scroll_into_view_if_needed()
    box = board.bounding_box()
    with page.expect_response("**/api/compare"):
        page.mouse.move(box["x"] + 1, box["y"] + 1)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 40 + 3, box["y"] + box["height"] - 1)
        page.mouse.up()
    assert page.input_value("#compare-slices").split()[:3] == ["20", "0", "1"]


def test_the_comparison_is_downloaded(page):
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    result = json.loads(Path(download.value.path()).read_text("utf-8"))
    assert [rule["peak"]["units"] for rule in result["rules"]][:3] == [20, 10, 11]
    with page.expect_download() as download:
        page.get_by_role("button", name="Download SVG").click()
    assert download.value.suggested_filename == "ratekeeper-compare.svg"
    text = Path(download.value.path()).read_text("utf-8")
    assert text.startswith("<svg xmlns=")
    assert "var(" not in text


def test_an_answer_that_comes_late_does_not_replace_a_later_run(page):
    held = hold(page, "**/api/compare")
    for limit in ("3", "4"):
        page.fill("#compare-limit", limit)
        with page.expect_request("**/api/compare"):
            page.get_by_role("button", name="Run", exact=True).click()
    first, second = held
    second.continue_()
    link = page.locator("#compare .link")
    expect(link).to_have_attribute("href", re.compile("limit=4&"))
    shown = table(page)
    with page.expect_response("**/api/compare") as late:
        first.continue_()
    late.value.finished()
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")  # the page has read the answer by then
    expect(link).to_have_attribute("href", re.compile("limit=4&"))
    assert table(page) == shown


def test_nothing_is_downloaded_before_there_is_a_result(visitor):
    page = visitor.context.new_page()
    held = hold(page, "**/api/compare")
    with page.expect_request("**/api/compare"):
        page.goto(f"{visitor.url}/")
    buttons = [page.get_by_role("button", name=f"Download {kind}") for kind in ("SVG", "JSON")]
    for button in buttons:
        expect(button).to_be_disabled()
    held[0].continue_()
    for button in buttons:
        expect(button).to_be_enabled()


def test_bad_numbers_of_the_comparison_are_refused_beside_their_field(visitor):
    page = visitor.open()
    page.select_option("#compare-traffic", "poisson")
    for field in ("limit", "window", "rate", "duration", "cost", "seed"):
        good = page.input_value(f"#compare-{field}")
        page.fill(f"#compare-{field}", "-3")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(page.locator(f"#compare-{field}-error")).to_contain_text(field)
        page.fill(f"#compare-{field}", good)
    assert all(REFUSED in text for text in visitor.complaints)
    visitor.complaints.clear()


def test_the_answers_lead_to_an_algorithm_and_lines_that_run(page):
    choice, code = page.locator("#choose .choice"), page.locator("#choose pre")
    expect(choice).to_have_text("Use the token bucket.")
    exec(code.inner_text(), {})
    page.get_by_label("Yes, smooth out the traffic").check()
    expect(choice).to_have_text("Use the leaky bucket, shaping.")
    exec(code.inner_text(), {})
    page.get_by_role("button", name="FastAPI").click()
    exec(code.inner_text(), {})
    page.get_by_role("button", name="curl").click()
    expect(code).to_contain_text("/v1/hit")


def test_the_live_chart_counts_what_is_decided(page):
    card = Card(page, "fixed-window")
    card.press("Burst 10")
    expect(page.locator("#live .chip")).to_have_text("✓ memory")
    expect(page.locator('#live rect.admitted:not([height="0"])').first).to_be_visible()


def test_denials_are_told_from_the_rest_by_their_shape_in_the_live_chart(page):
    card = Card(page, "fixed-window")
    for _ in range(2):
        card.press("Burst 10")
    denied = page.locator('#live rect.denied:not([height="0"])').first
    expect(denied).to_be_visible()
    widths = denied.evaluate("(node) => [node, node.previousSibling].map((each) => Number(each.getAttribute('width')))")
    assert widths[0] == widths[1] / 2


def test_redis_goes_away_and_comes_back_during_use(visit):
    server = servers.RedisServer(servers.programs()[servers.newest()])
    with service(server.url) as url:
        page = visit(url).open()
        card = Card(page, "token-bucket")
        card.press("Send request")
        expect(card.answers).to_have_count(1)
        card.agrees(9)
        expect(page.locator("#live .chip")).to_have_text("✓ Redis")
        server.stop()
        banner = page.get_by_text(
            "Redis is unavailable. Until it is back, this process decides on its own with the same rules."
        )
        expect(banner).to_be_visible()
        card.press("Send request")
        expect(card.answers).to_have_count(2)
        expect(card.root.locator(".reading")).to_have_text(re.compile("^9 of 10 left.*decided by this process only$"))
        server.start()
        expect(banner).to_be_hidden()
        expect(page.locator("#live .chip")).to_have_text("✓ Redis")
        for sent in range(3, 13):  # on a busy machine the first may still run out of time
            card.press("Send request")
            expect(card.answers).to_have_count(sent)
            state = card.state()
            if not state["degraded"] and state["peek"]["remaining"] == 9:  # Redis came back empty
                break
        card.agrees(9)
        page.close()  # before the service ends, which the page would complain of
