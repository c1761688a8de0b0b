"""The API's own context management: what a request may ask for, and what is answered."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import AsyncAnthropic

from handmesh.scripted_model import ScriptedModel
from handmesh.scripted_model.context import CLEARING, COMPACTING
from handmesh.scripted_model.validation import check_message_request

CLEAR: dict[str, Any] = {"type": "clear_tool_uses_20250919"}
THINKING: dict[str, Any] = {"type": "clear_thinking_20251015"}
COMPACT: dict[str, Any] = {"type": "compact_20260112"}
BOTH = f"{CLEARING}, {COMPACTING}"
TRIGGER = {"type": "input_tokens", "value": 60_000}


def refusal(edits: Any, betas: str = BOTH, model: str = "claude-opus-4-8", **more: Any) -> str:
    """Returns the message of the refusal, or nothing."""
    body = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], **more}
    body["context_management"] = {"edits": edits}
    problem = check_message_request(body, {"anthropic-beta": betas})
    return problem.message if problem else ""


ADAPTIVE = {"thinking": {"type": "adaptive"}}
TAKEN: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([], {}),
    ([CLEAR], {}),
    ([{**CLEAR, "trigger": {"type": "tool_uses", "value": 3}, "keep": {"type": "tool_uses", "value": 0}}], {}),
    ([{**CLEAR, "clear_at_least": None, "exclude_tools": ["bash"], "clear_tool_inputs": ["bash"]}], {}),
    ([{**THINKING, "keep": "all"}, CLEAR, COMPACT], ADAPTIVE),
    ([{**THINKING, "keep": {"type": "thinking_turns", "value": 2}}], {"model": "claude-fable-5-1"}),
    ([{**COMPACT, "trigger": TRIGGER, "instructions": "briefly", "pause_after_compaction": False}], {}),
]
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ([{"type": "forget"}], {}, "does not match any of the expected tags"),
    ([{**CLEAR, "keep": 3}], {}, "Input should be a valid dictionary"),
    ([{**CLEAR, "sometimes": True}], {}, "Extra inputs are not permitted"),
    ([{**CLEAR, "trigger": {"type": "input_tokens", "value": 0}}], {}, "greater than or equal to 1"),
    ([{**COMPACT, "trigger": {"type": "input_tokens", "value": 1_000}}], {}, "greater than or equal to 50000"),
    ([CLEAR, CLEAR], {}, "may be given once"),
    ([CLEAR, THINKING], ADAPTIVE, "must be the first strategy"),
    ([THINKING], {}, "requires `thinking` to be enabled or adaptive"),
    ([COMPACT], {"model": "claude-sonnet-4-5"}, "is not supported on this model"),
    ([COMPACT], {"betas": CLEARING}, f"needs the beta '{COMPACTING}'"),
    ([CLEAR], {"betas": COMPACTING}, f"needs the beta '{CLEARING}'"),
    ([CLEAR], {"betas": ""}, "context_management: Extra inputs are not permitted"),
    ([CLEAR], {"betas": "something-2027-01-01"}, "context_management: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("edits", "more"), TAKEN)
def test_edits_that_the_api_takes(edits: Any, more: dict[str, Any]) -> None:
    """Every field of each edit."""
    assert refusal(edits, **more) == ""


@pytest.mark.parametrize(("edits", "more", "said"), REFUSED)
def test_edits_that_the_api_refuses(edits: Any, more: dict[str, Any], said: str) -> None:
    """Shapes, order, the beta of each, and what the model does."""
    assert said in refusal(edits, **more)


def test_a_summary_of_the_apis_goes_back_only_with_its_beta() -> None:
    """In the assistant's message that it came in."""
    summary = {"type": "compaction", "content": "what was"}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [summary]}]
    messages.append({"role": "user", "content": "y"})
    body = {"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages}
    assert check_message_request(body, {"anthropic-beta": COMPACTING}) is None
    assert "compaction" in str(check_message_request(body, {}))
    assert "need the beta" in str(check_message_request(body, {"anthropic-beta": "other"}))
    body["messages"] = [{"role": "user", "content": [summary]}]
    assert "can only be in `assistant` messages" in str(check_message_request(body, {"anthropic-beta": COMPACTING}))


async def test_what_was_cut_and_summarised_is_played() -> None:
    """The edits that were applied, the summary in one piece, and its tokens apart from the answer's."""
    applied = {**CLEAR, "cleared_input_tokens": 900, "cleared_tool_uses": 4}
    turn = {
        "say": [{"block": {"type": "compaction", "content": "what was"}}, {"text": "and so on"}],
        "applied_edits": [applied],
        "compacted": {"input_tokens": 70_000, "output_tokens": 500},
    }
    async with ScriptedModel({"turns": [turn]}) as server:
        client = AsyncAnthropic(base_url=server.base_url, api_key="any", max_retries=0)
        async with (
            client,
            client.beta.messages.stream(
                model="claude-opus-4-8",
                max_tokens=100,
                messages=[{"role": "user", "content": "x"}],
                betas=[CLEARING, COMPACTING],
                context_management={"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]},
            ) as stream,
        ):
            message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["compaction", "text"]
    assert message.content[0].model_dump(exclude_none=True) == {"type": "compaction", "content": "what was"}
    assert message.context_management is not None
    assert [edit.model_dump() for edit in message.context_management.applied_edits] == [applied]
    assert message.usage.iterations is not None
    assert [(it.type, it.input_tokens) for it in message.usage.iterations if it.type == "compaction"] == [
        ("compaction", 70_000)
    ]
