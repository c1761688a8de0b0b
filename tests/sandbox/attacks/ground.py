"""The ground that attacks run on: the real service as a process, with secrets planted all around it.

What an attacker would look for lies in the service's environment, in a descriptor it has inherited, in its state
folder and in the machine's /tmp: `CANARY`, a fresh random text. `Ground.sandbox` gives a sandbox to attack.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from services.kit.channels import connect
from tests.sandbox.attacks import outsider

OUTSIDER = 64321
"""The user id, which nobody has, of a service that is not root."""

MEMORY_MIB, PROCESSES, DISK_MIB, OPEN_FILES, FLOOD_MIB = 256, 64, 64, 512, 1024
"""The limits of the sandboxes that are attacked. In `wide`, the weak copy of each, they are far away."""

_LIMITS = f"""
memory_mib = {MEMORY_MIB}
processes = {PROCESSES}
disk_mib = {DISK_MIB}
open_files = {OPEN_FILES}
output_file_mib = 8
output_total_mib = {FLOOD_MIB}
"""
_WIDE = """
memory_mib = 4096
processes = 6000
disk_mib = 4096
open_files = 4096
"""
_START_SECONDS = 60.0
ANSWER_SECONDS = 90.0  # for a call that lasts; what must answer at once says so itself


@dataclass(frozen=True)
class Column:
    """A backend, and whether the service that uses it is root."""

    name: str
    backend: str
    as_root: bool = True


COLUMNS = [
    pytest.param(Column("docker", "docker"), id="docker", marks=pytest.mark.docker),
    pytest.param(Column("bubblewrap", "bubblewrap"), id="bubblewrap", marks=pytest.mark.bwrap),
    pytest.param(Column("rootless", "bubblewrap", as_root=False), id="rootless", marks=pytest.mark.bwrap),
]


class Box:
    """A sandbox."""

    def __init__(self, stub: Any, info: pb.Sandbox) -> None:
        """Knows how to reach it."""
        self.stub, self.info, self.id = stub, info, info.sandbox_id

    async def run(
        self, name: str, given: dict[str, Any], seconds: float = 60.0, answer: float = ANSWER_SECONDS
    ) -> tool_pb2.ToolResult:
        """Runs a tool for so many seconds at most; the call must be answered within `answer` seconds."""
        request = pb.ExecuteRequest(sandbox_id=self.id, name=name, input=json.dumps(given))
        request.timeout.FromNanoseconds(int(seconds * 1e9))
        result: tool_pb2.ToolResult = (await self.stub.Execute(request, timeout=answer)).result
        return result

    async def bash(self, command: str, seconds: float = 60.0, answer: float = ANSWER_SECONDS) -> tool_pb2.ToolResult:
        """Runs a command."""
        return await self.run("bash", {"command": command, "timeout_ms": int(seconds * 1000)}, seconds, answer)

    async def python(self, script: str, *arguments: str, seconds: float = 60.0) -> tool_pb2.ToolResult:
        """Runs a Python script."""
        words = " ".join(f"'{word}'" for word in arguments)
        return await self.bash(f"python3 - {words} <<'END-OF-SCRIPT'\n{script}\nEND-OF-SCRIPT", seconds)

    async def probe(self, script: str, *arguments: str) -> Any:
        """Runs a script that prints JSON, and returns that."""
        result = await self.python(script, *arguments)
        assert result.outcome == tool_pb2.TOOL_OUTCOME_OK, result.output
        return json.loads(result.output)

    def enforces(self, limit: str) -> bool:
        """Tells whether the backend says that it enforces a limit."""
        return not any(said.split(":")[0] == limit for said in self.info.unenforced_limits)


class Ground:
    """The service of one column. `pid` is its process."""

    def __init__(self, column: Column, folder: Path, canary: str) -> None:
        """Starts it over a folder of its own."""
        self.column, self.folder, self.canary = column, folder, canary
        self._made: list[str] = []
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        ensure_certificates(folder / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
        self.state = folder / "state"
        self.state.mkdir(0o700)
        (self.state / "secret").write_text(canary)
        environments = "".join(
            f'[environments.{name}]\nbackend = "{column.backend}"\n[environments.{name}.limits]\n{limits}'
            for name, limits in (("narrow", _LIMITS), ("wide", _WIDE), ("slow", "cpus = 0.25"))
        )
        (folder / "environments.toml").write_text(environments)
        user = os.geteuid() if column.as_root or os.geteuid() != 0 else OUTSIDER
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, user, user)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HANDMESH_LISTEN": self._address,
            "HANDMESH_TLS_DIR": str(folder / "tls" / "sandbox"),
            "HANDMESH_STATE_DIR": str(self.state),
            "HANDMESH_ALLOW_UNISOLATED": "1",
            "HANDMESH_ENVIRONMENTS_FILE": str(folder / "environments.toml"),
            "VAULT_TOKEN": canary,
        }
        held = os.memfd_create("held")
        os.write(held, canary.encode())
        with (folder / "service.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_becoming(user), sys.executable, "-m", "services.sandbox"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[held],
                cwd="/",
            )
        os.close(held)
        self.pid = self._process.pid

    def memory(self) -> int:
        """Returns the most memory that the service has held since its start, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def log(self) -> str:
        """Returns what the service has logged."""
        return (self.folder / "service.log").read_text(errors="replace")

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[Any]:
        """A harness's stub, once the service answers."""
        async with connect(self._address, self.folder / "tls" / "harness") as channel:
            stub = SandboxServiceStub(channel)
            await stub.ListTools(pb.ListToolsRequest(), wait_for_ready=True, timeout=_START_SECONDS)
            yield stub

    @asynccontextmanager
    async def sandbox(self, environment: str = "narrow") -> AsyncIterator[Box]:
        """A sandbox, released at the end."""
        async with self.caller() as stub:
            made = await stub.Provision(pb.ProvisionRequest(environment=environment), timeout=ANSWER_SECONDS)
            self._made.append(made.sandbox.sandbox_id)
            try:
                yield Box(stub, made.sandbox)
            finally:
                await stub.Release(pb.ReleaseRequest(sandbox_id=made.sandbox.sandbox_id), timeout=ANSWER_SECONDS)

    def left(self) -> list[str]:
        """Lists what is there of sandboxes that were released: processes, folders, groups, users, containers."""
        made = set(self._made)
        folders = [*self.state.rglob("sbx_*"), *Path("/sys/fs/cgroup").glob("**/handmesh/sbx_*")]
        found = [str(path) for path in folders if path.name in made]
        found += [str(path) for path in self.state.glob("*/users/*") if path.read_text() in made]
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"98765" in (path / "cmdline").read_bytes():  # what the attacks let sleep
                    found.append(str(path))
        if self.column.backend == "docker":
            import docker

            with contextlib.closing(docker.APIClient(version="auto")) as engine:
                names = [
                    name.removeprefix("/handmesh-") for row in engine.containers(all=True) for name in row["Names"]
                ]
            found += [name for name in names if name in made]
        return found

    def end(self) -> int:
        """Ends the service and returns its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(30)
        finally:
            self._process.kill()


@contextmanager
def ground_of(column: Column) -> Iterator[Ground]:
    """A ground. Skips, or fails in CI, where this machine does not let it be."""
    if os.geteuid() != 0 and column.as_root and column.backend == "bubblewrap":
        pytest.skip("this run is not root: see the column `rootless`")
    folder = Path(tempfile.mkdtemp(prefix="handmesh-ground-", dir="/tmp"))  # pytest's own folders are root's alone
    try:
        ground = Ground(column, folder, "CANARY" + os.urandom(16).hex())
        try:
            yield ground
        finally:
            code = ground.end()
        assert code == 0, ground.log()[-2000:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _becoming(user: int) -> list[str]:
    """The words before a command that make it another user's."""
    if user == os.geteuid():
        return []
    readable = {sys.base_prefix, sys.prefix, *(path for path in sys.path if Path(path).is_dir())}
    tops = sorted(path for path in readable if not any(path.startswith(f"{other}/") for other in readable))
    return [sys.executable, "-I", "-S", outsider.__file__, str(user), *tops, "--"]


@contextlib.contextmanager
def planted(canary: str) -> Iterator[dict[str, str | int]]:
    """What an attacker may hope to reach of the machine: a file, a socket with and one without a path, and a port."""
    with (
        tempfile.TemporaryDirectory(prefix="handmesh-planted-", dir="/tmp") as name,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "file").write_text(canary)
        named.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract.bind(f"\0{canary}")
        datagrams.bind(("127.0.0.1", 0))
        named.listen()
        abstract.listen()
        yield {
            "file": str(folder / "file"),
            "socket": str(folder / "socket"),
            "abstract": canary,
            "tcp": port.getsockname()[1],
            "udp": datagrams.getsockname()[1],
        }
