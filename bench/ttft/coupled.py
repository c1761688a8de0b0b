"""The coupled arm: a session has its container, its clone and a program that answers in it, before the model is asked.

The container is bare and has no network; its workspace is a folder of the machine, into which git clones. A small
Python program in it runs commands that come over a unix socket, so that a tool costs what it costs in our hands and
not a `docker exec`. The model is asked by the SDK, with a client that exists already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

from bench.hands import engine
from bench.hands.world import IMAGE
from bench.ttft import direct
from bench.ttft.mix import Task
from bench.ttft.samples import Sample

BOOT_SECONDS = 60.0
_AGENT = """
import os, socket, subprocess
door = socket.socket(socket.AF_UNIX)
door.bind("/door/new")
door.listen(16)
os.chmod("/door/new", 0o777)
os.rename("/door/new", "/door/agent")
while True:
    caller, _ = door.accept()
    command = caller.makefile().readline()
    said = subprocess.run(["bash", "-c", command], capture_output=True, cwd="/workspace").stdout
    caller.sendall(said or b"(no output)")
    caller.close()
"""


class Coupled:
    """Runs sessions. `urls` are the repositories by their size in MB."""

    def __init__(self, folder: Path, client: AsyncAnthropic, urls: dict[int, str]) -> None:
        self._folder, self._client, self._urls = folder, client, urls
        self._engine: Any = engine.client()

    async def run(self, task: Task) -> Sample:
        """Runs a session; its container is removed after it was measured."""
        folder = self._folder / f"session{task.number}"
        begun = time.perf_counter()
        for name in ("door", "workspace"):
            (folder / name).mkdir(parents=True)
        container = await asyncio.to_thread(self._start, folder)
        try:
            if task.repository:
                await _clone(self._urls[task.repository], folder / "workspace" / "repository")
            await _say(folder / "door" / "agent", "true")

            async def run(command: str) -> str:
                return await _say(folder / "door" / "agent", command)

            return await direct.ask(self._client, task, begun, run)
        finally:
            await asyncio.to_thread(self._engine.remove_container, container, force=True)
            await asyncio.to_thread(shutil.rmtree, folder)

    def _start(self, folder: Path) -> str:
        binds = {str(folder / name): {"bind": f"/{name}", "mode": "rw"} for name in ("door", "workspace")}
        host = self._engine.create_host_config(network_mode="none", binds=binds)
        made = self._engine.create_container(IMAGE, ["python3", "-c", _AGENT], host_config=host, user=f"{os.getuid()}")
        self._engine.start(made["Id"])
        return str(made["Id"])

    def close(self) -> None:
        """Lets go of the engine."""
        self._engine.close()


async def _clone(url: str, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec("git", "clone", "--quiet", url, str(folder))
    if await process.wait():
        raise RuntimeError(f"git clone {url} failed")


async def _say(door: Path, command: str) -> str:
    """Runs a command in the container, as soon as its program answers."""
    end = time.monotonic() + BOOT_SECONDS
    while True:
        with contextlib.suppress(FileNotFoundError):
            reader, writer = await asyncio.open_unix_connection(door)
            writer.write(command.encode() + b"\n")
            said = (await reader.read()).decode()
            writer.close()
            return said
        if time.monotonic() > end:
            raise TimeoutError("the container's program does not answer")
        await asyncio.sleep(0.002)
