"""A mesh as a whole, with real NATS and OpenBao. The four services here are stand-ins that answer gRPC health.

The launcher knows a service by its module's name, its environment and its health, and that is what is tested.
"""

import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from handmesh.launcher.errors import AlreadyRunning, PartFailed, PortTaken
from handmesh.launcher.lock import Lock, running
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import HOST, SERVICES, Ports
from handmesh.launcher.settings import Claude, MeshSettings

pytestmark = pytest.mark.e2e

STAND_IN = """
import asyncio, json, os, signal, sys
from pathlib import Path
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

async def main():
    name = sys.argv[0].rsplit("/", 1)[-1].removesuffix(".py").replace("__main__", "session")
    Path(os.environ["HANDMESH_DATA_DIR"], name + ".environment").write_text(json.dumps(dict(os.environ)))
    if os.environ.get("BROKEN"):
        sys.exit("this stand-in is broken")
    while name == "vault_proxy" and not Path(os.environ["HANDMESH_VAULT_APPROLE_FILE"]).exists():
        await asyncio.sleep(0.01)  # as the real one, which is started beside the vault
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(os.environ["HANDMESH_CLIENT_LISTEN"])
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    await server.stop(0)
    with open(Path(os.environ["HANDMESH_DATA_DIR"], "stopped"), "a") as file:
        file.write(name + " ")

asyncio.run(main())
"""


@pytest.fixture
def new_settings(tmp_path: Path) -> MeshSettings:
    """A mesh on free ports that never ran. Its services are stand-ins."""
    package = tmp_path / "modules" / "services"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for service in SERVICES[1:]:
        (package / f"{service}.py").write_text(STAND_IN)
    session = package / SERVICES[0]
    session.mkdir()
    (session / "__main__.py").write_text(STAND_IN)
    (session / "migrate.py").touch()
    (session / "janitor.py").write_text("import signal; signal.pause()")
    return MeshSettings(
        data_directory=tmp_path / "data",
        model=Claude("canary-model-key"),
        caller_environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(package.parent)},
        ports=Ports.free(),
    )


@pytest.fixture
def settings(new_settings: MeshSettings, openbao_state: Path) -> MeshSettings:
    """The same with an OpenBao that has been started before."""
    shutil.copytree(openbao_state, new_settings.data_directory / "openbao")
    return new_settings


def is_there(pid: int) -> bool:
    """Says whether a process is there, as a zombie too."""
    return Path("/proc", str(pid)).exists()


async def test_a_mesh_starts_and_stops_in_order(new_settings: MeshSettings) -> None:
    """Every part runs, the word about it is left for clients, and stopping goes from the brains to the stores."""
    async with await Mesh.start(new_settings) as mesh:
        assert sorted(mesh.pids) == sorted([*SERVICES, "janitor", "nats", "openbao"])
        assert running(new_settings.data_directory) is not None
        assert mesh.vault.put_secret("tenants/default/x", {"token": "t"}) == 1
        pids = mesh.pids
    assert not mesh.pids
    assert [pid for pid in pids.values() if is_there(pid)] == []
    order = (new_settings.data_directory / "stopped").read_text().split()
    assert (order[0], set(order[1:3]), order[3]) == ("harness", {"sandbox", "vault_proxy"}, "session")
    assert running(new_settings.data_directory) is None


async def test_the_models_key_is_in_a_private_file_and_nowhere_else(settings: MeshSettings) -> None:
    """The key reaches the harness as a file: no environment, log or other file of the mesh has it."""
    async with await Mesh.start(settings) as mesh:
        key = mesh.files.model_key
        assert (key.read_text(), key.stat().st_mode & 0o777) == ("canary-model-key", 0o600)
        told = json.loads((settings.data_directory / "harness.environment").read_text())
        assert told["HANDMESH_MODEL_KEY_FILE"] == str(key)
    files = [path for path in settings.data_directory.rglob("*") if path.is_file() and path != key]
    assert [path for path in files if b"canary-model-key" in path.read_bytes()] == []


async def test_one_service_is_killed_and_started_again(settings: MeshSettings) -> None:
    """The loss of a part is told, nothing else ends by it, and a restart gives a new process that serves."""
    async with await Mesh.start(settings) as mesh:
        before = dict(mesh.pids)
        os.kill(before["harness"], signal.SIGKILL)
        loss = await mesh.lost()
        assert (loss.part, "killed by SIGKILL" in str(loss)) == ("harness", True)
        assert {name: pid for name, pid in before.items() if name != "harness"} == mesh.pids
        await mesh.restart("harness")
        assert mesh.pids["harness"] != before["harness"]


async def test_the_stores_can_be_killed_and_started_again(settings: MeshSettings) -> None:
    """NATS comes back with its users, OpenBao unsealed."""
    async with await Mesh.start(settings) as mesh:
        for part in ("nats", "openbao"):
            await mesh.kill(part)
            assert part not in mesh.pids
            await mesh.restart(part)
        assert mesh.vault.put_secret("tenants/default/x", {"token": "t"}) == 1


async def test_a_second_start_says_who_runs(settings: MeshSettings) -> None:
    """The data directory has one launcher at a time, and the running mesh is not disturbed."""
    async with await Mesh.start(settings) as mesh:
        with pytest.raises(AlreadyRunning) as refusal:
            await Mesh.start(settings)
        assert refusal.value.pid == os.getpid()
        assert len(mesh.pids) == 7


async def test_a_taken_port_ends_the_start_before_anything_runs(settings: MeshSettings) -> None:
    """The error names the holder, and the data directory is free again."""
    with socket.create_server((HOST, settings.ports.harness)), pytest.raises(PortTaken, match=f"pid {os.getpid()}"):
        await Mesh.start(settings)
    assert not (settings.data_directory / "logs").exists()
    Lock.acquire(settings.data_directory, settings.ports).release()


async def test_a_service_that_dies_at_its_start_takes_the_mesh_down(new_settings: MeshSettings) -> None:
    """The error has the service's last words, and no process, port or lock is left."""
    broken = replace(new_settings, extra={"sandbox": {"BROKEN": "1"}})
    with pytest.raises(PartFailed, match="this stand-in is broken") as failure:
        await Mesh.start(broken)
    assert failure.value.part == "sandbox"
    async with await Mesh.start(new_settings) as mesh:
        assert len(mesh.pids) == 7
