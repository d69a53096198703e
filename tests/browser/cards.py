"""What the tests know about the cards: their fields, and how to read what they show."""

from __future__ import annotations

import re

from playwright.sync_api import expect

SLOW = {  # numbers with which a key hardly changes while a test runs
    "fixed-window": {"maxRequests": "10", "windowSeconds": "80000"},
    "sliding-window-log": {"maxRequests": "10", "windowSeconds": "80000"},
    "sliding-window-counter": {"maxRequests": "10", "windowSeconds": "80000"},
    "token-bucket": {"maxTokens": "10", "refillRate": "0.00012"},
    "leaky-bucket-policing": {"capacity": "10", "leakRate": "0.00012"},
    "leaky-bucket-shaping": {"capacity": "10", "leakRate": "0.00012"},
}
CARDS = list(SLOW)
_STATE = """async ([path, body]) => {
    const headers = {"Content-Type": "application/json"};
    return (await fetch(path, {method: "POST", headers, body: JSON.stringify(body)})).json();
}"""


class Card:
    """One card of a page."""

    def __init__(self, page, name, config=None):
        self.page = page
        self.name = name
        self.config = SLOW[name] if config is None else config
        self.root = page.locator(f"#{name}")
        for field, value in self.config.items():
            self.field(field).fill(value)
        self.answers = self.root.locator(".answers li")

    def field(self, name):
        return self.page.locator(f"#{self.name}-{name}")

    def error(self, name):
        return self.page.locator(f"#{self.name}-{name}-error")

    def button(self, name):
        return self.root.get_by_role("button", name=name, exact=True)

    def press(self, name):
        self.button(name).click()

    def state(self):
        """Ask the server for the state of the key, as the page does."""
        algorithm, _, mode = self.name.partition("-bucket-")
        path = f"/api/rate-limit/{algorithm}{'-bucket' if mode else ''}/state"
        config = {name: float(value) if "." in value else int(value) for name, value in self.config.items()}
        return self.page.evaluate(_STATE, [path, {"config": config | ({"mode": mode} if mode else {})}])

    def drawn(self):
        """How much of the limit the picture shows as used."""
        return float(self.root.locator(".picture").get_attribute("data-used"))

    def agrees(self, remaining):
        """Check that the card, its picture and a peek all say that this much remains."""
        expect(self.root.locator(".reading")).to_have_text(re.compile(rf"^{remaining} of 10 left"))
        assert self.state()["peek"]["remaining"] == remaining
        assert abs(10 - self.drawn() - remaining) < 0.1
        self.picture_shows(10 - remaining)

    def picture_shows(self, used):
        """Check the shapes that are drawn."""
        picture = self.root.locator(".picture")
        if self.name == "fixed-window":
            expect(picture.locator('.fill[opacity="1"]')).to_have_count(used)
        elif self.name == "sliding-window-log":
            expect(picture.locator(".stamp")).to_have_count(used)
        elif self.name == "sliding-window-counter":
            expect(picture).to_contain_text(f"this window: {used}")
        elif self.name == "token-bucket":
            expect(picture.locator('path.fill[d*="-.01"]')).to_have_count(10 - used)  # the whole ones
        elif self.name == "leaky-bucket-policing":
            expect(picture.locator(".label.big").nth(0)).to_have_text(re.compile(rf"{used}\.00|{used - 1}\.99"))
        else:
            expect(picture.locator("g > g > rect.fill")).to_have_count(max(0, used - 1 if used else 0))


def all_cards(page):
    """Return the six cards of a page, with numbers that hardly change."""
    return [Card(page, name) for name in CARDS]
