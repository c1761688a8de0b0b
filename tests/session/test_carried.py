"""An append that is under way is carried to its end."""

from __future__ import annotations

import asyncio

import pytest

from services.session.logs.jetstream.link import Message
from services.session.logs.jetstream.questions import Question, outcome


async def test_a_cancellation_waits_for_the_outcome() -> None:
    """A task that is cancelled again and again while it waits for an outcome gets it all the same, and goes on."""
    question = Question(asyncio.get_running_loop())
    waiting = asyncio.create_task(outcome(question))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    answer = Message(b"", b"", b"stored")
    question.take(answer)
    waiting.cancel()  # the answer is there, and the task has not seen it yet
    assert await waiting is answer
    assert not waiting.cancelling()


async def test_what_is_overdue_ends_the_wait_of_a_cancelled_task() -> None:
    """A store that does not answer holds a cancelled task no longer than any other: its error ends the wait."""
    question = Question(asyncio.get_running_loop())
    waiting = asyncio.create_task(outcome(question))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    question.ended.set_exception(ConnectionError())
    with pytest.raises(ConnectionError):
        await waiting
