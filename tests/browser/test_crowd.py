"""Two hundred visitors click at once, and the page still works for one more."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import AsyncExitStack

import httpx
from playwright.sync_api import expect

from tests.browser.cards import Card

VISITORS = 200
PATIENCE = 60  # seconds; nothing here is about speed
BODY = {"config": {"maxTokens": 10, "refillRate": 0.00012}}


class Crowd(threading.Thread):
    """Visitors with sessions of their own, who all keep clicking until they are stopped."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.clicked = threading.Event()  # when everybody has clicked once
        self.stop = threading.Event()
        self.answers = [[] for _ in range(VISITORS)]
        self.left = []

    def run(self):
        asyncio.run(self.click())

    async def click(self):
        context = ssl.create_default_context()  # one for all: to make it takes longer than to click
        async with AsyncExitStack() as stack:
            visitors = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=self.url, verify=context, timeout=PATIENCE))
                for _ in range(VISITORS)
            ]
            while not self.stop.is_set():
                for seen, answer in zip(self.answers, await self.ask(visitors, "token-bucket"), strict=True):
                    seen.append((answer["allowed"], answer["remaining"]))
                self.clicked.set()
            states = await self.ask(visitors, "token-bucket/state")
            self.left = [state["peek"]["remaining"] for state in states]

    async def ask(self, visitors, path):
        sent = (visitor.post(f"/api/rate-limit/{path}", json=BODY) for visitor in visitors)
        return [answer.raise_for_status().json() for answer in await asyncio.gather(*sent)]


def test_a_page_is_answered_amid_two_hundred_visitors_and_everyone_is_counted_exactly(visitor):
    card = Card(visitor.open(), "token-bucket")
    crowd = Crowd(visitor.url)
    crowd.start()
    try:
        assert crowd.clicked.wait(PATIENCE)
        for sent in range(1, 13):
            card.press("Send request")
            expect(card.answers).to_have_count(sent, timeout=PATIENCE * 1000)
            left = max(0, 10 - sent)
            expect(card.root.get_by_role("img", name=f"Token bucket: {left} of 10 left")).to_be_visible(
                timeout=PATIENCE * 1000
            )
    finally:
        crowd.stop.set()
        crowd.join(PATIENCE)
    expect(card.root.locator(".answers .denied")).to_have_count(2)
    card.agrees(0)
    rounds = len(crowd.answers[0])
    exact = [(sent <= 10, max(0, 10 - sent)) for sent in range(1, rounds + 1)]
    assert crowd.answers == [exact] * VISITORS
    assert crowd.left == [max(0, 10 - rounds)] * VISITORS
