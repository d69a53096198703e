"""The OpenAI SDK, kept to a budget of requests and tokens that all processes on one Redis share.

    OPENAI_API_KEY=... python examples/llm_openai.py "Hello" "And again" --store redis://localhost

The cost of a prompt is estimated before it is sent. The end of the stream has the real cost, which replaces the
estimate. After a 429 the transport waits as long as the server says and sends the request again. Use the limits of your
account, as token buckets: that is how OpenAI counts. Needs openai and ratekeeper[httpx2,redis].
"""

import argparse
import asyncio
import json

import openai

from ratekeeper import AsyncLimiter
from ratekeeper.http import with_headroom
from ratekeeper.integrations.httpx2 import AsyncLimitedTransport

MAX_TOKENS = 100


def estimate(request):
    """Estimate the cost: a token is about four characters, and the answer has up to `max_completion_tokens`."""
    most = json.loads(request.content).get("max_completion_tokens", 1000)
    return {"requests": 1, "tokens": len(request.content) // 4 + most}


def used(response):
    """Return the cost that a response reports; None, if it was left before it did, keeps the estimate."""
    if response.status_code != 200:
        return {"tokens": 0}
    if response.headers["content-type"].startswith("application/json"):
        return {"tokens": response.json()["usage"]["total_tokens"]}
    lines = [line.removeprefix("data: ") for event in response.text.split("\n\n")[:-1] for line in event.splitlines()]
    usages = [usage for line in lines if line.startswith("{") and (usage := json.loads(line).get("usage"))]
    return {"tokens": usages[-1]["total_tokens"]} if usages else None


async def ask(client, model, prompt):
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_completion_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},  # otherwise no event has the real cost
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--model", default="gpt-5.5")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--requests", default="token-bucket 500/minute")
    parser.add_argument("--tokens", default="token-bucket 200000/minute")
    options = parser.parse_args()

    rules = with_headroom({"requests": options.requests, "tokens": options.tokens}, 0.05)
    async with AsyncLimiter(rules, options.store) as budget:
        transport = AsyncLimitedTransport(
            budget,
            key=lambda _: "openai",
            cost=estimate,
            settle=used,
            timeout=60,
            retries=3,
            retry_methods=["POST"],  # safe, since a refused request had no effect
        )
        http_client = openai.DefaultAsyncHttpxClient(transport=transport)
        async with openai.AsyncOpenAI(http_client=http_client, max_retries=0) as client:
            for answer in await asyncio.gather(*(ask(client, options.model, prompt) for prompt in options.prompts)):
                print(answer)
        left = (await budget.peek("openai")).layers
        print(f"left: {left['requests'].remaining} requests, {left['tokens'].remaining} tokens")


if __name__ == "__main__":
    asyncio.run(main())
