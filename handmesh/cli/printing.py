"""Where the command prints: what was asked for on standard output, what is said about it on standard error.

Rich's markup is off everywhere: text from outside is text.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from handmesh.cli.escape import one_line
from handmesh.cli.lines import content_of, kind_of, time_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from handmesh.session.v1.event_pb2 import Event

PIPED_WIDTH = 200
"""Columns where nobody looks: a pipe or a file."""

_STYLES = {
    "message_received": "bold",
    "model_replied": "green",
    "tool_started": "cyan",
    "tool_finished": "cyan",
    "harness_woke": "yellow",
    "error_raised": "red",
    "retry_scheduled": "red",
    "turn_ended": "bold green",
}
_BEFORE_CONTENT = len("12345  12:34:56.789  vault_proxy  tool_confirmation_requested  ")


def console(*, stderr: bool = False) -> Console:
    """Returns a console that interprets nothing in what it prints."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    return (
        made
        if made.is_terminal
        else Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=PIPED_WIDTH)
    )


def print_event(out: Console, event: Event) -> None:
    """Prints an event as one line: position, time, emitter, kind, content."""
    kind = kind_of(event)
    line = Text()
    line.append(f"{event.position:>5}  ", style="bold")
    line.append(f"{time_of(event.emit_time)}  {one_line(event.emitter, 11):<11}  ", style="dim")
    line.append(f"{kind:<27}  ", style=_STYLES.get(kind, ""))
    line.append(content_of(event, max(20, out.width - _BEFORE_CONTENT)))
    out.print(line, soft_wrap=True)


def print_json(message: Message) -> None:
    """Prints a message as protobuf JSON on one line. All that is not ASCII is escaped, so no terminal obeys it."""
    from google.protobuf import json_format

    sys.stdout.write(json.dumps(json_format.MessageToDict(message), separators=(",", ":")) + "\n")
    sys.stdout.flush()
