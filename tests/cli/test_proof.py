"""The demo's checks can fail: each is shown what it must not let through."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from handmesh.demo import proof
from handmesh.demo.stage import minted, new_token
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2

OK, ERROR = tool_pb2.TOOL_OUTCOME_OK, tool_pb2.TOOL_OUTCOME_TOOL_ERROR


def log(*kinds: dict[str, object]) -> list[event_pb2.Event]:
    return [event_pb2.Event(position=number, **kind) for number, kind in enumerate(kinds, 1)]


def calls(*ids: str) -> dict[str, object]:
    blocks = [{"type": "tool_use", "id": each, "name": "bash", "input": {}} for each in ids]
    return {"model_replied": event_pb2.ModelReplied(content_json=json.dumps(blocks))}


def started(call: str, hand: str = "main") -> dict[str, object]:
    return {"tool_started": event_pb2.ToolStarted(tool_use_id=call, hand=hand)}


def finished(call: str, outcome: tool_pb2.ToolOutcome.ValueType = OK) -> dict[str, object]:
    result = tool_pb2.ToolResult(outcome=outcome)
    return {"tool_finished": event_pb2.ToolFinished(tool_use_id=call, result=result)}


def ended(reason: event_pb2.TurnEndReason.ValueType = event_pb2.TURN_END_REASON_DONE) -> dict[str, object]:
    return {"turn_ended": event_pb2.TurnEnded(reason=reason)}


WOKE: dict[str, object] = {"harness_woke": event_pb2.HarnessWoke()}


def test_positions_are_dense() -> None:
    """A gap, a repeat or a late begin is noticed."""
    assert proof.dense_positions(log(WOKE, WOKE)).holds
    assert not proof.dense_positions(log(WOKE, WOKE)[1:]).holds
    assert not proof.dense_positions([log(WOKE)[0], log(WOKE)[0]]).holds


def test_each_call_has_one_result() -> None:
    """No result, two results, and a result without a call are noticed."""
    assert proof.one_result_per_call(log(calls("a", "b"), finished("b"), finished("a"))).holds
    assert not proof.one_result_per_call(log(calls("a", "b"), finished("a"))).holds
    assert not proof.one_result_per_call(log(calls("a"), finished("a"), finished("a"))).holds
    assert not proof.one_result_per_call(log(calls("a"), finished("a"), finished("b"))).holds


def test_calls_must_go_well() -> None:
    """One failed call, or none at all, is noticed."""
    assert proof.all_calls_went_well(log(finished("a"))).holds
    assert not proof.all_calls_went_well(log(finished("a"), finished("b", ERROR))).holds
    assert not proof.all_calls_went_well(log(WOKE)).holds


def test_turns_must_be_done() -> None:
    """A missing turn and one that failed are noticed."""
    assert proof.turns_done(log(ended(), ended()), 2).holds
    assert not proof.turns_done(log(ended()), 2).holds
    assert not proof.turns_done(log(ended(), ended(event_pb2.TURN_END_REASON_FAILED)), 2).holds


def test_a_takeover_lies_between_start_and_result() -> None:
    """A harness that woke before the call or after its result has taken nothing over."""
    assert proof.taken_over(log(WOKE, started("a"), WOKE, finished("a")), "a").holds
    assert proof.taken_over(log(WOKE, started("a"), WOKE, started("a"), finished("a")), "a").holds
    assert not proof.taken_over(log(WOKE, started("a"), finished("a")), "a").holds
    assert not proof.taken_over(log(WOKE, started("a"), finished("a"), WOKE), "a").holds
    assert not proof.taken_over(log(WOKE, started("a"), WOKE), "a").holds


@pytest.mark.parametrize(("output", "holds"), [("run-7\n", True), ("", False), ("run-7\nrun-8\n", False)])
def test_a_command_ran_once(output: str, holds: bool) -> None:
    """No line and two lines are noticed."""
    assert proof.ran_once(output).holds is holds


def test_world_and_log_agree() -> None:
    """An execution that the log does not know, or one that the world does not, is noticed; servers are no hand."""
    events = log(started("a"), started("b", "notes"), started("a"))
    assert proof.same_executions(events, "main", ["a"]).holds
    assert not proof.same_executions(events, "main", ["a", "a"]).holds
    assert not proof.same_executions(events, "main", ["a", "b"]).holds
    assert not proof.same_executions(events, "main", []).holds


def test_a_server_was_asked_what_the_log_says() -> None:
    """A call that came twice, one that never came and one that nobody sent are noticed; hands are no server."""
    note = {"tool_started": event_pb2.ToolStarted(tool_use_id="n", hand="shop", name="shop__add_note")}
    events = log(started("a"), note)
    assert proof.same_calls(events, "shop", ["add_note"]).holds
    assert not proof.same_calls(events, "shop", ["add_note", "add_note"]).holds
    assert not proof.same_calls(events, "shop", []).holds
    assert not proof.same_calls(events, "shop", ["refund_order"]).holds


def test_a_secret_is_found_in_every_spelling() -> None:
    """Raw, hex, URL-encoded, and base 64 at any place of any text: each is found, and the place is named."""
    secret = new_token()
    raw = secret.encode()
    spelled = [
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(secret, safe="").encode(),
        *(base64.b64encode(b"x" * before + raw + b"tail") for before in range(7)),
        *(base64.urlsafe_b64encode(b"authorization: Bearer "[before:] + raw) for before in range(7)),
    ]
    for spelling in spelled:
        finding = proof.secret_is_nowhere(secret, {"good": b"nothing", "bad": b"... " + spelling + b" ..."})
        assert not finding.holds
        assert "bad" in finding.text
        assert secret not in finding.text
    assert proof.secret_is_nowhere(secret, {"good": b"demo+ and other things"}).holds


def test_tokens_and_ids_have_the_right_form() -> None:
    """A token is new each time and changes when it is URL-encoded; an id has the form that the mesh asks for."""
    assert new_token() != new_token()
    assert quote(new_token(), safe="") not in (new_token(), "")
    assert len(minted("vault")) == len("vault_") + 26
    assert minted("vault").islower()
