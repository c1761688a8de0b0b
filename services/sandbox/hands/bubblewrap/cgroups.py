"""Limits of a whole sandbox by control groups, versions 1 and 2, where the service is root and may make them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from services.sandbox.hand import Limits

ROOT = Path("/sys/fs/cgroup")
_PARENT = "handmesh"
_MAKING_SECONDS = 120.0
_PERIOD = 100_000  # microseconds
_CONTROLLERS = ("memory", "pids", "cpu")


class ControlGroup:
    """The control group of one sandbox: a folder on version 2, a folder for each controller on version 1."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        """Names the group of a sandbox. Makes nothing."""
        self._unified = (root / "cgroup.controllers").exists()
        self._folders = (
            [root / _PARENT / name]
            if self._unified
            else [root / controller / _PARENT / name for controller in _CONTROLLERS]
        )

    def make(self, limits: Limits) -> bool:
        """Makes the group with its limits. False, and nothing is left, where that is not allowed."""
        if os.geteuid() != 0:
            return False
        try:
            if self._unified:
                self._enable()
            for folder in self._folders:
                folder.mkdir(parents=True)
            for file, value in self._settings(limits).items():
                file.write_text(value)
        except OSError:
            self.remove()
            return False
        for optional, value in self._swap(limits).items():
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                optional.write_text(value)
        return True

    def _enable(self) -> None:
        """Lets the groups below use the controllers."""
        parent = self._folders[0].parent
        parent.mkdir(exist_ok=True)
        for folder in (parent.parent, parent):
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))

    def _settings(self, limits: Limits) -> dict[Path, str]:
        quota = str(int(limits.cpus * _PERIOD))
        if self._unified:
            folder = self._folders[0]
            return {
                folder / "memory.max": str(limits.memory_bytes),
                folder / "pids.max": str(limits.processes),
                folder / "cpu.max": f"{quota} {_PERIOD}",
            }
        memory, pids, cpu = self._folders
        return {
            memory / "memory.limit_in_bytes": str(limits.memory_bytes),
            pids / "pids.max": str(limits.processes),
            cpu / "cpu.cfs_period_us": str(_PERIOD),
            cpu / "cpu.cfs_quota_us": quota,
        }

    def _swap(self, limits: Limits) -> dict[Path, str]:
        if self._unified:
            return {self._folders[0] / "memory.swap.max": "0"}
        return {self._folders[0] / "memory.memsw.limit_in_bytes": str(limits.memory_bytes)}

    @property
    def joins(self) -> list[str]:
        """The files that a process writes 0 to, to be in the group."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    @property
    def oom_file(self) -> Path:
        """The file that counts the kills for want of memory."""
        return self._folders[0] / ("memory.events" if self._unified else "memory.oom_control")

    def kill(self) -> None:
        """Kills every process in the group."""
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> bool:
        """Removes the group. False while a process is in it."""
        for folder in self._folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def sweep(root: Path = ROOT) -> None:
    """Removes the groups of sandboxes that ended by themselves: those that are empty and not just being made."""
    parents = [root / _PARENT, *(root / controller / _PARENT for controller in _CONTROLLERS)]
    for folder in [folder for parent in parents if parent.is_dir() for folder in parent.iterdir() if folder.is_dir()]:
        with contextlib.suppress(OSError):  # it has processes, or is gone by now
            if time.time() - folder.stat().st_mtime > _MAKING_SECONDS:
                folder.rmdir()
