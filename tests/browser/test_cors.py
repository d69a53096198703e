"""A page of another origin, in a real browser, reads its 429, and its preflights are not counted."""

from __future__ import annotations

import httpx
import pytest

from tests.browser.test_other_origins import elsewhere
from tests.integrations.processes import UVICORN, Process

_FETCH = """async (address) => {
    const answer = await fetch(address, {headers: {"x-a": "1"}});
    const body = await answer.json();
    return [answer.status, Number(answer.headers.get("retry-after")) > 0, answer.headers.get("ratelimit"), body.status];
}"""


@pytest.mark.parametrize("order", ["limits-first", "cors-first"])
def test_a_page_reads_its_denial_and_its_preflights_are_not_counted(browser, order):
    with Process("-m", *UVICORN, "tests.integrations.cors_app:app") as server, elsewhere() as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        answers = [page.evaluate(_FETCH, f"{server.url}/{order}/") for _ in range(3)]
        page.close()
        asked = [each for each in httpx.get(f"{server.url}/asked").json() if order in each]
    assert [(status, has_wait) for status, has_wait, _, _ in answers] == [(200, False), (200, False), (429, True)]
    assert answers[2][2].startswith('"fixed-window 2/400d";r=0;t=')
    assert answers[2][3] == 429
    assert asked == [f"{method} /{order}/" for _ in range(3) for method in ("OPTIONS", "GET")]
