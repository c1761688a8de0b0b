"""Makes, finds and ends containers."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.kit.errors import Unavailable
from services.sandbox.hand import WORKSPACE, Recipe
from services.sandbox.hands.docker import profile
from services.sandbox.hands.docker.contents import BASH, Looks
from services.sandbox.hands.docker.engine import BACKEND, Engine, remove, state, unavailable
from services.sandbox.hands.docker.images import Image, Images
from services.sandbox.hands.docker.interpreter import Interpreter
from services.sandbox.records import Facts, Record
from services.sandbox.runner_archive import NAME, archive
from services.sandbox.seeds_mount import Mounter
from services.sandbox.tools import NAMES

if TYPE_CHECKING:
    import docker

_SHARED_KERNEL = ("runc", "crun")  # others keep mounts of their own, where ours would not be seen
_LABEL = "handmesh."

# What an engine says of itself -> the limit that it cannot enforce when it says no.
_ABILITIES = {"MemoryLimit": "memory", "CpuCfsQuota": "cpus", "PidsLimit": "processes"}


class Containers:
    """A `Place` (see there): a container for each sandbox, with the runner as its process 1."""

    name = BACKEND
    own_network = True

    def __init__(self, state_dir: Path, host: str) -> None:
        """Takes the address of the engine, which must see `state_dir` under the same path. Connects to nothing."""
        self._engine = Engine(host)
        self._owner = hashlib.sha256(str(state_dir.absolute()).encode()).hexdigest()[:16]
        self._images = Images(self._engine, self._owner)
        self._looks = Looks(self._engine, self._owner)
        self._interpreter = Interpreter(state_dir / "python")
        self._found: dict[str, Image] = {}  # by environment, as the last check has found it
        self._mounter = Mounter()
        self._starting = asyncio.Semaphore(_at_once())  # starting many at once takes as long, and all else waits
        self._ending = asyncio.Semaphore(_at_once())
        self._info: dict[str, Any] = {}  # once the engine has said it

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        self._found[recipe.name] = await self._images.find(recipe)
        if not self._info or recipe.runtime not in self._runtimes():
            self._info = await self._engine.ask(lambda client: client.info())
        if recipe.runtime not in self._runtimes():
            known = ", ".join(sorted(self._runtimes() - {""}))
            raise unavailable(
                f"the Docker Engine has no runtime {recipe.runtime}, but {known}: name it under `runtimes` in its "
                "daemon.json"
            )
        return tuple(limit for ability, limit in _ABILITIES.items() if self._info.get(ability) is False)

    def _runtimes(self) -> set[str]:
        return {"", *self._info.get("Runtimes", ())}

    async def prepare(self, recipe: Recipe) -> None:
        """See `Place.prepare`."""
        image = self._found[recipe.name]
        await self._images.prepare(recipe, image)
        await self._shown_python(image)
        if "bash" in (recipe.tools or NAMES) and not (await self._looks.of(image)).bash:
            raise unavailable(
                f"the image {image.name} has no {BASH}: use an image that has it, or leave `bash` out of the "
                "environment's tools"
            )

    async def _shown_python(self, image: Image) -> Path | None:
        """Returns the folder with the Python to show to sandboxes of an image. None for one that has its own."""
        return None if (await self._looks.of(image)).python else (await self._interpreter.folder()).absolute()

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """See `Place.boot`."""
        record.door.chmod(0o777)  # the container's root has no right over other users' files; the parent is private
        (record.door / NAME).write_bytes(archive())
        labels = record.info.labels
        told = {"owner": self._owner, "sandbox_id": labels.sandbox_id, "session_id": labels.session_id}
        told |= {"request_id": labels.request_id, "environment": labels.environment, "hand": labels.hand}
        image = self._found[recipe.name]
        python = await self._shown_python(image)

        def start(client: docker.APIClient) -> None:
            made = client.create_container(
                image.name,
                entrypoint=profile.command(recipe, python),
                command=[],
                name=_name(record),
                hostname="sandbox",
                user="0:0",
                working_dir="/",
                environment={"HOME": WORKSPACE},
                labels={_LABEL + key: value for key, value in told.items()},
                healthcheck={"Test": ["NONE"]},  # the image's own would run as root
                host_config=profile.host_config(recipe, record.door.absolute(), image.volumes, python),
            )
            client.start(made["Id"])

        async with self._starting:
            await self._engine.ask(start, image.name)
        return {"container": _name(record)}

    async def lives(self, record: Record) -> bool:
        """See `Place.lives`."""
        found = await self._engine.ask(lambda client: state(client, _name(record)))
        return found is not None and bool(found["Running"])

    async def destroy(self, record: Record) -> None:
        """See `Place.destroy`."""
        async with self._ending:
            await self._engine.ask(lambda client: remove(client, _name(record)))

    async def graft(self, record: Record, path: str, tree: Path) -> bool:
        """See `Place.graft`. Only where this service is root on the engine's machine, and the kernel is that one's."""

        def process(client: docker.APIClient) -> int:
            from docker.errors import NotFound

            try:
                seen = client.inspect_container(_name(record))
            except NotFound:
                return 0
            shared = seen["HostConfig"]["Runtime"] in _SHARED_KERNEL
            return int(seen["State"]["Pid"]) if shared and _is_its(int(seen["State"]["Pid"]), seen["Id"]) else 0

        pid = await self._engine.ask(process) if os.geteuid() == 0 else 0
        return pid > 0 and await self._mounter.mount(pid, path, tree)

    async def complaint(self, record: Record) -> str:
        """See `Place.complaint`."""
        try:
            found = await self._engine.ask(lambda client: state(client, _name(record)))
        except Unavailable:
            return "the engine does not answer"
        how = "was not made" if found is None else f"is {found['Status']}, exit code {found['ExitCode']}"
        return f"its container {how}: a python3 of the image must be 3.8 or newer, the engine see HANDMESH_STATE_DIR"

    async def tidy(self, known: Callable[[], Sequence[Record]]) -> None:
        """See `Place.tidy`."""

        def sweep(client: docker.APIClient) -> None:
            mine = {"label": f"{_LABEL}owner={self._owner}"}
            names = {container["Names"][0].lstrip("/") for container in client.containers(all=True, filters=mine)}
            ended = {"label": f"{_LABEL}owner", "status": "exited"}  # also of a service whose state was removed
            gone = {container["Names"][0].lstrip("/") for container in client.containers(all=True, filters=ended)}
            for name in gone | names - {_name(record) for record in known()}:
                remove(client, name)

        await self._engine.ask(sweep)
        await self._images.tidy()

    async def close(self) -> None:
        """See `Place.close`."""
        await self._mounter.close()
        await self._images.close()
        await self._engine.close()


def _at_once() -> int:
    """Returns how many containers to start at once: one processor is left to those who wait for something else."""
    return max(1, (os.cpu_count() or 1) - 1)


def _is_its(pid: int, container: str) -> bool:
    """Says whether a process of this machine is the container's: the engine may be on another one."""
    try:
        return container in Path(f"/proc/{pid}/mountinfo").read_text()
    except OSError:
        return False


def _name(record: Record) -> str:
    return "handmesh-" + record.sandbox_id
