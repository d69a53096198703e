"""The examples, each run as a user runs it, against real local servers."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import redis

from tests import servers
from tests.integrations.outgoing.llm_service import LlmService
from tests.integrations.outgoing.origin import Origin, Said

EXAMPLES = Path(__file__).parent.parent.parent.parent / "examples"
PATIENCE = 60


@pytest.fixture
def origin():
    origin = Origin()
    yield origin
    origin.stop()


@pytest.fixture
def broker():
    """A Redis that no other test uses."""
    server = servers.RedisServer(servers.programs()[servers.newest()])
    with redis.Redis.from_url(server.url) as client:
        client.url = server.url
        yield client
    server.stop()


def start(name, *arguments):
    return subprocess.Popen(
        [sys.executable, EXAMPLES / name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output(process):
    said, complaints = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complaints) == (0, "")
    return said.splitlines()


def completion(text, tokens):
    body = {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}
    return Said(headers={"Content-Type": "application/json"}, body=json.dumps(body).encode())


def test_the_llm_client_pays_what_its_answers_cost(origin, broker):
    origin.says += [completion("Hello!", 40), Said(429, {"Retry-After": "0"}), completion("Hello again!", 60)]
    budget = ("--requests", "sliding-window-log 10/day", "--tokens", "sliding-window-log 1000/day")
    arguments = (origin.url + "/v1/chat/completions", "Hi", "--store", broker.url, *budget)
    assert output(start("llm_client.py", *arguments)) == ["Hello!", "left: 9 requests, 960 tokens"]
    assert output(start("llm_client.py", *arguments)) == ["Hello again!", "left: 7 requests, 900 tokens"]
    assert json.loads(origin.arrivals[0].body)["messages"] == [{"role": "user", "content": "Hi"}]


def test_the_llm_client_reads_what_a_stream_cost():
    events = 'data: {"delta": "Hel"}\n\ndata: {"delta": "lo", "usage": {"total_tokens": 12}}\n\ndata: [DONE]\n\n'
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream; charset=utf-8"}, text=events)
    assert runpy.run_path(str(EXAMPLES / "llm_client.py"))["used"](answer) == {"tokens": 12}


@pytest.fixture
def service():
    service = LlmService()
    yield service
    service.stop()


@pytest.mark.parametrize(
    ("name", "base", "tokens", "left"),
    [
        ("llm_openai.py", "OPENAI_BASE_URL", ["tokens"], "left: 8 requests, 976 tokens"),
        ("llm_anthropic.py", "ANTHROPIC_BASE_URL", ["input", "output"], "left: 8 requests, 980 input, 996 output"),
    ],
)
def test_the_examples_with_sdks_pay_what_their_streams_cost(name, base, tokens, left, service, broker, monkeypatch):
    monkeypatch.setenv(base, service.url + ("/v1" if "openai" in name else ""))
    monkeypatch.setenv(base.replace("BASE_URL", "API_KEY"), "k")
    budget = ["--requests", "sliding-window-log 10/day"]
    for each in tokens:
        budget += [f"--{each}", "sliding-window-log 1000/day"]
    said = output(start(name, "Hi", "Hi again", "--store", broker.url, *budget))
    assert said == ["Hello there", "Hello there", left]
    assert [json.loads(arrival.body)["stream"] for arrival in service.arrivals] == [True, True]
