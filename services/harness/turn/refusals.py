"""What the model is told of its hands beside results and messages: doors that refused, hands that came and went.

A tool sees that a connection failed, and not why: so the model is told, once. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.harness.blocks import Block, text_block
from services.harness.core import Attached, Detached, DoorRefused, HandNews, Transferred

MOST = 20  # that are told one by one, the first ones
TARGET_CHARACTERS = 200
MESSAGE_CHARACTERS = 300
_BEGIN, _END = "<system-reminder>", "</system-reminder>"  # what models know as words of the system, not of a person


def told(facts: Sequence[DoorRefused | HandNews]) -> list[Block]:
    """Returns blocks about what has happened since the model was told last: doors first, then hands, in order."""
    refused = [it for it in facts if isinstance(it, DoorRefused)]
    news = [_news(it) for it in facts if not isinstance(it, DoorRefused)]
    blocks = [_refused(refused)] if refused else []
    return [*blocks, text_block(_BEGIN + "\n".join(news) + _END)] if news else blocks


def _news(fact: HandNews) -> str:
    """Says what has become of a hand."""
    match fact:
        case Attached(read_only=True):
            how = f"is shared with this session: of its tools, `{fact.hand}__...`, it may use those that only read."
        case Attached():
            how = f"was handed to this session. Its tools are `{fact.hand}__...`."
        case Transferred():
            return f"The hand `{fact.hand}` went to session {fact.to_session_id}, with all that is in it."
        case Detached():
            return f"The hand `{fact.hand}` was taken from this session: {fact.taken or 'it is gone'}."
    said = fact.description.replace("<", "(").replace(">", ")")  # it ends no reminder
    what = f" {_line(said, MESSAGE_CHARACTERS)}" if said else ""
    return f"The hand `{fact.hand}` {how}{what}"


def _refused(refused: Sequence[DoorRefused]) -> Block:
    lines = ["[Refused at the doors of your hands:"]
    lines += [
        f"- {_line(it.door, 20)}: {_line(it.target, TARGET_CHARACTERS)}: {_line(it.message, MESSAGE_CHARACTERS)}"
        f" ({_line(it.reason, 60)})"
        for it in refused[:MOST]
    ]
    if len(refused) > MOST:
        lines.append(f"- {len(refused) - MOST} more are not shown")
    return text_block("\n".join(lines) + "]")


def _line(said: str, most: int) -> str:
    """Returns it in one line. A hand chooses what it asks for, also a text that looks like several of ours."""
    line = "".join(each if each.isprintable() else " " for each in said)
    return line if len(line) <= most else f"{line[:most]}… ({len(line) - most} characters cut)"
