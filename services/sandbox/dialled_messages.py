"""Messages of the two methods for workers, to values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, assert_never

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit import ids
from services.sandbox.dialled import (
    TOOLS_BYTES,
    Accepted,
    Assigned,
    Cancelled,
    Drained,
    Heard,
    Held,
    Registration,
    Released,
    Report,
    Work,
    invalid,
    shown,
)
from services.sandbox.hand import Outcome, Result
from services.sandbox.hand_tokens import Checked
from services.sandbox.tools import Tool

SCHEMA_DEPTH = 32
MOST_HELD = 10_000


def registration(it: pb.ConnectHandRequest, checked: Checked) -> Registration:
    """Returns a worker as it presents itself. Raises Invalid (`HAND_REGISTRATION_INVALID`, `ID_INVALID`)."""
    if sum(len(tool.input_schema_json) + len(tool.description) for tool in it.tools) > 2 * TOOLS_BYTES:
        raise invalid("tools", f"have at most {TOOLS_BYTES} bytes in all")
    if len(it.executions) > MOST_HELD:
        raise invalid("executions", f"are at most {MOST_HELD}")
    return Registration(
        tenant=checked.tenant,
        name=checked.name,
        token_id=checked.token_id,
        worker=it.worker,
        seat=it.seat,
        description=it.description,
        tools=tuple(_tool(tool) for tool in it.tools),
        labels=dict(it.labels),
        capacity=it.capacity or 1,
        held=tuple(_held(each) for each in it.executions),
    )


def _held(it: pb.HeldExecution) -> Held:
    ids.check("sandbox_id", it.sandbox_id)
    ids.check("execution_id", it.execution_id)
    return Held(it.sandbox_id, it.execution_id)


def _tool(it: tool_pb2.Tool) -> Tool:
    schema = _schema_of(it.name, it.input_schema_json)
    return Tool(it.name, it.description, schema, it.idempotent, it.read_only)


def _schema_of(name: str, text: str) -> Mapping[str, Any]:
    """Reads a tool's input schema, once it is known to be small and flat. Raises Invalid."""
    if len(text) > TOOLS_BYTES or _depth(text) > SCHEMA_DEPTH:
        raise invalid("tools", f"the schema of {shown(name)} is too long, or deeper than {SCHEMA_DEPTH}")
    try:
        schema = json.loads(text or '{"type": "object"}')
    except ValueError:
        raise invalid("tools", f"the schema of {shown(name)} is no JSON") from None
    if not isinstance(schema, dict):
        raise invalid("tools", f"the schema of {shown(name)} is no JSON object")
    return schema


def _depth(text: str) -> int:
    """Returns how deep a JSON text is at most: brackets within texts count, too."""
    deepest = depth = 0
    for character in text:
        if character in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "}]":
            depth -= 1
    return deepest


def work(it: Work) -> pb.ConnectHandResponse:
    """Says what to do."""
    match it:
        case None:
            return pb.ConnectHandResponse()
        case Accepted():
            return pb.ConnectHandResponse(accepted=_accepted(it))
        case Assigned(sandbox_id, order):
            request = pb.ExecuteRequest(
                sandbox_id=sandbox_id,
                name=order.name,
                input=json.dumps(order.input),
                execution_id=order.execution_id,
                epoch=order.epoch,
            )
            request.timeout.FromNanoseconds(int(order.seconds * 1e9))
            return pb.ConnectHandResponse(execute=request)
        case Cancelled(held):
            cancel = pb.CancelExecutionRequest(sandbox_id=held.sandbox_id, execution_id=held.execution_id)
            return pb.ConnectHandResponse(cancel=cancel)
        case Released(sandbox_id):
            return pb.ConnectHandResponse(release=pb.ReleaseRequest(sandbox_id=sandbox_id))
        case Drained():
            return pb.ConnectHandResponse(drain=pb.DrainNotice())
    assert_never(it)


def _accepted(it: Accepted) -> pb.HandAccepted:
    accepted = pb.HandAccepted(
        executions=[
            pb.WantedExecution(
                sandbox_id=each.held.sandbox_id,
                execution_id=each.held.execution_id,
                next_offset=each.next_offset,
                cancelled=each.cancelled,
            )
            for each in it.wanted
        ]
    )
    accepted.lease.FromNanoseconds(int(it.lease * 1e9))
    return accepted


def report(it: pb.ReportExecutionRequest, checked: Checked) -> Report:
    """Returns what a worker says."""
    if it.sandbox_id:
        ids.check("execution_id", it.execution_id)
    return Report(
        tenant=checked.tenant,
        name=checked.name,
        worker=it.worker,
        held=Held(it.sandbox_id, it.execution_id) if it.sandbox_id else None,
        offset=it.offset,
        chunk=it.chunk,
        result=_result(it.result) if it.HasField("result") else None,
        draining=it.draining,
    )


def _result(it: tool_pb2.ToolResult) -> Result:
    """Returns a result. An outcome that is not a worker's to say is the tool's failure."""
    name = tool_pb2.ToolOutcome.Name(it.outcome).removeprefix("TOOL_OUTCOME_") if it.outcome in _OUTCOMES else ""
    return Result(
        text=it.output,
        outcome=Outcome[name] if name in Outcome.__members__ else Outcome.TOOL_ERROR,
        content_json=it.content_json,
        exit_code=it.exit_code if it.HasField("exit_code") else None,
        signal=it.signal if it.HasField("signal") else None,
        truncated=it.truncated,
        spill_path=it.spill_path,
    )


_OUTCOMES = frozenset(tool_pb2.ToolOutcome.values())


def heard(it: Heard) -> pb.ReportExecutionResponse:
    """Says what came of a report."""
    return pb.ReportExecutionResponse(
        cancelled=it.cancelled, next_offset=it.next_offset, open_executions=it.open_executions
    )
