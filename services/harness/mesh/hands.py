"""The tool with which a session gives one of its hands to another session.

To whom it may, the sandbox service decides by the configurations of both; this says it in a model's words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.mesh.tool import Asked
from services.harness.ports import Standing
from services.kit.errors import Conflict, ServiceError, Unavailable

NAME = "hand_over"
PARENT = "parent"  # what a session calls the one that started it

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hand": {"type": "string", "minLength": 1, "description": "The hand, by its name in this session."},
        "session": {
            "type": "string",
            "minLength": 1,
            "description": f"The session that gets it: the id of one that this session has started, or `{PARENT}` for "
            "the one that started this session.",
        },
        "name": {"type": "string", "description": "Its name in the other session. The same one when not given."},
    },
    "required": ["hand", "session"],
    "additionalProperties": False,
}
_SPEC = ToolSpec(
    NAME,
    "Gives a hand of this session, with all that is in it, to another session for good. What still runs in the hand "
    "may end first. From then on this session cannot use it; a hand of the session's own is made anew, empty, when it "
    "is called again.",
    json.dumps(_SCHEMA),
    idempotent=True,
)


@dataclass(frozen=True)
class Known:
    """A hand as the sandbox service knows it."""

    sandbox_id: str
    session_id: str
    hand: str
    previous_session_id: str


class Giving(Protocol):
    """The sandbox and the session service, as this tool needs them. Errors are ServiceErrors."""

    async def hands_of(self, session_id: str) -> Sequence[Known]:
        """Lists the hands that a session owns."""

    async def parent_of(self, session_id: str) -> str:
        """Returns the session that started a session; empty when none did."""

    async def give(self, sandbox_id: str, to_session_id: str, to_hand: str, under: Standing) -> None:
        """Gives a hand away (see `SandboxService.Transfer`). Idempotent."""


class HandOvers:
    """A family of tools (see `MeshTools`): `hand_over` alone."""

    def __init__(self, giving: Giving) -> None:
        self._giving = giving

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns it for a session that asks for it."""
        return (_SPEC,) if NAME in config.mesh_tools else ()

    async def execute(self, asked: Asked) -> ToolResult:
        """Gives the hand away. Whose it is tells whether an earlier call with the id has done so."""
        mine, hand = asked.log.session_id, str(asked.input["hand"])
        name, to = str(asked.input.get("name") or hand), str(asked.input["session"])
        try:
            if to == PARENT:
                to = await self._giving.parent_of(mine)
                if not to:
                    return ToolResult("No session has started this one: name the session by its id.", "TOOL_ERROR")
            own = next((it for it in await self._giving.hands_of(mine) if it.hand == hand), None)
            if own is not None:
                await self._giving.give(own.sandbox_id, to, name, asked.under)
            elif not await self._was_given(mine, to, name):
                why = f"This session has no hand {hand} to give: one that was never used has not been made."
                return ToolResult(why, "TOOL_ERROR")
        except Conflict as problem:
            if problem.reason == "EPOCH_STALE":
                raise
            return ToolResult(f"The hand {hand} is on its way to somebody else.", "TOOL_ERROR")
        except Unavailable:
            raise
        except ServiceError as problem:
            return ToolResult(f"The hand {hand} was not handed over: {problem.message}.", "TOOL_ERROR")
        return ToolResult(json.dumps({"session": to, "hand": name}, ensure_ascii=False))

    async def _was_given(self, mine: str, to: str, name: str) -> bool:
        theirs = await self._giving.hands_of(to)
        return any(it.hand == name and it.previous_session_id == mine for it in theirs)
