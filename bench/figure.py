"""A measured figure with its bound."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QUARTILES_FROM = 8  # samples; fewer have no quartiles to speak of


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity, in `unit`, whose median shall be at most `bound`, or at least when `least`."""

    name: str
    unit: str
    samples: tuple[float, ...]
    bound: float
    least: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)  # what it was measured from

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def noise(self) -> float:
        """Half the distance between the quartiles, or of few samples between the smallest and the largest."""
        if len(self.samples) >= QUARTILES_FROM:
            low, _, high = statistics.quantiles(self.samples, n=4)
            return (high - low) / 2
        return (max(self.samples) - min(self.samples)) / 2

    @property
    def holds(self) -> bool:
        """Whether the bound is kept, or missed by no more than the noise."""
        if self.least:
            return self.median + self.noise >= self.bound
        return self.median - self.noise <= self.bound

    def row(self) -> dict[str, Any]:
        """Returns the figure as a JSON object."""
        kept = self.median >= self.bound if self.least else self.median <= self.bound
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 3),
            "min": round(min(self.samples), 3),
            "max": round(max(self.samples), 3),
            "noise": round(self.noise, 3),
            "samples": len(self.samples),
            "bound": self.bound,
            "at": "least" if self.least else "most",
            "ratio": round(self.median / self.bound, 3) if self.bound else None,
            "kept": kept,
            "holds": self.holds,
            **self.more,
        }


@dataclass(frozen=True)
class Unmeasured:
    """A figure that could not be measured here, and why. `missing` says that something is not installed."""

    name: str
    why: str
    missing: bool = True

    @property
    def holds(self) -> bool:
        """Whether the run may pass all the same."""
        return self.missing

    def row(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return {"name": self.name, "not_measured": self.why, "holds": self.holds}
