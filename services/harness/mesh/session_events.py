"""The tool `session_events`: the model reads its own session's log, by position, kind and text.

The log holds everything, whatever the model's context shows of it. One answer is bounded, and so is what is looked
through for it; both say where to go on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.harness.core import Config, ToolResult, ToolSpec
from services.harness.mesh.event_texts import KINDS, LOOK, Said, said
from services.harness.mesh.tool import Asked
from services.kit.errors import Gone, Invalid

NAME = "session_events"
MAX_EVENTS = 200  # of one answer
DEFAULT_EVENTS = 50
MAX_CHARACTERS = 30_000  # of one answer
SHORT_CHARACTERS = 500  # of what an event says, unless all of it is asked for
AROUND_CHARACTERS = 200  # on each side of what was searched for
MAX_PAGES = 8  # that are looked through for one answer, each at most 3 MiB
PAGE_EVENTS = 250
MAX_BLOB_BYTES = 8 * 1024 * 1024

_PROPERTIES: dict[str, dict[str, Any]] = {
    "start_position": {
        "type": "integer",
        "minimum": 1,
        "description": "The first position to look at. Without it the first event; with newest_first the last one.",
    },
    "newest_first": {"type": "boolean", "description": "Goes back from there."},
    "kinds": {"type": "array", "items": {"type": "string"}, "description": "Only events of these kinds."},
    "text": {"type": "string", "minLength": 1, "description": "Only events that say this, in upper or lower case."},
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_EVENTS, "description": "At most so many events."},
    "whole": {"type": "boolean", "description": f"All that an event says, not only {SHORT_CHARACTERS} characters."},
    "offset": {
        "type": "integer",
        "minimum": 0,
        "description": "With whole or blob_id: so many characters are skipped.",
    },
    "blob_id": {"type": "string", "description": "Reads the text of a blob that the log names, and nothing else."},
}
_ABOUT = (
    "Reads the log of this session: everything that was said and done in it, also what is no longer in your context. "
    "Events have positions from 1. Kinds are, among others, message_received, model_replied (with your calls), "
    "tool_finished (their results), context_compacted and turn_ended."
)


class SessionEvents:
    """The tool, for sessions whose configuration names it."""

    def offered(self, config: Config) -> Sequence[ToolSpec]:
        """Returns the tool if it is asked for (see `MeshTools.offered`)."""
        if NAME not in config.mesh_tools:
            return []
        schema = json.dumps({"type": "object", "properties": _PROPERTIES, "additionalProperties": False})
        return [ToolSpec(NAME, _ABOUT, schema, idempotent=True, read_only=True)]

    async def execute(self, asked: Asked) -> ToolResult:
        """Reads a slice of the session's own log (see `MeshTools.execute`)."""
        given = asked.input
        if unknown := sorted(set(given.get("kinds", ())) - set(KINDS)):
            return ToolResult(f"There are no events of the kind {unknown[0]}. Kinds: {', '.join(KINDS)}.", "TOOL_ERROR")
        if "blob_id" in given:
            return await _blob(asked, given["blob_id"], given.get("offset", 0))
        return ToolResult(await _Look(asked).answer())


async def _blob(asked: Asked, blob_id: str, offset: int) -> ToolResult:
    try:
        data = await asked.log.get_blob(blob_id, MAX_BLOB_BYTES)
    except (Gone, Invalid):
        return ToolResult(f"This session has no blob {blob_id}.", "TOOL_ERROR")
    if data is None:
        return ToolResult(f"The blob {blob_id} has more than {MAX_BLOB_BYTES} bytes.", "TOOL_ERROR")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ToolResult(f"The blob {blob_id} is no text.", "TOOL_ERROR")
    return ToolResult(f"{LOOK}\n{_from(text, offset, f'blob_id {blob_id}')}")


class _Look:
    """One look at the log."""

    def __init__(self, asked: Asked) -> None:
        self._log = asked.log
        self._given: Mapping[str, Any] = asked.input
        self._back = bool(self._given.get("newest_first"))
        self._limit = int(self._given.get("limit", DEFAULT_EVENTS))
        self._needle = str(self._given.get("text", "")).casefold()
        self._told: list[str] = []
        self._room = MAX_CHARACTERS

    async def answer(self) -> str:
        """Looks through the log until the answer is full, and says where to go on."""
        start = int(self._given.get("start_position", 0))
        low, high = (0, start + 1 if start else 0) if self._back else (start, 0)
        for _ in range(MAX_PAGES):
            page = await self._log.read(
                low, high, self._given.get("kinds", ()), descending=self._back, most=PAGE_EVENTS
            )
            for event in page.events:
                if not self._tell(said(event)):
                    return self._ended(page.head, event.position)
            if not page.next:
                return self._ended(page.head, 0)
            low, high = (0, page.next) if self._back else (page.next, 0)
        return self._ended(page.head, page.next - 1 if self._back else page.next)

    def _tell(self, event: Said) -> bool:
        """Adds an event if it is wanted; no when there is no more room for it."""
        if self._needle and self._needle not in event.text.casefold() and self._needle not in event.head.casefold():
            return True
        if len(self._told) == self._limit:
            return False
        text = f"{event.head}\n{indented}" if (indented := _indented(self._shown(event))) else event.head
        if self._told and len(text) > self._room:
            return False
        self._told.append(text)
        self._room -= len(text) + 1
        return True

    def _shown(self, event: Said) -> str:
        if self._given.get("whole"):
            offset = 0 if self._told else int(self._given.get("offset", 0))
            return _from(event.text, offset, f"start_position {event.position}, whole true, limit 1")
        return _short(event.text, self._needle)

    def _ended(self, head: int, go_on: int) -> str:
        said = "\n".join(self._told) if self._told else "(no such event)"
        order = ", newest_first true" if self._back else ""
        end = f"[There is more: go on with start_position {go_on}{order}.]" if go_on > 0 else "[That is all.]"
        return f"{LOOK} The last position is {head}.\n{said}\n{end}"


def _short(text: str, needle: str) -> str:
    """Returns the beginning of what was said, or what is around the text that was searched for."""
    if len(text) <= SHORT_CHARACTERS:
        return text
    at = text.casefold().find(needle) if needle else -1
    start = max(0, at - AROUND_CHARACTERS) if at > SHORT_CHARACTERS - len(needle) else 0
    end = min(len(text), max(start + SHORT_CHARACTERS, at + len(needle) + AROUND_CHARACTERS if start else 0))
    before = f"[{start} characters before] " if start else ""
    return f"{before}{text[start:end]}{f' [{len(text) - end} characters more]' if end < len(text) else ''}"


def _from(text: str, offset: int, where: str) -> str:
    """Returns a text from an offset on, as far as it goes into one answer."""
    end = offset + MAX_CHARACTERS - 1_000  # for what stands around it
    more = f"\n[{len(text) - end} characters more: go on with {where}, offset {end}.]" if end < len(text) else ""
    return f"{text[offset:end]}{more}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
