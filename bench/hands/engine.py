"""Docker by docker-py: what a sandbox service without a runner would do, and what a container costs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker

from bench.hands.world import IMAGE


def client() -> Any:
    """Connects to the engine that the sandbox service uses. Raises DockerException."""
    host = os.environ.get("DOCKER_HOST")
    return docker.APIClient(base_url=host) if host else docker.APIClient()


def start(engine: Any) -> str:
    """Creates and starts a bare container without a network; returns its id."""
    host = engine.create_host_config(network_mode="none")
    made = engine.create_container(IMAGE, ["sleep", "600"], host_config=host)
    engine.start(made["Id"])
    return str(made["Id"])


def started(engine: Any) -> float:
    """Returns how long it took to create and start a bare container, in ms, and removes it."""
    begun = time.perf_counter()
    container = start(engine)
    taken = (time.perf_counter() - begun) * 1000
    engine.remove_container(container, force=True)
    return taken


@contextlib.contextmanager
def container(engine: Any) -> Iterator[str]:
    """Gives a bare container that runs."""
    made = start(engine)
    try:
        yield made
    finally:
        engine.remove_container(made, force=True)


def executed(engine: Any, made: str, times: int) -> list[float]:
    """Runs `sh -c 'echo hi'` by `docker exec`, one after the other; returns how long each took, in ms."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        said = engine.exec_start(engine.exec_create(made, ["sh", "-c", "echo hi"])["Id"])
        taken.append((time.perf_counter() - begun) * 1000)
        if said != b"hi\n":
            raise RuntimeError(f"docker exec said {said!r}")
    return taken


def overhead(engine: Any, name: str, shims: Mapping[str, int]) -> tuple[float, float]:
    """Returns what the container's control group counts and what its shim has resident, in MB."""
    inspected = engine.inspect_container(name)
    return control_group(int(inspected["State"]["Pid"])), resident(shims[inspected["Id"]])


def shims() -> dict[str, int]:
    """Returns the process ids of the containers' shims, by container id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and b"-id" in words:
                    found[words[words.index(b"-id") + 1].decode()] = int(folder.name)
    return found


def control_group(pid: int) -> float:
    """Returns the memory that a process's control group counts, in MB."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = Path(f"/sys/fs/cgroup/memory{path}/memory.usage_in_bytes")
        elif not controllers:
            file = Path(f"/sys/fs/cgroup{path}/memory.current")
        else:
            continue
        if file.exists():
            return int(file.read_text()) / (1 << 20)
    raise FileNotFoundError(f"no memory control group of process {pid}")


def resident(pid: int) -> float:
    """Returns a process's resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0
