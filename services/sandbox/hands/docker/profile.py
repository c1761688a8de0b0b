"""The strict profile: what a container may see, use and ask of the kernel. Pure, but for reading the list of calls.

The runner is process 1 and root without any capability but those to become the tools' user and to kill; tools are
another user without any. No network, a read-only root, everything writable in memory and limited in size.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.sandbox.hand import WORKSPACE, Limits, Recipe
from services.sandbox.hands.docker import interpreter
from services.sandbox.place import SOCKET
from services.sandbox.runner_archive import NAME, told

TOOL_UID = 10001
RECORDS = "/run/handmesh"
_CLOSED = "/run/handmesh-door"  # the runner's alone, so that no tool reaches what is mounted in it
_DOOR = f"{_CLOSED}/io"
_TMP_BYTES = 256 << 20
_SHM_BYTES = 64 << 20
_SHM = "/dev/shm"
_MOST_FILES = 200_000  # of a place; without a number for it, millions of empty files fit
_BYTES_A_FILE = 4 << 10  # of a place's size: what is in a file takes a page at least
_INODE_BYTES = 1 << 10  # of memory; measured: 960
_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_CAPABILITIES = ["KILL", "SETGID", "SETPCAP", "SETUID"]
# Docker's own list, and what tells of the host: its command line, configuration and symbols.
_MASKED = [
    *("/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/config.gz", "/proc/interrupts", "/proc/kallsyms"),
    *("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/version", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel"),
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def command(recipe: Recipe, python: Path | None = None) -> list[str]:
    """Returns the container's process: the runner, from the mounted folder, by the image's Python or a shown one."""
    config = told(
        recipe,
        workspace=WORKSPACE,
        records=RECORDS,
        anchor=_DOOR,
        socket=f"{_DOOR}/{SOCKET}",
        tool_uid=TOOL_UID,
        oom_files=_OOM_FILES,
        rlimits={"fsize": recipe.limits.disk_bytes},
    )
    program = ["python3"] if python is None else interpreter.command()
    return [*program, "-I", "-S", "-B", f"{_DOOR}/{NAME}", config]


def host_config(recipe: Recipe, door: Path, volumes: Sequence[str] = (), python: Path | None = None) -> dict[str, Any]:
    """Returns the engine's `HostConfig`, as its API names things. `volumes` are those that the image declares.

    `python` is a folder of `interpreter.py` to show, for an image without one.
    """
    mounts: list[dict[str, Any]] = [{"Type": "bind", "Source": str(door), "Target": _DOOR}]  # `Binds` makes folders
    if python is not None:
        mounts.append({"Type": "bind", "Source": str(python), "Target": interpreter.SHOWN, "ReadOnly": True})
    limits = recipe.limits
    # What is written counts as memory: it comes on top, or a full workspace would leave the runner nothing to live on.
    memory = limits.memory_bytes + sum(size + _files(size) * _INODE_BYTES for size in _sizes(limits).values())
    config: dict[str, Any] = {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "CapAdd": _CAPABILITIES,
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={system_calls()}"],
        "ReadonlyRootfs": True,
        "Privileged": False,
        "Init": False,
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "PidsLimit": limits.processes,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": int(limits.cpus * 1e9),
        "OomScoreAdj": 500,
        "Tmpfs": _volumes(volumes) | _writable(limits),
        "Mounts": mounts,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": 0, "Hard": 0},
            {"Name": "msgqueue", "Soft": 0, "Hard": 0},
        ],
        "Dns": ["127.0.0.1"],
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,  # it would end the container when the engine starts again, also under `live-restore`
        "MaskedPaths": _MASKED,
        "ReadonlyPaths": _READ_ONLY,
    }
    if recipe.runtime:
        config["Runtime"] = recipe.runtime
    return config


def _sizes(limits: Limits) -> dict[str, int]:
    """Returns how much can be written where. All of it is in memory."""
    return {
        WORKSPACE: limits.disk_bytes,
        "/tmp": min(_TMP_BYTES, limits.disk_bytes),
        _SHM: _SHM_BYTES,
        RECORDS: 4 * limits.output_file_bytes,
        _CLOSED: 4096,
    }


def _files(size: int) -> int:
    """Returns how many files a place of so many bytes may have."""
    return max(min(size // _BYTES_A_FILE, _MOST_FILES), 8)


def _writable(limits: Limits) -> dict[str, str]:
    """Returns all that can be written to: in memory, with a size."""
    modes = {
        WORKSPACE: f"exec,mode=0700,uid={TOOL_UID},gid={TOOL_UID}",
        "/tmp": "exec,mode=1777",
        _SHM: "noexec,mode=1777",
        RECORDS: "noexec,mode=0755",
        _CLOSED: "noexec,mode=0700",
    }
    return {
        path: f"rw,nosuid,nodev,size={size},nr_inodes={_files(size)},{modes[path]}"
        for path, size in _sizes(limits).items()
    }


def _volumes(paths: Sequence[str]) -> dict[str, str]:
    """Returns an empty read-only folder for each volume of an image: the engine's own would be on its disk."""
    return dict.fromkeys(paths, "ro,nosuid,nodev,noexec,size=4096")


@functools.cache
def system_calls() -> str:
    """Returns the list of allowed system calls as the engine wants it, on one line."""
    return json.dumps(json.loads(Path(__file__).with_name("seccomp.json").read_text()), separators=(",", ":"))
