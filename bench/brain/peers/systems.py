"""The systems that are killed: each starts, takes inputs, and notes answers, in the same words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from handmesh.launcher.ports import free_ports

HERE = Path(__file__).parent
START_SECONDS = 90.0


class System(Protocol):
    """Something that has turns. `ran` is the file that its tools write a line to."""

    name: str
    ran: Path

    async def start(self) -> None:
        """Starts it, or starts it again over what it has kept; returns when it serves."""

    async def ask(self, number: int, text: str) -> None:
        """Gives it an input; returns when it has said that it has it."""

    async def kill(self) -> None:
        """Kills its process, and nothing that this has started."""

    async def answers(self) -> Mapping[int, int]:
        """Returns {number of the input: when it was answered, in ns of the monotonic clock}."""

    async def stop(self) -> None:
        """Ends all of it."""


class Kept:
    """What both peers have: a folder, a process, and a file that answers are noted in."""

    def __init__(self, folder: Path, programs: Path, model_url: str) -> None:
        folder.mkdir()
        self.folder, self.ran = folder, folder / "ran"
        self._programs, self._url = programs, model_url
        self._process: subprocess.Popen[bytes] | None = None

    def _launch(self, *arguments: str, piped: bool) -> None:
        """Starts the peer's process. Popen, since uvloop forks and grpc, which runs here, may not be forked."""
        pipe = subprocess.PIPE if piped else None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env=self._environment(),
                cwd=self.folder,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """See `System.kill`."""
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def answers(self) -> Mapping[int, int]:
        """See `System.answers`. An input that was answered twice counts from the first time."""
        file = self.folder / "answers"
        rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {int(number): int(when) for number, when in reversed(rows)}

    async def stop(self) -> None:
        """See `System.stop`."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        told = {"BENCH_FOLDER": str(self.folder), "BENCH_MODEL_URL": self._url, "PYTHONUNBUFFERED": "1"}
        return kept | told | {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}


class Dbos(Kept):
    """DBOS on SQLite, in one process."""

    name = "DBOS"

    async def start(self) -> None:
        """See `System.start`."""
        agent = str(HERE / "dbos_agent.py")
        self._launch(str(self._programs / "python"), agent, str(self.folder), self._url, piped=True)
        await self._said("ready")

    async def ask(self, number: int, text: str) -> None:
        """See `System.ask`."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number} {text}\n".encode())
        self._process.stdin.flush()
        await self._said(str(number))

    async def _said(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            while (line := await asyncio.to_thread(self._process.stdout.readline)).decode().strip() != word:
                if not line:
                    raise RuntimeError(f"DBOS has ended: {(self.folder / 'log').read_text()[-500:]}")


class LangGraph(Kept):
    """LangGraph's development server, which keeps what it has in files."""

    name = "LangGraph dev server"

    def __init__(self, folder: Path, programs: Path, model_url: str) -> None:
        super().__init__(folder, programs, model_url)
        graphs = {"agent": f"{HERE / 'langgraph_agent.py'}:graph"}
        (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}))
        (self._port,) = free_ports(1)

    async def start(self) -> None:
        """See `System.start`."""
        arguments = ("dev", "--no-browser", "--no-reload", "--port", str(self._port))
        self._launch(str(self._programs / "langgraph"), *arguments, piped=False)
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    await self._call("GET", "/ok")
                    return
                except OSError:
                    if self._process is None or self._process.poll() is not None:
                        raise RuntimeError(f"it has ended: {(self.folder / 'log').read_text()[-500:]}") from None
                    await asyncio.sleep(0.05)

    async def ask(self, number: int, text: str) -> None:
        """See `System.ask`."""
        thread = await self._call("POST", "/threads", {})
        given = {"number": str(number), "messages": [{"role": "user", "content": text}]}
        await self._call("POST", f"/threads/{thread['thread_id']}/runs", {"assistant_id": "agent", "input": given})

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url, headers = f"http://127.0.0.1:{self._port}{path}", {"content-type": "application/json"}
        request = urllib.request.Request(url, data, headers, method=method)
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).read())
        return json.loads(answer)
