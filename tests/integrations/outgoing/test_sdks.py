"""The SDKs of OpenAI and Anthropic on our transports, as the examples set them up, against a local server."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

import ratekeeper.integrations.httpx
from ratekeeper import AsyncLimiter, FixedWindow, Limiter, RateLimited
from ratekeeper.integrations.httpx2 import AsyncLimitedTransport, LimitedTransport
from tests.integrations.outgoing.conftest import START
from tests.integrations.outgoing.faces import awaited
from tests.integrations.outgoing.llm_service import INPUT, OUTPUT, WORDS, LlmService
from tests.integrations.outgoing.origin import Said
from tests.waiters import Call

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples"
LIMIT = 1000
PROMPT = [{"role": "user", "content": "Say hello"}]


class OpenAIFace:
    limiter_class = Limiter
    example = runpy.run_path(str(EXAMPLES / "llm_openai.py"))
    rules = {"requests": FixedWindow(LIMIT, 60), "tokens": FixedWindow(LIMIT, 60)}  # noqa: RUF012 - never changed
    cost = {"requests": 1, "tokens": INPUT + OUTPUT}  # noqa: RUF012 - never changed
    exhausted = {  # noqa: RUF012 - never changed
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }

    def __init__(self, url, budget, max_retries=0, **options):
        options = {"key": lambda _: "k", "cost": self.example["estimate"], "settle": self.example["used"]} | options
        self.client = self.connect(url, budget, max_retries, options)

    def connect(self, url, budget, max_retries, options):
        http_client = openai.DefaultHttpxClient(transport=LimitedTransport(budget, **options))
        return openai.OpenAI(api_key="k", base_url=f"{url}/v1", http_client=http_client, max_retries=max_retries)

    def ask(self):
        answer = self.client.chat.completions.create(model="m", messages=PROMPT, max_completion_tokens=100)
        return answer.choices[0].message.content

    def stream(self, most=None):
        """Return the words of a streamed answer, at most this many."""
        said = []
        with self.client.chat.completions.create(**self.streamed()) as stream:
            for chunk in stream:
                said += [choice.delta.content for choice in chunk.choices]
                if len(said) == most:
                    break
        return said

    def streamed(self):
        more = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": "m", "messages": PROMPT, "max_completion_tokens": 100, **more}

    def costs_when_left(self, request):
        return self.example["estimate"](request)  # only the last event tells

    def peek(self, budget):
        return budget.peek("k")

    def close(self):
        self.client.close()


class AsyncOpenAIFace(OpenAIFace):
    limiter_class = AsyncLimiter

    def connect(self, url, budget, max_retries, options):
        async def make():
            http_client = openai.DefaultAsyncHttpxClient(transport=AsyncLimitedTransport(budget, **options))
            options_of_client = {"api_key": "k", "base_url": f"{url}/v1", "max_retries": max_retries}
            return openai.AsyncOpenAI(http_client=http_client, **options_of_client)

        return awaited(make())

    def ask(self):
        asked = self.client.chat.completions.create(model="m", messages=PROMPT, max_completion_tokens=100)
        return awaited(asked).choices[0].message.content

    def stream(self, most=None):
        async def read():
            said = []
            async with await self.client.chat.completions.create(**self.streamed()) as stream:
                async for chunk in stream:
                    said += [choice.delta.content for choice in chunk.choices]
                    if len(said) == most:
                        break
            return said

        return awaited(read())

    def peek(self, budget):
        return awaited(budget.peek("k"))

    def close(self):
        awaited(self.client.close())


class OpenAIOnHttpxFace(OpenAIFace):
    def connect(self, url, budget, max_retries, options):
        http_client = httpx.Client(transport=ratekeeper.integrations.httpx.LimitedTransport(budget, **options))
        return openai.OpenAI(api_key="k", base_url=f"{url}/v1", http_client=http_client, max_retries=max_retries)


class AnthropicFace(OpenAIFace):
    example = runpy.run_path(str(EXAMPLES / "llm_anthropic.py"))
    rules = {name: FixedWindow(LIMIT, 60) for name in ("requests", "input", "output")}  # noqa: RUF012 - never changed
    cost = {"requests": 1, "input": INPUT, "output": OUTPUT}  # noqa: RUF012 - never changed
    exhausted = {  # noqa: RUF012 - never changed
        "date": "Tue, 14 Nov 2023 22:14:00 GMT",
        "anthropic-ratelimit-requests-limit": "60",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:15:00Z",
    }

    def connect(self, url, budget, max_retries, options):
        http_client = anthropic.DefaultHttpxClient(transport=LimitedTransport(budget, **options))
        return anthropic.Anthropic(api_key="k", base_url=url, http_client=http_client, max_retries=max_retries)

    def ask(self):
        return self.client.messages.create(model="m", messages=PROMPT, max_tokens=100).content[0].text

    def stream(self, most=None):
        said = []
        with self.client.messages.stream(model="m", messages=PROMPT, max_tokens=100) as stream:
            for text in stream.text_stream:
                said.append(text)
                if len(said) == most:
                    break
        return said

    def costs_when_left(self, request):
        return self.example["estimate"](request) | {"input": INPUT}  # which the first event tells


class AsyncAnthropicFace(AnthropicFace):
    limiter_class = AsyncLimiter
    peek = AsyncOpenAIFace.peek
    close = AsyncOpenAIFace.close

    def connect(self, url, budget, max_retries, options):
        async def make():
            http_client = anthropic.DefaultAsyncHttpxClient(transport=AsyncLimitedTransport(budget, **options))
            options_of_client = {"api_key": "k", "base_url": url, "max_retries": max_retries}
            return anthropic.AsyncAnthropic(http_client=http_client, **options_of_client)

        return awaited(make())

    def ask(self):
        return awaited(self.client.messages.create(model="m", messages=PROMPT, max_tokens=100)).content[0].text

    def stream(self, most=None):
        async def read():
            said = []
            async with self.client.messages.stream(model="m", messages=PROMPT, max_tokens=100) as stream:
                async for text in stream.text_stream:
                    said.append(text)
                    if len(said) == most:
                        break
            return said

        return awaited(read())


SDKS = {
    "OpenAI": OpenAIFace,
    "AsyncOpenAI": AsyncOpenAIFace,
    "OpenAI on httpx": OpenAIOnHttpxFace,
    "Anthropic": AnthropicFace,
    "AsyncAnthropic": AsyncAnthropicFace,
}


@pytest.fixture(params=SDKS.values(), ids=SDKS)
def face(request):
    return request.param


@pytest.fixture
def service(clock):
    service = LlmService(lambda: clock() / 1e9 - START)
    yield service
    service.may_go_on.set()
    service.stop()


@pytest.fixture
def sdk(face, service):
    """Make clients of an SDK."""
    made = []

    def make(budget, **options):
        made.append(face(service.url, budget, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def spent(sdk, budget):
    return {name: layer.limit - layer.remaining for name, layer in sdk.peek(budget).layers.items()}


def refusal(**headers):
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "too many requests"}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said(429, {"Content-Type": "application/json"} | named, json.dumps(body).encode())


def test_an_answer_costs_what_it_says(sdk, limiter, face):
    budget = limiter(face.rules)
    to = sdk(budget)
    assert to.ask() == "".join(WORDS)
    assert spent(to, budget) == face.cost


def test_a_stream_costs_what_its_events_say(sdk, limiter, face):
    budget = limiter(face.rules)
    to = sdk(budget)
    assert to.stream() == list(WORDS)
    assert spent(to, budget) == face.cost


def test_a_stream_that_is_left_early_costs_what_it_has_said_until_then(sdk, limiter, face, service):
    budget = limiter(face.rules)
    requests = []
    to = sdk(budget, cost=lambda request: requests.append(request) or face.example["estimate"](request))
    service.may_go_on.clear()
    assert to.stream(most=1) == [WORDS[0]]
    assert spent(to, budget) == to.costs_when_left(requests[0])


def test_a_refused_request_is_sent_again_when_the_service_says(sdk, limiter, face, service, clock, sleepers):
    budget = limiter(face.rules)
    to = sdk(budget, retries=1, retry_methods=["POST"])
    service.says.append(refusal(retry_after="2", retry_after_ms="1500"))
    call = Call(to.ask)
    sleepers.until(1)
    clock.advance(1.5)
    assert call.outcome() == "".join(WORDS)
    assert service.times == [0, 1.5]
    assert spent(to, budget) == face.cost | {"requests": 2}


def test_a_limit_of_the_service_that_is_used_up_is_waited_for(sdk, limiter, face, service, clock, sleepers):
    to = sdk(limiter(face.rules))
    service.headers = face.exhausted  # full again in a minute, but one more request is admitted after a second
    to.stream()
    second = Call(to.ask)
    sleepers.until(1)
    clock.advance(1)
    assert second.outcome() == "".join(WORDS)
    assert service.times == [0, 1]


def test_the_sdk_may_send_a_refused_request_again_by_itself(sdk, face, service):
    budget = face.limiter_class(face.rules)
    to = sdk(budget, max_retries=1)
    service.says.append(refusal(retry_after_ms="1"))
    assert to.ask() == "".join(WORDS)
    assert len(service.arrivals) == 2
    assert spent(to, budget) == face.cost | {"requests": 2}


def test_a_wait_that_would_be_too_long_reaches_the_caller(sdk, limiter, face, service):
    to = sdk(limiter(face.rules), cost={"requests": LIMIT}, timeout=5)
    to.ask()
    with pytest.raises((RateLimited, anthropic.APIConnectionError)) as refused:
        to.ask()
    error = refused.value if isinstance(refused.value, RateLimited) else refused.value.__cause__  # as Anthropic's does
    assert isinstance(error, RateLimited)
    assert (error.decision.rule, error.decision.retry_after) == ("requests", 60)
    assert len(service.arrivals) == 1
