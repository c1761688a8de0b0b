"""Reads that are right with several nodes: any of them answers a direct get, and may not have heard of the last writes.

What decides is asked of the stream's leader, message by message. What is read in bulk is asked of any node, and counts
only when that node had the stream up to a sequence that the leader has told before; else it is asked again, and at last
of the leader. A leader that is cut off from the others finds out within some 10 s, and could tell old news until then;
nothing can be appended through it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from services.kit.errors import Unavailable
from services.session.logs.jetstream.link import PLAIN, Message

if TYPE_CHECKING:
    from services.session.logs.jetstream.connection import Connection

TRIES = 4  # at other nodes, before the leader is asked for everything
PAUSE_SECONDS = 0.01
NO_MESSAGE = 10037
AT_ONCE = 32  # messages that are asked of a leader at once


async def last(connection: Connection, stream: str, subject: str) -> Message | None:
    """Returns the last message on a subject, which may hold wildcards, as the leader knows it."""
    return await _get(connection, stream, {"last_by_subj": subject})


async def following(connection: Connection, stream: str, subject: str, sequence: int) -> Message | None:
    """Returns the first message on a subject at or after a sequence, as the leader knows it."""
    return await _get(connection, stream, {"seq": sequence, "next_by_subj": subject})


async def end(connection: Connection, stream: str) -> int:
    """Returns the last sequence of a stream. Only leaders answer this question."""
    answer = await connection.ask(f"$JS.API.STREAM.INFO.{stream}", {})
    if "error" in answer:
        raise _refused(answer)
    return int(answer["state"]["last_seq"])


async def collect(
    connection: Connection, stream: str, question: bytes, subjects: Sequence[str], least: int
) -> tuple[list[Message], bool]:
    """Returns what a stream has on subjects, as of a sequence that it is known to have; and whether that is all.

    `question` asks any node for the same, perhaps for less at a time.
    """
    for _ in range(TRIES):
        found, whole, up_to = await connection.collect(stream, question)
        if up_to >= least:
            return found, whole
        await asyncio.sleep(PAUSE_SECONDS)
    messages: list[Message] = []
    for start in range(0, len(subjects), AT_ONCE):
        part = subjects[start : start + AT_ONCE]
        answers = await asyncio.gather(*(last(connection, stream, subject) for subject in part))
        messages += [message for message in answers if message is not None]
    return messages, True


async def _get(connection: Connection, stream: str, question: dict[str, Any]) -> Message | None:
    answer = await connection.ask(f"$JS.API.STREAM.MSG.GET.{stream}", question)
    if answer.get("error", {}).get("err_code") == NO_MESSAGE:
        return None
    if "error" in answer:
        raise _refused(answer)
    kept = answer["message"]
    header = base64.b64decode(kept.get("hdrs", "")) or PLAIN + b"\r\n"
    where = f"Nats-Subject: {kept['subject']}\r\nNats-Sequence: {kept['seq']}\r\n\r\n".encode()
    return Message(kept["subject"].encode(), header[:-2] + where, base64.b64decode(kept.get("data", "")))


def _refused(answer: dict[str, Any]) -> Unavailable:
    code = answer["error"].get("err_code", 0)
    return Unavailable("LOG_UNAVAILABLE", f"the log's store cannot be asked ({code})", retry_after=0.5)
