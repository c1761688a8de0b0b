"""What an answer of the model can be: every stop reason, nothing, thinking, blocks that nobody knows, cut inputs."""

from __future__ import annotations

import functools
import json
from typing import Any

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.ports import Answer
from tests.golden.recording import BASH, Recording, Scenario
from tests.support.harness_ports import message, said

USAGE = TokenUsage(input_tokens=2_000, output_tokens=80, cache_creation_input_tokens=300, cache_read_input_tokens=9_000)
CALL: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
CUT: dict[str, Any] = {**CALL, "input": {"INVALID_JSON": '{"command": "rm -rf /tm'}}
THINKING = {"type": "thinking", "thinking": "hm \u2028 \u00e9", "signature": "EpQBCkYIBRgCKkD+/=="}
REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgB+/=="}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "handmesh"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
NOVEL = {"type": "hologram", "shape": {"sides": 7}}


def answer(*blocks: dict[str, Any], stop: str = "end_turn", details: str = "", sequence: str = "") -> Answer:
    """An answer of a model whose price is known."""
    content = json.dumps(blocks, ensure_ascii=False)
    return Answer(content, stop, USAGE, "msg_1", "claude-sonnet-4-5", stop_sequence=sequence, stop_details=details)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def _one(*answers: Answer) -> Recording:
    """A turn with these answers, and one behind it."""
    log = Recording(SessionConfig(system="Be brief."))
    await log.run(*answers)
    await log.say("next", said("fine"))
    return log


async def three_pauses() -> Recording:
    log = Recording()
    paused = [answer(text(f"on {n}"), SEARCH, FOUND, stop="pause_turn") for n in range(3)]
    await log.run(*paused, answer(text("done")))
    return log


async def a_refusal_behind_calls() -> Recording:
    log = Recording()
    await log.run(answer(CALL, stop="tool_use"), answer(text("I ca"), {**CALL, "id": "t2"}, stop="refusal"))
    await log.say("something else", said())
    return log


async def a_pause_with_a_call() -> Recording:
    log = Recording()
    await log.run(answer(text("let me"), CALL, stop="pause_turn"), answer(text("done")))
    return log


async def messages_while_the_model_answers() -> Recording:
    log = Recording()

    async def speak() -> None:
        for number in range(3):
            await log.say(f"and {number}")

    await log.run(speak, said("one"), speak, said(t1=BASH), speak, said("three"), said("four"))
    return log


async def a_message_while_a_tool_runs() -> Recording:
    log = Recording()
    log.hands.work = lambda tool, input: log.add(message("by the way", "by-the-way"))
    await log.run(said(t1=BASH), said())
    return log


_ONES: dict[str, tuple[Answer, ...]] = {
    "stop_end_turn": (answer(text("done")),),
    "stop_sequence": (answer(text("done"), stop="stop_sequence", sequence="END"),),
    "stop_tool_use": (answer(text("let me"), CALL, stop="tool_use"), answer(text("done"))),
    "stop_max_tokens": (answer(text("half a"), stop="max_tokens"),),
    "stop_max_tokens_inside_an_input": (answer(CALL, {**CUT, "id": "t2"}, stop="max_tokens"), answer(text("so"))),
    "stop_context_window": (answer(text("half a"), stop="model_context_window_exceeded"),),
    "stop_context_window_inside_an_input": (answer(CUT, stop="model_context_window_exceeded"), answer(text("so"))),
    "stop_refusal": (answer(text("I ca"), stop="refusal", details='{"category":"cyber"}'),),
    "stop_refusal_of_nothing": (answer(stop="refusal"),),
    "stop_reason_that_nobody_knows": (answer(text("so"), stop="tired"),),
    "an_answer_of_nothing": (answer(),),
    "an_answer_of_empty_text": (answer(text("")),),
    "thinking_of_both_kinds": (
        answer(THINKING, REDACTED, text("now"), THINKING, CALL, stop="tool_use"),
        answer(THINKING, text("done")),
    ),
    "blocks_that_nobody_knows": (answer(NOVEL, text("now"), CALL, NOVEL, stop="tool_use"), answer(NOVEL)),
    "an_input_that_is_no_json": (answer(CUT, stop="tool_use"), answer(text("again"))),
    "a_tool_that_is_not_there": (said(t1=("no_such_tool", {}), t2=BASH), said()),
}
SCENARIOS: dict[str, Scenario] = {
    **{name: functools.partial(_one, *answers) for name, answers in _ONES.items()},
    "three_pauses": three_pauses,
    "a_refusal_behind_calls": a_refusal_behind_calls,
    "a_pause_with_a_call": a_pause_with_a_call,
    "messages_while_the_model_answers": messages_while_the_model_answers,
    "a_message_while_a_tool_runs": a_message_while_a_tool_runs,
}
