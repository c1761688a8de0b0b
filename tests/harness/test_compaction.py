"""A conversation that gets too long is summarised: once, in the log, and the model goes on behind the summary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handmesh.session.v1.config_pb2 import Budgets, SessionConfig
from handmesh.session.v1.event_pb2 import ConfigChanged, Event, TokenUsage
from services.harness.adapters.codec import fact_of
from services.harness.loops.messages import compaction, make
from services.harness.loops.messages.policy import policy_of
from services.harness.loops.messages.request import written
from services.harness.loops.messages.view import view
from services.harness.model_profiles import ANXIOUS, SMALL
from services.harness.ports import Answer, ModelFailure
from services.harness.turn.state import fold_all
from tests.harness.api import talking
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Step, Told, message, ports, said

BASH = ("bash", {"command": "ls"})
TINY = '{"compaction": {"at": 1000}}'
FULL = ModelFailure("CONTEXT_FULL", "prompt is too long", retryable=False)


def big(text: str = "done", stop_reason: str = "end_turn", **calls: Any) -> Answer:
    """An answer to a request that had 1,200 tokens."""
    return replace(said(text, stop_reason, **calls), usage=TokenUsage(input_tokens=1_200, output_tokens=5))


def summary(text: str = "what was done") -> Answer:
    return replace(said(text), usage=TokenUsage(input_tokens=1_300, output_tokens=60))


async def run(log: MemoryLog, *steps: Step, hands: MemoryHands | None = None) -> ScriptedModel:
    """Lets a harness that has never seen the session work until it rests."""
    model = ScriptedModel(*steps)
    await make().run(log, ports(model, hands or MemoryHands()), "test", Told())
    assert model.steps == []
    return model


def log_of(policy: str = TINY, first: str = "first", **more: Any) -> MemoryLog:
    return MemoryLog(SessionConfig(context_policy_json=policy, model="m", **more), first)


def texts(request: Any) -> list[tuple[str, list[str]]]:
    return [(it["role"], [block.get("text") or block["type"] for block in it["content"]]) for it in request["messages"]]


async def test_the_next_turn_begins_behind_a_summary() -> None:
    """Its message is not summarised; the request for the summary is the conversation as it was, and a question more."""
    log = log_of()
    first = await run(log, big("answer"))
    await log.add(message("second", "m2"))
    model = await run(log, summary(), big("fine"))
    asked, after = model.requests
    assert texts(asked)[:2] == [*texts(first.requests[0]), ("assistant", ["answer"])]
    assert texts(asked)[2][1] == [compaction.ASKING]
    position = next(event.position for event in log.events if event.event_id == "m2")
    ((role, told),) = texts(after)
    assert role == "user"
    assert told == [compaction.SUMMARY.format(end=position - 1), "what was done", compaction.GO_ON, "second"]
    (it,) = log.only("context_compacted")
    assert (it.from_position, it.to_position, it.policy, it.model) == (1, position, "compaction", "m")
    assert it.usage == TokenUsage(input_tokens=1_300, output_tokens=60)
    assert it.request_hash and it.message_id == "msg" and not it.HasField("cost_micros")
    used = log.only("turn_ended")[-1].usage
    assert (used.input_tokens, used.output_tokens) == (2_500, 65)


async def test_within_a_turn_all_of_it_is_summarised_with_its_message_as_it_was() -> None:
    """Between two questions to the model, when every call has its result."""
    log = log_of(first="do this")
    model = await run(log, big(t1=BASH), summary(), said("fine"))
    _, asked, after = model.requests
    assert [block["type"] for block in asked["messages"][-1]["content"]] == ["tool_result", "text"]
    opening = compaction.SUMMARY.format(end=log.only("context_compacted")[0].to_position - 1)
    assert texts(after) == [("user", [opening, "what was done", compaction.TASK, "do this", compaction.GO_ON])]
    assert log.kinds()[-3:] == ["context_compacted", "model_replied", "turn_ended"]


async def test_a_summary_is_not_asked_for_again_before_the_model_has_answered() -> None:
    """Also when what is left is still over the limit; a third turn summarises the summary too."""
    log = log_of('{"compaction": {"at": 2}}')
    await run(log, big())
    await log.add(message("second", "m2"))
    await run(log, summary("one"), big())
    await log.add(message("third", "m3"))
    model = await run(log, summary("two"), big())
    assert "one" in json.dumps(model.requests[0]) and "one" not in json.dumps(model.requests[1])
    assert [it.from_position for it in log.only("context_compacted")] == [1, 1]


async def test_without_it_nothing_is_summarised() -> None:
    """Compaction that is off; and what was summarised before is shown again by a policy that ignores it."""
    log = log_of('{"compaction": "off", "window": 1000}')
    await run(log, big(t1=BASH), big(t2=BASH), big())
    assert "context_compacted" not in log.kinds()
    log = log_of()
    await run(log, big(t1=BASH), summary(), said("fine"))
    ignoring = SessionConfig(context_policy_json='{"ignore": true}', model="m")
    await log.add(Event(event_id="c", config_changed=ConfigChanged(config=ignoring)), message("again", "m2"))
    model = await run(log, said("fine"))
    assert [role for role, _ in texts(model.requests[0])] == ["user", "assistant", "user", "assistant", "user"]
    assert "what was done" not in json.dumps(model.requests[0])


async def test_a_reset_begins_afresh() -> None:
    """A hand-over note instead of a summary, and the event says so."""
    log = log_of('{"compaction": {"mode": "reset", "at": 1000, "instructions": "Note it down."}}')
    await run(log, big())
    await log.add(message("second", "m2"))
    model = await run(log, summary("the note"), said())
    assert texts(model.requests[0])[-1] == ("user", ["Note it down."])
    assert texts(model.requests[1]) == [("user", [compaction.NOTE, "the note", compaction.GO_ON, "second"])]
    assert log.only("context_compacted")[0].policy == "reset"


async def test_one_log_under_two_profiles() -> None:
    """No other change: the model that is anxious near its limit begins afresh, and earlier."""
    log = log_of("")
    await run(log, replace(big(), usage=TokenUsage(input_tokens=125_000)))
    await log.add(message("second", "m2"))
    state = fold_all(map(fact_of, log.events))
    calm, anxious = policy_of("", SMALL), policy_of("", ANXIOUS)
    assert not compaction.due(state, calm) and compaction.due(state, anxious)
    assert written(view(state, "m", policy=calm)).body == written(view(state, "m", policy=anxious)).body
    assert compaction.asked(anxious) != compaction.asked(calm)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ('{"compaction": "maybe"}', "compaction.mode"),
        ('{"compactions": "on"}', "compactions"),
        ('{"compaction": {"at": -1}}', "compaction.at"),
        ('{"compaction": {"at": 1e999}}', "compaction.at"),
        ('{"compaction": {"at": true}}', "compaction.at"),
        ('{"compaction": {"instructions": 1}}', "compaction.instructions"),
        ('{"window": 0.5}', "window"),
        ('{"ignore": 1}', "ignore"),
        ('{"trim": {"images": {"keep": 0}}}', "trim.images.keep"),
        ('{"trim": {"sounds": {}}}', "trim.sounds"),
        ('{"trim": {"thinking": {"above": "much"}}}', "trim.thinking.above"),
        ('{"api": {"edits": [{"type": "shorten"}]}}', "api.edits[0].type"),
        ('{"api": {"edits": [{"type": "compact_20260112"}]}}', "api.edits[0].type"),
        ('{"api": {"edits": {}}}', "api.edits"),
        ("[]", ""),
        ("{", ""),
    ],
)
async def test_a_wrong_policy_ends_the_turn_with_its_field(policy: str, field: str) -> None:
    """The error is in the log; the session goes on with the next configuration."""
    log = log_of(policy)
    await run(log)
    (error,) = log.only("error_raised")
    assert (error.reason, error.part, error.retryable) == ("CONFIG_INVALID", "harness", False)
    assert error.message.startswith(f"context_policy_json.{field} " if field else "context_policy_json ")
    assert log.kinds()[-1] == "turn_ended"
    right = SessionConfig(context_policy_json="{}", model="m")
    await log.add(Event(event_id="c", config_changed=ConfigChanged(config=right)), message("again", "m2"))
    await run(log, said())


async def test_a_full_window_is_summarised_once_and_the_turn_goes_on() -> None:
    """The request for the summary is in short, so that it fits; the log says why."""
    log = log_of("", first="x" * 50_000)
    await run(log, said("y" * 50_000))
    await log.add(message("second", "m2"))
    model = await run(log, FULL, summary(), said("fine"))
    _, asked, after = model.requests
    assert len(json.dumps(asked)) < 10_000
    assert texts(after)[0][1][-1] == "second"
    assert [it.reason for it in log.only("retry_scheduled")] == ["CONTEXT_FULL"]
    assert log.kinds()[-3:] == ["context_compacted", "model_replied", "turn_ended"]


async def test_a_window_that_is_full_behind_a_summary_too_ends_the_turn_and_says_so() -> None:
    """It is tried once."""
    log = log_of("")
    await run(log, said())
    await log.add(message("second", "m2"))
    await run(log, FULL, summary(), FULL)
    (error,) = log.only("error_raised")
    assert error.reason == "CONTEXT_FULL"
    assert "in a summary already" in error.message
    await log.add(message("third", "m3"))
    await run(log, said("there is room now"))


async def test_a_conversation_that_does_not_fit_even_for_its_summary_ends_the_turn() -> None:
    """In full it is refused, then in short."""
    log = log_of()
    await run(log, big())
    await log.add(message("second", "m2"))
    model = await run(log, FULL, FULL)
    assert len(model.requests) == 2
    assert [it.reason for it in log.only("error_raised")] == ["CONTEXT_FULL"]


async def test_an_answer_that_broke_off_at_the_end_of_the_window_goes_on_behind_a_summary() -> None:
    """What it had said is in the summary. The same again right behind it ends the turn."""
    log = log_of("")
    await run(log, said("one", t1=BASH), said("tw", stop_reason="model_context_window_exceeded"), summary(), said())
    assert log.kinds()[-5:] == ["model_replied", "retry_scheduled", "context_compacted", "model_replied", "turn_ended"]
    await log.add(message("second", "m2"))
    broken = said("tw", stop_reason="model_context_window_exceeded")
    await run(log, broken, summary(), broken)
    assert log.kinds()[-1] == "turn_ended"
    assert log.only("turn_ended")[-1].stop_reason == "model_context_window_exceeded"


async def test_no_summary_is_asked_for_again() -> None:
    """An answer without a word, or a refusal, is no summary."""
    log = log_of()
    await run(log, big())
    await log.add(message("second", "m2"))
    empty = replace(said(), content="[]")
    await run(log, empty, said("no", stop_reason="refusal"), summary(), said())
    assert [it.reason for it in log.only("retry_scheduled")] == ["MODEL_ANSWER_INVALID"] * 2


async def test_a_summary_counts_against_the_budgets() -> None:
    """It uses the last tokens: the turn pauses behind it."""
    log = log_of(budgets=Budgets(max_tokens=2_000))
    await run(log, big())
    await log.add(message("second", "m2"))
    await run(log, summary())
    assert log.kinds()[-2:] == ["context_compacted", "budget_reached"]
    reached = log.only("budget_reached")[0]
    assert (reached.budget, reached.used) == ("max_tokens", 1_205 + 1_360)


async def test_a_refused_turn_behind_a_summary_leaves_the_summary() -> None:
    """The turn is left out, and nothing else."""
    log = log_of()
    await run(log, big())
    await log.add(message("second", "m2"))
    await run(log, summary(), said("no", stop_reason="refusal"))
    await log.add(message("third", "m3"))
    model = await run(log, said())
    ((_, told),) = texts(model.requests[0])
    assert told[1] == "what was done" and told[-1] == "third"


EDITS = json.dumps({"api": {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}})


async def test_the_api_cuts_and_summarises_by_itself(tmp_path: Path) -> None:
    """The request asks for it, with the betas that it needs; what the API says that it did is in the log, its summary
    goes back as it came, and its tokens are paid for."""
    applied = {"type": "clear_tool_uses_20250919", "cleared_input_tokens": 900, "cleared_tool_uses": 4}
    first = {
        "say": [{"block": {"type": "compaction", "content": "what was"}}, {"text": "and so on"}],
        "applied_edits": [applied],
        "compacted": {"input_tokens": 70_000, "output_tokens": 500},
        "times": 1,
    }
    settings = SessionConfig(context_policy_json=EDITS, model="claude-opus-4-8")
    async with talking(tmp_path, {"turns": [first, {"say": [{"text": "fine"}]}]}, config=settings) as (server, session):
        await session.run()
        await session.say("next")
    assert [request.status for request in server.requests] == [200, 200]
    assert server.requests[0].headers["anthropic-beta"] == "compact-2026-01-12,context-management-2025-06-27"
    one, two = session.log.only("model_replied")
    assert json.loads(one.context_edits_json) == [applied] and two.context_edits_json == ""
    assert one.usage.input_tokens > 70_000 and one.usage.output_tokens > 500
    body = server.requests[1].body
    assert body is not None
    assert body["context_management"] == json.loads(EDITS)["api"]
    assert body["messages"][1]["content"][0] == {"type": "compaction", "content": "what was"}


async def test_a_summary_that_the_api_refuses_is_asked_for_in_plainer_words() -> None:
    """As any other request; what was refused is in the summary then."""
    log = log_of()
    thinking = json.dumps([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}])
    await run(log, replace(big(), content=thinking))
    await log.add(message("second", "m2"))
    refused = ModelFailure("MODEL_REQUEST_REFUSED", "no", retryable=False)
    model = await run(log, refused, summary(), said())
    assert "thinking" in json.dumps(model.requests[0]) and "thinking" not in json.dumps(model.requests[1])
    assert log.kinds()[-3:] == ["context_compacted", "model_replied", "turn_ended"]


async def test_an_answer_of_several_parts_is_ended_first() -> None:
    """The API goes on with what it has begun; the summary comes behind it."""
    log = log_of()
    paused = replace(big(), stop_reason="pause_turn")
    await run(log, paused, big(t1=BASH), summary(), said())
    assert log.kinds()[-3:] == ["context_compacted", "model_replied", "turn_ended"]


async def test_the_message_that_is_worked_on_is_not_longer_than_an_event() -> None:
    """Many long messages at once: their beginning and end are kept."""
    log = log_of(first="begin " + "x" * 400_000)
    await log.add(*(message("y" * 400_000, f"n{number}") for number in range(3)), message("the end", "last"))
    model = await run(log, big(t1=BASH), summary(), said())
    told = texts(model.requests[-1])[0][1]
    assert told[-2].startswith("begin") and told[-2].endswith("the end")
    assert len(told[-2]) < 21_000
