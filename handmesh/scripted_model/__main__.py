"""Runs the scripted model as a process until SIGTERM or SIGINT.

Prints one line of JSON when it is ready, `{"base_url": "http://127.0.0.1:34567", "pid": 4711}`, and nothing else.
Exits with 2 and the reasons on standard error when it cannot start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from handmesh.scripted_model.reading import load_script
from handmesh.scripted_model.script import Script, ScriptError
from handmesh.scripted_model.server import ScriptedModel


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 127.0.0.1:0, not {text!r}")
    return host.strip("[]"), int(port)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m handmesh.scripted_model", description="Speaks the Messages API and plays a script."
    )
    parser.add_argument("--script", type=Path, help="YAML file; without it, the script that ships with handmesh")
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--api-key", help="the only key to accept; without it, every key is accepted")
    parser.add_argument("--check", action="store_true", help="check the script and exit")
    return parser.parse_args(argv)


async def _run(script: Script, address: tuple[str, int], api_key: str | None) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    host, port = address
    async with ScriptedModel(script, api_key=api_key, host=host, port=port, record=0) as model:
        sys.stdout.write(json.dumps({"base_url": model.base_url, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()
        await stopped.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server and returns the exit status: 0 when it was stopped, 2 when it could not start."""
    arguments = _arguments(argv)
    try:
        script = load_script(arguments.script)
        if not arguments.check:
            asyncio.run(_run(script, arguments.listen, arguments.api_key))
    except ScriptError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"cannot listen on {':'.join(map(str, arguments.listen))}: {error.strerror or error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
