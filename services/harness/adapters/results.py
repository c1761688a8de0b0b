"""What tools said: messages to values, and back."""

from __future__ import annotations

from typing import cast

from handmesh.sandbox.v1 import tool_pb2
from services.harness import core


def result_of(it: tool_pb2.ToolResult) -> core.ToolResult:
    """Returns a tool's result as a value."""
    outcome = tool_pb2.ToolOutcome.Name(it.outcome).removeprefix("TOOL_OUTCOME_")
    return core.ToolResult(
        it.output,
        cast("core.Outcome", outcome if outcome != "UNSPECIFIED" else "UNKNOWN"),
        it.content_json,
        it.truncated,
        it.exit_code if it.HasField("exit_code") else None,
        it.signal if it.HasField("signal") else None,
        it.spill_path,
    )


def result_message(result: core.ToolResult) -> tool_pb2.ToolResult:
    """Returns a tool's result as a message."""
    return tool_pb2.ToolResult(
        output=result.output,
        outcome=tool_pb2.ToolOutcome.Value(f"TOOL_OUTCOME_{result.outcome}"),
        content_json=result.content,
        truncated=result.truncated,
        exit_code=result.exit_code,
        signal=result.signal,
        spill_path=result.spill_path,
    )
