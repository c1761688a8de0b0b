"""Memory stores: files with their history, one winner among writers, and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handmesh.session.v1 import memory_pb2 as pb
from handmesh.session.v1 import session_pb2
from handmesh.session.v1.config_pb2 import MemoryAccess, SessionConfig
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from services.kit import ids
from services.kit.errors import Conflict, Full, Invalid
from services.session import memories_core as core
from services.session.memories import Memories
from tests.session.running import OTHER_KEY, Run, Service, refusal

MIB = 1024 * 1024
NOBODY = "mem_" + "0" * 26


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Desk:
    """A caller of the service, and one store."""

    def __init__(self, stub: Any, store: str) -> None:
        self.stub = stub
        self.store = store

    async def write(self, path: str, content: bytes, expected: str | None = None, request_id: str = "") -> pb.Memory:
        request = pb.WriteMemoryRequest(
            memory_store_id=self.store, path=path, content=content, expected_sha256=expected, request_id=request_id
        )
        memory: pb.Memory = (await self.stub.WriteMemory(request)).memory
        return memory

    async def read(self, path: str, version: int = 0) -> bytes:
        request = pb.ReadMemoryRequest(memory_store_id=self.store, path=path, version=version)
        return bytes((await self.stub.ReadMemory(request)).content)

    async def delete(self, path: str, expected: str | None = None, request_id: str = "") -> None:
        request = pb.DeleteMemoryRequest(
            memory_store_id=self.store, path=path, expected_sha256=expected, request_id=request_id
        )
        await self.stub.DeleteMemory(request)

    async def find(self, request_id: str) -> pb.Memory:
        request = pb.FindMemoryRequest(memory_store_id=self.store, request_id=request_id)
        memory: pb.Memory = (await self.stub.FindMemory(request)).memory
        return memory

    async def paths(self, folder: str = "") -> list[str]:
        answer = await self.stub.ListMemories(pb.ListMemoriesRequest(memory_store_id=self.store, path=folder))
        return [memory.path for memory in answer.memories]

    async def versions(self, path: str) -> list[tuple[int, str]]:
        answer = await self.stub.ListMemoryVersions(pb.ListMemoryVersionsRequest(memory_store_id=self.store, path=path))
        return [(memory.version, memory.sha256) for memory in answer.versions]


async def made(stub: Any, name: str = "notes", request_id: str = "") -> str:
    answer = await stub.CreateMemoryStore(pb.CreateMemoryStoreRequest(name=name, request_id=request_id))
    return str(answer.memory_store.memory_store_id)


@pytest.fixture
async def stub(service: Service) -> AsyncIterator[Any]:
    """A client's stub."""
    channel = service.served.as_client()
    yield MemoryServiceStub(channel)
    await channel.close()


@pytest.fixture
async def desk(stub: Any) -> Desk:
    """A client and a fresh store."""
    return Desk(stub, await made(stub))


@pytest.mark.parametrize("content", [b"", b"x", bytes(MIB)])
async def test_what_was_written_comes_back(desk: Desk, content: bytes) -> None:
    """The smallest and the largest content, with its version, size and SHA-256."""
    memory = await desk.write("notes/today.md", content)
    assert (memory.path, memory.version, memory.size, memory.sha256) == (
        "notes/today.md",
        1,
        len(content),
        sha(content),
    )
    assert memory.write_time.seconds > 0
    assert await desk.read("notes/today.md") == content


async def test_every_version_stays(desk: Desk) -> None:
    """History only grows: versions count from 1, and each can be read for ever, across a deletion too."""
    for text in (b"one", b"two", b"two"):
        await desk.write("a", text)
    await desk.delete("a")
    await desk.delete("a")
    assert (await refusal(desk.read("a"))).reason == "MEMORY_NOT_FOUND"
    assert await desk.paths() == []
    assert (await desk.write("a", b"five")).version == 5
    wanted = [(5, sha(b"five")), (4, ""), (3, sha(b"two")), (2, sha(b"two")), (1, sha(b"one"))]
    assert await desk.versions("a") == wanted
    assert [await desk.read("a", version) for version in (1, 2, 3, 5, 0)] == [b"one", b"two", b"two", b"five", b"five"]
    for version in (4, 6, 1 << 62):
        assert (await refusal(desk.read("a", version))).reason == "MEMORY_NOT_FOUND"
    problem = await refusal(desk.read("a", -1))
    assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": "version"})


async def test_a_writer_may_say_what_it_expects(desk: Desk) -> None:
    """A write counts only if the content is what the writer saw; the refusal says what it is now."""
    await desk.write("a", b"one", "")
    problem = await refusal(desk.write("a", b"two", ""))
    assert (problem.code, problem.reason, problem.metadata) == ("ABORTED", "MEMORY_CONFLICT", {"sha256": sha(b"one")})
    await desk.write("a", b"two", sha(b"one"))
    assert (await refusal(desk.write("a", b"three", sha(b"one")))).metadata == {"sha256": sha(b"two")}
    assert (await refusal(desk.write("new", b"x", sha(b"one")))).metadata == {"sha256": ""}
    assert (await refusal(desk.delete("a", sha(b"one")))).reason == "MEMORY_CONFLICT"
    await desk.delete("a", sha(b"two"))
    await desk.delete("a", sha(b"two"))
    await desk.write("a", b"again", "")
    assert [version for version, _ in await desk.versions("a")] == [4, 3, 2, 1]


async def test_one_of_many_writers_wins(desk: Desk) -> None:
    """Writers that saw the same content race: exactly one wins, the others are told what is there now."""
    before = b"start"
    await desk.write("a", before)
    for round in range(3):
        contents = [b"%d by %d" % (round, number) for number in range(12)]
        done = await asyncio.gather(
            *(desk.write("a", content, sha(before)) for content in contents), return_exceptions=True
        )
        won = [content for content, each in zip(contents, done, strict=True) if isinstance(each, pb.Memory)]
        assert len(won) == 1
        assert await desk.read("a") == won[0]
        assert len(await desk.versions("a")) == round + 2
        before = won[0]


async def test_writers_that_expect_nothing_all_get_a_version(desk: Desk) -> None:
    """Without an expectation nothing is lost: each write is a version of its own, whoever comes in between."""
    contents = [b"%d" % number for number in range(12)]
    written = await asyncio.gather(*(desk.write("a", content) for content in contents))
    assert sorted(memory.version for memory in written) == list(range(1, 13))
    for memory, content in zip(written, contents, strict=True):
        assert await desk.read("a", memory.version) == content
    assert {sha256 for _, sha256 in await desk.versions("a")} == {sha(content) for content in contents}


async def test_a_request_that_comes_again_makes_no_other_version(desk: Desk) -> None:
    """However late, whatever it holds and expects by then, and whoever wrote since: it is told the version it made."""
    await desk.write("a", b"one", "", "r1")
    await desk.write("a", b"two", sha(b"one"), "r2")
    for content, expected, request_id, version in (
        (b"one", "", "r1", 1),
        (b"other", sha(b"one"), "r1", 1),
        (b"two", None, "r2", 2),
    ):
        again = await desk.write("a", content, expected, request_id)
        assert (again.version, again.request_id) == (version, request_id)
    await desk.delete("a", None, "r3")
    await desk.write("a", b"four")
    await desk.delete("a", None, "r3")
    assert [version for version, _ in await desk.versions("a")] == [4, 3, 2, 1]
    assert [(await desk.find(each)).version for each in ("r1", "r2", "r3")] == [1, 2, 3]
    assert (await refusal(desk.find("r4"))).reason == "MEMORY_NOT_FOUND"
    assert (await refusal(desk.write("b", b"x", None, "r1"))).reason == "REQUEST_ID_REUSED"
    assert await desk.paths() == ["a"]


async def test_a_request_at_once_with_itself_makes_one_version(desk: Desk) -> None:
    """An older harness may still be at it: of the same request one version is made, among writers of others."""
    for round in range(3):
        asked = [desk.write("a", b"%d" % number, None, f"round-{round}") for number in range(6)]
        others = [desk.write("a", b"other") for _ in range(3)]
        done = await asyncio.gather(*asked, *others)
        assert len({memory.version for memory in done}) == 4
    assert len(await desk.versions("a")) == 12


async def test_a_request_that_did_not_count_may_count_later(desk: Desk) -> None:
    """What was refused for a conflict is not remembered as done."""
    await desk.write("a", b"one")
    assert (await refusal(desk.write("a", b"two", "", "r1"))).reason == "MEMORY_CONFLICT"
    assert (await refusal(desk.find("r1"))).reason == "MEMORY_NOT_FOUND"
    assert (await desk.write("a", b"two", sha(b"one"), "r1")).version == 2


async def test_a_write_that_lost_leaves_no_bytes(service: Service, desk: Desk) -> None:
    """What was stored for a version that did not come to be is freed."""
    await desk.write("a", b"one")
    contents = [b"two %d" % number for number in range(8)]
    await asyncio.gather(*(desk.write("a", each, sha(b"one")) for each in contents), return_exceptions=True)
    objects = service.store.objects
    live = [name for name in await objects.list(desk.store) if await objects.get(desk.store, name, 0)]
    assert len(live) == 2


BAD_PATHS = ["", "/", "/etc/passwd", "..", "a/../b", "./a", "a/.", "a//b", "a/", "a\\b", "a\0b", "a\nb", "a\u2028b"]
BAD_PATHS += ["x" * 513, "é" * 257, "e\u0301", "a\u202eb", "../" * 40 + "etc/passwd"]


@pytest.mark.parametrize("path", BAD_PATHS, ids=ascii)
async def test_a_path_that_leaves_the_store_is_refused(desk: Desk, path: str) -> None:
    """By every method that takes one, and two spellings of one path cannot both be files."""
    for call in (desk.write(path, b"x"), desk.read(path), desk.delete(path), desk.versions(path)):
        problem = await refusal(call)
        assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": "path"})


async def test_odd_paths_are_files_as_well(desk: Desk) -> None:
    """Whatever stays in the store: dots, stars, spaces and other alphabets, each a file of its own."""
    paths = sorted(
        ["a", "A", "a.b", "...", "*", ">", "$KV.x", "a b/c d", "日本/語", "a/b/c/d/e", "x" * 512, "%2e%2e/a"]
    )
    for path in paths:
        await desk.write(path, path.encode())
    assert await desk.paths() == paths
    for path in paths:
        assert await desk.read(path) == path.encode()


async def test_files_are_listed_by_folder(desk: Desk) -> None:
    """A path means itself and what lies under it, not what only begins with the same letters."""
    for path in ("a/b", "a/c/d", "ab", "a.txt", "z"):
        await desk.write(path, b"x")
    assert await desk.paths() == ["a.txt", "a/b", "a/c/d", "ab", "z"]
    assert await desk.paths("a") == await desk.paths("a/") == ["a/b", "a/c/d"]
    assert await desk.paths("a/c") == ["a/c/d"]
    assert await desk.paths("z") == ["z"]
    assert await desk.paths("nothing") == []
    assert (await refusal(desk.paths("../a"))).reason == "ARGUMENT_INVALID"


async def test_content_has_a_limit(desk: Desk) -> None:
    """A file of 1 MiB is taken, one byte more is not."""
    problem = await refusal(desk.write("a", bytes(MIB + 1)))
    assert (problem.code, problem.reason) == ("INVALID_ARGUMENT", "MEMORY_TOO_LARGE")
    assert problem.metadata == {"limit_bytes": str(MIB)}
    assert await desk.paths() == []


@pytest.mark.parametrize("expected", ["x", "A" * 64, "0" * 63, "0" * 65, "é" * 64])
async def test_an_expectation_is_a_digest(desk: Desk, expected: str) -> None:
    """Anything else is the caller's mistake and not a conflict."""
    for call in (desk.write("a", b"x", expected), desk.delete("a", expected)):
        assert (await refusal(call)).metadata == {"field": "expected_sha256"}


async def test_making_a_store_is_idempotent(stub: Any) -> None:
    """The same request makes one store, at once or again; for another name it is refused; without an id each is new."""
    request_id = ids.mint("req")
    stores = await asyncio.gather(*(made(stub, "n", request_id) for _ in range(6)))
    assert len({*stores, await made(stub, "n", request_id)}) == 1
    problem = await refusal(made(stub, "other", request_id))
    assert (problem.code, problem.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    assert len({await made(stub), await made(stub)}) == 2
    assert (await refusal(made(stub, "x" * 257))).metadata == {"field": "name"}


async def test_stores_are_listed_newest_first_by_pages(run_memory: Service) -> None:
    """Every store once, in pages of any size; a deleted one not."""
    channel = run_memory.served.as_client()
    stub = MemoryServiceStub(channel)
    stores = [await made(stub, f"store {number}") for number in range(7)]
    await stub.DeleteMemoryStore(pb.DeleteMemoryStoreRequest(memory_store_id=stores.pop(3)))
    wanted = sorted(stores, reverse=True)
    for size in (0, 1, 2, 6, 100):
        found: list[str] = []
        token = ""
        while True:
            page = await stub.ListMemoryStores(pb.ListMemoryStoresRequest(page_size=size, page_token=token))
            found += [store.memory_store_id for store in page.memory_stores]
            token = page.next_page_token
            if not token:
                break
        assert found == wanted
    for field, fields in (("page_size", {"page_size": -1}), ("page_token", {"page_token": "x"})):
        problem = await refusal(stub.ListMemoryStores(pb.ListMemoryStoresRequest(**fields)))
        assert problem.metadata == {"field": field}
    await channel.close()


@pytest.fixture
async def run_memory(identities: Any) -> AsyncIterator[Service]:
    """A service whose store holds nothing of other tests."""
    from tests.session.running import make_settings, running

    async with running(make_settings(identities, None, "memory"), identities) as service:
        yield service


async def test_a_deleted_store_is_gone(service: Service, desk: Desk) -> None:
    """Its files cannot be reached, deleting it again is no error, and the janitor is told of it once."""
    await desk.write("a", b"x")
    request = pb.DeleteMemoryStoreRequest(memory_store_id=desk.store)
    await desk.stub.DeleteMemoryStore(request)
    await desk.stub.DeleteMemoryStore(request)
    for call in (desk.read("a"), desk.write("a", b"y"), desk.delete("a"), desk.paths(), desk.versions("a")):
        assert (await refusal(call)).reason == "MEMORY_NOT_FOUND"
    assert desk.store in await service.parts.memories.deleted()


async def test_the_janitor_removes_what_was_deleted(run_memory: Service) -> None:
    """After it no byte of the store is there, and the store is not named again."""
    channel = run_memory.served.as_client()
    desk = Desk(MemoryServiceStub(channel), await made(MemoryServiceStub(channel)))
    await desk.write("a", b"x")
    await desk.stub.DeleteMemoryStore(pb.DeleteMemoryStoreRequest(memory_store_id=desk.store))
    await run_memory.parts.memories.remove(desk.store)
    assert await run_memory.store.objects.list(desk.store) == {}
    assert await run_memory.parts.memories.deleted() == []
    await channel.close()


async def test_whose_stores_they_are(service: Service, desk: Desk) -> None:
    """Another tenant finds nothing, and is told the same as of a store that never was."""
    await desk.write("a", b"secret")
    channel = service.served.as_client(OTHER_KEY)
    stub = MemoryServiceStub(channel)
    told = set()
    for store in (desk.store, NOBODY):
        theirs = Desk(stub, store)
        calls = [theirs.read("a"), theirs.write("a", b"x"), theirs.delete("a"), theirs.paths(), theirs.versions("a")]
        calls.append(stub.DeleteMemoryStore(pb.DeleteMemoryStoreRequest(memory_store_id=store)))
        for call in calls:
            problem = await refusal(call)
            told.add((problem.code, problem.reason, problem.message))
    assert told == {("NOT_FOUND", "MEMORY_NOT_FOUND", "no such memory store")}
    page = await stub.ListMemoryStores(pb.ListMemoryStoresRequest())
    assert desk.store not in [store.memory_store_id for store in page.memory_stores]
    assert await desk.read("a") == b"secret"
    await channel.close()


async def test_a_harness_acts_for_its_session(service: Service, desk: Desk) -> None:
    """Its grant says which session wrote, and opens the stores that the session names and no other one."""
    mine = [MemoryAccess(memory_store_id=desk.store, name="notes")]
    session = await service.create(config=SessionConfig(memory_stores=mine))
    _, grant = await service.wake(session)
    channel = service.served.as_service("harness")
    stub = MemoryServiceStub(channel)
    shown = (("x-handmesh-grant", grant),)
    request = pb.WriteMemoryRequest(memory_store_id=desk.store, path="a", content=b"x", request_id="r")
    written = (await stub.WriteMemory(request, metadata=shown)).memory
    assert (written.session_id, written.request_id) == (session, "r")
    assert (await desk.write("a", b"of a client", None, "r")).version == 2
    client = service.served.as_client(OTHER_KEY)
    for other in (await made(MemoryServiceStub(client)), await made(desk.stub)):
        request.memory_store_id = other
        assert (await refusal(stub.WriteMemory(request, metadata=shown))).reason == "MEMORY_NOT_FOUND"
    void = (("x-handmesh-grant", "x"),)
    assert (await refusal(stub.WriteMemory(request, metadata=void))).reason == "GRANT_INVALID"
    assert (await refusal(stub.CreateMemoryStore(pb.CreateMemoryStoreRequest()))).code == "PERMISSION_DENIED"
    await channel.close()
    await client.close()


async def test_a_session_may_only_read_what_it_is_given_to_read(service: Service, desk: Desk) -> None:
    """A store that is read-only for a session is written by others alone, whatever its harness asks for."""
    await desk.write("a", b"x")
    mine = [MemoryAccess(memory_store_id=desk.store, name="notes", read_only=True)]
    session = await service.create(config=SessionConfig(memory_stores=mine))
    _, grant = await service.wake(session)
    channel = service.served.as_service("harness")
    stub = MemoryServiceStub(channel)
    shown = (("x-handmesh-grant", grant),)
    path = {"memory_store_id": desk.store, "path": "a"}
    assert (await stub.ReadMemory(pb.ReadMemoryRequest(**path), metadata=shown)).content == b"x"
    for call in (
        stub.WriteMemory(pb.WriteMemoryRequest(**path), metadata=shown),
        stub.DeleteMemory(pb.DeleteMemoryRequest(**path), metadata=shown),
    ):
        problem = await refusal(call)
        assert (problem.code, problem.reason) == ("PERMISSION_DENIED", "MEMORY_READ_ONLY")
    assert await desk.read("a") == b"x"
    await channel.close()


async def test_a_session_names_stores_of_its_tenant(service: Service, desk: Desk) -> None:
    """One of another tenant is refused as one that never was, at both doors."""
    client = service.served.as_client(OTHER_KEY)
    session = await service.create()
    for store in (await made(MemoryServiceStub(client)), NOBODY):
        config = SessionConfig(memory_stores=[MemoryAccess(memory_store_id=store, name="notes")])
        for call in (
            service.client.CreateSession(session_pb2.CreateSessionRequest(config=config)),
            service.client.UpdateSession(session_pb2.UpdateSessionRequest(session_id=session, config=config)),
        ):
            problem = await refusal(call)
            assert (problem.reason, problem.metadata) == (
                "CONFIG_INVALID",
                {"field": "memory_stores[0].memory_store_id"},
            )
    await client.close()


@pytest.mark.parametrize("bad", ["", "x", "mem_*", "../" + "0" * 26, "mem_" + "0" * 27])
async def test_hostile_ids_are_refused(stub: Any, bad: str) -> None:
    """What is no id never reaches a key of the store."""
    assert (await refusal(Desk(stub, bad).read("a"))).reason == "ID_INVALID"
    request = pb.DeleteMemoryStoreRequest(memory_store_id=bad)
    assert (await refusal(stub.DeleteMemoryStore(request))).reason == "ID_INVALID"


@pytest.mark.nats
async def test_files_outlive_the_service(run: Run) -> None:
    """After a restart of the service every version is there, and a writer's expectation still counts."""
    async with run() as service:
        channel = service.served.as_client()
        desk = Desk(MemoryServiceStub(channel), await made(MemoryServiceStub(channel)))
        await desk.write("a", b"one")
        await desk.write("a", b"two")
        await channel.close()
    async with run() as service:
        channel = service.served.as_client()
        desk = Desk(MemoryServiceStub(channel), desk.store)
        assert [await desk.read("a", version) for version in (1, 2)] == [b"one", b"two"]
        assert (await refusal(desk.write("a", b"x", sha(b"one")))).reason == "MEMORY_CONFLICT"
        assert (await desk.write("a", b"three", sha(b"two"))).version == 3
        await channel.close()


async def test_files_and_versions_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a bound a write is refused as FULL, and what is there can still be written and read."""
    monkeypatch.setattr(core, "MAX_FILES", 2)
    monkeypatch.setattr(core, "MAX_VERSIONS", 2)
    for path in ("a", "b"):
        await desk.write(path, b"one")
    assert (await refusal(desk.write("c", b"x"))).reason == "FULL"
    await desk.write("a", b"two")
    assert (await refusal(desk.write("a", b"three"))).reason == "FULL"
    assert await desk.read("a") == b"two"


def test_paths_of_the_core() -> None:
    """The rule itself, without a service."""
    core.check_path("a/b.c")
    with pytest.raises(Invalid):
        core.check_path("a/../b")
    assert core.lies_under("a/b", "a") and not core.lies_under("ab", "a")


async def test_a_tenants_stores_have_a_quota_as_a_whole(service: Service) -> None:
    """All versions in all stores of a tenant count, with 1 KiB for each; a store that is deleted counts no more, nor
    does what was not written. Another tenant has its own."""
    memories = Memories(service.store.objects, service.store.registry, time.time_ns, quota=10 * 1_024)
    tenant, other = ids.mint("ten"), ids.mint("ten")
    one, two, theirs = [
        (await memories.create(owner, "notes", "")).memory_store_id for owner in (tenant, tenant, other)
    ]
    await memories.write(one, "a", bytes(3 * 1_024), None, tenant, "")
    await memories.write(one, "a", bytes(2 * 1_024), None, tenant, "")
    for _ in range(3):
        with pytest.raises(Conflict):
            await memories.write(one, "a", bytes(1_024), "0" * 64, tenant, "")
    with pytest.raises(Full) as full:
        await memories.write(two, "b", bytes(3 * 1_024), None, tenant, "")
    assert (full.value.reason, full.value.metadata) == ("MEMORY_QUOTA", {"limit_bytes": "10240"})
    await memories.write(two, "b", bytes(2 * 1_024), None, tenant, "")
    await memories.write(theirs, "b", bytes(9 * 1_024), None, other, "")
    await memories.delete(one, "a", None, tenant, "")  # is possible though there is no room
    await memories.delete_store(one, tenant)
    await memories.delete_store(one, tenant)
    await memories.write(two, "c", bytes(6 * 1_024), None, tenant, "")
    with pytest.raises(Full):
        await memories.write(two, "d", b"", None, tenant, "")


async def test_writers_at_once_do_not_get_past_the_quota(service: Service) -> None:
    """Of twelve that have room for five, five write, and the count is what is there."""
    memories = Memories(service.store.objects, service.store.registry, time.time_ns, quota=10 * 1_024)
    tenant = ids.mint("ten")
    store = (await memories.create(tenant, "notes", "")).memory_store_id
    done = await asyncio.gather(
        *(memories.write(store, f"f{number}", bytes(1_024), None, tenant, "") for number in range(12)),
        return_exceptions=True,
    )
    assert sorted(isinstance(each, Full) for each in done) == [False] * 5 + [True] * 7
    assert len(await memories.list_files(store, "", tenant)) == 5


async def test_over_the_quota_says_so_on_the_wire(desk: Desk, service: Service) -> None:
    """RESOURCE_EXHAUSTED, with the limit."""
    service.parts.memories._usage._quota = 1
    error = await refusal(desk.write("a", b"x"))
    assert (error.code, error.reason, error.metadata) == ("RESOURCE_EXHAUSTED", "MEMORY_QUOTA", {"limit_bytes": "1"})
