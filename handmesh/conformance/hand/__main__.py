"""Checks a hand that dials out and says what it does wrong.

    handmesh hand check --name pc --tool run \\
      --command "clients/go/build/hand --connect {connect} --name {name} --token-file {token_file} --root {root}"

Needs a mesh that runs on this machine (`handmesh up`) and a tool that runs commands of a shell. With a command, it
makes the hand's token, and stands between the hand and the mesh to cut the link. Without, a hand of that name has to be
connected already. Exits with 1 when a check fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from handmesh.client import Client, HandmeshError, connect, settings
from handmesh.conformance.checking import Worker, check_all
from handmesh.conformance.hand.checks import CHECKS
from handmesh.conformance.hand.relay import relay
from handmesh.conformance.hand.subject import Subject, Words
from handmesh.session.v1 import session_pb2

SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    """Returns what is understood on the command line."""
    it = argparse.ArgumentParser(prog="handmesh hand check", description="Checks a hand.")
    it.add_argument("--name", required=True, help="the hand's name")
    it.add_argument(
        "--command", default="", help="starts the hand; {connect}, {name}, {token_file} and {root} are filled in"
    )
    it.add_argument("--tool", default="bash", help="the tool that runs a command of a shell")
    it.add_argument("--input", default='{"command": {command}}', help="its input, with {command} as a JSON string")
    it.add_argument("--data-dir", type=Path, help="the mesh's data directory")
    it.add_argument("--only", type=int, nargs="*", help="the numbers of the checks to run")
    it.add_argument("--seconds", type=float, default=SECONDS, help="how long one check may take")
    return it


async def run(options: argparse.Namespace, say: Callable[[str], None] = print) -> int:
    """Does what the command line asks for; returns the exit code. Raises HandmeshError when no mesh runs."""
    words = Words(options.tool, options.input)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            connect(data_directory=options.data_dir or settings.read().data_directory)
        )
        subject = Subject(client, options.name, words, Worker(""))
        if options.command:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            subject.relay = await stack.enter_async_context(relay(client.addresses.sandbox))
            token_file = await _token(client, options.name, root)
            places = {"connect": subject.relay.address, "name": options.name, "token_file": token_file, "root": root}
            command = options.command
            for name, value in places.items():
                command = command.replace(f"{{{name}}}", str(value))
            subject.worker = Worker(command)
            stack.push_async_callback(subject.worker.kill)
            await subject.worker.start()
        return min(1, await check_all(subject, CHECKS, options.only or (), options.seconds, say))


async def _token(client: Client, name: str, directory: Path) -> Path:
    """Makes the hand's token, in a file that only this user reads."""
    request = session_pb2.CreateHandTokenRequest(name=name)
    made = await client.session_link.call(client.session_stub.CreateHandToken, request)
    path = directory / "token"
    path.touch(0o600)
    path.write_text(made.token)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        return asyncio.run(run(parser().parse_args(arguments)))
    except HandmeshError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
