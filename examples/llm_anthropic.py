"""The Anthropic SDK, kept to budgets of requests, input tokens and output tokens that all processes on one Redis share.

    ANTHROPIC_API_KEY=... python examples/llm_anthropic.py "Hello" "And again" --store redis://localhost

The cost of a prompt is estimated before it is sent. The response, streamed or not, has the real cost, which replaces
the estimate. After a 429 the transport waits as long as the server says and sends the request again. Use the limits of
your organization, as token buckets: that is how Anthropic counts. Needs anthropic and ratekeeper[httpx2,redis].
"""

import argparse
import json

import anthropic

from ratekeeper import Limiter
from ratekeeper.http import with_headroom
from ratekeeper.integrations.httpx2 import LimitedTransport

MAX_TOKENS = 100


def estimate(request):
    """Estimate the cost: a token is about four characters, and the answer has up to `max_tokens`."""
    return {"requests": 1, "input": len(request.content) // 4, "output": json.loads(request.content)["max_tokens"]}


def used(response):
    """Return the cost that a response reports; what it does not report, if it was left early, stays as estimated."""
    if response.status_code != 200:
        return {"input": 0, "output": 0}
    if response.headers["content-type"].startswith("application/json"):
        usage = response.json()["usage"]
        return {"input": usage["input_tokens"], "output": usage["output_tokens"]}
    real = {}
    for event in response.text.split("\n\n")[:-1]:
        data = json.loads(event.partition("data: ")[2])
        if data["type"] == "message_start":
            real["input"] = data["message"]["usage"]["input_tokens"]
        elif data["type"] == "message_delta":
            real["output"] = data["usage"]["output_tokens"]
    return real


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--model", default="claude-haiku-5-5")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--requests", default="token-bucket 50/minute")
    parser.add_argument("--input", default="token-bucket 30000/minute")
    parser.add_argument("--output", default="token-bucket 8000/minute")
    options = parser.parse_args()

    rules = with_headroom({"requests": options.requests, "input": options.input, "output": options.output}, 0.05)
    with Limiter(rules, options.store) as budget:
        transport = LimitedTransport(
            budget,
            key=lambda _: "anthropic",
            cost=estimate,
            settle=used,
            timeout=60,
            retries=3,
            retry_methods=["POST"],  # safe, since a refused request had no effect
        )
        http_client = anthropic.DefaultHttpxClient(transport=transport)
        with anthropic.Anthropic(http_client=http_client, max_retries=0) as client:
            for prompt in options.prompts:
                messages = [{"role": "user", "content": prompt}]
                with client.messages.stream(model=options.model, max_tokens=MAX_TOKENS, messages=messages) as stream:
                    for text in stream.text_stream:
                        print(text, end="", flush=True)
                print()
        left = budget.peek("anthropic").layers
        print("left:", ", ".join(f"{left[name].remaining} {name}" for name in rules))


if __name__ == "__main__":
    main()
