"""Take screenshots of the playground, from phone to wide screen, light and dark, after a burst on each card."""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import chromium  # noqa: E402 - found only from the root
from tests.service.serving import Served  # noqa: E402

WIDTHS = (390, 1280, 1920)
SCHEMES = ("light", "dark")
SLOW = {  # settings with which a key is still nearly used up when the screenshot is taken
    "windowSeconds": "60",
    "refillRate": "0.2",
    "leakRate": "0.2",
}


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python tools/screenshots.py /tmp/pictures writes playground-390-light.png and five others",
    )
    parser.add_argument("directory", type=Path, help="where to write the screenshots; created if it does not exist")
    parser.add_argument("--top", type=int, metavar="PX", help="crop to the top of the page; docs/ has the top 1570")
    parser.add_argument("--url", help="a running playground; by default, one is started, in memory")
    return parser.parse_args()


def take(browser, url, width, scheme, path, top):
    """Open the page as a new visitor, use every card, and take a screenshot."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("body[data-ready]")
    for card in page.locator(".card").all():
        for name, value in SLOW.items():
            field = card.locator(f"input[name={name}]")
            if field.count():
                field.fill(value)
        card.locator("input[name=cost]").fill("2")
        card.get_by_role("button", name="Send request").click()
        expect(card.locator(".answers li")).to_have_count(1)
        card.locator("input[name=cost]").fill("1")
        card.get_by_role("button", name="Burst 10").click()
        expect(card.locator(".answers li")).to_have_count(11)
    page.wait_for_timeout(2_500)  # until animations end and the live chart shows the bursts
    page.evaluate("scrollTo(0, 0)")
    wide, high = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": min(top or high, high)}
    page.screenshot(path=path, full_page=True, clip=clip)
    if wide > width:
        print(f"{path}: the page is {wide} px wide, {wide - width} px too wide")
    context.close()


def main():
    given = arguments()
    given.directory.mkdir(parents=True, exist_ok=True)
    served = None if given.url else Served()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium.program(), args=["--no-sandbox"])
            for width in WIDTHS:
                for scheme in SCHEMES:
                    path = given.directory / f"playground-{width}-{scheme}.png"
                    take(browser, given.url or served.url, width, scheme, path, given.top)
                    print(f"{path}: {path.stat().st_size // 1024} KB")
            browser.close()
    finally:
        if served:
            served.stop()


if __name__ == "__main__":
    main()
