"""Measures this checkout: `python -m bench [NAME ...]`. Prints JSON lines; exits with 1 when a bound is missed.

Each line has the figure, its bound, the spread of its samples as noise, whether the bound is kept, and whether it
holds: a miss within the noise does not fail the run. `--size ci` measures on small stores and takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

NAMES = ("startup", "log", "hands")
SIZES = ("ci", "full")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="which benchmarks; all without any")
    parser.add_argument("--size", choices=SIZES, default="ci", help="how big the stores are (default: ci)")
    parser.add_argument("--only", default="", help="measures the parts of a benchmark whose name begins so")
    parser.add_argument("--report", action="store_true", help="exits with 0 also when a bound is missed")
    given = parser.parse_args()
    missed = False
    for name in given.names or NAMES:
        missed = _run(importlib.import_module(f"bench.{name}").measure(given.size, given.only)) or missed
    sys.exit(1 if missed and not given.report else 0)


def _run(figures: AsyncIterator[Any]) -> bool:
    """Prints what is measured, as it comes. Says whether a bound was missed."""

    async def show() -> bool:
        missed = False
        async for figure in figures:
            print(json.dumps(figure.row()), flush=True)
            missed = missed or not figure.holds
        return missed

    try:
        import uvloop
    except ImportError:
        return asyncio.run(show())
    missed: bool = uvloop.run(show())
    return missed


if __name__ == "__main__":
    main()
