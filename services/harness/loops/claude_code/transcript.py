"""Writes a conversation as the transcript from which Claude Code resumes. Pure.

Claude Code keeps a session as JSON Lines, one for each message, each naming the one before. It is given one that is
made from our log, so that it goes on wherever the log was left. Every id in it is derived: the same log gives the same
bytes on every machine.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from services.harness.blocks import Block, text_block
from services.harness.core import Replied
from services.harness.loops.claude_code.conversation import Told

GO_ON = "<system-reminder>\nGo on from where you are.\n</system-reminder>"  # what it tells itself when it is resumed


@dataclass(frozen=True, slots=True)
class Beginning:
    """How Claude Code is started: with what transcript, and what it is then told.

    `transcript` is JSON Lines, empty for a new session. `prompt` is empty when the transcript ends with what is to be
    answered: results of calls, of which Claude Code takes none as a prompt.
    """

    session: str
    transcript: str
    prompt: list[Block]


def beginning(session_id: str, told: Sequence[Told], cwd: str, model: str) -> Beginning:
    """Returns how Claude Code is brought to answer the last message of a conversation."""
    session = _uuid(session_id)
    if not told or told[-1].role != "user":
        before, prompt = told, [text_block(GO_ON)]
    elif told[-1].has_results:
        before, prompt = told, []
    else:
        before, prompt = told[:-1], told[-1].content
    fixed = {"isSidechain": False, "userType": "external", "entrypoint": "sdk-py", "sessionId": session, "cwd": cwd}
    lines: list[str] = []
    parent = None
    for number, message in enumerate(before):
        own = _uuid(f"{session_id} {number}")
        entry = {"parentUuid": parent, **fixed, "type": message.role, "uuid": own, "timestamp": _moment(number)}
        lines.append(json.dumps({**entry, "message": _message(message, model)}, ensure_ascii=True))
        parent = own
    return Beginning(session, "".join(f"{line}\n" for line in lines), prompt)


def _message(told: Told, model: str) -> dict[str, Any]:
    if told.reply is None:
        return {"role": told.role, "content": told.content}
    return {
        "id": f"msg_{told.reply.position}",
        "type": "message",
        "role": told.role,
        "model": model,
        "content": told.content,
        "stop_reason": told.reply.stop_reason,
        "stop_sequence": None,
        "usage": _usage(told.reply),
    }


def _usage(reply: Replied) -> dict[str, int]:
    """Says what a reply has cost: Claude Code tells by it how full its window is."""
    used = reply.usage
    return {
        "input_tokens": used.input,
        "output_tokens": used.output,
        "cache_creation_input_tokens": used.cache_creation,
        "cache_read_input_tokens": used.cache_read,
    }


def _uuid(name: str) -> str:
    return str(uuid.UUID(bytes=hashlib.sha256(name.encode()).digest()[:16], version=4))


def _moment(number: int) -> str:
    """Returns the time that stands in an entry: they only have to come one after the other."""
    moment = datetime.fromtimestamp(1_767_225_600 + number, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")
