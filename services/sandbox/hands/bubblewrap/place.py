"""Starts, finds and ends the processes of bubblewrap sandboxes."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from services.kit.errors import Refused, Unavailable
from services.sandbox.hand import WORKSPACE, Recipe
from services.sandbox.hands.bubblewrap import cgroups, seccomp, view
from services.sandbox.hands.bubblewrap.cgroups import ControlGroup
from services.sandbox.hands.bubblewrap.program import Program
from services.sandbox.hands.bubblewrap.users import Users
from services.sandbox.local_process import LocalProcess, listen
from services.sandbox.place import SOCKET
from services.sandbox.records import Facts, Record
from services.sandbox.runner_archive import archive, told
from services.sandbox.seeds_mount import Mounter

_LOG = "start.log"


class Bubblewrap:
    """A `Place` (see there): one bubblewrap for each sandbox, with the runner as its process 1."""

    name = "bubblewrap"
    own_network = True

    def __init__(self, state_dir: Path) -> None:
        """Starts nothing."""
        self._users = Users(state_dir / "users")
        self._mounter = Mounter()
        self._flags: tuple[str, ...] | None = None  # once it has been seen to work here
        self._limited = True  # whether control groups can be made; as long as that has not failed

    async def check(self, recipe: Recipe) -> tuple[str, ...]:
        """See `Hand.check`."""
        if recipe.rootfs and not (Path(recipe.rootfs) / "usr").is_dir():
            raise Unavailable("BACKEND_UNAVAILABLE", f"rootfs {recipe.rootfs} has no usr/", backend=self.name)
        if self._flags is None:
            self._flags, self._limited = await asyncio.to_thread(_probe, recipe)
        disk = ("disk: each file is limited, the workspace is not",)
        if self._limited:
            return disk
        return ("memory: each process is limited, the sandbox is not", "cpus", *disk)

    async def prepare(self, recipe: Recipe) -> None:
        """See `Place.prepare`. There is nothing to make."""

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """See `Place.boot`."""
        return await asyncio.to_thread(self._boot, record, recipe)

    def _boot(self, record: Record, recipe: Recipe) -> Facts:
        uid = self._users.claim(record.sandbox_id) if os.geteuid() == 0 else None
        workspace, etc, runner = (record.folder / name for name in ("workspace", "etc", "runner.pyz"))
        workspace.mkdir(0o755)
        if uid is not None:
            os.chown(workspace, uid, uid)
        view.write_etc(etc, Path(recipe.rootfs or "/"))
        runner.write_bytes(archive())
        group = ControlGroup(record.sandbox_id)
        # What is written to memory counts: it comes on top, or full files would leave the runner nothing to live on.
        memory = recipe.limits.memory_bytes + view.in_memory(recipe.limits)
        limited = group.make(replace(recipe.limits, memory_bytes=memory))
        python, shown_python = view.python(Path(recipe.rootfs or "/"))
        program = Program(as_user=uid)
        args = view.arguments(
            recipe,
            source=program.source,
            etc=etc,
            workspace=workspace,
            archive=runner,
            shown_python=shown_python,
            oom_file=group.oom_file if limited else None,
        )
        with listen(record.door, SOCKET) as listener, (record.folder / _LOG).open("wb") as log:
            command = [python, "-I", "-S", "-B", view.RUNNER, _told(recipe, listener.fileno(), limited)]
            flags = [*view.NAMESPACES, *(self._flags or ()), *args]
            joins = group.joins if limited else []
            process = LocalProcess.of(program.start(flags, command, log.fileno(), [listener.fileno()], joins))
        if process is None:
            raise Unavailable("BACKEND_UNAVAILABLE", "the sandbox ended at once", backend=self.name)
        return process.facts()

    async def lives(self, record: Record) -> bool:
        """See `Place.lives`."""
        process = LocalProcess.known(record.facts)
        return process is not None and process.lives()

    async def destroy(self, record: Record) -> None:
        """See `Place.destroy`."""
        process = LocalProcess.known(record.facts)
        if process is not None:
            await process.end()  # process 1 of its namespace: with it goes everything
        group = ControlGroup(record.sandbox_id)
        group.kill()  # one whose making was cut off is known by its group only
        for _ in range(200):  # the last process leaves its group a moment after it has ended
            if group.remove():
                break
            await asyncio.sleep(0.01)
        self._users.give_back(record.sandbox_id)

    async def graft(self, record: Record, path: str, tree: Path) -> bool:
        """See `Place.graft`."""
        process = LocalProcess.known(record.facts)
        return process is not None and process.lives() and await self._mounter.mount(process.pid, path, tree)

    async def complaint(self, record: Record) -> str:
        """See `Place.complaint`."""
        try:
            return (record.folder / _LOG).read_text(errors="replace").strip()[-500:]
        except FileNotFoundError:
            return ""

    async def tidy(self, known: Callable[[], Sequence[Record]]) -> None:
        """See `Place.tidy`. A runner without a record ends itself; its user and its group are left."""
        cgroups.sweep()
        self._users.keep_only({record.sandbox_id for record in known()})

    async def close(self) -> None:
        """See `Place.close`."""
        await self._mounter.close()


def _told(recipe: Recipe, socket_fd: int, limited: bool) -> str:
    """Returns the runner's argument. Without a control group, limits are those that a single process can have."""
    rlimits = {"fsize": recipe.limits.disk_bytes, "memlock": 64 << 10}
    if not limited:
        rlimits |= {"data": recipe.limits.memory_bytes, "nproc": recipe.limits.processes}
    return told(
        recipe,
        workspace=WORKSPACE,
        records=view.RECORDS,
        anchor=WORKSPACE,
        socket_fd=socket_fd,
        oom_files=(view.OOM_FILE,) if limited else (),
        rlimits=rlimits,
    )


def _probe(recipe: Recipe) -> tuple[tuple[str, ...], bool]:
    """Returns the further flags that work here, and whether control groups can be made."""
    if platform.machine() not in seccomp.MACHINES:
        raise Refused(
            "ISOLATION_UNAVAILABLE", f"no list of system calls for {platform.machine()}", backend="bubblewrap"
        )
    uid = Users.FIRST if os.geteuid() == 0 else None
    complaint = ""
    for flags in ((view.NO_NESTING,), ()):  # without, nested namespaces are still refused by the system call filter
        complaint = Program(uid).probe([*view.NAMESPACES, *flags])
        if not complaint:
            group = ControlGroup(f"probe-{os.getpid()}")
            limited = group.make(recipe.limits)
            group.remove()
            return flags, limited
    raise Refused(
        "ISOLATION_UNAVAILABLE",
        f"bubblewrap cannot make namespaces here ({complaint}). Allow user namespaces (sysctl "
        "user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), "
        "or use an environment of the docker backend, or, to run tools without any isolation, the environment "
        "`process` with HANDMESH_ALLOW_UNISOLATED=1",
        backend="bubblewrap",
    )
