"""What a tool of the mesh is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.ports import SessionLog, Standing


@dataclass(frozen=True)
class Asked:
    """A call of the model. `input` has been checked against the tool's schema."""

    log: SessionLog
    config: Config
    under: Standing
    name: str
    input: Mapping[str, Any]
    execution_id: str
    since: float = 0.0  # when it was first asked (Unix time, seconds)
    may_rest: bool = False  # whether it may raise `NotYet`


class NotYet(Exception):
    """What a call waits for has not come. It is asked again when the log has grown, and at a time at the latest
    (Unix time, seconds). Until then nobody needs to hold the session."""

    def __init__(self, until: float) -> None:
        super().__init__(f"not before {until}")
        self.until = until


class MeshTools(Protocol):
    """A family of tools."""

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns those that a session with this configuration has, in a stable order. Pure."""

    async def execute(self, asked: Asked) -> ToolResult:
        """Runs one, and again with the same execution id to the same effect.

        What the model did wrong is a value (`TOOL_ERROR`). Errors are ServiceErrors, Conflict (`EPOCH_STALE`) among
        them; and NotYet where the call may rest.
        """
