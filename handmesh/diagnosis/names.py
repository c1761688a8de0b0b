"""Numbers in the place of names: a person has chosen the names of hands, servers and tools. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from handmesh.error.v1.error_reason_pb2 import ErrorReason
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event

DEFAULT_HAND, MESH = "main", "mesh"
KNOWN_TOOLS = frozenset(
    {"bash", "read", "write", "edit", "glob", "grep", "memory", "session_events", "hand_over"}
    | {"start_session", "send_message", "wait_for_session", "end_session", "list_sessions"}
)
"""Tools of the mesh's own hands and of the mesh: their names say nothing of anybody."""

KNOWN_TYPES = frozenset({"messages", "claude_code", "echo", "review"})
_REASONS = frozenset(name.removeprefix("ERROR_REASON_") for name, _ in ErrorReason.items())
_ID = re.compile(r"[a-z]{2,8}_[a-z0-9]{26}")
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,253}:[0-9]{1,10}")


@dataclass(frozen=True)
class Names:
    """What hands, servers and tools of one session are called where no name may be shown."""

    hands: dict[str, str]
    servers: dict[str, str]
    tools: dict[str, str]
    plain: bool = False

    def hand(self, name: str) -> str:
        """Names a hand, or an MCP server."""
        if self.plain:
            return name
        if name in (DEFAULT_HAND, MESH):
            return name
        return self.hands.get(name) or self.servers.get(name) or "a hand"

    def tool(self, name: str) -> str:
        """Names a tool."""
        if self.plain:
            return name
        hand, separator, rest = name.partition("__")
        if name in KNOWN_TOOLS:
            return name
        if separator and rest in KNOWN_TOOLS and hand in self.hands:
            return f"{self.hand(hand)}'s {rest}"
        return self.tools.get(name, "a tool")


def names_of(events: Iterable[Event], plain: bool = False) -> Names:
    """Numbers what a log names, in the order in which it does. With `plain` the names themselves are told."""
    found = Names({}, {}, {}, plain)
    for event in events:
        kind = event.WhichOneof("kind")
        if kind in ("session_started", "config_changed"):
            _of_config(found, getattr(event, kind).config)
        elif kind in ("hand_attached", "sandbox_provisioned"):
            _add(found.hands, getattr(event, kind).hand, "hand")
        elif kind in ("tool_started", "tool_confirmation_requested", "custom_tool_requested"):
            _add(found.tools, getattr(event, kind).name, "tool")
    return found


def _of_config(found: Names, config: SessionConfig) -> None:
    for hand in sorted(config.hands):
        _add(found.hands, hand, "hand")
    for server in config.mcp_servers:
        _add(found.servers, server.name, "server")


def _add(names: dict[str, str], name: str, what: str) -> None:
    names.setdefault(name, f"{what} {len(names) + 1}")


def reason_of(text: str) -> str:
    """Returns an ErrorReason, or nothing for a text that is none."""
    return text if text in _REASONS else ""


def id_of(text: str) -> str:
    """Returns an id that the mesh has minted, or nothing for a text that is none."""
    return text if _ID.fullmatch(text) else ""


def instance_of(text: str) -> str:
    """Returns a process's name as harnesses of this project choose it, or a word for any other."""
    return text if _INSTANCE.fullmatch(text) else "another harness"


def type_of(text: str, served: Iterable[str] = ()) -> str:
    """Returns a harness type that somebody serves or that the project has, or a word for any other."""
    return text if text in KNOWN_TYPES or text in served else "that type"
