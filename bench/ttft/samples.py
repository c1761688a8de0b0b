"""What was measured, session by session, kept in a file so that rows can be run one after the other."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESAMPLED = 400


@dataclass(frozen=True)
class Sample:
    """One session: seconds to its first token, and to the result of its first tool if it called one."""

    number: int
    repository: int
    token: float
    tool: float | None


@dataclass(frozen=True)
class Row:
    """The sessions of one arm at one concurrency, by its name such as `coupled-8`."""

    name: str
    samples: tuple[Sample, ...]

    holds = True  # figures have bounds, rows have none

    @property
    def numbers(self) -> frozenset[int]:
        """Which sessions it has."""
        return frozenset(sample.number for sample in self.samples)

    def of(self, numbers: frozenset[int]) -> Row:
        """Returns it with these sessions only."""
        return Row(self.name, tuple(sample for sample in self.samples if sample.number in numbers))

    def plus(self, sample: Sample) -> Row:
        """Returns it with one more session."""
        return Row(self.name, tuple(sorted((*self.samples, sample), key=lambda each: each.number)))

    @property
    def tokens(self) -> list[float]:
        """Milliseconds to the first token."""
        return [sample.token * 1000 for sample in self.samples]

    @property
    def tools(self) -> list[float]:
        """Milliseconds to the first tool's result, of the sessions that called one."""
        return [sample.tool * 1000 for sample in self.samples if sample.tool is not None]

    def row(self) -> dict[str, Any]:
        """Returns its percentiles as a JSON object, in ms."""
        return {"row": self.name, "sessions": len(self.samples), "tool_calls": len(self.tools), **self.percentiles()}

    def percentiles(self) -> dict[str, float]:
        """Returns p50 and p95 of both, in ms."""
        found = {"token_p50_ms": percentile(self.tokens, 50), "token_p95_ms": percentile(self.tokens, 95)}
        if len(self.tools) > 1:
            found |= {"tool_p50_ms": percentile(self.tools, 50), "tool_p95_ms": percentile(self.tools, 95)}
        return {name: round(value, 1) for name, value in found.items()}


def percentile(values: Sequence[float], of_100: int) -> float:
    """Returns a percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[of_100 - 1]


def ratios(ours: Sequence[float], theirs: Sequence[float], of_100: int, *, paired: bool = False) -> tuple[float, ...]:
    """Returns the ratio of a percentile as many times as samples are drawn again from the samples: its spread.

    Paired, the same sessions are drawn from both.
    """
    dice = random.Random(0)
    found = []
    for _ in range(RESAMPLED):
        places = dice.choices(range(len(ours)), k=len(ours))
        others = places if paired else dice.choices(range(len(theirs)), k=len(theirs))
        found.append(
            percentile([ours[at] for at in places], of_100) / percentile([theirs[at] for at in others], of_100)
        )
    return tuple(found)


def read(file: Path | None) -> dict[str, Row]:
    """Reads the rows that were kept. None and a file that is not there have none."""
    if file is None or not file.exists():
        return {}
    kept = json.loads(file.read_text())
    return {name: Row(name, tuple(Sample(**each) for each in samples)) for name, samples in kept.items() if samples}


def write(file: Path | None, rows: Mapping[str, Row]) -> None:
    """Keeps rows."""
    if file is not None:
        kept = {name: [asdict(sample) for sample in row.samples] for name, row in rows.items()}
        new = file.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.replace(file)  # whoever is killed leaves the old one or the new one
