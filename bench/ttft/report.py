"""Writes what was measured into the docs: a table between two marks of `ttft.md`, and `ttft.png`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figure import Unmeasured
from bench.ttft.samples import Row

BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
COLOURS = {"direct": "#8a8a8a", "coupled": "#c2553f", "decoupled": "#2f6f9f", "unseen": "#7d6bb0", "warm": "#3d8f5f"}
LABELS = {
    "direct": "the SDK alone",
    "coupled": "coupled",
    "decoupled": "decoupled",
    "unseen": "decoupled, repositories never seen",
    "warm": "decoupled, warm pool",
}


@dataclass(frozen=True)
class Written:
    """The files that were written."""

    files: tuple[str, ...]

    holds = True

    def row(self) -> dict[str, Any]:
        """Returns them as a JSON object."""
        return {"written": self.files}


def write(docs: Path, rows: Mapping[str, Row]) -> Written | Unmeasured:
    """Writes both; without matplotlib the table only."""
    page = docs / "ttft.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(before + BEGIN + "\n" + table(rows) + "\n" + END + rest.partition(END)[2])
    try:
        plot(docs / "ttft.png", rows)
    except ImportError:
        return Unmeasured("docs/ttft.png", "matplotlib is not installed (pip install -e '.[bench]')")
    return Written((str(page), str(docs / "ttft.png")))


def table(rows: Mapping[str, Row]) -> str:
    """Returns the rows as a table of Markdown, in ms."""
    lines = [
        "| | at a time | sessions | first token p50 | p95 | first tool p50 | p95 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda item: (item[0][-1], list(LABELS).index(item[0][:-2]))):
        found = row.percentiles()
        cells = [LABELS[name[:-2]], name[-1], str(len(row.samples))]
        for key in ("token_p50_ms", "token_p95_ms", "tool_p50_ms", "tool_p95_ms"):
            cells.append(f"{found[key]:,.0f}" if key in found else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(file: Path, rows: Mapping[str, Row]) -> None:
    """Draws which part of the sessions had its first token, and its first tool's result, after how long."""
    import matplotlib  # type: ignore[import-not-found, import-untyped, unused-ignore]

    matplotlib.use("agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, import-untyped, unused-ignore]

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), sharex=True, sharey=True, layout="constrained")
    for line, at_once in zip(axes, ("1", "8"), strict=True):
        for axis, what in zip(line, ("token", "tool"), strict=True):
            for name, row in rows.items():
                if name.endswith(f"-{at_once}"):
                    _step(axis, name[:-2], row.tokens if what == "token" else row.tools)
            axis.set_xscale("log")
            axis.set_title(f"first {'token' if what == 'token' else 'tool result'}, {at_once} at a time", fontsize=10)
            axis.grid(alpha=0.3, which="both", linewidth=0.5)
            axis.axhline(0.95, color="black", linewidth=0.6, linestyle=":")
            axis.legend(fontsize=8, loc="lower right", frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("milliseconds from the session's start")
    for axis in axes[:, 0]:
        axis.set_ylabel("part of the sessions")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _step(axis: Any, arm: str, values: Sequence[float]) -> None:
    if values:
        ordered = sorted(values)
        part = [(at + 1) / len(ordered) for at in range(len(ordered))]
        axis.step(ordered, part, where="post", color=COLOURS[arm], label=LABELS[arm], linewidth=1.6)
