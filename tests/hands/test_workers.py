"""Workers that dial out, as their owners write them: what they are asked they do once, and it is said whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

import grpc
import pytest

from handmesh.hand import Call, Hand, HandRefused, Image, Place, Result, ToolError, Worker, hand_of, tool
from handmesh.hand.local import Directory
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.channels import raised
from services.sandbox.backends import keys
from services.sandbox.environments import parse
from tests.support.cut_link import cut_link
from tests.support.hands_ground import SECONDS, Ground, ground, result

OK, ERROR = tool_pb2.TOOL_OUTCOME_OK, tool_pb2.TOOL_OUTCOME_TOOL_ERROR
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


class Lamp(Hand):
    """A lamp."""

    capacity = 2

    def __init__(self) -> None:
        self.log: list[str] = []
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    @tool
    def switch(self, on: bool, color: Annotated[Literal["red", "blue"] | None, "Which."] = None) -> str:
        """Switches the lamp."""
        self.log.append(f"{on} {color}")
        return f"on={on}"

    @tool(read_only=True)
    async def look(self) -> list[str | Image]:
        """Shows the lamp."""
        return ["here", Image(PNG)]

    @tool
    async def slow(self, call: Call) -> str:
        """Takes its time."""
        self.log.append(call.execution_id)
        call.write("one\n")
        self.begun.set()
        await self.go.wait()
        call.write("two\n")
        return "one\ntwo"

    @tool
    async def break_(self) -> Result:
        """Fails."""
        raise ToolError("it is broken")


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Ground]:
    """A service that takes workers in."""
    async with ground(tmp_path) as made:
        yield made


async def test_a_hand_is_offered_under_its_name_and_its_tools_run(it: Ground) -> None:
    """Text, pictures, failures and wrong input; the tools are those of its methods, described by their docstrings."""
    lamp = Lamp()
    await it.worker(lamp, "lamp")
    found = await it.client.ListTools(pb.ListToolsRequest(environment="lamp"))
    assert [tool.name for tool in found.tools] == ["switch", "look", "slow", "break_"]
    assert (found.environment, found.environment_description) == ("lamp", "A lamp.")
    assert found.tools[1].read_only and found.tools[1].idempotent and not found.tools[0].idempotent
    schema = json.loads(found.tools[0].input_schema_json)
    assert schema["properties"]["color"] == {"enum": ["red", "blue"], "description": "Which."}
    assert schema["required"] == ["on"]
    listed = (await it.client.ListEnvironments(pb.ListEnvironmentsRequest())).environments
    assert [(each.backend, each.available) for each in listed if each.name == "lamp"] == [("remote", True)]
    sandbox = await it.sandbox("lamp")
    assert (await it.execute(sandbox, "switch", on=True, color=None)).output == "on=True"
    shown = await it.execute(sandbox, "look")
    assert [block["type"] for block in json.loads(shown.content_json)] == ["text", "image"]
    for name, given, told in (
        ("break_", {}, "it is broken"),
        ("switch", {}, "needed and not given: on"),
        ("switch", {"on": 1}, 'on must be {"type": "boolean"}'),
        ("switch", {"on": True, "of": 1}, "there is no parameter of; there are: on, color"),
    ):
        failed = await it.execute(sandbox, name, **given)
        assert (failed.outcome, failed.output) == (ERROR, told)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await it.execute(sandbox, "unknown")
    assert raised(error.value).reason == "TOOL_UNKNOWN"
    assert lamp.log == ["True None"]


async def test_other_tenants_have_other_hands(it: Ground) -> None:
    """A hand of another tenant is no environment of this one, though its name is the same."""
    await it.worker(Lamp(), "theirs", token=it.tokens.make("theirs", "other"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await it.sandbox("theirs")
    assert raised(error.value).reason == "ENVIRONMENT_UNKNOWN"


async def test_several_workers_are_a_queue(it: Ground) -> None:
    """A call goes to whoever has room, and waits when nobody has; each runs once."""
    lamps = [Lamp(), Lamp()]
    for lamp in lamps:
        await it.worker(lamp, "lamp")
    sandbox = await it.sandbox("lamp")
    calls = [asyncio.create_task(it.execute(sandbox, "slow", f"call-{number}")) for number in range(6)]
    async with asyncio.timeout(SECONDS):
        while sum(len(lamp.log) for lamp in lamps) < 4:
            await asyncio.sleep(0.01)
    assert [len(lamp.log) for lamp in lamps] == [2, 2]
    listed = (await it.client.ListExecutions(pb.ListExecutionsRequest(sandbox_id=sandbox))).executions
    assert [each.running for each in listed] == [True] * 6
    for lamp in lamps:
        lamp.go.set()
    assert {(await call).output for call in calls} == {"one\ntwo"}
    assert sorted(lamps[0].log + lamps[1].log) == [f"call-{number}" for number in range(6)]


async def test_without_a_worker_a_call_ends_soon_and_nothing_is_run(it: Ground) -> None:
    """It is told as the tool's failure, and so that it can be tried again."""
    worker = await it.worker(Lamp(), "lamp")
    sandbox = await it.sandbox("lamp")
    worker.drain()
    await it.workers[0][1]
    told = await it.execute(sandbox, "switch", "call-1", on=True)
    assert (told.outcome, told.output) == (ERROR, "no worker of the hand lamp is connected: nothing was run")
    environments = (await it.client.ListEnvironments(pb.ListEnvironmentsRequest())).environments
    assert [each.available for each in environments if each.name == "lamp"] == [False]
    assert len((await it.client.ListTools(pb.ListToolsRequest(environment="lamp"))).tools) == 4  # known still


@pytest.mark.parametrize("how", ["cut", "silence"])
async def test_a_broken_link_breaks_no_call(it: Ground, how: str) -> None:
    """The link goes while a command runs, which ends meanwhile: one run, the whole output, the right result."""
    lamp = Lamp()
    async with cut_link(int(it.address.rpartition(":")[2])) as link:
        worker = await it.worker(lamp, "lamp", f"127.0.0.1:{link.port}")
        sandbox = await it.sandbox("lamp")
        call = asyncio.create_task(it.execute(sandbox, "slow", "call-1"))
        await lamp.begun.wait()
        getattr(link, how)()
        async with asyncio.timeout(SECONDS):
            while worker.linked.is_set():
                await asyncio.sleep(0.01)
        lamp.go.set()
        await asyncio.sleep(0.05)
        assert not call.done()
        link.mend()
        assert (await call).output == "one\ntwo"
    assert await it.watched(sandbox, "call-1") == ("one\ntwo\n", await call)
    assert lamp.log == ["call-1"]


async def test_a_restarted_service_sends_nothing_twice(tmp_path: Path) -> None:
    """A new service over the same state takes the worker's word for what it has; who asks again gets the result."""
    lamp = Lamp()
    async with cut_link(0) as link:
        async with ground(tmp_path) as first:
            link.target = int(first.address.rpartition(":")[2])
            token = first.tokens.make("lamp")
            hand = Worker(lamp, Place(f"127.0.0.1:{link.port}", "lamp", token))
            serving = asyncio.create_task(hand.run())
            await hand.linked.wait()
            sandbox = await first.sandbox("lamp")
            call = asyncio.create_task(first.execute(sandbox, "slow", "call-1"))
            await lamp.begun.wait()
        await asyncio.gather(call, return_exceptions=True)
        async with ground(tmp_path) as second:
            second.tokens.make("lamp")
            link.target = int(second.address.rpartition(":")[2])
            again = asyncio.create_task(second.execute(sandbox, "slow", "call-1"))
            await hand.linked.wait()
            lamp.go.set()
            assert (await again).output == "one\ntwo"
            assert (await second.watched(sandbox, "call-1"))[0] == "one\ntwo\n"
            assert lamp.log == ["call-1"]
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await hand.close()


async def test_a_call_is_cancelled(it: Ground) -> None:
    """The tool is ended; what was cancelled first never starts; the worker goes on."""
    lamp = Lamp()
    await it.worker(lamp, "lamp")
    sandbox = await it.sandbox("lamp")
    call = asyncio.create_task(it.execute(sandbox, "slow", "call-1"))
    await lamp.begun.wait()
    await it.client.CancelExecution(pb.CancelExecutionRequest(sandbox_id=sandbox, execution_id="call-1"))
    assert (await call).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    await it.client.CancelExecution(pb.CancelExecutionRequest(sandbox_id=sandbox, execution_id="call-2"))
    assert (await it.execute(sandbox, "switch", "call-2", on=True)).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    assert (await it.execute(sandbox, "switch", on=False)).output == "on=False"
    assert lamp.log == ["call-1", "False None"]


async def test_a_call_that_was_cancelled_on_its_way_is_not_sent_again(it: Ground) -> None:
    """Its worker connects again without it, so it has never come: now it need not come any more."""
    raw = await it.raw("lamp")
    await raw.connect()
    sandbox = await it.sandbox("lamp")
    call = asyncio.create_task(it.execute(sandbox, "do", "call-1"))
    assert (await raw.next()).execute.execution_id == "call-1"
    await it.client.CancelExecution(pb.CancelExecutionRequest(sandbox_id=sandbox, execution_id="call-1"))
    assert (await raw.connect()).WhichOneof("work") == "accepted"
    assert (await call).outcome == tool_pb2.TOOL_OUTCOME_INTERRUPTED
    after = asyncio.create_task(it.execute(sandbox, "do", "call-2"))
    work = (await raw.next()).execute
    assert work.execution_id == "call-2"
    await raw.report(work, result=result())
    assert (await after).output == "done"


async def test_a_worker_that_drains_ends_what_it_has(it: Ground) -> None:
    """It takes nothing more, says what it has begun, and is gone; another one takes what comes."""
    one, two = Lamp(), Lamp()
    worker = await it.worker(one, "lamp")
    sandbox = await it.sandbox("lamp")
    call = asyncio.create_task(it.execute(sandbox, "slow", "call-1"))
    await one.begun.wait()
    await it.worker(two, "lamp")
    worker.drain()
    await asyncio.sleep(0.3)
    assert (await it.execute(sandbox, "switch", on=True)).output == "on=True"
    one.go.set()
    assert (await call).output == "one\ntwo"
    async with asyncio.timeout(SECONDS):
        await it.workers[0][1]
    assert (one.log, two.log) == (["call-1"], ["True None"])


async def test_a_hand_has_no_files(it: Ground) -> None:
    """Resources, files and checkpoints are refused by name; the sandbox is none the worse."""
    await it.worker(Lamp(), "lamp")
    resource = pb.Resource(mount_path="/workspace/x", file=pb.File(content=b"x"))
    sandbox = await it.sandbox("lamp")
    for call in (
        it.client.Provision(pb.ProvisionRequest(environment="lamp", resources=[resource])),
        it.client.PutResources(pb.PutResourcesRequest(sandbox_id=sandbox, resources=[resource])),
        it.client.ListFiles(pb.ListFilesRequest(sandbox_id=sandbox)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert raised(error.value).reason == "CAPABILITY_MISSING"
    assert (await it.execute(sandbox, "switch", on=True)).output == "on=True"


async def test_a_released_sandbox_ends_what_runs_in_it(it: Ground) -> None:
    """The caller is told that it is gone; the worker is told to forget it, and has room again."""
    lamp = Lamp()
    await it.worker(lamp, "lamp")
    sandbox = await it.sandbox("lamp")
    calls = [asyncio.create_task(it.execute(sandbox, "slow", f"call-{number}")) for number in range(2)]
    async with asyncio.timeout(SECONDS):
        while len(lamp.log) < 2:
            await asyncio.sleep(0.01)
    await it.client.Release(pb.ReleaseRequest(sandbox_id=sandbox))
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call
        assert raised(error.value).reason == "SANDBOX_GONE"
    assert (await it.execute(await it.sandbox("lamp"), "switch", on=True)).output == "on=True"


async def test_the_directory_hand(it: Ground, tmp_path: Path) -> None:
    """bash, read, write, edit and list work in a directory; paths stay in it; output is followed whole."""
    root = tmp_path / "root"
    root.mkdir()
    await it.worker(Directory(root, {"PATH": "/usr/bin:/bin"}), "box")
    sandbox = await it.sandbox("box")
    assert (await it.execute(sandbox, "write", file_path="a/b.txt", content="one\n")).outcome == OK
    assert (await it.execute(sandbox, "edit", file_path="a/b.txt", old_string="one", new_string="two")).outcome == OK
    assert (await it.execute(sandbox, "read", file_path="a/b.txt")).output == "two\n"
    assert (await it.execute(sandbox, "list", path="a")).output == "b.txt"
    assert (await it.execute(sandbox, "read", file_path="../x")).outcome == ERROR
    (root / "p.png").write_bytes(PNG)
    assert '"image/png"' in (await it.execute(sandbox, "read", file_path="p.png")).content_json
    failed = await it.execute(sandbox, "bash", command="pwd; sleep 60 & exit 3")
    assert (failed.output, failed.exit_code) == (f"{root}\n[exit code: 3]", 3)
    told = await it.execute(sandbox, "bash", "big", command="seq 100000")
    whole = "".join(f"{number}\n" for number in range(1, 100_001))
    assert "bytes left out" in told.output and told.output.endswith("99999\n100000")
    assert await it.watched(sandbox, "big") == (whole, told)


async def test_a_mesh_that_refuses_is_not_asked_again(it: Ground) -> None:
    """A void token ends the worker with the reason; so does another worker that takes its seat."""

    @tool
    def nothing() -> None:
        """Does nothing."""

    with pytest.raises(HandRefused) as refused:
        await Worker(hand_of(nothing), Place(it.address, "x", "hand_wrong.token")).run()
    assert refused.value.reason == "GRANT_INVALID"
    lamp = Lamp()
    await it.worker(lamp, "lamp", seat="one")
    sandbox = await it.sandbox("lamp")
    call = asyncio.create_task(it.execute(sandbox, "slow", "call-1"))
    await lamp.begun.wait()
    await it.worker(Lamp(), "lamp", seat="one")
    with pytest.raises(HandRefused) as refused:
        await it.workers[0][1]
    assert refused.value.reason == "WORKER_REPLACED"
    assert (await call).outcome == tool_pb2.TOOL_OUTCOME_UNKNOWN


async def test_an_operators_environment_chooses_workers(tmp_path: Path) -> None:
    """By the hand's name and by labels; it limits the tools; without a worker that fits it is not available."""
    text = '[environments.lab]\nbackend = "remote"\nworker = "bench"\ntools = ["switch"]\ndescription = "Room 4."\n'
    known = parse(text + '[environments.lab.labels]\nroom = "4"\n', "f.toml", keys())
    async with ground(tmp_path, environments=known) as it:
        wrong, right = Lamp(), Lamp()

        async def available() -> bool:
            rows = (await it.client.ListEnvironments(pb.ListEnvironmentsRequest())).environments
            return bool(next(row.available for row in rows if row.name == "lab"))

        with pytest.raises(grpc.aio.AioRpcError) as error:
            await it.client.ListTools(pb.ListToolsRequest(environment="lab"))
        assert raised(error.value).reason == "HAND_OFFLINE"
        await it.worker(wrong, "bench", labels={"room": "5"})
        assert not await available()
        await it.worker(right, "bench", labels={"room": "4", "more": "x"})
        assert await available()
        found = await it.client.ListTools(pb.ListToolsRequest(environment="lab"))
        assert ([tool.name for tool in found.tools], found.environment_description) == (["switch"], "Room 4.")
        sandbox = await it.sandbox("lab")
        for _ in range(4):
            assert (await it.execute(sandbox, "switch", on=True)).output == "on=True"
        assert (wrong.log, len(right.log)) == ([], 4)
