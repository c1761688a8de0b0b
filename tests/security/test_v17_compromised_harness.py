"""V17: somebody has a harness, with its certificate and the grant of a session that it works on, and wants the others'.

What a harness may do by design: any session may be offered to it, so it may look at any, and take one up. That is an
event in that session's log, ends the harness that has it, and is how it gets a grant; without the session's newest
grant nothing is done for a session, no tool is run, no credential used. And nobody finds a credential in its memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from handmesh.harness.v1 import harness_pb2
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.session.v1 import config_pb2, event_pb2, memory_pb2, session_pb2
from handmesh.session.v1.config_pb2 import MemoryAccess
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from handmesh.vault_proxy.v1 import vault_proxy_pb2
from services.kit.access import ACCESS
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY
from services.kit.identity import TENANT_KEY
from tests.security.ground import Ground
from tests.support.canary import Sweep

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

FILES = {
    session_pb2: "session",
    memory_pb2: "session",
    sandbox_pb2: "sandbox",
    harness_pb2: "harness",
    vault_proxy_pb2: "vault_proxy",
}
REFUSED = {"GRANT_INVALID", "EPOCH_STALE", "METHOD_DENIED", "CHILD_LIMIT"}
NOT_THERE = {"MEMORY_NOT_FOUND", "SESSION_NOT_FOUND", "SANDBOX_GONE"}  # what is another tenant's

# What is no session's, or may be looked at by whoever may take any session up.
LOOKS = {"GetSession", "GetEvents", "WatchEvents", "ListBlobs", "DownloadBlob", "ClaimWork", "ReleaseWork", "OfferWork"}
LOOKS |= {"ListServedTypes"}
LOOKS |= {"CheckCaller", "WatchRevocations"}  # whose a credential is that it is shown, and which are void
LOOKS |= {"ListExecutions", "ListFiles", "ReadFile", "ListSandboxes", "ListEnvironments"}
# What needs no grant: the session service checks the epoch of what is shown, and nothing is shown of what is uploaded
# until an event names it.
FREE = {"PublishPreviews", "UploadBlob"}


@dataclass(frozen=True)
class Foreign:
    """A session that the harness does not hold, and what it has."""

    session_id: str
    sandbox_id: str
    execution_id: str
    epoch: int
    head: int
    memory_store_id: str  # of another tenant


@pytest_asyncio.fixture(loop_scope="session")
async def foreign(ground: Ground) -> Foreign:
    """A session of somebody else's harness, with a sandbox and executions."""
    session = await ground.work("everything")
    events = [event async for event in session.events()]
    [sandbox] = await ground.me.client.sandboxes(session.id)
    started = next(event.tool_started.tool_use_id for event in events if event.HasField("tool_started"))
    epoch = max(event.epoch for event in events)
    stub, metadata = MemoryServiceStub(ground.neighbour.client.session_link.channel), ground.neighbour.link.metadata
    made = await stub.CreateMemoryStore(memory_pb2.CreateMemoryStoreRequest(name="theirs"), metadata=metadata)
    store = str(made.memory_store.memory_store_id)
    written = memory_pb2.WriteMemoryRequest(memory_store_id=store, path="a", content=b"theirs")
    await stub.WriteMemory(written, metadata=metadata)
    return Foreign(session.id, sandbox.sandbox_id, started, epoch, len(events), store)


def acts(foreign: Foreign) -> dict[str, Callable[[], Any]]:
    """Returns what has to be refused: a request for each method that does something, aimed at the foreign session."""
    said = event_pb2.Event(error_raised=event_pb2.ErrorRaised(part="harness", reason="X", message="pwned"))
    at = {"sandbox_id": foreign.sandbox_id}
    command = '{"command": "touch pwned"}'
    log, epoch = {"session_id": foreign.session_id}, {"epoch": foreign.epoch}
    path = {"memory_store_id": foreign.memory_store_id, "path": "a"}
    return {
        "CreateSession": lambda: session_pb2.CreateSessionRequest(
            request_id="pwned", config=config_pb2.SessionConfig(parent_session_id=foreign.session_id)
        ),
        "EndSession": lambda: session_pb2.EndSessionRequest(**log),
        "SendMessage": lambda: session_pb2.SendMessageRequest(content_json='[{"type":"text","text":"pwned"}]', **log),
        "EmitEvent": lambda: session_pb2.EmitEventRequest(event=said, epoch=foreign.epoch - 1, **log),
        "EmitEvents": lambda: session_pb2.EmitEventsRequest(events=[said], epoch=foreign.epoch - 1, **log),
        "WriteMemory": lambda: memory_pb2.WriteMemoryRequest(content=b"x", **path),
        "ReadMemory": lambda: memory_pb2.ReadMemoryRequest(**path),
        "ListMemories": lambda: memory_pb2.ListMemoriesRequest(memory_store_id=path["memory_store_id"]),
        "ListMemoryVersions": lambda: memory_pb2.ListMemoryVersionsRequest(**path),
        "DeleteMemory": lambda: memory_pb2.DeleteMemoryRequest(**path),
        "FindMemory": lambda: memory_pb2.FindMemoryRequest(memory_store_id=path["memory_store_id"], request_id="r"),
        "Provision": lambda: sandbox_pb2.ProvisionRequest(request_id=f"{foreign.session_id}/main/9", **log, **epoch),
        "sandbox.Execute": lambda: sandbox_pb2.ExecuteRequest(name="bash", input=command, **at, **epoch),
        "sandbox.CancelExecution": lambda: sandbox_pb2.CancelExecutionRequest(
            execution_id=foreign.execution_id, **at, **epoch
        ),
        "Release": lambda: sandbox_pb2.ReleaseRequest(**at),
        "PutResources": lambda: sandbox_pb2.PutResourcesRequest(**at, **epoch),
        "Checkpoint": lambda: sandbox_pb2.CheckpointRequest(**at, **epoch),
        "Transfer": lambda: sandbox_pb2.TransferRequest(to_session_id=foreign.session_id, to_hand="x", **at, **epoch),
        "ShareHand": lambda: sandbox_pb2.ShareHandRequest(hand="x", **log, **at, **epoch),
        "vault_proxy.ListTools": vault_proxy_pb2.ListToolsRequest,
        "vault_proxy.Execute": lambda: vault_proxy_pb2.ExecuteRequest(name="shop__who_am_i", input="{}"),
        "vault_proxy.WatchExecution": lambda: vault_proxy_pb2.WatchExecutionRequest(execution_id=foreign.execution_id),
        "vault_proxy.CancelExecution": lambda: vault_proxy_pb2.CancelExecutionRequest(
            execution_id=foreign.execution_id
        ),
    }


LATER = {"sandbox.WatchExecution", "sandbox.ListTools"}  # looks


def methods() -> list[tuple[str, str, Any]]:
    """Returns (name, home, descriptor) of every method of every service. A name that two have gets its home."""
    every = [
        (home, method)
        for file, home in FILES.items()
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    names = [method.name for _, method in every]
    return [
        (f"{home}.{method.name}" if names.count(method.name) > 1 else method.name, home, method)
        for home, method in every
    ]


async def call(channel: grpc.aio.Channel, method: Any, request: Any, grant: str = "", tenant: str = "") -> str:
    """Calls a method by its descriptor, saying that it acts for a tenant if one is given. Returns why not, or `ok`."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    write, read = type(request).SerializeToString, GetMessageClass(method.output_type).FromString
    metadata = [(GRANT_KEY, grant)] if grant else []
    metadata += [(TENANT_KEY, tenant)] if tenant else []
    try:
        if method.client_streaming:

            async def only() -> AsyncIterator[Any]:
                yield request

            await channel.stream_unary(path, write, read)(only(), metadata=metadata)
        elif method.server_streaming:
            stream = channel.unary_stream(path, write, read)(request, metadata=metadata)
            try:
                await stream.read()
            finally:
                stream.cancel()
        else:
            await channel.unary_unary(path, write, read)(request, metadata=metadata)
    except grpc.aio.AioRpcError as refused:
        return raised(refused).reason
    return "ok"


async def files(ground: Ground, foreign: Foreign) -> list[str]:
    """Returns what is in the foreign session's workspace."""
    listed = await ground.me.client.files(foreign.sandbox_id)
    return sorted(each.path.rpartition("/")[2] for each in listed.files)


async def test_every_method_of_every_service_is_judged(foreign: Foreign) -> None:
    """A new method that a harness may call has to be put into one of the sets above."""
    open_to_it = {name for name, _, method in methods() if "harness" in ACCESS[_path(method)]}
    assert open_to_it == acts(foreign).keys() | LOOKS | FREE | LATER


def _path(method: Any) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


async def test_nothing_is_done_for_a_session_that_it_does_not_hold(ground: Ground, foreign: Foreign) -> None:
    """Every method that does something, without a grant, with its own session's, and with one that it made up: refused.
    Every method that is not for a harness is refused as such. The other session is as it was."""
    own = await ground.work("hello")
    grants = ["", ground.grant_of(own.id), ground.grant_of(foreign.session_id)[:-2] + "xx"]
    requests = acts(foreign)
    answers: dict[str, str] = {}
    for name, home, method in methods():
        async with asyncio.timeout(30), ground.as_service("harness", home) as channel:
            if "harness" not in ACCESS[_path(method)]:
                answers[name] = await call(channel, method, GetMessageClass(method.input_type)())
            elif name in requests and home != "vault_proxy":
                for at, grant in enumerate(grants):
                    for tenant in ("", "default", "other"):
                        told = await call(channel, method, requests[name](), grant, tenant)
                        answers[f"{name} {at} {tenant}"] = told
            elif name in requests:  # with its own grant it does something for its own session, and for no other
                for at in (0, 2):
                    answers[f"{name} {at}"] = await call(channel, method, requests[name](), grants[at])
    nothing = {f"Release {at} other": "ok" for at in range(len(grants))}  # for what is another tenant's: it stays
    assert {name: told for name, told in answers.items() if told not in REFUSED | NOT_THERE} == nothing
    without = {told for name, told in answers.items() if " 0 " in name and name not in nothing}
    assert without <= REFUSED | {"SANDBOX_GONE", "SESSION_NOT_FOUND"}
    assert len(answers) > 100
    session = ground.me.client.session(foreign.session_id)
    later = [event async for event in session.events()][foreign.head :]
    assert [event for event in later if not event.HasField("credential_used")] == [], "its own use is told behind it"
    assert await files(ground, foreign) == ["notes.txt"]


async def test_its_own_grant_finds_nothing_of_another(ground: Ground, foreign: Foreign) -> None:
    """A foreign call's id, asked for with one's own grant, is not known."""
    own = await ground.work("hello")
    grant = ground.grant_of(own.id)
    watch = next(method for name, _, method in methods() if name == "vault_proxy.WatchExecution")
    async with ground.as_service("harness", "vault_proxy") as channel:
        asked = vault_proxy_pb2.WatchExecutionRequest(execution_id=foreign.execution_id)
        assert await call(channel, watch, asked, grant) == "EXECUTION_UNKNOWN"


async def test_its_own_grant_opens_the_memory_that_its_session_has(ground: Ground) -> None:
    """Of its own tenant's stores a harness reaches those that its session names, and writes where the session may."""
    stub, metadata = MemoryServiceStub(ground.me.client.session_link.channel), ground.me.link.metadata
    stores = []
    for name in ("mine", "read", "none"):
        made = await stub.CreateMemoryStore(memory_pb2.CreateMemoryStoreRequest(name=name), metadata=metadata)
        stores.append(made.memory_store.memory_store_id)
        written = memory_pb2.WriteMemoryRequest(memory_store_id=stores[-1], path="a", content=b"x")
        await stub.WriteMemory(written, metadata=metadata)
    named = [
        MemoryAccess(memory_store_id=stores[0], name="mine"),
        MemoryAccess(memory_store_id=stores[1], name="read", read_only=True),
    ]
    own = await ground.work("hello", memory_stores=named)
    grant, told = ground.grant_of(own.id), {}
    by_name = {name: method for name, _, method in methods()}
    async with ground.as_service("harness", "session") as channel:
        for store, name in zip(stores, ("mine", "read", "none"), strict=True):
            path = {"memory_store_id": store, "path": "a"}
            for verb, request in (
                ("ReadMemory", memory_pb2.ReadMemoryRequest(**path)),
                ("ListMemories", memory_pb2.ListMemoriesRequest(memory_store_id=store)),
                ("ListMemoryVersions", memory_pb2.ListMemoryVersionsRequest(**path)),
                ("WriteMemory", memory_pb2.WriteMemoryRequest(content=b"y", **path)),
                ("DeleteMemory", memory_pb2.DeleteMemoryRequest(**path)),
            ):
                told[f"{verb} {name}"] = await call(channel, by_name[verb], request, grant)
    mounted: dict[str, str] = {}
    async with ground.as_service("harness", "sandbox") as channel:
        for number, (store, name) in enumerate(zip(stores, ("mine", "read", "none"), strict=True)):
            for reads in (True, False):
                mount = sandbox_pb2.MemoryMount(memory_store_id=store, read_only=reads)
                request = sandbox_pb2.ProvisionRequest(
                    request_id=f"{own.id}/side/{number * 2 + reads + 1}",
                    session_id=own.id,
                    hand="side",
                    epoch=(await own.get()).epoch,
                    resources=[sandbox_pb2.Resource(mount_path="/workspace/m", memory=mount)],
                )
                mounted[f"{name} {'read' if reads else 'written'}"] = await call(
                    channel, by_name["Provision"], request, grant
                )
    assert mounted == {
        "mine read": "ok",
        "mine written": "ok",
        "read read": "ok",
        "read written": "MEMORY_READ_ONLY",
        "none read": "MEMORY_NOT_FOUND",
        "none written": "MEMORY_NOT_FOUND",
    }
    looks, writes = ("ReadMemory", "ListMemories", "ListMemoryVersions"), ("WriteMemory", "DeleteMemory")
    assert told == {
        **{f"{verb} mine": "ok" for verb in (*looks, *writes)},
        **{f"{verb} read": "ok" for verb in looks},
        **{f"{verb} read": "MEMORY_READ_ONLY" for verb in writes},
        **{f"{verb} none": "MEMORY_NOT_FOUND" for verb in (*looks, *writes)},
    }


async def test_with_its_newest_grant_all_is_done(ground: Ground, foreign: Foreign) -> None:
    """The control: the same requests with the session's own grant get further than the check of grants."""
    grant, requests = ground.grant_of(foreign.session_id), acts(foreign)
    answers = {}
    release = requests.pop("Release")
    for name, home, method in methods():
        if name in requests and home in ("sandbox", "vault_proxy"):
            async with ground.as_service("harness", home) as channel:
                answers[name] = await call(channel, method, requests[name](), grant)
    assert {name for name, told in answers.items() if told in REFUSED} == set()
    assert answers["sandbox.Execute"] == answers["vault_proxy.Execute"] == "ok"
    assert await files(ground, foreign) == ["notes.txt", "pwned"]
    async with ground.as_service("harness", "sandbox") as channel:
        method = next(method for name, _, method in methods() if name == "Release")
        assert await call(channel, method, release(), grant) == "ok"


async def test_taking_a_session_up_is_in_its_log(ground: Ground, foreign: Foreign) -> None:
    """How a harness gets a grant that is not its own: the log says who took the session, and the old grant is void."""
    woke = event_pb2.Event(harness_woke=event_pb2.HarnessWoke(harness="messages", instance="stolen"))
    session = ground.me.client.session(foreign.session_id)
    old = ground.grant_of(foreign.session_id)
    emit = next(method for name, _, method in methods() if name == "EmitEvent")
    async with ground.as_service("harness", "session") as channel:
        told = "POSITION_CONFLICT"
        while told == "POSITION_CONFLICT":  # a use of a credential is told behind it
            head = len([event async for event in session.events()])
            request = session_pb2.EmitEventRequest(session_id=session.id, event=woke, expected_position=head)
            told = await call(channel, emit, request)
        assert told == "ok"
    events = [event async for event in session.events()]
    assert events[-1].harness_woke.instance == "stolen"
    tools = next(method for name, _, method in methods() if name == "vault_proxy.ListTools")
    async with ground.as_service("harness", "vault_proxy") as channel:
        async with asyncio.timeout(10):
            while await call(channel, tools, vault_proxy_pb2.ListToolsRequest(), old) == "ok":
                await asyncio.sleep(0.01)


async def test_its_memory_holds_no_credential(ground: Ground) -> None:
    """After turns in which servers said their credentials, in what a core dump would have: the model's key and a grant
    are there, which are its own; of the vault's secrets there is nothing."""
    session = await ground.work("everything")
    harness = ground.mesh.pids["harness"]
    assert ground.strange.heard(ground.cores["credentials"]), "the control: they were in play"
    sweep = Sweep({**ground.cores, "grant": ground.grant_of(session.id).partition(".")[2]})
    await asyncio.to_thread(sweep.memory, harness)
    assert {name for name, _, _ in sweep.found} == {"model", "grant"}
    if os.geteuid() == 0:
        other = Sweep(ground.cores)
        await asyncio.to_thread(other.memory, ground.mesh.pids["vault_proxy"])
        assert {name for name, _, _ in other.found} == {"credentials"}, (
            "the control: the probe finds them where they are"
        )
