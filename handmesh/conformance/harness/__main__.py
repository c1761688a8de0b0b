"""Checks a harness on the wire and says what it does wrong.

    handmesh harness check --type wire-echo --command "node clients/typescript/build/harness/main.js"

Needs a mesh that runs on this machine (`handmesh up`). Without a command a harness of the type has to be connected
already, and is not killed. Exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from handmesh.client import HandmeshError, connect, settings
from handmesh.conformance.checking import Worker, check_all
from handmesh.conformance.harness.checks import CHECKS
from handmesh.conformance.harness.subject import Rival, Subject, Words
from handmesh.launcher.lock import running

SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    """Returns what is understood on the command line."""
    it = argparse.ArgumentParser(prog="handmesh harness check", description="Checks a harness.")
    it.add_argument("--type", required=True, help="the harness type, as sessions name it")
    it.add_argument("--command", default="", help="starts the harness; it is killed and started again")
    it.add_argument("--plain", default="hello", help="a message that is answered without a tool")
    it.add_argument("--call", default="run: {command}", help="a message that makes it call bash with {command}")
    it.add_argument("--data-dir", type=Path, help="the mesh's data directory")
    it.add_argument("--tls", type=Path, help="a harness's certificate (default: tls/harness there)")
    it.add_argument("--only", type=int, nargs="*", help="the numbers of the checks to run")
    it.add_argument("--seconds", type=float, default=SECONDS, help="how long one check may take, and each kill in it")
    return it


async def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Does what the command line asks for; returns the exit code. Raises HandmeshError when no mesh runs."""
    directory = options.data_dir or settings.read().data_directory
    mesh, tls = running(directory), options.tls or directory / "tls" / "harness"
    worker = Worker(options.command)
    async with connect(data_directory=directory) as client:
        rival = Rival(mesh.ports.mesh("session"), tls) if mesh is not None and tls.is_dir() else None
        await worker.start()
        try:
            subject = Subject(client, options.type, Words(options.plain, options.call), worker, rival)
            return min(1, await check_all(subject, CHECKS, options.only or (), options.seconds, say))
        finally:
            await worker.kill()
            if rival is not None:
                await rival.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        return asyncio.run(run(parser().parse_args(arguments)))
    except HandmeshError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
