"""A worker that is wrong, hostile, slow or dead harms no other hand: while it does its worst another one goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.hand import Call, Hand, tool
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.sandbox.v1 import tool_pb2
from services.kit.channels import raised
from services.kit.ids import mint
from tests.support.hands_ground import SECONDS, TOOL, Ground, RawWorker, ground, result


class Good(Hand):
    """Whoever is not to be harmed."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()

    @tool
    async def work(self, call: Call) -> str:
        """Works until it is told."""
        call.write("working\n")
        self.begun.set()
        await self.go.wait()
        return "worked"


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Ground]:
    """A service with a good worker that has begun a call before the test, and must end it right after."""
    async with ground(tmp_path) as made:
        good = Good()
        await made.worker(good, "good")
        sandbox = await made.sandbox("good")
        call = asyncio.create_task(made.execute(sandbox, "work", "toolu_1"))
        await good.begun.wait()
        yield made
        good.go.set()
        assert (await call).output == "worked"
        assert (await made.watched(sandbox, "toolu_1"))[0] == "working\n"
        assert (await made.execute(sandbox, "work")).output == "worked"


async def refusal(call: Awaitable[object]) -> str:
    """Returns the reason that a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return raised(error.value).reason


async def begun(it: Ground, raw: RawWorker, execution_id: str = "call-1") -> tuple[Any, asyncio.Task[Any]]:
    """Connects a worker, has it sent a call, and returns the work and the call."""
    await raw.connect()
    sandbox = await it.sandbox("bad")
    call = asyncio.create_task(it.execute(sandbox, "do", execution_id))
    return (await raw.next()).execute, call


async def test_a_wrong_token_opens_nothing(it: Ground) -> None:
    """Made up, another secret under a known id, another hand's name: each is refused, on both methods."""
    known = it.tokens.make("bad")
    for token in ("hand_x", "hand_" + "0" * 26 + ".x", known + "x", "hand_" + "x" * 500):
        raw = await it.raw("bad", token=token)
        assert await refusal(raw.connect()) == "GRANT_INVALID"
        assert await refusal(raw.report()) == "GRANT_INVALID"
    assert await refusal((await it.raw("good", token=known)).connect()) == "HAND_NAME_DENIED"
    assert await refusal((await it.raw("default", token=it.tokens.make("default"))).connect()) == "HAND_NAME_DENIED"


async def test_a_hands_token_is_for_nothing_else(it: Ground) -> None:
    """Every other method of the service refuses it: it cannot look, run, or make anything."""
    from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub

    token = it.tokens.make("bad")
    async with grpc.aio.insecure_channel(it.address) as channel:
        stub: Any = SandboxServiceStub(channel)
        methods = [m.name for m in pb.DESCRIPTOR.services_by_name["SandboxService"].methods]
        for name in sorted(set(methods) - {"ConnectHand", "ReportExecution"}):
            method = pb.DESCRIPTOR.services_by_name["SandboxService"].methods_by_name[name]
            request = getattr(pb, method.input_type.name)()
            call = getattr(stub, name)(request, metadata=(("authorization", f"Bearer {token}"),), timeout=SECONDS)
            ended = call.read() if method.server_streaming else call
            assert await refusal(ended) == "METHOD_DENIED", name


async def test_a_revoked_token_ends_its_worker(it: Ground) -> None:
    """Its stream ends, its reports are refused, what it had ends as unknown."""
    raw = await it.raw("bad")
    work, call = await begun(it, raw)
    it.tokens.revoke(raw.token)
    assert await refusal(raw.next()) == "GRANT_INVALID"
    assert await refusal(raw.report(work, result=result())) == "GRANT_INVALID"
    assert (await call).outcome == tool_pb2.TOOL_OUTCOME_UNKNOWN


async def test_another_hands_execution_is_not_there(it: Ground) -> None:
    """Not those of another hand, not those of another worker of its own name, not those that never were."""
    raw, sibling = await it.raw("bad"), await it.raw("bad", worker="raw-2")
    work, call = await begun(it, raw)
    await sibling.connect()
    theirs = (await it.client.ListSandboxes(pb.ListSandboxesRequest())).sandboxes[0]
    assert theirs.environment == "good"
    stolen = pb.ExecuteRequest(sandbox_id=theirs.sandbox_id, execution_id="toolu_1")
    for wrong in (stolen, pb.ExecuteRequest(sandbox_id=mint("sbx"), execution_id="x")):
        assert await refusal(raw.report(wrong, result=result("forged"))) == "EXECUTION_UNKNOWN"
    assert await refusal(sibling.report(work, result=result("forged"))) == "EXECUTION_UNKNOWN"
    await raw.report(work, result=result("mine"))
    assert (await call).output == "mine"


async def test_a_registration_wants_nothing_of_others(it: Ground) -> None:
    """Who says that it holds another hand's execution is not given it."""
    raw = await it.raw("bad")
    theirs = (await it.client.ListSandboxes(pb.ListSandboxesRequest())).sandboxes[0]
    held = pb.HeldExecution(sandbox_id=theirs.sandbox_id, execution_id="toolu_1")
    assert not (await raw.connect(executions=[held])).accepted.executions


async def test_what_is_said_twice_counts_once(it: Ground) -> None:
    """Output and result are acknowledged again; another output or result is refused, and the first one stays."""
    raw = await it.raw("bad")
    work, call = await begun(it, raw)
    assert (await raw.report(work, chunk=b"one ")).next_offset == 4
    assert (await raw.report(work, chunk=b"one ")).next_offset == 4
    assert (await raw.report(work, offset=9, chunk=b"gap")).next_offset == 4
    assert (await raw.report(work, offset=2, chunk=b"e two")).next_offset == 7
    assert await refusal(raw.report(work, offset=0, chunk=b"ONE ")) == "REPORT_CONTRADICTS"
    assert (await raw.report(work, offset=99, chunk=b"gap", result=result())).next_offset == 7
    for _ in range(2):
        assert (await raw.report(work, offset=7, chunk=b"\n", result=result())).next_offset == 8
    assert await refusal(raw.report(work, result=result("other"))) == "REPORT_CONTRADICTS"
    assert await refusal(raw.report(work, offset=8, chunk=b"more")) == "REPORT_CONTRADICTS"
    assert await it.watched(work.sandbox_id, work.execution_id) == ("one two\n", await call)


async def test_what_is_too_large_is_refused_or_cut(it: Ground) -> None:
    """A chunk over its limit is refused; a text is cut in its middle; content that no model takes is left out."""
    raw = await it.raw("bad", capacity=4)
    work, call = await begun(it, raw)
    assert await refusal(raw.report(work, chunk=bytes((64 << 10) + 1))) == "REPORT_INVALID"
    assert await refusal(raw.report(work, offset=-1, chunk=b"x")) == "REPORT_INVALID"
    assert await refusal(raw.report(work, result=result("x" * (9 << 20)))) == "INTERNAL"  # gRPC's own limit
    await raw.report(work, result=result("x" * (2 << 20) + "\0end"))
    told = await call
    assert told.truncated and len(told.output) < (101 << 10) and told.output.endswith("x\ufffdend")
    big = json.dumps([{"type": "text", "text": "x" * (6 << 20)}])
    for number, content in enumerate(
        ("{", '{"a": 1}', '[{"type": "tool_use"}]', '[{"type": "text", "text": ""}]', big)
    ):
        again = asyncio.create_task(it.execute(work.sandbox_id, "do", f"content-{number}"))
        await raw.report((await raw.next()).execute, result=result(content_json=content))
        assert (await again).outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR
        assert "left out: its content" in (await again).output


@pytest.mark.parametrize(
    "said",
    [
        {"worker": ""},
        {"worker": "a b"},
        {"seat": "a b"},
        {"tools": []},
        {"tools": [tool_pb2.Tool(name=f"t{number}") for number in range(1000)]},
        {"tools": [TOOL, TOOL]},
        {"tools": [tool_pb2.Tool(name="a b")]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json="{")]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json="[]")]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json='{"type": "string"}')]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json='{"type": "object", "anyOf": []}')]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json='{"type": "object", "properties": 1}')]},
        {"tools": [tool_pb2.Tool(name="a", input_schema_json='{"type":"object","x":' + "[" * 5000 + "]" * 5000 + "}")]},
        {"tools": [tool_pb2.Tool(name="a", description="x" * (1 << 20))]},
        {"capacity": 1000},
        {"capacity": -1},
        {"description": "x" * 2000},
        {"labels": {str(number): "x" for number in range(100)}},
        {"labels": {"a": "x" * 1000}},
    ],
    ids=lambda said: f"{next(iter(said))}-{str(next(iter(said.values())))[:12]!r}",
)
async def test_what_cannot_be_is_not_registered(it: Ground, said: dict[str, Any]) -> None:
    """Names, tools, schemas and labels that no model's API, or nobody, could take. Nothing of it is kept."""
    raw = await it.raw("bad")
    assert await refusal(raw.connect(**said)) == "HAND_REGISTRATION_INVALID"
    with pytest.raises(grpc.aio.AioRpcError):
        await it.sandbox("bad")


async def test_a_schema_that_never_ends_is_nobodys_to_check(it: Ground) -> None:
    """Input goes to the worker as it is: a pattern that takes for ever stops nobody."""
    evil = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    raw = await it.raw("bad", tools=[tool_pb2.Tool(name="do", input_schema_json=json.dumps(evil))])
    await raw.connect()
    call = asyncio.create_task(it.execute(await it.sandbox("bad"), "do", a="a" * 60 + "!"))
    work = (await raw.next()).execute
    await raw.report(work, result=result())
    assert (await call).output == "done"


async def test_a_silent_worker_is_dead_after_its_lease(it: Ground) -> None:
    """Its stream ends, its call stays open for it; when it comes back in time it goes on."""
    raw = await it.raw("bad")
    work, call = await begun(it, raw)
    assert await refusal(raw.next()) == "WORKER_SILENT"
    assert await refusal(raw.report()) == "WORKER_UNKNOWN"
    held = pb.HeldExecution(sandbox_id=work.sandbox_id, execution_id=work.execution_id)
    wanted = (await raw.connect(executions=[held])).accepted.executions
    assert [(each.execution_id, each.next_offset) for each in wanted] == [("call-1", 0)]
    await raw.report(work, result=result())
    assert (await call).output == "done"


async def test_a_worker_that_never_had_it_is_sent_it_again(it: Ground) -> None:
    """The same worker says that it holds nothing: what was sent has never come. Another one is not asked meanwhile."""
    raw, sibling = await it.raw("bad"), await it.raw("bad", worker="raw-2")
    work, call = await begun(it, raw)
    raw.stream.cancel()
    await sibling.connect()
    await raw.connect()
    assert (await raw.next()).execute == work
    await raw.report(work, result=result())
    assert (await call).output == "done"


async def test_a_worker_that_lives_and_does_nothing_costs_its_own_call(it: Ground) -> None:
    """It gives signs of life and no result: the call ends as unknown some time after its limit."""
    raw = await it.raw("bad")
    await raw.connect()
    request = pb.ExecuteRequest(sandbox_id=await it.sandbox("bad"), name="do", execution_id="call-1")
    request.timeout.FromMilliseconds(300)
    call = it.client.Execute(request, timeout=SECONDS)

    async def beat() -> None:
        while True:
            await raw.report()
            await asyncio.sleep(0.2)

    beating = asyncio.create_task(beat())
    told = (await call).result
    beating.cancel()
    assert told.outcome == tool_pb2.TOOL_OUTCOME_UNKNOWN and "did not end it in time" in told.output
    work = (await raw.next()).execute
    assert await refusal(raw.report(work, result=result())) == "EXECUTION_UNKNOWN"


async def test_a_worker_that_comes_and_goes_leaves_nothing(it: Ground) -> None:
    """Fifty links of one worker, each broken off: the last one is served, and no call is lost or run twice."""
    raw = await it.raw("bad")
    for _ in range(50):
        await raw.connect()
        raw.stream.cancel()
    work, call = await begun(it, raw)
    await raw.report(work, result=result())
    assert (await call).output == "done"
    assert (await raw.report()).open_executions == 0


async def test_a_second_stream_ends_the_first(it: Ground) -> None:
    """One worker has one stream: the older one is told so."""
    raw = await it.raw("bad")
    await raw.connect()
    first = raw.stream
    await raw.connect()
    raw.stream, second = first, raw.stream
    assert await refusal(raw.next()) == "WORKER_REPLACED"
    second.cancel()
