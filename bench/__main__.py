"""Measures this checkout: `python -m bench [NAME ...]`. Prints JSON lines; exits with 1 when a bound is missed.

Each line has the figure, its bound, the spread of its samples as noise, whether the bound is kept, and whether it
holds: a miss within the noise does not fail the run. `--size ci` measures on small stores and takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

NAMES = ("startup", "log", "hands", "ttft", "brain", "vault", "context", "mesh")
SIZES = ("ci", "full")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="which benchmarks; all without any")
    parser.add_argument("--size", choices=SIZES, default="ci", help="how big the stores are (default: ci)")
    parser.add_argument("--only", default="", help="measures the parts of a benchmark whose name begins so")
    parser.add_argument("--report", action="store_true", help="exits with 0 also when a bound is missed")
    parser.add_argument("--keep", type=Path, help="ttft: adds what is measured to this file, and reports all of it")
    parser.add_argument("--docs", type=Path, help="ttft: writes its table and its plot into this folder")
    given = parser.parse_args()
    names = given.names or NAMES
    more = {name: getattr(given, name) for name in ("keep", "docs") if getattr(given, name)}
    if more and names != ["ttft"]:
        parser.error("--keep and --docs are for ttft alone")
    missed = False
    for name in names:
        missed = _run(importlib.import_module(f"bench.{name}").measure(given.size, given.only, **more)) or missed
    sys.exit(1 if missed and not given.report else 0)


def _run(figures: AsyncIterator[Any]) -> bool:
    """Prints what is measured, as it comes. Says whether a bound was missed."""

    async def show() -> bool:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # what runs is ended and removed
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
