"""Measures this checkout: `python -m bench [NAME ...]`. Prints JSON lines; exits with 1 when a bound is missed.

Each line has the figure, its bound, the spread of its samples as noise, and whether the bound holds. A miss within the
noise does not fail the run.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys

from bench.figure import Figure

NAMES = ("startup",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="which benchmarks; all without any")
    missed = False
    for name in parser.parse_args().names or NAMES:
        figures: list[Figure] = asyncio.run(importlib.import_module(f"bench.{name}").measure())
        for figure in figures:
            print(json.dumps(figure.row()), flush=True)
            missed = missed or not figure.holds
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
