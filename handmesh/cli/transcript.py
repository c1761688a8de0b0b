"""Shows a turn as it happens: the model's text on standard output, tools and all else on standard error.

The text comes twice: in previews, piece by piece, which can have holes or come to nothing, and in the event of record.
Each character is printed once: what the previews did not show is printed when the event comes.
"""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from handmesh.cli.escape import escaped, one_line
from handmesh.cli.lines import blocks_of, call_text, content_of, kind_of, outcome_word, turn_text
from handmesh.cli.spending import reached
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2, session_pb2

RESULT_LINES = 6
"""Lines of a tool's result that are shown; `handmesh events --json` has all of it."""

_QUIET = frozenset(
    {"session_started", "message_received", "tool_started", "tools_offered", "interrupt_requested", "child_rested"}
)


class Transcript:
    """Prints events and previews of one session, in the order in which they come."""

    def __init__(self, notes: Console, text: TextIO | None = None) -> None:
        self._notes = notes
        self._text = text or sys.stdout
        self._line_open = False
        self._reply_id = ""
        self._shown: dict[int, int] = {}  # characters of the reply to come that were shown, by block
        self._tools: dict[str, str] = {}  # what a call was, by its id
        self._instance = ""

    def preview(self, piece: session_pb2.Preview) -> None:
        """Shows a piece of text, if it goes on where the last one ended."""
        if piece.event_id != self._reply_id:
            self._give_up_reply()
            self._reply_id = piece.event_id
        match piece.WhichOneof("delta"):
            case "text":
                shown = self._shown.get(piece.block_index, 0)
                if piece.offset == shown:
                    self._write(piece.text, new_block=shown == 0)
                    self._shown[piece.block_index] = shown + len(piece.text)
            case "discarded":
                self._give_up_reply()

    def show(self, event: event_pb2.Event) -> None:
        """Shows an event."""
        match kind_of(event):
            case "model_replied":
                self._show_reply(event)
            case "tool_finished":
                self._show_result(event.tool_finished.tool_use_id, event.tool_finished.result)
            case "custom_tool_answered":
                self._show_result(event.custom_tool_answered.tool_use_id, event.custom_tool_answered.result)
            case "harness_woke":
                self._show_harness(event)
            case "credential_used":
                used = event.credential_used
                self.note(one_line(f"a credential was used for {used.server}: {used.result}", self._notes.width))
            case "tools_changed":
                self.note(one_line(f"the tools of {event.tools_changed.server} changed", self._notes.width), "yellow")
            case "door_refused":
                refused = event.door_refused
                self.note(
                    one_line(f"refused at the {refused.door} door: {refused.target}", self._notes.width), "yellow"
                )
            case "sandbox_provisioned":
                self._show_sandbox(event.sandbox_provisioned)
            case "turn_ended":
                reason = event.turn_ended.reason
                style = "green" if reason == event_pb2.TURN_END_REASON_DONE else "red"
                self.note(f"turn ended: {turn_text(event.turn_ended)}", style)
            case "budget_reached":
                self.note(f"paused: {reached(event.budget_reached)}", "yellow")
            case kind if kind not in _QUIET:
                self.note(f"{kind}: {content_of(event)}", "red" if kind == "error_raised" else "dim")

    def note(self, line: str, style: str = "dim") -> None:
        """Prints a line of our own beside the model's text. `line` is safe to print."""
        self._end_line()
        self._notes.print(Text(line, style=style), soft_wrap=True)

    def _show_reply(self, event: event_pb2.Event) -> None:
        if event.event_id != self._reply_id:
            self._give_up_reply()
        for index, block in enumerate(blocks_of(event.model_replied.content_json)):
            text = block.get("text")
            if block.get("type") == "text" and isinstance(text, str):
                shown = self._shown.get(index, 0)
                self._write(text[shown:], new_block=shown == 0)
        self._reply_id, self._shown = "", {}
        self._end_line()
        for block in blocks_of(event.model_replied.content_json):
            if block.get("type") == "tool_use":
                call = call_text(str(block.get("name")), block.get("input"))
                self._tools[str(block.get("id"))] = str(block.get("name"))
                self.note(f"→ {one_line(call, self._notes.width - 4)}", "cyan")

    def _show_result(self, tool_use_id: str, result: tool_pb2.ToolResult) -> None:
        good = result.outcome == tool_pb2.TOOL_OUTCOME_OK
        lines = result.output.rstrip("\n").split("\n")
        name = one_line(self._tools.get(tool_use_id, tool_use_id), 64)
        self.note(f"← {name} ({outcome_word(result)})", "cyan" if good else "red")
        for line in lines[:RESULT_LINES]:
            self.note(f"    {one_line(line, self._notes.width - 4)}")
        if len(lines) > RESULT_LINES:
            self.note(f"    … {len(lines) - RESULT_LINES} more lines")

    def _show_harness(self, event: event_pb2.Event) -> None:
        instance = event.harness_woke.instance
        if self._instance and instance != self._instance:
            text = f"another harness has taken over: {instance}, epoch {event.position}"
            self.note(one_line(text, self._notes.width), "yellow")
        self._instance = instance

    def _show_sandbox(self, made: event_pb2.SandboxProvisioned) -> None:
        missing = f", without a limit on {', '.join(made.unenforced_limits)}" if made.unenforced_limits else ""
        text = f"hand {made.hand}: a new sandbox, {made.sandbox_id} ({made.environment}){missing}"
        self.note(one_line(text, self._notes.width))

    def _give_up_reply(self) -> None:
        """Forgets the reply that previews were of: it will not come, or not as shown."""
        if any(self._shown.values()):
            self.note("(the model's answer broke off)", "yellow")
        self._reply_id, self._shown = "", {}

    def _write(self, text: str, *, new_block: bool) -> None:
        if not text:
            return
        if new_block:
            self._end_line()
        self._text.write(escaped(text))
        self._text.flush()
        self._line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._line_open:
            self._text.write("\n")
            self._text.flush()
            self._line_open = False
