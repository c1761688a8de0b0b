"""How much a drill does: little in `make drill-small`, all of it in `make drill` (HANDMESH_DRILL=full)."""

from __future__ import annotations

import os

FULL = os.environ.get("HANDMESH_DRILL") == "full"


def size(ci: int, full: int) -> int:
    """Returns how often, or how many, in this run."""
    return full if FULL else ci
