"""An LLM client that keeps to a budget of requests and of tokens, the same for all processes on one Redis.

    python examples/llm_client.py http://localhost:8000/v1/chat/completions "Hello" "And again" --store redis://localhost

What a prompt will cost is estimated before it is sent; what it did cost is in the answer, streamed or not, and replaces
the estimate. A 429 is waited out, for as long as the server says, and sent again. Needs ratekeeper[httpx,redis].
"""

import argparse
import asyncio
import json

import httpx

from ratekeeper import AsyncLimiter
from ratekeeper.integrations.httpx import AsyncLimitedTransport

MAX_TOKENS = 100


def estimate(request):
    """A token is about four characters, and the answer may be as long as it may be."""
    return {"requests": 1, "tokens": len(request.content) // 4 + MAX_TOKENS}


def used(response):
    """Return what the answer says it cost; a refused request cost no tokens."""
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
            retry_methods=["POST"],  # a request that was refused has done nothing
        )
        async with httpx.AsyncClient(transport=transport, timeout=60) as client:
            for answer in await asyncio.gather(*(ask(client, options.url, prompt) for prompt in options.prompts)):
                print(answer)
        left = (await budget.peek("llm")).layers
        print(f"left: {left['requests'].remaining} requests, {left['tokens'].remaining} tokens")


if __name__ == "__main__":
    asyncio.run(main())
