"""Programs that others wrote, from `.peers`, run beside a test."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.requirements import PEERS

TRIES = 400
"""Of 50 ms: node and Python start slowly beside other tests."""


@contextlib.contextmanager
def peer(port: int, command: Sequence[str], directory: Path) -> Iterator[Path]:
    """Runs a server until the end of the context, from when it listens on; gives the file with what it says."""
    environment = {"PATH": f"{PEERS}/bin:{os.environ['PATH']}", "HOME": str(directory), "PORT": str(port)}
    said, errors = directory / f"{port}.out", directory / f"{port}.err"
    with said.open("wb") as output, errors.open("wb") as trouble:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=trouble, start_new_session=True
        )
    try:
        for _ in range(TRIES):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, errors.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield said
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # `node` of PyPI is a program that starts node
        process.wait(20)
