"""The mesh's own tools on a real mesh: memory that sessions share, and a session's log for its own model and code."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1.sandbox_pb2 import LogView, Resource
from handmesh.session.v1 import memory_pb2
from handmesh.session.v1.config_pb2 import HandSpec, MemoryAccess, SessionConfig
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from tests.e2e.test_mesh import ends, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]


async def test_sessions_share_a_memory(client: Client) -> None:
    """One writes, another reads, under a name of its own; what the other may only read it cannot write."""
    stub, link = MemoryServiceStub(client.session_link.channel), client.session_link
    made = await link.call(stub.CreateMemoryStore, memory_pb2.CreateMemoryStoreRequest(name="team"))
    store = made.memory_store.memory_store_id
    writes = MemoryAccess(memory_store_id=store, name="team", description="What the team has to do.")
    writer = await client.create_session(SessionConfig(memory_stores=[writes], no_hands=True), "remember the milk")
    events = await turn(writer)
    assert (ends(events), outcomes(events)) == (["DONE"], ["OK", "OK"])
    assert "/memories/team: What the team has to do." in only(events, "tool_finished")[0].result.output

    reads = MemoryAccess(memory_store_id=store, name="ours", read_only=True)
    reader = await client.create_session(SessionConfig(memory_stores=[reads], no_hands=True), "what is there to do")
    events = await turn(reader)
    said = {it.result.output: it.result.outcome for it in only(events, "tool_finished")}
    assert sorted(outcomes(events)) == ["OK", "TOOL_ERROR"]
    assert "The directory /memories/ours is read-only." in said
    assert "Here's the content of /memories/ours/todo.md with line numbers:\n     1\tbuy milk\n     2\t" in said

    request = memory_pb2.ListMemoryVersionsRequest(memory_store_id=store, path="todo.md")
    versions = (await link.call(stub.ListMemoryVersions, request)).versions
    assert [(version.version, version.session_id) for version in versions] == [(1, writer.id)]


async def test_a_session_goes_through_its_own_log(client: Client) -> None:
    """By the tool and by code in the hand, which finds all that was there when it was started, and may not write it."""
    view = Resource(mount_path="/workspace/log.jsonl", log_view=LogView())
    config = SessionConfig(hands={"main": HandSpec(resources=[view])}, mesh_tools=["session_events"])
    events = await turn(await client.create_session(config, "look back"))
    assert ends(events) == ["DONE"]
    started = {it.tool_use_id: it for it in only(events, "tool_started")}
    said = [(started[it.tool_use_id].name, it.result.output) for it in only(events, "tool_finished")]
    (look,) = [output for name, output in said if name == "session_events"]
    assert "message_received by client\n  look back\n[That is all.]" in look
    first, second = [output.splitlines() for name, output in said if name == "bash"]
    assert (first[0], second[0]) == ("444", "444")
    assert first[1].startswith("True [") and "'bash'" in first[1]
    assert sorted(ast.literal_eval(second[1].removeprefix("True "))) == ["bash", "bash", "session_events"]


def command(mesh: Mesh, *arguments: str, given: bytes = b"") -> str:
    """Runs the command line on the mesh, and returns what it prints."""
    line = [sys.executable, "-m", "handmesh.cli", *arguments, "--data-dir", str(mesh.files.data_directory)]
    return subprocess.run(line, input=given, capture_output=True, check=True, timeout=60).stdout.decode()


async def test_the_pages_python_runs(client: Client) -> None:
    """The code of docs/memory.md and docs/tools.md works as it stands."""
    names: dict[str, Any] = {}
    for page in ("memory", "tools"):
        text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(code, names)
    session = await names["remember"](client)
    config = (await session.get()).config
    (file,) = await client.memories.files(config.memory_stores[0].memory_store_id)
    assert (file.path, file.version) == ("rules.md", 1)
    made = await client.create_session(names["CONFIG"])
    assert (await made.get()).config.hands["main"].resources[0] == names["VIEW"]


async def test_a_person_keeps_memory_by_the_command_line(mesh: Mesh, client: Client) -> None:
    """What a person writes a session reads, and what the session writes the person sees, with its versions."""

    def work() -> None:
        store = command(mesh, "memory", "create", "by hand").strip()
        assert store in command(mesh, "memory", "list")
        assert "version 1" in command(mesh, "memory", "put", "by hand", "todo.md", given=b"buy milk\n")
        task = ("run", "what is there to do", "--no-hands", "--memory", "ours=by hand")
        assert "The memory file has been edited" in command(mesh, *task)
        assert command(mesh, "memory", "get", store, "todo.md") == "buy cake\n"
        assert command(mesh, "memory", "get", store, "todo.md", "--version", "1") == "buy milk\n"
        said = command(mesh, "memory", "versions", "by hand", "todo.md", "--json").splitlines()
        assert [(json.loads(line)["version"], "sessionId" in json.loads(line)) for line in said] == [
            ("2", True),
            ("1", False),
        ]
        command(mesh, "memory", "delete", "by hand", "todo.md")
        assert "todo.md" not in command(mesh, "memory", "list", "by hand")
        command(mesh, "memory", "delete", "by hand", "--yes")
        assert store not in command(mesh, "memory", "list")

    await asyncio.to_thread(work)
