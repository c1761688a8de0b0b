"""Writes a view of the log as the bytes of a request, marks where its prompt is cached, and hashes it. Pure.

Three markers of the API's four: behind the tools and the system prompt, behind what the request before ended with,
and at the end. The second one reads what the first request's last one wrote, however much was added since.
The messages come last in the body, and a reply's own text is put in as the model wrote it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from services.harness.loops.messages.view import Block, Kept, View

CACHED = {"type": "ephemeral"}
_CACHEABLE = frozenset({"text", "tool_result", "image", "document"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request's body, and the hashes of `ModelReplied`: of the body, the prompt, and as much as was there before."""

    body: bytes
    request_hash: str
    prompt_hash: str
    prefix_hash: str


def written(seen: View) -> Request:
    """Writes a request. The same view gives the same bytes."""
    request = seen.request
    messages: list[Block] = request["messages"]
    texts = [_message(message) for message in messages]
    prompt = hashlib.sha256(_bytes(_dumped({key: request.get(key) for key in ("model", "tools", "system")})))
    prefix_hash = ""
    for count, text in enumerate(texts, 1):
        prompt.update(_bytes(text))
        if count == seen.prior:
            prefix_hash = prompt.hexdigest()
    for place in {seen.prior - 1, len(messages) - 1}:
        if place >= 0 and (marked := _marked_message(messages[place])) is not None:
            texts[place] = _message(marked)
    body = _bytes(f'{_dumped(_marked_head(request))[:-1]},"stream":true,"messages":[{",".join(texts)}]}}')
    return Request(body, hashlib.sha256(body).hexdigest(), prompt.hexdigest(), prefix_hash)


def _marked_head(request: dict[str, Any]) -> dict[str, Any]:
    head = {key: value for key, value in request.items() if key != "messages"}
    for part in ("system", "tools"):
        if head.get(part):
            head[part] = [*head[part][:-1], {**head[part][-1], "cache_control": CACHED}]
            break
    return head


def _marked_message(message: Block) -> Block | None:
    """Returns a user's message with its last block marked; None when that cannot be."""
    last = message["content"][-1]
    if message["role"] != "user" or last["type"] not in _CACHEABLE:
        return None
    return {**message, "content": [*message["content"][:-1], {**last, "cache_control": CACHED}]}


def _message(message: Block) -> str:
    content = message["content"]
    text = content.text if isinstance(content, Kept) else _dumped(content)
    return f'{{"role":"{message["role"]}","content":{text}}}'


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # half a character cannot be sent


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
