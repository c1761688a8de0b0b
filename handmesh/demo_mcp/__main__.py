"""Runs the shop as a process until SIGTERM or SIGINT.

Prints one line of JSON when it is ready, `{"url": "http://127.0.0.1:34567/mcp", "calls_url": ..., "pid": 4711}`, and
nothing else on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from handmesh.demo_mcp.app import MCP_PATH, make_app

SHUTDOWN_SECONDS = 2


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, such as 127.0.0.1:0, not {text!r}")
    return host, int(port)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m handmesh.demo_mcp", description="A small MCP server that wants a bearer token."
    )
    parser.add_argument("--listen", type=_address, default=("127.0.0.1", 0), help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--token-file", type=Path, required=True, help="file with the only token that is let in")
    return parser.parse_args(argv)


class _Server(uvicorn.Server):
    """Says where it is once it serves."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            base = f"http://{host}:{port}"
            line = {"url": base + MCP_PATH, "calls_url": f"{base}/calls", "pid": os.getpid()}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


async def _serve(token: str, listener: socket.socket) -> None:
    config = uvicorn.Config(
        make_app(token, listener.getsockname()[0]),
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    await _Server(config).serve(sockets=[listener])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server and returns the exit status: 0 when it was stopped, 2 when it could not start."""
    arguments = _arguments(argv)
    try:
        token = arguments.token_file.read_text().strip()
        listener = socket.create_server(arguments.listen)
        # What it accepts inherits this. Without it each answer waits 40 ms for the kernel to fill a packet.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    if not token:
        sys.stderr.write(f"{arguments.token_file} is empty\n")
        return 2
    asyncio.run(_serve(token, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
