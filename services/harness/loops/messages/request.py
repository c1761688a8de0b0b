"""Writes a view of the log as the bytes of a request, marks where its prompt is cached, and hashes it. Pure.

Three markers of the API's four: behind the tools and the system prompt, behind what the request before ended with,
and at the end. The second one reads what the first request's last one wrote, however much was added since.
The messages come last in the body, and a reply's own text is put in as the model wrote it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.harness.loops.messages.sendable import Kept
from services.harness.loops.messages.told import Block, Head, Spelled, Told
from services.harness.loops.messages.view import View

CACHED = {"type": "ephemeral"}
_CACHEABLE = frozenset({"text", "tool_result", "image", "document"})


@dataclass(frozen=True, slots=True)
class Request:
    """A request's body, and the hashes of `ModelReplied`: of the body, the prompt, and as much as was there before."""

    body: bytes
    request_hash: str
    prompt_hash: str
    prefix_hash: str
    told: Told | None = field(default=None, compare=False, repr=False)


def written(seen: View) -> Request:
    """Writes a request. The same view gives the same bytes, whatever was written before."""
    messages: list[Block | Spelled] = seen.request["messages"]
    head = seen.head if seen.head.body else _spelled(seen.head)
    texts = [message.text if isinstance(message, Spelled) else _message(message) for message in messages]
    prompt, begun = _begun(seen.before, head)
    for text in texts[begun : seen.prior]:
        prompt.update(_bytes(text))
    prior = prompt.copy()
    for text in texts[seen.prior :]:
        prompt.update(_bytes(text))
    told = seen.told and replace(seen.told, messages=_kept(messages, texts, seen.told), head=head, prompt=prior)
    for place in {seen.prior - 1, len(messages) - 1}:
        if place >= 0 and (marked := _marked_message(messages[place])) is not None:
            texts[place] = _message(marked)
    body = _bytes(f'{head.body},"stream":true,"messages":[{",".join(texts)}]}}')
    prefix_hash = prior.hexdigest() if seen.prior else ""
    return Request(body, hashlib.sha256(body).hexdigest(), prompt.hexdigest(), prefix_hash, told)


def _begun(before: Told | None, head: Head) -> tuple[Any, int]:
    """Returns the prompt's hash as far as it is known, and up to which message that is."""
    if before is not None and before.head is head:
        return before.prompt.copy(), before.prior
    return hashlib.sha256(_bytes(head.prompt)), 0


def _kept(messages: Sequence[Block | Spelled], texts: Sequence[str], told: Told) -> tuple[Spelled, ...]:
    """Returns messages as they are written, and in parts too where a request of later may end, or did before."""
    marked = (told.prior - 1, told.border - 1)
    return tuple(
        message
        if isinstance(message, Spelled) and (message.parts is None or place in marked)
        else Spelled(texts[place], _parts(message) if place in marked else None)
        for place, message in enumerate(messages[: told.count])
    )


def _parts(message: Block | Spelled) -> Block | None:
    return message.parts if isinstance(message, Spelled) else message


def _spelled(head: Head) -> Head:
    prompt = _dumped({key: head.parts.get(key) for key in ("model", "tools", "system")})
    return replace(head, prompt=prompt, body=_dumped(_marked_head(head.parts))[:-1])


def _marked_head(parts: dict[str, Any]) -> dict[str, Any]:
    head = dict(parts)
    for part in ("system", "tools"):
        if head.get(part):
            head[part] = [*head[part][:-1], {**head[part][-1], "cache_control": CACHED}]
            break
    return head


def _marked_message(said: Block | Spelled) -> Block | None:
    """Returns a message of the user's or the system's with its last block marked; None when that cannot be."""
    message = _parts(said)
    if message is None:
        return None
    last = message["content"][-1]
    if message["role"] == "assistant" or last["type"] not in _CACHEABLE:
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
