"""compose.yaml says of every container what must hold of it, and the probe of its health is a client like others."""

from __future__ import annotations

import asyncio
import datetime
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpc_health.v1 import health_pb2

from handmesh.launcher.ca import ensure_certificates
from services.kit.serving import Server
from services.kit.settings import Mesh

COMPOSE = Path(__file__).parents[2] / "compose"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
ONCE = {"init", "migrate", "cli"}
SERVING = ("session", "harness", "sandbox", "vault-proxy")


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_as_little_as_it_needs(name: str) -> None:
    """No root, no capability, nothing to write to but what is mounted, no way to more; and it stops in its own time."""
    part = SERVICES[name]
    assert part["read_only"] and part["cap_drop"] == ["ALL"] and not part.get("privileged")
    assert part["security_opt"] == ["no-new-privileges:true"]
    assert part["stop_grace_period"] == "20s"
    if name == "init":
        assert part["network_mode"] == "none" and part["restart"] == "no"
    else:
        assert part["user"] == "10001:10001" and "cap_add" not in part
    if name not in ONCE:
        assert {"cpus", "memory", "pids"} <= part["deploy"]["resources"]["limits"].keys()
        assert part["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_is_for_tests(name: str) -> None:
    """What kills a service on purpose, keeps logs in memory or runs tools unisolated is set nowhere."""
    never = {"HANDMESH_FAILPOINTS", "HANDMESH_THROWAWAY", "HANDMESH_ALLOW_UNISOLATED", "HANDMESH_LOG", "HANDMESH_STORE"}
    assert not never & SERVICES[name].get("environment", {}).keys()


@pytest.mark.parametrize("name", SERVING)
def test_a_second_replica_differs_in_nothing_but_its_own_place(name: str) -> None:
    """What a service is told, and where it keeps things, holds for its second replica, too."""
    first, second = SERVICES[name], SERVICES[f"{name}-2"]
    differing = {"ports", "profiles", "environment", "volumes"}
    same = {key: value for key, value in first.items() if key not in differing}
    assert {key: value for key, value in second.items() if key not in differing} == same
    assert second["profiles"] == ["replicas"]
    assert second["environment"].keys() - {"HANDMESH_NODE"} == first["environment"].keys() - {"HANDMESH_NODE"}


def test_only_who_needs_it_is_in_a_network() -> None:
    """NATS is reached by those with a login of it, the vault by its keeper and vault_proxy; neither from outside."""
    networks = {name: set(part.get("networks", ())) for name, part in SERVICES.items()}
    inside = {network: {name for name, its in networks.items() if network in its} for network in ("store", "vault")}
    assert inside["store"] == {"nats-1", "nats-2", "nats-3", "migrate", "janitor", "session", "session-2"}
    assert inside["vault"] == {"openbao", "vault-keeper", "vault-proxy", "vault-proxy-2"}
    published = {name for name, part in SERVICES.items() if part.get("ports")}
    assert published == {*SERVING, *(f"{name}-2" for name in SERVING), "shop"}


def test_only_the_sandbox_speaks_to_the_engine() -> None:
    """Whoever has the engine's socket is as good as root."""
    holders = {name for name, part in SERVICES.items() if "docker.sock" in str(part.get("volumes", ()))}
    assert holders == {"sandbox", "sandbox-2"}


async def test_the_probe_tells_whether_a_service_serves(tmp_path: Path) -> None:
    """It says yes of a service that serves, and no of one that does not yet, or of nobody."""
    ensure_certificates(tmp_path, ["session"], datetime.datetime.now(datetime.UTC))
    values: dict[str, Any] = {"listen": "127.0.0.1:0", "client_listen": "0.0.0.0:0", "tls_dir": tmp_path / "session"}
    server = Server(Mesh(**values, api_keys_file=None, log_level="info"))
    await server.start("handmesh.session.v1.SessionService")
    port = (server.addresses[1] or "").rpartition(":")[2]
    assert await probed(port, tmp_path) == 0
    await server._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert await probed(port, tmp_path) == 1
    await server.stop(0)
    assert await probed(port, tmp_path) == 1


async def probed(port: str, tls: Path) -> int | None:
    """Returns the exit code of the probe."""
    arguments = ["-I", "-S", str(COMPOSE / "healthy.py"), port, str(tls / "session" / "ca.pem")]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.DEVNULL)
    return await process.wait()
