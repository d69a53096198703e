"""One interface for the clients of all libraries, so that a case is written once and runs on each."""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import NamedTuple

import httpx
import httpx2
import requests

import ratekeeper.integrations.httpx
import ratekeeper.integrations.httpx2
from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.integrations.requests import LimitedAdapter
from tests.waiters import PATIENCE

loop = asyncio.new_event_loop()
_thread = threading.Thread(target=loop.run_forever, daemon=True)
_thread.start()


def _stop():
    loop.call_soon_threadsafe(loop.stop)
    _thread.join()
    loop.close()


atexit.register(_stop)


def awaited(coroutine):
    """Run a coroutine in the loop that all tests share; any number of threads may do so at a time."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE)


class Got(NamedTuple):
    status: int
    body: bytes


class HttpxFace:
    library = httpx
    adapters = ratekeeper.integrations.httpx
    limiter_class = Limiter
    connect_error = httpx.ConnectError
    cut_off = httpx.RemoteProtocolError

    def __init__(self, limit, *args, **options):
        self.client = self.library.Client(transport=self.adapters.LimitedTransport(limit, *args, **options))

    def request(self, method, url, body=None):
        response = self.client.request(method, url, content=body)
        return Got(response.status_code, response.content)

    def stream(self, url, most=None):
        """Return the chunks of a body as they arrive, at most this many."""
        with self.client.stream("GET", url) as response:
            for number, chunk in enumerate(response.iter_bytes(), 1):
                yield chunk
                if number == most:
                    return

    @staticmethod
    def hit(limiter, *args):
        return limiter.hit(*args)

    @staticmethod
    def peek(limiter, *args):
        return limiter.peek(*args)

    def close(self):
        self.client.close()


class AsyncHttpxFace(HttpxFace):
    limiter_class = AsyncLimiter

    def __init__(self, limit, *args, **options):
        async def make():
            transport = self.adapters.AsyncLimitedTransport(limit, *args, **options)
            return self.library.AsyncClient(transport=transport)

        self.client = awaited(make())

    def request(self, method, url, body=None):
        response = awaited(self.client.request(method, url, content=_async_chunks(body)))
        return Got(response.status_code, response.content)

    def stream(self, url, most=None):
        response = awaited(self.client.send(self.client.build_request("GET", url), stream=True))
        chunks = response.aiter_bytes()
        number = 0
        try:
            while number != most and (chunk := awaited(anext(chunks, None))) is not None:
                number += 1
                yield chunk
        finally:
            awaited(response.aclose())

    @staticmethod
    def hit(limiter, *args):
        return awaited(limiter.hit(*args))

    @staticmethod
    def peek(limiter, *args):
        return awaited(limiter.peek(*args))

    def close(self):
        awaited(self.client.aclose())


class Httpx2Face(HttpxFace):
    library = httpx2
    adapters = ratekeeper.integrations.httpx2
    connect_error = httpx2.ConnectError
    cut_off = httpx2.RemoteProtocolError


class AsyncHttpx2Face(AsyncHttpxFace):
    library = httpx2
    adapters = ratekeeper.integrations.httpx2
    connect_error = httpx2.ConnectError
    cut_off = httpx2.RemoteProtocolError


class RequestsFace(HttpxFace):
    connect_error = requests.ConnectionError
    cut_off = requests.ConnectionError

    def __init__(self, limit, *args, **options):
        self.client = requests.Session()
        self.client.mount("http://", LimitedAdapter(limit, *args, **options))

    def request(self, method, url, body=None):
        response = self.client.request(method, url, data=body)
        return Got(response.status_code, response.content)

    def stream(self, url, most=None):
        with self.client.get(url, stream=True) as response:
            for number, chunk in enumerate(response.iter_content(None), 1):
                yield chunk
                if number == most:
                    return


def _async_chunks(body):
    if body is None or isinstance(body, bytes):
        return body

    async def chunks():
        for chunk in body:
            yield chunk

    return chunks()


FACES = {
    "httpx": HttpxFace,
    "httpx async": AsyncHttpxFace,
    "httpx2": Httpx2Face,
    "httpx2 async": AsyncHttpx2Face,
    "requests": RequestsFace,
}
