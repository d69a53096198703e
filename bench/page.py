"""How fast the playground is for its visitors, in a real browser."""

import contextlib
from collections.abc import Sequence
from functools import partial

from playwright.sync_api import Browser, Page, sync_playwright

from bench.contestants import OURS
from bench.service import served
from bench.tables import find, labels, spread, table
from bench.timing import Measurement, Target, interleave
from tests import chromium

NAME = "page"
TITLE = "The playground"
ABOUT = (
    "The page of `ratekeeper serve` in memory, in headless Chromium on the same machine: the size of the first visit's "
    "downloads, the time until every card shows its first state and can be used, the time from a click until its "
    "answer is drawn (the median of twenty), and the frames a second while all six pictures move."
)
LOAD, INTERACTIVE, CLICK, FRAMES = "first load", "interactive", "a click's answer drawn", "six pictures moving"
UNITS = {LOAD: "KB", INTERACTIVE: "ms", CLICK: "ms", FRAMES: "frames/s"}
_LOADED = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0) / 1000"
_CLICK = """async () => {
    const card = document.getElementById("token-bucket");
    const times = [];
    for (let click = 0; click < 20; click += 1) {
        const drawn = new Promise((resolve) => {
            const watcher = new MutationObserver(() => (watcher.disconnect(), requestAnimationFrame(resolve)));
            watcher.observe(card.querySelector(".answers"), { childList: true });
        });
        const clicked = performance.now();
        card.querySelector("button.primary").click();
        await drawn;
        times.push(performance.now() - clicked);
    }
    return times.sort((one, other) => one - other)[10];
}"""
_FRAMES = """() => new Promise((resolve) => {
    for (const card of document.querySelectorAll(".card")) card.querySelector("button.primary").click();
    const begin = performance.now();
    let frames = 0;
    const next = (now) => {
        frames += 1;
        if (now - begin < 2000) requestAnimationFrame(next);
        else resolve(frames * 1000 / (now - begin));
    };
    requestAnimationFrame(next);
})"""
_INTERACTIVE = "performance.getEntriesByName('interactive')[0].startTime"


def run(rounds: int) -> list[Measurement]:
    with contextlib.ExitStack() as stack:
        url = f"http://127.0.0.1:{stack.enter_context(served('ratekeeper.cli', 'serve'))}/"
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium.program(), args=["--no-sandbox"])
        stack.callback(browser.close)
        tasks = {
            LOAD: partial(visit, browser, url, _LOADED),
            INTERACTIVE: partial(visit, browser, url, _INTERACTIVE),
            CLICK: partial(visit, browser, url, _CLICK),
            FRAMES: partial(visit, browser, url, _FRAMES),
        }
        samples = interleave(NAME, tasks, rounds)
    return [Measurement(case, "", OURS, UNITS[case], samples[case]) for case in tasks]


def visit(browser: Browser, url: str, script: str) -> float:
    """Open the page as a new visitor with an empty cache, and measure something there with a script."""
    context = browser.new_context(viewport={"width": 1280, "height": 1600})  # all six cards are in view
    try:
        page: Page = context.new_page()
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        return float(page.evaluate(script))
    finally:
        context.close()


def of(figures: Sequence[Measurement], case: str) -> Measurement:
    return find(figures, case, "", OURS)


def tables(figures: Sequence[Measurement]) -> list[str]:
    rows = [[case, UNITS[case], spread(of(figures, case))] for case in labels(figures, "case")]
    return [table(["", "", "median"], rows)]


def targets(figures: Sequence[Measurement]) -> list[Target]:
    load, interactive, click, frames = (of(figures, case).median for case in UNITS)
    return [
        Target("the first visit loads less than 150 KB", f"{load:.0f} KB", load < 150),
        Target("interactive in less than a second", f"{interactive:.0f} ms", interactive < 1000),
        Target("a click's answer is drawn in less than 100 ms", f"{click:.0f} ms", click < 100),
        Target("60 frames a second with all six pictures moving", f"{frames:.0f}", frames >= 59),
    ]
