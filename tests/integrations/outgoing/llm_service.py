"""A local server that speaks as much of the protocols of OpenAI and Anthropic as their SDKs need."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.integrations.outgoing.origin import Origin, Said
from tests.waiters import PATIENCE

INPUT, OUTPUT = 10, 2
"""The tokens that every answer costs."""
WORDS = ("Hello", " there")


class LlmService(Origin):
    """Answers every prompt with "Hello there", unless `says` holds another answer."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.headers: dict[str, str] = {}
        self.may_go_on = threading.Event()
        """A stream waits for it after its first word."""
        self.may_go_on.set()

    def arrive(self, method: str, path: str, body: bytes) -> Said:
        said = super().arrive(method, path, body)
        return said if said.body != b"ok" else self._answer(path, json.loads(body))

    def _answer(self, path: str, asked: dict[str, Any]) -> Said:
        if not asked.get("stream"):
            body = json.dumps(_ANSWERS[path]).encode()
            return Said(200, {"Content-Type": "application/json", **self.headers}, body)

        def send_all(send: Any) -> None:
            for event in _EVENTS[path](asked):
                send(event.encode())
                if WORDS[0] in event:
                    self.may_go_on.wait(PATIENCE)

        return Said(200, {"Content-Type": "text/event-stream; charset=utf-8", **self.headers}, send_all)


_USAGE = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT}
_MESSAGE = {"id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": None, "stop_sequence": None}
_ANSWERS = {
    "/v1/chat/completions": {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"},
        ],
        "usage": _USAGE,
    },
    "/v1/messages": _MESSAGE
    | {
        "content": [{"type": "text", "text": "".join(WORDS)}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": INPUT, "output_tokens": OUTPUT},
    },
}


def _openai_events(asked):
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    for word in WORDS:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield f"data: {json.dumps(chunk | {'choices': [choice], 'usage': None})}\n\n"
    if asked.get("stream_options", {}).get("include_usage"):
        yield f"data: {json.dumps(chunk | {'choices': [], 'usage': _USAGE})}\n\n"
    yield "data: [DONE]\n\n"


def _anthropic_events(asked):
    usage = {"input_tokens": INPUT, "output_tokens": 1}
    yield _event("message_start", message=_MESSAGE | {"content": [], "usage": usage})
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield _event("ping")
    for word in WORDS:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield _event("content_block_stop", index=0)
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage={"output_tokens": OUTPUT})
    yield _event("message_stop")


def _event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n"


_EVENTS = {"/v1/chat/completions": _openai_events, "/v1/messages": _anthropic_events}
