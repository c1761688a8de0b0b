"""Draws a diagnosis: each turn as a timeline as wide as the terminal, and below it which part failed.

What is drawn comes from `handmesh.diagnosis`, which holds no text of a person's or a model's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from rich.console import Console, Group, RenderableType
from rich.text import Text

from handmesh.diagnosis import timeline as lines
from handmesh.diagnosis.evidence import Finding
from handmesh.diagnosis.timeline import Mark, Span, Turn
from handmesh.diagnosis.verdict import Diagnosis

POSITION_WIDTH, LENGTH_WIDTH, END_WIDTH = 7, 9, 16
MOST_LABEL, LEAST_BAR = 44, 12
MOST_ROWS = 200  # of one turn
SHOWN_TURNS = 5
_COLOURS = {
    lines.MODEL: "green",
    lines.COMPACTION: "green",
    lines.TOOL: "cyan",
    lines.MCP: "magenta",
    lines.MESH_TOOL: "blue",
    lines.CHILD: "blue",
    lines.CLIENT: "yellow",
    lines.APPROVAL: "yellow",
    lines.PAUSE: "yellow",
    lines.RETRY: "yellow",
    lines.QUEUE: "yellow",
}
_WAITS = frozenset({lines.CLIENT, lines.APPROVAL, lines.PAUSE, lines.RETRY, lines.QUEUE})
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True)
class Strokes:
    """What bars are made of."""

    work: str = "█"
    wait: str = "░"
    open: str = "▶"
    mark: str = "●"


ASCII = Strokes("#", ".", ">", "*")


def drawing(
    seen: Diagnosis, width: int, *, every: bool = False, ascii: bool = False, zone: tzinfo | None = None
) -> Group:
    """Returns what is printed, for a terminal of `width` columns. `every` shows all turns, `zone` says what the time is
    told in (local when None)."""
    strokes = ASCII if ascii else Strokes()
    turns = list(seen.turns)
    hidden = 0 if every else max(0, len(turns) - SHOWN_TURNS)
    parts: list[RenderableType] = [_heading(seen)]
    if hidden:
        parts.append(Text(f"{hidden} earlier turns: --all shows them", style="dim"))
    for turn in turns[hidden:]:
        parts += [Text(""), *_turn(turn, seen.evidence.now, width, strokes, zone)]
    parts += [Text(""), *verdict(seen)]
    return Group(*parts)


def _heading(seen: Diagnosis) -> Text:
    evidence = seen.evidence
    line = Text(evidence.session_id, style="bold")
    said = [evidence.status.lower() or "not asked", f"{len(evidence.events)} events"]
    line.append(f"  {', '.join(said)}", style="dim")
    traces = {found.group(1) for it in evidence.events if (found := _TRACEPARENT.fullmatch(it.traceparent))}
    if len(traces) == 1:
        line.append(f"  trace {traces.pop()}", style="dim")
    return line


def _turn(turn: Turn, now: float, width: int, strokes: Strokes, zone: tzinfo | None) -> Iterator[Text]:
    begin, end = turn.begin, turn.end(now)
    head = Text(f"turn {turn.number}", style="bold")
    head.append(f"  {time_of(begin, zone)}  {length(end - begin)}  ", style="dim")
    head.append(turn.ended or "open", style="red" if turn.ended == "failed" else "green" if turn.ended else "yellow")
    yield head
    rows: list[Span | Mark] = [*turn.spans, *turn.marks]
    rows.sort(key=lambda it: (it.begin if isinstance(it, Span) else it.time, it.position, isinstance(it, Span)))
    label = min(MOST_LABEL, max(12, (width - POSITION_WIDTH - LENGTH_WIDTH - END_WIDTH) // 2))
    bar = max(LEAST_BAR, width - POSITION_WIDTH - label - LENGTH_WIDTH - END_WIDTH - 4)
    scale = Scale(begin, max(end, begin + 0.001), bar)
    for row in rows[:MOST_ROWS]:
        yield _span(row, scale, label, now, strokes) if isinstance(row, Span) else _mark(row, scale, label, strokes)
    if len(rows) > MOST_ROWS:
        yield Text(f"{'':>{POSITION_WIDTH}}{len(rows) - MOST_ROWS} more are not drawn", style="dim")


@dataclass(frozen=True)
class Scale:
    """Time to columns."""

    begin: float
    end: float
    columns: int

    def column(self, time: float) -> int:
        """Returns the column of a moment; one outside is at the border."""
        share = (time - self.begin) / (self.end - self.begin)
        return max(0, min(self.columns - 1, int(share * self.columns)))


def _span(span: Span, scale: Scale, label: int, now: float, strokes: Strokes) -> Text:
    end = span.end if span.end is not None else max(now, span.begin)
    colour = "red" if span.fault else _COLOURS.get(span.kind, "")
    line = _lead(span.position, span.label, label, "red" if span.fault else "")
    start, stop = scale.column(span.begin), scale.column(end)
    first = start if span.kind in _WAITS else scale.column(span.first) if span.first is not None else start
    line.append(" " * start)
    if span.kind in _WAITS:
        line.append(strokes.wait * (stop - start + 1), style=colour)
    else:
        line.append(strokes.wait * (first - start), style=colour)
        line.append(strokes.work * (stop - first + 1), style=colour)
    line.append(strokes.open if span.end is None else " ", style=colour)
    line.append(" " * (scale.columns - stop - 1))
    line.append(f"{length(end - span.begin):>{LENGTH_WIDTH}}")
    said = f"first {length(span.first - span.begin)}" if span.first is not None else span.outcome
    line.append(f"  {said}", style="red" if span.fault else "dim")
    return line


def _mark(mark: Mark, scale: Scale, label: int, strokes: Strokes) -> Text:
    colour = "red" if mark.fault else "yellow" if mark.kind in ("woke", "interrupt") else "dim"
    line = Text(f"{mark.position:>{POSITION_WIDTH - 2}}  ", style="bold")
    at, text = label + scale.column(mark.time), mark.label
    if len(text) < at:  # before its dot, as with bars, or else behind it
        line.append(f"{text:<{at}}{strokes.mark}", style=colour)
    else:
        rest = label + scale.columns + LENGTH_WIDTH + END_WIDTH - at - 2
        line.append(f"{'':{at}}{strokes.mark} {text[: max(10, rest)]}", style=colour)
    return line


def _lead(position: int, text: str, width: int, style: str) -> Text:
    line = Text(f"{position:>{POSITION_WIDTH - 2}}  ", style="bold")
    line.append(f"{text[: width - 1]:<{width}}", style=style)
    return line


# --- which part ---
_STATES = {"standing": "now in the way", "overcome": "overcome by itself", "none": "", "waiting": ""}


def verdict(seen: Diagnosis) -> Iterator[Text]:
    """Yields which part failed, what that rests on, and what to do next; then what else was found."""
    found = seen.verdict
    line = Text()
    if found.part:
        line.append(found.part, style="bold red" if found.state == "standing" else "bold yellow")
        line.append(f": {found.what}", style="bold")
        line.append(f"  ({_STATES[found.state]}; {found.code})", style="dim")
    else:
        line.append(found.what, style="bold green")
    yield line
    yield from _points("seen", found.seen)
    yield from _points("next", found.todo)
    if seen.others:
        yield Text("")
        yield Text("before that, and overcome:" if found.part else "overcome:", style="dim")
        yield from (_short(each) for each in seen.others[-10:])


def _points(what: str, points: Sequence[str]) -> Iterator[Text]:
    for number, point in enumerate(points):
        yield Text(f"  {what if not number else '':<6}{point}")


def _short(found: Finding) -> Text:
    return Text(f"  {found.position:>5}  {found.part:<8} {found.what} ({found.code})", style="dim")


def time_of(moment: float, zone: tzinfo | None) -> str:
    """Returns the time of day."""
    return datetime.fromtimestamp(moment, zone).strftime("%H:%M:%S.%f")[:-3]


def length(seconds: float) -> str:
    """Returns how long something took, as people say it."""
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} m {rest:02d} s" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} m"


# --- as a file ---
FILE_WIDTH = 120
"""Columns of a picture."""
SVG_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own without what it fetches: a picture asks nobody for anything."""


def recorded(shown: RenderableType, width: int) -> Console:
    """Returns a console that has printed something nowhere, and can export it."""
    import io

    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", markup=False,
        highlight=False, emoji=False,
    )  # fmt: skip
    console.print(shown, soft_wrap=False)
    return console


def svg_of(console: Console, title: str) -> str:
    """Returns what a console has recorded as an SVG picture, the same for the same."""
    text = console.export_svg(title=title, code_format=SVG_FORMAT, unique_id="handmesh-trace", clear=False)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def html_of(console: Console) -> str:
    """Returns what a console has recorded as a page."""
    return console.export_html(inline_styles=True, clear=False)
