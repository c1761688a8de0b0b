"""What the model is told of requests that doors of its hands have refused. Pure.

A tool sees that a connection failed, and not why: so the model is told beside the tool's result, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.harness.blocks import text_block
from services.harness.core import DoorRefused

MOST = 20  # that are told one by one, the first ones
TARGET_CHARACTERS = 200
MESSAGE_CHARACTERS = 300

Block = dict[str, object]


def told(refused: Sequence[DoorRefused]) -> Block:
    """Returns one block about what was refused since the model was told last. Not empty."""
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
