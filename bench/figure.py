"""A measured figure with its bound."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """Samples of one quantity, in `unit`, whose median shall be at most `bound`."""

    name: str
    unit: str
    samples: tuple[float, ...]
    bound: float

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def noise(self) -> float:
        """Half the distance between the smallest and the largest sample."""
        return (max(self.samples) - min(self.samples)) / 2

    @property
    def holds(self) -> bool:
        """Whether the bound is kept, or missed by no more than the noise."""
        return self.median - self.noise <= self.bound

    def row(self) -> dict[str, Any]:
        """Returns the figure as a JSON object."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 3),
            "min": round(min(self.samples), 3),
            "max": round(max(self.samples), 3),
            "noise": round(self.noise, 3),
            "samples": len(self.samples),
            "bound": self.bound,
            "ratio": round(self.median / self.bound, 3),
            "holds": self.holds,
        }
