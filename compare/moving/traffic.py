"""Sends the steps of a pattern to a program, in a time that stands still unless a step moves it.

Steps are separated by commas; a number in front repeats one:

    3 GET /a            requests
    GET /a x-plan=free  with a header
    GET /a from=10.0.0.2, GET /a as=ada    from another address; by a user who is signed in
    GET /a shows=retry-after, GET /a says=chill!    answers also tell a header, or whether the text is in the response
    wait=60             time passes
    2 hit, call         functions of the program, for libraries that are no web framework's
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import ModuleType
from typing import Any, NamedTuple

import time_machine

ADDRESS = "192.0.2.1"
BEGINNING = datetime(2030, 1, 1, 12, 0, 20, tzinfo=timezone.utc)  # no window of whole minutes begins soon


class Step(NamedTuple):
    """One step."""

    words: list[str]
    """A method and a path, or the name of a function; none if time passes."""
    options: dict[str, str]

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        own = {name: value for name, value in self.options.items() if name not in ("from", "as", "shows", "says")}
        return {**own, "x-user": self.options["as"]} if "as" in self.options else own

    @property
    def address(self) -> str:
        return self.options.get("from", ADDRESS)

    def answer(self, status: int, headers: Any, text: str) -> str:
        """Return the answer to a request in words."""
        shown = [str(status)]
        if "shows" in self.options:
            shown.append(headers.get(self.options["shows"], "none"))
        if self.options.get("says", "") and self.options["says"] in text:
            shown.append(self.options["says"])
        return " ".join(shown)


def read(steps: str) -> Iterator[Step]:
    """Read steps."""
    for text in steps.split(", "):
        words = text.split()
        count = int(words.pop(0)) if words[0].isdigit() else 1
        what = [word for word in words if "=" not in word or word.startswith("/")]
        options = dict(word.split("=", 1) for word in words if word not in what)
        yield from [Step(what, options)] * count


def asgi(program: ModuleType, steps: str, clock: time_machine.Traveller) -> list[str]:
    """Send requests to an ASGI application."""
    import httpx

    async def send(step: Step) -> str:
        transport = httpx.ASGITransport(program.app, raise_app_exceptions=False, client=(step.address, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            method, path = step.words
            response = await client.request(method, path, headers=step.headers())
            return step.answer(response.status_code, response.headers, response.text)

    async def send_all() -> list[str]:
        return [await send(step) for step in _requests(steps, clock)]

    return asyncio.run(send_all())


def flask(program: ModuleType, steps: str, clock: time_machine.Traveller) -> list[str]:
    """Send requests to a Flask application."""
    client = program.app.test_client()
    answers = []
    for step in _requests(steps, clock):
        method, path = step.words
        environ = {"REMOTE_ADDR": step.address}
        with client.open(path, method=method, headers=step.headers(), environ_base=environ) as response:
            answers.append(step.answer(response.status_code, response.headers, response.text))
    return answers


def django(program: ModuleType, steps: str, clock: time_machine.Traveller) -> list[str]:
    """Send requests to a Django project, whose URLs and settings are those of the program."""
    from django.test import Client, override_settings

    settings = {name: value for name, value in vars(program).items() if name.isupper()}
    answers = []
    with override_settings(ROOT_URLCONF=program, **settings):
        client = Client(raise_request_exception=False)
        for step in _requests(steps, clock):
            method, path = step.words
            response = client.generic(method, path, headers=step.headers(), REMOTE_ADDR=step.address)
            answers.append(step.answer(response.status_code, response.headers, response.content.decode()))
    return answers


def calls(program: ModuleType, steps: str, clock: time_machine.Traveller) -> list[str]:
    """Call functions of a program; coroutines run in one event loop."""

    async def call_all() -> list[str]:
        answers = []
        for step in _requests(steps, clock):
            (name,) = step.words
            result = getattr(program, name)()
            answers.append(str(await result if inspect.isawaitable(result) else result))
        return answers

    return asyncio.run(call_all())


def _requests(steps: str, clock: time_machine.Traveller) -> Iterator[Step]:
    for step in read(steps):
        if step.words:
            yield step
        else:
            clock.shift(float(step.options["wait"]))


CLIENTS: dict[str, Callable[[ModuleType, str, time_machine.Traveller], list[str]]] = {
    "asgi": asgi,
    "flask": flask,
    "django": django,
    "calls": calls,
}
