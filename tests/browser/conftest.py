"""A real browser on a real service. A missing browser is a failure that says how to get one."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from playwright.sync_api import expect, sync_playwright

from tests import chromium
from tests.service.serving import Served

expect.set_options(timeout=20_000)  # the machine may be busy

REFUSED = "the server responded with a status of 400"  # what Chromium logs for an answer that the page shows


@contextmanager
def service(store="memory://"):
    """Run `ratekeeper serve`, and return its address."""
    served = Served(store, "--deadline", "5")  # the machine may be busy
    try:
        yield served.url
    finally:
        served.stop()


def hold(page, address):
    """Hold the page's requests to an address, and return the list of them."""
    held = []

    def keep(route):
        held.append(route)

    page.route(address, keep)
    return held


@pytest.fixture(scope="package")
def browser():
    program = chromium.program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])  # root needs that
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site():
    with service() as url:
        yield url


class Visitor:
    """A browser window of its own, and the errors in it."""

    def __init__(self, browser, url, **options):
        self.url = url.rstrip("/")
        self.complaints = []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})

    def open(self, fragment=""):
        page = self.context.new_page()
        page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._note)
        page.goto(f"{self.url}/{fragment}")
        page.wait_for_selector("body[data-ready]")
        return page

    def _note(self, request):
        if not request.url.startswith((self.url, "blob:")):
            self.complaints.append(f"asked {request.url}")


@pytest.fixture
def visit(browser):
    """Open a visitor's window; at the end there must be no error on the page and no request to another host."""
    visitors = []

    def visit(url, **options):
        visitors.append(Visitor(browser, url, **options))
        return visitors[-1]

    yield visit
    for visitor in visitors:
        visitor.context.close()
    assert [text for visitor in visitors for text in visitor.complaints] == []


@pytest.fixture
def visitor(visit, site):
    return visit(site)


@pytest.fixture
def page(visitor):
    return visitor.open()
