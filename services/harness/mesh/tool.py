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


class MeshTools(Protocol):
    """A family of tools."""

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns those that a session with this configuration has, in a stable order. Pure."""

    async def execute(self, asked: Asked) -> ToolResult:
        """Runs one, and again with the same execution id to the same effect.

        What the model did wrong is a value (`TOOL_ERROR`). Errors are ServiceErrors, Conflict (`EPOCH_STALE`) among
        them.
        """
