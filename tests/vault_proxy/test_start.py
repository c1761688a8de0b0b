"""The service as a process: what it needs to start, what it does not load yet, and how it ends."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from handmesh.launcher.ca import ensure_api_key, ensure_certificates
from handmesh.launcher.ports import SERVICES, free_ports
from services.kit.channels import connect

ROOT = Path(__file__).parents[2]
PLAIN = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.vault_proxy", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**PLAIN, **variables}, timeout=60, check=False)


def test_check_imports_everything() -> None:
    """`--check` needs no settings, and proves that what is loaded later can be loaded."""
    done = run("--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("vault_proxy: ok\n")


def test_wrong_settings_are_all_told_at_once() -> None:
    """Each with its variable; a store that needs a login says so."""
    done = run(HANDMESH_OUTBOUND_ALLOW="http://x", HANDMESH_STORE="cloud", HANDMESH_LISTEN="x")
    assert done.returncode == 1
    for name in ("HANDMESH_OUTBOUND_ALLOW", "HANDMESH_STORE", "HANDMESH_LISTEN", "HANDMESH_TLS_DIR"):
        assert name in done.stderr
    needed = {"HANDMESH_LISTEN": "127.0.0.1:1", "HANDMESH_TLS_DIR": "/", "HANDMESH_SESSION_ADDRESS": "127.0.0.1:1"}
    assert run(**needed).stderr.strip() == (
        "vault_proxy: HANDMESH_VAULT_APPROLE_FILE is not set, and HANDMESH_STORE is hashicorp"
    )


def test_nothing_heavy_is_loaded_before_its_first_use() -> None:
    """Starting costs neither `mcp` nor `hvac`, nor an HTTP client."""
    code = "import sys, services.vault_proxy.assembly, services.vault_proxy.stores.hashicorp; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=PLAIN, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "services" in loaded
    assert not loaded & {"mcp", "mcp_types", "hvac", "requests", "httpx2", "pydantic", "starlette"}


async def test_it_serves_before_its_peers_are_there_and_ends_on_sigterm(tmp_path: Path) -> None:
    """No vault, no session service: it is healthy, and ends by itself when it is told to."""
    ensure_certificates(tmp_path / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    ensure_api_key(tmp_path)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    variables = {
        "HANDMESH_LISTEN": address,
        "HANDMESH_TLS_DIR": str(tmp_path / "tls" / "vault_proxy"),
        "HANDMESH_API_KEYS_FILE": str(tmp_path / "api_keys.json"),
        "HANDMESH_SESSION_ADDRESS": "127.0.0.1:9",
        "HANDMESH_VAULT_APPROLE_FILE": str(tmp_path / "not-there-yet.json"),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.vault_proxy",
        env={**PLAIN, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with connect(address, tmp_path / "tls" / "session") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service="handmesh.vault_proxy.v1.VaultProxyService")
        while True:
            try:
                answer = await health.Check(asked, wait_for_ready=True)
                break
            except grpc.aio.AioRpcError:
                assert process.returncode is None
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    process.send_signal(signal.SIGTERM)
    output, errors = await process.communicate()
    assert (process.returncode, output) == (0, b""), errors.decode()
