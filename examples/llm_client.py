"""An LLM client that keeps to a budget of requests and tokens, shared by all processes on one Redis.

    python examples/llm_client.py http://localhost:8000/v1/chat/completions "Hello" "And again" --store redis://localhost

The cost of a prompt is estimated before it is sent. The response, streamed or not, has the real cost, which replaces
the estimate. After a 429 the client waits as long as the server says and retries. Needs ratekeeper[httpx,redis].
"""

import argparse
import asyncio
import json

import httpx

from ratekeeper import AsyncLimiter
from ratekeeper.integrations.httpx import AsyncLimitedTransport

MAX_TOKENS = 100


def estimate(request):
    """Estimate the cost: a token is about four characters, and the answer has up to MAX_TOKENS."""
    return {"requests": 1, "tokens": len(request.content) // 4 + MAX_TOKENS}


def used(response):
    """Return the cost that the response reports; a refused request cost no tokens."""
    if response.status_code != 200:
        return {"tokens": 0}
    if response.headers["content-type"].startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
        return {"tokens": json.loads(events[-1])["usage"]["total_tokens"]}
    return {"tokens": response.json()["usage"]["total_tokens"]}


async def ask(client, url, prompt):
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS}
    response = await client.post(url, json=body)
    response.raise_for_status()
    return response.json()["choices"][0]["message"]["content"]


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--requests", default="500/minute")
    parser.add_argument("--tokens", default="30000/minute")
    options = parser.parse_args()

    async with AsyncLimiter({"requests": options.requests, "tokens": options.tokens}, options.store) as budget:
        transport = AsyncLimitedTransport(
            budget,
            key=lambda _: "llm",
            cost=estimate,
            settle=used,
            timeout=60,
            retries=3,
            retry_methods=["POST"],  # safe, since a refused request had no effect
        )
        async with httpx.AsyncClient(transport=transport, timeout=60) as client:
            for answer in await asyncio.gather(*(ask(client, options.url, prompt) for prompt in options.prompts)):
                print(answer)
        left = (await budget.peek("llm")).layers
        print(f"left: {left['requests'].remaining} requests, {left['tokens'].remaining} tokens")


if __name__ == "__main__":
    asyncio.run(main())
