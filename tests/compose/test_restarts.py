"""Two replicas of each service and three nodes of NATS, in containers, with sessions at work all the time: every
service is restarted, one replica after the other, and a node of NATS is lost. Nothing else may be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from handmesh.client import Client
from handmesh.demo.stage import calls_served, new_token
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from tests.compose.ground import Mesh, local_images, up
from tests.compose.work import SCRIPT, SERVER, Worker, more, workers
from tests.drills.size import size

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

SESSIONS = size(3, 50)
TOKEN = new_token()
ORDER = ("session", "vault-proxy", "sandbox", "harness")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Mesh]:
    """Two of each service, three nodes of NATS."""
    folder: Path = tmp_path_factory.mktemp("compose")
    (folder / "script.yaml").write_text(SCRIPT)
    (folder / "token").write_text(TOKEN)
    told = {
        "MODEL_SCRIPT": str(folder / "script.yaml"),
        "SHOP_TOKEN_FILE": str(folder / "token"),
        "HANDMESH_OUTBOUND_ALLOW": "shop:8080",
        "HANDMESH_MCP_CONNECT_SECONDS": "60",  # that a busy machine is slow is no fault
    }
    profiles = ["scripted", "demo", "replicas", "r3"]
    async with up(profiles, told, "replicas.env", "r3.env", *await local_images()) as made:
        yield made


@asynccontextmanager
async def at_work(mesh: Mesh, client: Client, sessions: int) -> AsyncIterator[list[Worker]]:
    """Has sessions at work as long as the context lasts. At its end their turns end, and everything is looked at."""
    vault = await client.vaults.create("work")
    secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=TOKEN))
    await client.vaults.add(vault.vault_id, secret, origin="http://shop:8080", name=SERVER)
    calls = f"http://127.0.0.1:{mesh.ports['shop']}/mcp"
    before = len(await asyncio.to_thread(calls_served, calls))
    working = await workers(client, sessions, "http://shop:8080/mcp", vault.vault_id)
    async with asyncio.TaskGroup() as group:
        for each in working:
            group.create_task(each.work())
        await more(working, 1)
        yield working
        await more(working, 1)
        for each in working:
            each.stopped = True
    sent = [await each.check(client) for each in working]
    served = len(await asyncio.to_thread(calls_served, calls)) - before
    well, unknown = sum(each.well for each in sent), sum(each.unknown for each in sent)
    turns = sum(each.turns for each in working)
    print(f"{sessions} sessions, {turns} turns, {well} calls of the MCP server went well, {unknown} are unknown")
    assert well + unknown == sum(each.all for each in sent)
    assert 0 < well <= served <= well + unknown  # none ran twice


async def test_a_rolling_restart_is_not_noticed(mesh: Mesh) -> None:
    """Every replica of every service is stopped and started again under load: no turn fails, no event is lost, and no
    tool runs twice, neither in a hand nor at an MCP server. No call of a hand is lost, either."""
    async with mesh.client() as client, at_work(mesh, client, SESSIONS):
        for service in ORDER:
            for replica in (f"{service}-2", service):
                await mesh.restart(replica)


async def test_a_node_of_nats_is_lost(mesh: Mesh) -> None:
    """One of three nodes is killed, and comes back later: sessions work on without it, and nothing is lost."""
    async with mesh.client() as client, at_work(mesh, client, SESSIONS) as working:
        await mesh.kill("nats-1")
        await more(working, 1)
        await mesh.compose("start", "nats-1")
        await mesh.healthy("nats-1")
