"""What is waited for: an answer, or an answer in many messages."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors

from services.session.log import PATIENCE_SECONDS
from services.session.logs.jetstream.link import Message

NOTHING_THERE = "404"
END_OF_BATCH = "204"


class Question:
    """A question that waits for its answer, at most until `due` on the loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[Any] = loop.create_future()
        self.due = loop.time() + PATIENCE_SECONDS

    def take(self, message: Message) -> None:
        if not self.ended.done():
            self.ended.set_result(message)


class Collector(Question):
    """What has come so far of an answer in many messages."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.found: list[Message] = []
        self.whole = False
        self.up_to = 0  # the last sequence that the answering node had; 0 when it had nothing to send

    def take(self, message: Message) -> None:
        status = message.status
        if not status:
            self.found.append(message)
        elif not self.ended.done():
            headers = message.headers()
            self.whole = int(headers.get("Nats-Num-Pending", 0)) == 0
            self.up_to = int(headers.get("Nats-UpTo-Sequence", 0))
            if status in (END_OF_BATCH, NOTHING_THERE):
                self.ended.set_result(None)
            else:
                self.ended.set_exception(nats.errors.Error(f"status {status}"))


async def outcome(question: Question) -> Any:
    """Waits for the answer whatever happens to this task: a cancellation ends the wait only, which begins again."""
    while True:
        try:
            return await question.ended
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if question.ended.cancelled():
                question.ended = asyncio.get_running_loop().create_future()
