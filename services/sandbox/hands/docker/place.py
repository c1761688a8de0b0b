"""Makes, finds and ends containers. The Docker SDK is blocking: every call to it runs in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.sandbox.hand import WORKSPACE, Recipe
from services.sandbox.hands.docker import profile
from services.sandbox.records import Facts, Record
from services.sandbox.runner_archive import NAME, archive
from services.sandbox.seeds_mount import mount

if TYPE_CHECKING:
    import docker

T = TypeVar("T")
DEFAULT_IMAGE = "handmesh/base:latest"
ENGINE_SECONDS = 60
_SHARED_KERNEL = ("runc", "crun")  # others keep mounts of their own, where ours would not be seen
_LABEL = "handmesh."
_log = Log("services.sandbox.hands.docker")

# What an engine says of itself -> the limit that it cannot enforce when it says no.
_ABILITIES = {"MemoryLimit": "memory", "CpuCfsQuota": "cpus", "PidsLimit": "processes"}


class Containers:
    """A `Place` (see there): a container for each sandbox, with the runner as its process 1."""

    name = "docker"

    def __init__(self, state_dir: Path, host: str) -> None:
        """Takes the address of the engine, which must see `state_dir` under the same path. Connects to nothing."""
        self._host = host
        self._owner = hashlib.sha256(str(state_dir.absolute()).encode()).hexdigest()[:16]
        self._client: docker.DockerClient | None = None
        self._unenforced: tuple[str, ...] | None = None  # once the engine has said

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        image = recipe.image or DEFAULT_IMAGE
        await self._ask(lambda client: client.images.get(image), image)
        if self._unenforced is None:
            info = await self._ask(lambda client: client.info())
            self._unenforced = tuple(limit for ability, limit in _ABILITIES.items() if info.get(ability) is False)
        return self._unenforced

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """See `Place.boot`."""
        record.door.chmod(0o777)  # the container's root has no right over other users' files; the parent is private
        (record.door / NAME).write_bytes(archive())
        labels = record.info.labels
        told = {"owner": self._owner, "sandbox_id": labels.sandbox_id, "session_id": labels.session_id}
        told |= {"request_id": labels.request_id, "environment": labels.environment, "hand": labels.hand}
        image = recipe.image or DEFAULT_IMAGE

        def start(client: docker.DockerClient) -> None:
            made = client.api.create_container(
                image,
                entrypoint=profile.command(recipe),
                command=[],
                name=_name(record),
                hostname="sandbox",
                user="0:0",
                working_dir="/",
                environment={"HOME": WORKSPACE},
                labels={_LABEL + key: value for key, value in told.items()},
                host_config=profile.host_config(recipe, record.door.absolute()),
            )
            client.api.start(made["Id"])

        await self._ask(start, image)
        return {"container": _name(record)}

    async def lives(self, record: Record) -> bool:
        """See `Place.lives`."""

        def running(client: docker.DockerClient) -> bool:
            from docker.errors import NotFound

            try:
                return bool(client.api.inspect_container(_name(record))["State"]["Running"])
            except NotFound:
                return False

        return await self._ask(running)

    async def destroy(self, record: Record) -> None:
        """See `Place.destroy`."""
        await self._ask(lambda client: _remove(client, _name(record)))

    async def graft(self, record: Record, path: str, tree: Path) -> bool:
        """See `Place.graft`. Only where this service is root on the engine's machine, and the kernel is that one's."""

        def process(client: docker.DockerClient) -> int:
            from docker.errors import NotFound

            try:
                seen = client.api.inspect_container(_name(record))
            except NotFound:
                return 0
            shared = seen["HostConfig"]["Runtime"] in _SHARED_KERNEL
            return int(seen["State"]["Pid"]) if shared and _is_its(int(seen["State"]["Pid"]), seen["Id"]) else 0

        pid = await self._ask(process) if os.geteuid() == 0 else 0
        return pid > 0 and await mount(pid, path, tree)

    async def complaint(self, record: Record) -> str:
        """See `Place.complaint`."""
        return "the container has ended, and is gone: does the image have python3 (3.8 or newer)?"

    async def tidy(self, known: Sequence[Record]) -> None:
        """See `Place.tidy`."""
        kept = {_name(record) for record in known}

        def sweep(client: docker.DockerClient) -> None:
            mine = {"label": f"{_LABEL}owner={self._owner}"}
            for container in client.api.containers(all=True, filters=mine):
                name = container["Names"][0].lstrip("/")
                if name not in kept:
                    _remove(client, name)

        await self._ask(sweep)

    async def close(self) -> None:
        """See `Place.close`."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None

    async def _ask(self, call: Callable[[docker.DockerClient], T], image: str = "") -> T:
        """Calls the engine. What goes wrong with it becomes Unavailable, with what to do."""

        def connected() -> T:
            import requests
            from docker.errors import DockerException, ImageNotFound

            try:
                self._knock()
                return call(self._connected())
            except ImageNotFound:
                raise _no_image(image) from None
            except (DockerException, requests.RequestException, OSError) as error:
                _log.warning("docker engine failed", host=self._host, error=str(error)[:500])
                raise Unavailable(
                    "BACKEND_UNAVAILABLE",
                    f"no Docker Engine does this at {self._host}; see the service's log, and `docker info`. Start the "
                    "engine or set DOCKER_HOST",
                    backend=self.name,
                ) from None

        return await asyncio.to_thread(connected)

    def _knock(self) -> None:
        """Raises OSError when nobody listens on the engine's socket: the SDK would leave one of its own open."""
        if self._host.startswith("unix://"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
                knocking.connect(self._host.removeprefix("unix://"))

    def _connected(self) -> docker.DockerClient:
        if self._client is None:
            import docker

            self._client = docker.DockerClient(base_url=self._host, timeout=ENGINE_SECONDS)
        return self._client


def _is_its(pid: int, container: str) -> bool:
    """Says whether a process of this machine is the container's: the engine may be on another one."""
    try:
        return container in Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return False


def _name(record: Record) -> str:
    return "handmesh-" + record.sandbox_id


def _remove(client: docker.DockerClient, name: str) -> None:
    """Kills and removes a container. Idempotent, also while another call removes it."""
    from docker.errors import APIError, NotFound

    try:
        client.api.remove_container(name, v=True, force=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:  # its removal is in progress
            raise


def _no_image(image: str) -> Unavailable:
    return Unavailable(
        "BACKEND_UNAVAILABLE",
        f"the Docker Engine has no image {image}: build the base image by `make image`, or load or pull the other",
        backend=Containers.name,
    )
