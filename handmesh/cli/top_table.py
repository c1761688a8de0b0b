"""How `handmesh top` looks: a head of totals, and a table. Text from outside is made one plain line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from handmesh.cli.escape import one_line
from handmesh.cli.spending import MICROS
from handmesh.cli.top_reading import Seen
from handmesh.cli.top_rows import Row, totals

DOING_WIDTH, HAND_WIDTH = 28, 14
SESSION_WIDTH = 31  # an id, whole: it is what other commands take
_STYLES = {
    "stuck": "bold red",
    "damaged": "bold red",
    "waiting": "bold yellow",
    "paused": "yellow",
    "retrying": "yellow",
    "queued": "yellow",
    "in tool": "cyan",
    "thinking": "green",
    "working": "green",
    "asleep": "dim",
}


def head(seen: Seen, rows: Sequence[Row]) -> Text:
    """Makes two lines: how many sessions are in which state, and what the harnesses have."""
    total = totals(rows)
    text = Text(f"{len(rows)} sessions", style="bold")
    for state, count in total.states.items():
        text.append("   ")
        text.append(f"{count} {state}", style=_STYLES[state])
    text.append(f"\n{total.rate:,.1f} tokens/s   ${total.cost_micros / MICROS:,.2f}", style="bold")
    for where, (at_work, room) in seen.harnesses.items():
        text.append(f"   harness {where} {at_work}/{room}", style="dim")
    for where in seen.silent:
        text.append(f"   {where} does not answer", style="bold red")
    return text


def table(rows: Sequence[Row]) -> Table:
    """Makes the table."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    made.add_column("SESSION", no_wrap=True, min_width=SESSION_WIDTH)
    made.add_column("STATE", no_wrap=True)
    made.add_column("FOR", justify="right", no_wrap=True)
    made.add_column("DOING", no_wrap=True, max_width=DOING_WIDTH)
    made.add_column("HAND", no_wrap=True, max_width=HAND_WIDTH)
    for name in ("TOK/S", "TOKENS", "COST", "TURNS"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("TYPE", no_wrap=True)
    made.add_column("HARNESS", no_wrap=True, style="dim")
    for row in rows:
        made.add_row(*_cells(row), style="dim" if row.state == "asleep" else "")
    return made


def _cells(row: Row) -> tuple[Text | str, ...]:
    return (
        row.session_id,
        Text(row.state, style=_STYLES[row.state]),
        duration(row.seconds),
        one_line(row.doing, DOING_WIDTH),
        one_line(row.hand, HAND_WIDTH),
        "" if row.rate is None or not row.rate else f"{row.rate:,.1f}",
        "?" if row.tokens is None else f"{row.tokens:,}",
        "?" if row.cost_micros is None else f"${row.cost_micros / MICROS:,.4f}",
        "?" if row.turns is None else str(row.turns),
        one_line(row.harness, 16),
        row.instance,
    )


def duration(seconds: float) -> str:
    """Spells how long something takes: 0.4s, 12s, 3m05s, 2h10m, 5d03h."""
    whole = int(seconds)
    if seconds < 10:
        return f"{seconds:.1f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"
