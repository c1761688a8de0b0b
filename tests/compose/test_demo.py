"""The demo on the mesh in containers: the same story as `make demo`, told from outside over TLS."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handmesh.cli.following import Item
from handmesh.cli.printing import console
from handmesh.cli.transcript import Transcript
from handmesh.demo import proof
from handmesh.demo.narration import Narrator
from handmesh.demo.stage import SCRIPT, SERVER, Stage, calls_served, new_token, status_without_token
from handmesh.demo.story import HAND, first_turn, sandbox_of, second_turn
from handmesh.session.v1 import event_pb2, session_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from tests.compose.ground import DemoParts, Mesh, local_images, up

pytestmark = [pytest.mark.compose, pytest.mark.timeout(300)]

TOKEN = new_token()
UNAUTHORIZED = 401


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    """One replica of each, as `docker-compose up` starts it, and the MCP server of the demo."""
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    told = {
        "MODEL_SCRIPT": str(SCRIPT),
        "SHOP_TOKEN_FILE": str(token_file),
        "HANDMESH_OUTBOUND_ALLOW": "shop:8080",
    }
    async with up(["scripted", "demo"], told, *await local_images()) as made:
        yield made


async def test_the_demo_holds_in_containers(mesh: Mesh, tmp_path: Path) -> None:
    """A turn with a hand and an MCP server, and one whose harness is killed while a command runs: all that must hold
    of the demo does, and the token is nowhere in what the containers have written."""
    narrator, server = Narrator(console()), f"http://127.0.0.1:{mesh.ports['shop']}/mcp"
    transcript = Transcript(narrator.out, sys.stdout)

    def show(item: Item) -> None:
        if isinstance(item, event_pb2.Event):
            transcript.show(item)
        else:
            transcript.preview(item)

    assert await asyncio.to_thread(status_without_token, server) == UNAUTHORIZED
    async with mesh.client() as client:
        vault = await client.vaults.create("demo")
        secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=TOKEN))
        await client.vaults.add(vault.vault_id, secret, origin="http://shop:8080", name=SERVER)
        parts = DemoParts(mesh, {"harness": int(await mesh.inspect("harness", "{{.State.Pid}}"))})
        stage = Stage(parts, client, mesh.directory, "http://shop:8080/mcp", vault.vault_id, TOKEN)
        session = await first_turn(stage, narrator, show, "")
        call = await second_turn(stage, narrator, session, show)
        events = [event async for event in session.events()]
        executions = [each.execution_id for each in await client.executions(await sandbox_of(session))]
        request = session_pb2.VerifySessionRequest(session_id=session.id)
        found = await client.session_link.call(client.session_stub.VerifySession, request)
    outputs = [event.tool_finished.result.output for event in events if event.HasField("tool_finished")]
    findings = [
        proof.dense_positions(events),
        proof.turns_done(events, turns=2),
        proof.one_result_per_call(events),
        proof.all_calls_went_well(events),
        proof.taken_over(events, call),
        proof.ran_once(outputs[-1]),
        proof.same_executions(events, HAND, executions),
        proof.same_calls(events, SERVER, await asyncio.to_thread(calls_served, server)),
        proof.secret_is_nowhere(TOKEN, await written(mesh, tmp_path, events)),
    ]
    for finding in findings:
        narrator.finding(finding)
    assert [finding.text for finding in findings if not finding.holds] == []
    assert list(found.violations) == [] and found.last_position == len(events)


async def written(mesh: Mesh, directory: Path, events: list[event_pb2.Event]) -> dict[str, bytes]:
    """Returns what the mesh has written down: the session's events, all containers' logs, and both stores."""
    places = {"the log": b"\n".join(event.SerializeToString() for event in events)}
    places["what containers say"] = (await mesh.compose("logs", "--no-color")).encode()
    for store in ("nats-1", "openbao"):
        await mesh.compose("cp", f"{store}:/data", str(directory / store))
        files = [path for path in (directory / store).rglob("*") if path.is_file()]
        places |= {str(path.relative_to(directory)): path.read_bytes() for path in files}
    return places
