"""The main job through four processes on real parts, and what bad input and dead parts do to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from handmesh.client import Client, HandmeshError, Session
from handmesh.client.addresses import Addresses, local_api_key
from handmesh.client.channels import Link
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import HandSpec, McpServer, SessionConfig
from handmesh.session.v1.event_pb2 import Event, HarnessWoke, MessageReceived, ToolFinished, TurnEndReason
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from handmesh.vault_proxy.v1.vault_proxy_pb2_grpc import VaultProxyServiceStub
from services.kit.ids import mint

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

NOBODY = "sess_" + "0" * 26
TURN_SECONDS = 60.0


async def turn(session: Session, turns: int = 1) -> list[Event]:
    """Follows a session until so many turns have ended, and returns its log."""
    events: list[Event] = []
    async with asyncio.timeout(TURN_SECONDS):
        async for event in session.watch():
            events.append(event)
            if sum(event.HasField("turn_ended") for event in events) == turns:
                break
    return events


def kinds(events: list[Event]) -> list[str]:
    return [event.WhichOneof("kind") or "" for event in events]


def only(events: list[Event], kind: str) -> list[Any]:
    return [getattr(event, kind) for event in events if event.WhichOneof("kind") == kind]


def ends(events: list[Event]) -> list[str]:
    return [TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_") for it in only(events, "turn_ended")]


def outcomes(events: list[Event]) -> list[str]:
    names = [ToolOutcome.Name(it.result.outcome) for it in only(events, "tool_finished")]
    return [name.removeprefix("TOOL_OUTCOME_") for name in names]


def last_words(events: list[Event]) -> str:
    return "".join(block.get("text", "") for block in json.loads(only(events, "model_replied")[-1].content_json))


async def refused(call: Any) -> HandmeshError:
    with pytest.raises(HandmeshError) as told:
        await call
    return told.value


async def test_an_agent_works_in_a_hand_that_its_first_call_makes(client: Client) -> None:
    """A message in, two parallel tools in bubblewrap, an answer out; nothing is provisioned before the first call."""
    events = await turn(await client.create_session(content="work"))
    assert ends(events) == ["DONE"]
    assert outcomes(events) == ["OK", "OK"]
    assert kinds(events).count("sandbox_provisioned") == 1
    assert kinds(events).index("sandbox_provisioned") > kinds(events).index("model_replied")
    assert [event.position for event in events] == list(range(1, len(events) + 1))
    assert events[0].emitter == "session"
    assert events[-1].emitter == "harness"


@pytest.mark.docker
async def test_an_environment_chooses_the_backend(client: Client) -> None:
    """The same work in a container: the session names an environment, and nothing else differs."""
    config = SessionConfig(hands={"main": HandSpec(environment="docker")})
    events = await turn(await client.create_session(config, "work"))
    assert [it.environment for it in only(events, "sandbox_provisioned")] == ["docker"]
    assert outcomes(events) == ["OK", "OK"]
    assert ends(events) == ["DONE"]


async def test_a_session_without_tools_never_waits_for_a_hand(client: Client) -> None:
    """Hello and back: no sandbox, no tool call."""
    events = await turn(await client.create_session(content="hello"))
    assert "sandbox_provisioned" not in kinds(events)
    assert last_words(events) == "Hello."


async def test_text_is_seen_while_it_is_written_and_ends_in_the_event(client: Client) -> None:
    """Previews are contiguous pieces of the block that the event of record has, under the same id."""
    session = await client.create_session(content="long")
    pieces: dict[str, str] = {}
    async with asyncio.timeout(TURN_SECONDS):
        async for it in session.watch(previews=True):
            if isinstance(it, session_pb2.Preview):
                seen = pieces.get(it.event_id, "")
                if it.offset == len(seen):
                    pieces[it.event_id] = seen + it.text
            elif it.HasField("model_replied"):
                assert it.event_id in pieces
                text = json.loads(it.model_replied.content_json)[0]["text"]
                assert text.startswith(pieces[it.event_id])
                assert pieces[it.event_id]
            elif it.HasField("turn_ended"):
                break


async def test_mistakes_of_the_model_are_told_to_the_model(client: Client) -> None:
    """An unknown tool, input that the schema refuses, a file that is not there: values, and the turn goes on."""
    events = await turn(await client.create_session(content="mistakes"))
    assert outcomes(events) == ["TOOL_ERROR"] * 3
    assert ends(events) == ["DONE"]


async def test_a_refused_key_is_said_and_the_session_lives(client: Client) -> None:
    """401: one ErrorRaised that names the model, a failed turn, and the next message is answered."""
    session = await client.create_session(content="refused key")
    events = await turn(session)
    assert [(it.part, it.reason) for it in only(events, "error_raised")] == [("model", "MODEL_KEY_REFUSED")]
    await session.send("hello")
    assert ends(await turn(session, turns=2)) == ["FAILED", "DONE"]


async def test_an_overloaded_model_is_asked_again(client: Client) -> None:
    """529 and 429: the log shows each retry and why, and the turn ends well."""
    events = await turn(await client.create_session(content="overloaded"))
    assert [it.reason for it in only(events, "retry_scheduled")] == ["MODEL_OVERLOADED", "MODEL_RATE_LIMITED"]
    assert ends(events) == ["DONE"]


async def test_a_killed_harness_costs_nothing(mesh: Mesh, client: Client) -> None:
    """SIGKILL while the tool runs: the session goes on by itself in the next harness, and the tool ran once."""
    session = await client.create_session(content="slow")
    async for event in session.watch():
        if event.HasField("tool_started"):
            break
    await mesh.kill("harness")
    await mesh.restart("harness")
    events = await turn(session)
    assert kinds(events).count("harness_woke") == 2
    assert kinds(events).count("tool_started") == kinds(events).count("tool_finished") == 1
    assert only(events, "tool_finished")[0].result.output.split() == ["run"]
    assert ends(events) == ["DONE"]


async def test_a_killed_session_service_loses_nothing(mesh: Mesh, client: Client) -> None:
    """SIGKILL while the tool runs: harness and watcher come back, every position is seen once."""
    session = await client.create_session(content="slow")
    seen: list[Event] = []
    async with asyncio.timeout(TURN_SECONDS):
        async for event in session.watch():
            seen.append(event)
            if event.HasField("tool_started"):
                await mesh.kill("session")
                await mesh.restart("session")
            if event.HasField("turn_ended"):
                break
    assert [event.position for event in seen] == list(range(1, len(seen) + 1))
    assert only(seen, "tool_finished")[0].result.output.split() == ["run"]
    assert ends(seen) == ["DONE"]


async def test_a_killed_sandbox_service_loses_no_result(mesh: Mesh, client: Client) -> None:
    """SIGKILL while the tool runs: the runner goes on, and the restarted service has its result."""
    session = await client.create_session(content="slow")
    async for event in session.watch():
        if event.HasField("tool_started"):
            break
    await mesh.kill("sandbox")
    await mesh.restart("sandbox")
    events = await turn(session)
    assert outcomes(events) == ["OK"]
    assert only(events, "tool_finished")[0].result.output.split() == ["run"]


async def test_wake_is_for_anyone_at_any_time(client: Client) -> None:
    """Of an idle session it answers that there is nothing to do; of an unknown one NOT_FOUND."""
    session = await client.create_session(content="hello")
    await turn(session)
    while (outcome := await session.wake()) == 2:  # the harness that ended the turn has not left yet
        await asyncio.sleep(0)
    assert outcome == 3
    assert (await refused(client.session(NOBODY).wake())).reason == "SESSION_NOT_FOUND"


async def test_bad_input_is_refused_with_a_reason(client: Client) -> None:
    """Unknown and hostile ids, foreign kinds, too big, past the end: typed errors, and nothing is appended."""
    session = await client.create_session(content="hello")
    log = await turn(session)
    for hostile in ("*", ">", "a.b", "x" * 5_000, ""):
        assert (await refused(client.session(hostile).get())).reason == "ID_INVALID"
    assert (await refused(client.session(NOBODY).get())).reason == "SESSION_NOT_FOUND"
    assert (await refused(session.emit(Event(harness_woke=HarnessWoke())))).reason == "EMITTER_DENIED"
    result = ToolResult(output="hi", outcome=ToolOutcome.TOOL_OUTCOME_OK)
    finished = Event(tool_finished=ToolFinished(tool_use_id="t1", result=result))
    assert (await refused(session.emit(finished))).reason == "EMITTER_DENIED"
    assert (await refused(session.emit(Event()))).reason == "EVENT_INVALID"
    big = Event(message_received=MessageReceived(content_json=json.dumps([{"type": "text", "text": "x" * 2**20}])))
    assert (await refused(session.emit(big))).reason == "EVENT_TOO_LARGE"
    hello = Event(message_received=MessageReceived(content_json='[{"type": "text", "text": "hello"}]'))
    stale = await refused(session.emit(hello, expected_position=1))
    assert (stale.reason, stale.metadata["last_position"]) == ("POSITION_CONFLICT", str(len(log)))
    assert [event async for event in session.events(1_000)] == []
    with pytest.raises(HandmeshError) as told:
        async for _ in session.watch(1_000):
            pass
    assert told.value.reason == "POSITION_OUT_OF_RANGE"
    assert [event.position async for event in session.events()] == [event.position for event in log]


async def test_an_environment_that_is_not_there_costs_only_its_hand(client: Client) -> None:
    """The session goes on without that hand's tools, and the log says which part and why."""
    config = SessionConfig(hands={"main": HandSpec(environment="nowhere")})
    events = await turn(await client.create_session(config, "hello"))
    assert [(it.part, it.reason) for it in only(events, "error_raised")] == [("hand", "ENVIRONMENT_UNKNOWN")]
    assert ends(events) == ["DONE"]


async def test_a_dead_mcp_server_costs_only_itself(client: Client) -> None:
    """Nothing listens there: the log says so, the hand's tools are still offered, the turn ends well."""
    config = SessionConfig(mcp_servers=[McpServer(name="shop", url="http://127.0.0.1:9/mcp")])
    events = await turn(await client.create_session(config, "work"))
    assert [it.reason for it in only(events, "error_raised")] == ["SERVER_UNAVAILABLE"]
    assert outcomes(events) == ["OK", "OK"]


async def test_a_sealed_vault_costs_only_the_servers(mesh: Mesh, client: Client) -> None:
    """OpenBao is gone: the session goes on without the server's tools and the log names the vault."""
    await mesh.kill("openbao")
    try:
        config = SessionConfig(
            mcp_servers=[McpServer(name="shop", url="http://127.0.0.1:9/mcp")], vault_ids=[mint("vault")]
        )
        events = await turn(await client.create_session(config, "work"))
    finally:
        await mesh.restart("openbao")
    assert {it.reason for it in only(events, "error_raised")} == {"VAULT_UNAVAILABLE"}
    assert outcomes(events) == ["OK", "OK"]


async def test_the_same_request_makes_the_same_session(client: Client) -> None:
    """CreateSession is idempotent by `request_id`, and refuses the id for something else."""
    one = await client.create_session(content="hello", request_id="again")
    await turn(one)
    again = await refused(client.create_session(SessionConfig(title="other"), request_id="again"))
    assert again.reason == "REQUEST_ID_REUSED"


async def test_people_can_use_a_hand_without_a_session(mesh: Mesh) -> None:
    """provision, execute, list, release, as a client: what a person with grpcurl does."""
    ports, directory = mesh.settings.ports, mesh.files.data_directory
    link = Link(Addresses.of_ports(ports).sandbox, local_api_key(directory), None)
    stub = SandboxServiceStub(link.channel)
    try:
        made = (await link.call(stub.Provision, sandbox_pb2.ProvisionRequest(request_id="people"))).sandbox
        run = sandbox_pb2.ExecuteRequest(sandbox_id=made.sandbox_id, name="bash", input='{"command": "exit 7"}')
        result = (await link.call(stub.Execute, run)).result
        assert (ToolOutcome.Name(result.outcome), result.exit_code) == ("TOOL_OUTCOME_TOOL_ERROR", 7)
        run.input = "no json"
        assert (await refused(link.call(stub.Execute, run))).reason == "TOOL_INPUT_INVALID"
        run.name, run.input = "no_such_tool", "{}"
        assert (await refused(link.call(stub.Execute, run))).reason == "TOOL_UNKNOWN"
        await link.call(stub.Release, sandbox_pb2.ReleaseRequest(sandbox_id=made.sandbox_id))
        run.name, run.input = "bash", '{"command": "true"}'
        assert (await refused(link.call(stub.Execute, run))).reason == "SANDBOX_GONE"
    finally:
        await link.close()


@pytest.mark.vault
async def test_a_servers_tool_is_called_with_a_token_that_nobody_sees(
    mesh: Mesh, client: Client, tmp_path: Path
) -> None:
    """The token goes in through AddCredential; the tool answers; the token is in no event and no file of the mesh."""
    token = f"canary-{mint('tok')}"
    (tmp_path / "token").write_text(token)
    arguments = ("-m", "handmesh.demo_mcp", "--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    server = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    url = json.loads(await server.stdout.readline())["url"]
    link = Link(Addresses.of_ports(mesh.settings.ports).vault_proxy, local_api_key(mesh.files.data_directory), None)
    stub = VaultProxyServiceStub(link.channel)
    try:
        vault = (await link.call(stub.CreateVault, vault_proxy_pb2.CreateVaultRequest(name="shop"))).vault
        secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value=token))
        origin = url.removesuffix("/mcp")
        add = vault_proxy_pb2.AddCredentialRequest(vault_id=vault.vault_id, name="shop", origin=origin, secret=secret)
        await link.call(stub.AddCredential, add)
        config = SessionConfig(no_hands=True, mcp_servers=[McpServer(name="shop", url=url)], vault_ids=[vault.vault_id])
        session = await client.create_session(config, "shop")
        events = await turn(session)
        assert outcomes(events) == ["OK"]
        assert only(events, "tool_started")[0].hand == "shop"
        assert all(token.encode() not in event.SerializeToString() for event in events)
        found = await asyncio.create_subprocess_exec("grep", "-rlF", "-e", token, str(mesh.files.data_directory))
        assert await found.wait() == 1  # grep's word for: nowhere
    finally:
        await link.close()
        server.terminate()
        await server.wait()


@pytest.mark.parametrize("service", ["vault_proxy", "sandbox", "harness", "session"])
async def test_sigterm_ends_a_service_gracefully(mesh: Mesh, client: Client, service: str) -> None:
    """It ends by itself with exit code 0, and a new one of its kind takes over what there is."""
    process = mesh.pids[service]
    lost = asyncio.create_task(mesh.lost())
    os.kill(process, signal.SIGTERM)
    async with asyncio.timeout(TURN_SECONDS):
        assert "exit code 0" in str(await lost)
    await mesh.restart(service)
    assert ends(await turn(await client.create_session(content="work"))) == ["DONE"]
