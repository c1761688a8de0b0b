"""A row without a bound: what somebody wants to know beside the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shown:
    """Values by their names."""

    name: str
    values: Mapping[str, Any]

    holds = True

    def row(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return {"name": self.name, **self.values}
