"""docs/operations.md, run as it stands: each command against one mesh, and what it prints is what the page promises."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import os
import re
import shutil
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from handmesh.client import Client, HandmeshError, Session
from handmesh.client.addresses import local_api_key
from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.mesh import Mesh
from handmesh.session.v1 import config_pb2, session_pb2
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from services.kit.ids import mint
from tests.e2e.test_mesh import ends, kinds, only, outcomes, turn
from tests.support.requirements import grpcurl

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nats,
    pytest.mark.bwrap,
    pytest.mark.grpcurl,
    pytest.mark.asyncio(loop_scope="module"),
]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
SERVICES = {"7401": "session", "7402": "harness", "7403": "sandbox", "7404": "vault_proxy"}
OWN_PORT = "127.0.0.1:7411"  # the session service's, for the other services
SECONDS = 60.0


def recipe(heading: str) -> list[str]:
    """Returns the commands below a heading, a block each."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found, heading
    return found


@dataclass
class Shell:
    """Somebody who has done what is under "Before you begin", in a folder of their own."""

    mesh: Mesh
    folder: Path
    ran: set[str] = field(default_factory=set)

    async def bash(self, commands: str) -> str:
        """Runs commands; returns what they print."""
        ports = self.mesh.settings.ports
        for port, service in SERVICES.items():
            commands = commands.replace(f"127.0.0.1:{port}", ports.client(service))
        commands = commands.replace(OWN_PORT, ports.mesh("session"))
        assert grpcurl() is not None
        environment = {
            "PATH": f"{Path(str(grpcurl())).parent}:{os.environ['PATH']}",
            "HANDMESH_DATA_DIR": str(self.mesh.files.data_directory),
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            "KEY": f"authorization: Bearer {local_api_key(self.mesh.files.data_directory)}",
        }
        handmesh = f'handmesh() {{ {sys.executable} -m handmesh.cli "$@"; }}\n'
        process = await asyncio.create_subprocess_exec(
            *("bash", "-eu", "-c", handmesh + commands),
            env=environment,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(SECONDS):
            printed, said = await process.communicate()
        assert process.returncode == 0, f"{commands}\n{printed.decode()}{said.decode()}"
        return printed.decode()

    async def follow(self, heading: str, **words: str) -> list[str]:
        """Runs each block of a recipe with words in place of those in capitals; returns what each prints."""
        self.ran.add(heading)
        begin = "".join(recipe("Before you begin")[0].splitlines(keepends=True)[1:])
        printed = []
        for block in recipe(heading):
            for port in SERVICES:  # `for port in 7401 ...` names each by itself
                block = re.sub(rf"(?<![:\d]){port}\b", self._port(port), block)
            for word, value in words.items():
                block = re.sub(rf"\b{word}\b", value, block)
            printed.append(await self.bash(begin + block.replace("10 minutes ago", "1 minute")))
        return printed

    def _port(self, port: str) -> str:
        return self.mesh.settings.ports.client(SERVICES[port]).rpartition(":")[2]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shell(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """A shell for all recipes."""
    yield Shell(mesh, tmp_path_factory.mktemp("shell"))


def answers(printed: str) -> list[Any]:
    """Reads the JSON objects that grpcurl and jq print one after the other."""
    decoder, found, rest = json.JSONDecoder(), [], printed.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


def policy(pattern: str, action: config_pb2.ToolPolicyAction.ValueType) -> SessionConfig:
    """Returns a configuration with one tool policy."""
    return SessionConfig(tool_policies=[config_pb2.ToolPolicy(pattern=pattern, action=action)])


async def until(session: Session, kind: str, count: int = 1) -> list[Event]:
    """Returns the first so many events of a kind, when they are there."""
    found: list[Event] = []
    async with asyncio.timeout(SECONDS):
        async for event in session.watch():
            found += [event] if event.WhichOneof("kind") == kind else []
            if len(found) == count:
                return found
    raise AssertionError(kind)


async def test_the_key_is_found_as_the_page_says(shell: Shell) -> None:
    """The first line gives the key of the mesh on this machine, and the rest of the block makes no call."""
    (begin,) = recipe("Before you begin")
    assert (await shell.bash(begin + 'printf %s "$KEY"')).startswith("authorization: Bearer ")
    shell.ran.add("Before you begin")


async def test_health_and_since_when(shell: Shell) -> None:
    """Four services serve, and each says who it is and since when."""
    health, status = await shell.follow("Is everything up?")
    assert answers(health) == [{"status": "SERVING"}] * 4
    assert all(set(each) >= {"instance", "serve_time", "now"} for each in answers(status))
    assert len({each["instance"] for each in answers(status)}) == 4


async def test_who_is_stuck_and_why(shell: Shell, client: Client) -> None:
    """A session whose harness type nobody serves is found, and the reason with it; one that waits for a person too."""
    lost = await client.create_session(SessionConfig(harness="nobody"), "work")
    asked = await client.create_session(policy("bash", config_pb2.TOOL_POLICY_ACTION_ASK), "work")
    (call,) = [event.tool_confirmation_requested for event in await until(asked, "tool_confirmation_requested")]
    await until(asked, "tool_finished")  # of the call beside it, which nobody has to allow: till then it is at work
    done = await client.create_session(content="work")
    await turn(done)
    at_work, waiting = await shell.follow("Who is stuck?")
    assert f"{lost.id}\tSESSION_STATUS_RUNNING" in at_work and done.id not in at_work
    assert f"{asked.id}\tSESSION_STATUS_WAITING" in waiting and call.tool_use_id in waiting
    what, wrong, runs, types = await shell.follow("Why is it stuck?", SESSION=lost.id)
    assert answers(what)[0]["session"]["status"] == "SESSION_STATUS_RUNNING"
    assert "events" not in answers(wrong)[0]
    assert answers(runs)[0] | {"capacity": 0} == {"capacity": 0, "draining": None, "hindrances": None, "run": []}
    assert {"name": "nobody", "waiting": 1} in answers(types)[0]["types"]
    await lost.end()


async def test_a_session_is_woken(shell: Shell, client: Client) -> None:
    """Nobody has to know whether it was awake."""
    session = await client.create_session(content="work")
    await turn(session)
    (woken,) = await shell.follow("Wake a session", SESSION=session.id)
    assert answers(woken)[0]["outcome"] in ("WAKE_OUTCOME_NOTHING_TO_DO", "WAKE_OUTCOME_ALREADY_AWAKE")


async def test_a_turn_is_stopped_and_a_call_cancelled(shell: Shell, client: Client) -> None:
    """A cancelled call ends as INTERRUPTED and the turn goes on; an interrupt ends the turn."""
    cancelled, stopped = [await client.create_session(content="take your time") for _ in range(2)]
    (call,) = [event.tool_started for event in await until(cancelled, "tool_started")]
    words = {"SESSION": cancelled.id, "SANDBOX": call.sandbox_id, "EXECUTION": call.tool_use_id}
    async with asyncio.timeout(SECONDS):
        while not [each for each in await client.executions(call.sandbox_id) if each.running]:
            await asyncio.sleep(0.05)
    listed, executions, nothing = answers("".join(await shell.follow("Cancel one tool call", **words)))
    assert [each["sandbox_id"] for each in listed["sandboxes"]] == [call.sandbox_id]
    assert [(each["execution_id"], each["running"]) for each in executions["executions"]] == [(call.tool_use_id, True)]
    assert nothing == {}
    events = await turn(cancelled)
    assert (outcomes(events), ends(events)) == (["INTERRUPTED"], ["DONE"])
    await until(stopped, "tool_started")
    (said,) = await shell.follow("Stop a turn", SESSION=stopped.id)
    assert int(answers(said)[0]["position"]) > 2
    assert ends(await turn(stopped)) == ["INTERRUPTED"]


async def test_a_call_is_allowed_by_its_hash(shell: Shell, client: Client) -> None:
    """What the first call prints is what the second needs."""
    session = await client.create_session(policy("write", config_pb2.TOOL_POLICY_ACTION_ASK), "work")
    (asked,) = [event.tool_confirmation_requested for event in await until(session, "tool_confirmation_requested")]
    words = {"SESSION": session.id, "CALL": asked.tool_use_id, "HASH": asked.call_hash}
    (printed,) = await shell.follow("Allow or refuse a call", **words)
    told, emitted = answers(printed)
    assert told["events"][0]["tool_confirmation_requested"]["call_hash"] == asked.call_hash
    assert emitted["position"]
    assert outcomes(await turn(session)) == ["OK", "OK"]


async def test_somebody_answers_for_a_client(shell: Shell, client: Client) -> None:
    """The model gets what was said in the client's place."""
    ask = config_pb2.CustomTool(name="ask", description="Asks.", input_schema_json='{"type": "object"}')
    session = await client.create_session(SessionConfig(custom_tools=[ask]), "ask somebody")
    (asked,) = [event.custom_tool_requested for event in await until(session, "custom_tool_requested")]
    await shell.follow("Answer for a client's tool", SESSION=session.id, CALL=asked.tool_use_id)
    assert outcomes(await turn(session)) == ["TOOL_ERROR"]


async def test_a_budget_is_raised_and_the_turn_goes_on(shell: Shell, client: Client) -> None:
    """Paused by name; after the change it goes on where it stopped."""
    session = await client.create_session(SessionConfig(budgets=config_pb2.Budgets(max_tool_calls=1)), "work")
    (paused,) = [event.budget_reached for event in await until(session, "budget_reached")]
    assert paused.budget == "max_tool_calls"
    (printed,) = await shell.follow("Raise a budget", SESSION=session.id)
    assert answers(printed)[0]["session"]["config"]["budgets"] == {"max_tool_calls": "50"}
    assert ends(await turn(session)) == ["DONE"]


async def test_a_session_changes_its_harness_type(shell: Shell, client: Client) -> None:
    """The next turn is another brain's."""
    session = await client.create_session(content="work")
    await turn(session)
    (printed,) = await shell.follow("Give a session to another harness type", SESSION=session.id)
    assert answers(printed)[0]["session"]["config"]["harness"] == "echo"
    await session.send("hello")
    assert [it.harness for it in only(await turn(session, 2), "harness_woke")][-1] == "echo"


async def test_sessions_are_found_and_capacity_told(shell: Shell, client: Client) -> None:
    """Filters are joined by and."""
    one, other = [await client.create_session(SessionConfig(labels={"team": each})) for each in ("search", "shop")]
    (printed,) = await shell.follow("Find sessions")
    found = [each["session_id"] for each in answers(printed)[0]["sessions"]]
    assert one.id in found and other.id not in found
    (printed,) = await shell.follow("How full is it?")
    types, room = answers(printed)
    assert {"messages", "echo"} <= {each["name"] for each in types["types"] if each.get("harnesses") == 1}
    assert room["capacity"] == 100


async def test_sandboxes_are_listed_moved_and_released(shell: Shell, client: Client) -> None:
    """A hand goes to another session with what is in it; a released one is in no list."""
    one, other = await client.create_session(content="work"), await client.create_session()
    await turn(one)
    (made,) = await client.sandboxes(one.id)
    words = {"SANDBOX": made.sandbox_id, "SESSION": one.id, "OTHER": other.id, "GENERATION": str(made.generation)}
    (printed,) = await shell.follow("Move a hand", **words)
    listed, moved = answers(printed)
    assert listed == {"sandbox_id": made.sandbox_id, "hand": "main", "generation": str(made.generation)}
    assert (moved["sandbox"]["session_id"], moved["sandbox"]["hand"]) == (other.id, "gift")
    (printed,) = await shell.follow("Sandboxes", SANDBOX=made.sandbox_id)
    assert f"{made.sandbox_id}\t{other.id}\tgift\t" in printed
    assert made.sandbox_id not in [each.sandbox_id for each in await client.sandboxes()]


async def test_secrets_are_turned(shell: Shell, client: Client) -> None:
    """A credential has its next version, and says no secret; a hand's first token is void, and the second is good."""
    vault = await client.vaults.create("shop")
    secret = vault_proxy_pb2.CredentialSecret(static_bearer=vault_proxy_pb2.StaticBearer(value="old"))
    made = await client.vaults.add(vault.vault_id, secret, origin="https://shop.example", name="shop")
    canary = f"canary-{mint('tok')}"
    (shell.folder / "token.txt").write_text(f"{canary}\n")
    words = {"VAULT": vault.vault_id, "CREDENTIAL": made.credential_id}
    (printed,) = await shell.follow("Rotate a credential", **words)
    assert f"{vault.vault_id}\tshop" in printed and canary not in printed
    turned = answers(printed[printed.index("{") :])[-1]["credential"]
    assert (turned["credential_id"], int(turned["version"])) == (made.credential_id, made.version + 1)
    await client.hand_tokens.create("laptop")
    (first,) = [each for each in await client.hand_tokens.all() if each.name == "laptop"]
    await shell.follow("Rotate a hand's token", TOKEN=first.hand_token_id)
    assert (shell.folder / "laptop.token").read_text().startswith("hand_")
    kept = [each.HasField("revoke_time") for each in await client.hand_tokens.all() if each.name == "laptop"]
    assert kept == [True, False]


async def test_keys_of_clients_are_turned(shell: Shell, client: Client) -> None:
    """The new key works and the old one is void."""
    old = await client.session_link.call(
        client.session_stub.CreateApiKey, session_pb2.CreateApiKeyRequest(name="ci", scope=session_pb2.SCOPE_RUN)
    )
    (printed,) = await shell.follow("Rotate an API key", APIKEY=old.api_key.api_key_id)
    assert f"{old.api_key.api_key_id}\tci\tSCOPE_RUN\tgood" in printed
    new = (shell.folder / "ci.key").read_text().strip()
    assert new.startswith("hm_") and new not in printed
    async with Client(client.addresses, new) as other:
        assert await other.create_session()
    async with Client(client.addresses, old.key) as other:
        with pytest.raises(HandmeshError, match="IDENTITY_UNKNOWN"):
            await other.create_session()


async def test_a_certificate_is_turned_without_a_restart(shell: Shell, mesh: Mesh, client: Client) -> None:
    """A new connection is shown the new one, and the mesh goes on."""
    kept = mesh.files.tls
    fresh = shell.folder / "tls"
    shutil.copytree(kept, fresh)
    for name in ("cert.pem", "key.pem"):
        (fresh / "session" / name).unlink()
    ensure_certificates(fresh, ["session"], datetime.datetime.now(datetime.UTC))
    (fresh / "session").rename(shell.folder / "new")
    new = ssl.PEM_cert_to_DER_cert((shell.folder / "new" / "cert.pem").read_text())
    assert (kept / "session" / "cert.pem").read_text() != (shell.folder / "new" / "cert.pem").read_text()
    _, shown = await shell.follow("Rotate certificates", TLSDIR=str(kept / "session"))
    assert hashlib.sha256(new).hexdigest().upper() in shown.replace(":", "")
    assert ends(await turn(await client.create_session(content="work"))) == ["DONE"]


async def test_a_log_is_verified_forked_exported_and_imported(shell: Shell, client: Client) -> None:
    """The fork has the same beginning and its own end; the import has the same events at the same positions."""
    session = await client.create_session(content="work")
    events = await turn(session)
    (verified,) = await shell.follow("Verify a log", SESSION=session.id)
    assert answers(verified)[0]["last_position"] == str(len(events)) and "violations" not in answers(verified)[0]
    begin = "".join(recipe("Before you begin")[0].splitlines(keepends=True)[1:])
    made, *rest = recipe("Fork a session to debug it")[0].splitlines(keepends=True)
    fork = (await shell.bash(begin + made.replace("SESSION", session.id))).strip()
    (again, *_) = answers(await shell.bash(begin + rest[0].replace("FORK", fork)))
    assert again["position"] and ends(await turn(client.session(fork))) == ["DONE"]
    last = answers(await shell.bash(begin + rest[1].replace("FORK", fork)))[0]["events"]
    assert "turn_ended" in last[-1]
    shell.ran.add("Fork a session to debug it")
    (audit,) = await shell.follow("Read the audit trail", SESSION=session.id)
    assert answers(audit) == [{}]  # it used no credential
    (printed,) = await shell.follow("Export a log, and import it", SESSION=session.id)
    copied = [event async for event in client.session(printed.strip()).events()]
    assert kinds(copied) == kinds(events) and [it.event_id for it in copied] == [it.event_id for it in events]


async def test_a_session_is_deleted_for_good(shell: Shell, client: Client) -> None:
    """Ended, archived, deleted: in the end nobody finds it."""
    session = await client.create_session(content="work")
    await turn(session)
    (printed,) = await shell.follow("End, put away, delete for good", SESSION=session.id)
    ended, archived, deleted = answers(printed)
    assert ended["session"]["status"] == "SESSION_STATUS_ENDED" and archived["session"]["archived"] is True
    assert deleted == {}
    with pytest.raises(HandmeshError, match="SESSION_NOT_FOUND"):
        await session.get()


async def test_a_harness_is_drained(shell: Shell, mesh: Mesh, client: Client) -> None:
    """It ends what it has and takes nothing new: the session that comes then waits for the next one, and is counted."""
    session = await client.create_session(content="work")
    (printed,) = await shell.follow("Drain a harness")
    (_, drained) = answers(printed)
    assert drained["draining"] is True and "runs" not in drained
    late = await client.create_session(content="work")
    request = session_pb2.ListServedTypesRequest(count_waiting=True)
    found = await client.session_link.call(client.session_stub.ListServedTypes, request)
    assert {it.name: it.waiting for it in found.types}["messages"] >= 1
    await mesh.restart("harness")
    assert [ends(await turn(each)) for each in (session, late)] == [["DONE"], ["DONE"]]


async def test_every_recipe_is_run(shell: Shell) -> None:
    """A recipe without a test is none."""
    assert set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE)) == shell.ran
