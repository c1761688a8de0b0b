"""Builds the clients, runs their own tests, and drives their programs: `make clients`.

The exit code is 0 when all that could be run is well. What this machine has no tool chain for is said, and not run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clients.conformance.checks import CHECKS
from clients.conformance.ground import ground
from clients.conformance.languages import BUILD, LANGUAGES, PATH, ROOT, Language


@dataclass
class Report:
    """How one language did: a word for each step, seconds, and what was wrong."""

    language: Language
    built: str = "-"
    tested: str = "-"
    conformance: str = "-"
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def step(self, what: str, *command: str, folder: Path) -> str:
        """Runs a command to its end; returns how long it took, or FAILED."""
        begun = time.monotonic()
        environment = {**os.environ, "PATH": PATH}
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.seconds += time.monotonic() - begun
        if done.returncode == 0:
            return f"{time.monotonic() - begun:.0f} s"
        self.problems.append(f"{what}: {' '.join(command)}\n{done.stdout[-6_000:]}")
        return "FAILED"


async def conform(reports: Sequence[Report], directory: Path) -> None:
    """Runs the checks on a mesh of their own."""
    async with ground(directory) as mesh:
        for check in CHECKS:
            begun = time.monotonic()
            wrong = await check.find(mesh, [report.language for report in reports])
            print(f"  {check.says}: {time.monotonic() - begun:.1f} s", flush=True)
            for report in reports:
                report.seconds += time.monotonic() - begun
                if wrong[report.language]:
                    report.problems.append(f"{check.says}: {wrong[report.language]}")
                    report.conformance = "FAILED"
    for report in reports:
        if report.conformance == "-":
            report.conformance = f"{len(CHECKS)} of {len(CHECKS)}"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m clients.conformance", description=__doc__)
    parser.add_argument("languages", nargs="*", metavar="LANGUAGE", help="only these")
    chosen = parser.parse_args().languages or [language.name for language in LANGUAGES]
    unknown = set(chosen) - {language.name for language in LANGUAGES}
    if unknown:
        parser.error(f"no client is written in {', '.join(sorted(unknown))}")
    reports = [Report(language) for language in LANGUAGES if language.name in chosen]
    for report in reports:
        if report.language.missing:
            continue
        report.built = report.step("build", str(BUILD), report.language.name, folder=ROOT)
        if report.language.is_built:
            report.tested = report.step("tests", *report.language.test, folder=report.language.folder)
        print(f"  {report.language.name}: built {report.built}, tested {report.tested}", flush=True)
    ready = [report for report in reports if report.language.is_built and not report.language.missing]
    if ready:
        with tempfile.TemporaryDirectory(prefix="handmesh-clients-") as directory:
            asyncio.run(conform(ready, Path(directory)))
    print(*table(reports), sep="\n")
    return 1 if any(report.problems for report in reports) else 0


def table(reports: Sequence[Report]) -> list[str]:
    """Returns the lines that people read: what is wrong, then a row for each language."""
    lines = [f"\n{it.language.name}: {problem}" for it in reports for problem in it.problems]
    lines.append(f"\n{'language':12} {'built':>8} {'tested':>8} {'conformance':>12} {'time':>8}")
    for it in reports:
        if it.language.missing:
            lines.append(f"{it.language.name:12} not run: {', '.join(it.language.missing)} is missing")
        else:
            lines.append(f"{it.language.name:12} {it.built:>8} {it.tested:>8} {it.conformance:>12} {it.seconds:6.0f} s")
    return lines


if __name__ == "__main__":
    sys.exit(main())
