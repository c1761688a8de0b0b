"""How the model can fail: what passes, what does not, and what is said plainer."""

from __future__ import annotations

import asyncio
import functools
import json

from handmesh.session.v1.event_pb2 import Event, MessageReceived
from services.harness.ports import Answer, ModelFailure
from tests.golden.answers import CALL, answer
from tests.golden.recording import Recording, Scenario
from tests.support.harness_ports import Step, said

IMAGE = {"type": "image", "source": {"type": "url", "url": "https://pictures.example/cat.png"}}


def fails(reason: str, retryable: bool = True, retry_after: float | None = None) -> ModelFailure:
    return ModelFailure(reason, "no", retryable, retry_after)


async def _one(*steps: Step, first: str = "hello") -> Recording:
    """A turn that the model fails in, and one that it does not."""
    log = Recording(first=first)
    await log.run(*steps)
    await log.say("next", said("fine"))
    return log


async def retries_that_pass() -> Recording:
    reasons = ("MODEL_RATE_LIMITED", "MODEL_OVERLOADED", "MODEL_UNAVAILABLE", "MODEL_STREAM_BROKEN", "MODEL_SILENT")
    return await _one(*map(fails, reasons), said())


async def retries_that_end() -> Recording:
    return await _one(*[fails("MODEL_OVERLOADED")] * 7)


async def a_long_retry() -> Recording:
    log = Recording()
    await log.run(fails("MODEL_RATE_LIMITED", retry_after=900.0))
    log.clock += 1_000.0
    await log.run(said())
    return log


async def an_interrupt_while_it_is_retried() -> Recording:
    log = Recording()
    await log.run(fails("MODEL_RATE_LIMITED", retry_after=900.0))
    await log.interrupt()
    await log.run()
    await log.say("rather this", said())
    return log


async def a_message_while_it_is_retried() -> Recording:
    log = Recording()
    await log.run(fails("MODEL_RATE_LIMITED", retry_after=900.0))
    await log.say("are you there?")
    await log.run()
    log.clock += 1_000.0
    await log.run(said())
    return log


async def said_plainer() -> Recording:
    log = Recording()
    content = MessageReceived(content_json=json.dumps([IMAGE, {"type": "text", "text": "look"}]))
    await log.add(Event(event_id="picture", message_received=content))
    await log.run(fails("MODEL_REQUEST_REFUSED", retryable=False), said("fine"))
    await log.say("next", said())
    return log


async def an_answer_that_comes_while_another_wakes() -> Recording:
    log = Recording()

    async def overtaken() -> None:
        await asyncio.wait({asyncio.create_task(log.run(said("the other's")))})

    await log.run(overtaken, said("late"))
    await log.say("next", said())
    return log


def _twice() -> Answer:
    return answer(CALL, CALL, stop="tool_use")


SCENARIOS: dict[str, Scenario] = {
    "retries_that_pass": retries_that_pass,
    "retries_that_end": retries_that_end,
    "a_long_retry": a_long_retry,
    "an_interrupt_while_it_is_retried": an_interrupt_while_it_is_retried,
    "a_message_while_it_is_retried": a_message_while_it_is_retried,
    "said_plainer": said_plainer,
    "said_in_short": functools.partial(_one, fails("CONTEXT_FULL", retryable=False), said(), first="long " * 600),
    "a_request_that_stays_refused": functools.partial(_one, fails("MODEL_REQUEST_REFUSED", retryable=False)),
    "no_key": functools.partial(_one, fails("MODEL_KEY_MISSING", retryable=False)),
    "an_answer_with_an_id_twice": functools.partial(_one, _twice()),
    "an_answer_that_comes_while_another_wakes": an_answer_that_comes_while_another_wakes,
}
