"""Blobs: taken in pieces, whole or not there at all, counted, and found again under one name."""

from __future__ import annotations

import asyncio
import hashlib
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.event_pb2 import BlobRef
from services.kit import ids
from services.kit.identity import TENANT_KEY
from services.session import blobs_core as core
from services.session.blobs import SEND_BYTES
from services.session.objects import CHUNK_BYTES
from services.session.refusing import DRAIN_BYTES
from tests.session.running import MAX_BLOB_BYTES, QUOTA_BYTES, Run, Service, refusal

MIB = 1024 * 1024
PNG = "image/png"
NOBODY = "sess_" + "0" * 26


def pieces(content: bytes, size: int = MIB) -> Iterator[bytes]:
    for start in range(0, max(1, len(content)), size):
        yield content[start : start + size]


def requests(session: str, content: bytes, media_type: str = PNG, size: int = MIB) -> Iterator[pb.UploadBlobRequest]:
    for number, piece in enumerate(pieces(content, size)):
        first = number == 0
        yield pb.UploadBlobRequest(
            session_id=session if first else "", media_type=media_type if first else "", chunk=piece
        )


async def upload(stub: Any, session: str, content: bytes, media_type: str = PNG, size: int = MIB) -> BlobRef:
    answer = await stub.UploadBlob(requests(session, content, media_type, size))
    blob: BlobRef = answer.blob
    return blob


async def download(stub: Any, session: str, blob_id: str, offset: int = 0, length: int = 0) -> bytes:
    request = pb.DownloadBlobRequest(session_id=session, blob_id=blob_id, offset=offset, length=length)
    return b"".join([answer.chunk async for answer in stub.DownloadBlob(request)])


def some(size: int, seed: int = 0) -> bytes:
    """Bytes that differ everywhere, so that a piece in the wrong place shows."""
    block = b"".join(hashlib.sha256(b"%d/%d" % (seed, number)).digest() for number in range(4096))
    return b"".join(number.to_bytes(8, "big") + block for number in range(size // len(block) + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 8 * MIB])
async def test_what_was_uploaded_comes_back(service: Service, size: int) -> None:
    """Bytes, size, media type and SHA-256, for every size around a chunk's and one over a gRPC message's."""
    session, content = await service.create(), some(size)
    blob = await upload(service.client, session, content)
    assert (blob.size, blob.media_type) == (size, PNG)
    assert blob.sha256 == hashlib.sha256(content).hexdigest()
    assert await download(service.client, session, blob.blob_id) == content
    assert await download(service.harness, session, blob.blob_id) == content


async def test_a_big_blob_streams_through_bounded_memory(service: Service, settings: Any) -> None:
    """70 MB go in and out, while this process, client and server together, holds a few MB of them at most."""
    if settings.log == "memory":
        pytest.skip("a store in memory holds what it stores")
    session, digest, count = await service.create(), hashlib.sha256(), 0
    piece = some(MIB)

    async def sent() -> AsyncIterator[pb.UploadBlobRequest]:
        for number in range(70):
            chunk = number.to_bytes(8, "big") + piece[8:]
            digest.update(chunk)
            yield pb.UploadBlobRequest(session_id=session, media_type=PNG, chunk=chunk)

    tracemalloc.start()
    try:
        blob = (await service.client.UploadBlob(sent())).blob
        got = hashlib.sha256()
        request = pb.DownloadBlobRequest(session_id=session, blob_id=blob.blob_id)
        async for answer in service.client.DownloadBlob(request):
            assert len(answer.chunk) <= SEND_BYTES
            got.update(answer.chunk)
            count += len(answer.chunk)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == blob.size == 70 * MIB
    assert got.hexdigest() == digest.hexdigest() == blob.sha256
    assert most < 24 * MIB


async def test_any_range_can_be_had(service: Service) -> None:
    """From anywhere, so long; past the end it is shorter, or empty."""
    session, content = await service.create(), some(2 * CHUNK_BYTES + 100)
    blob = await upload(service.client, session, content)
    size = len(content)
    for offset, length in ((0, 1), (CHUNK_BYTES - 5, 10), (7, 0), (size - 1, 5), (size, 5), (size + 9, 0), (3, size)):
        end = offset + length if length else size
        assert await download(service.client, session, blob.blob_id, offset, length) == content[offset:end]
    for field, values in (("offset", {"offset": -1}), ("length", {"length": -1})):
        request = pb.DownloadBlobRequest(session_id=session, blob_id=blob.blob_id, **values)
        problem = await refusal(service.client.DownloadBlob(request))
        assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": field})


async def test_the_same_content_is_the_same_blob(service: Service) -> None:
    """However often, in whatever pieces and at once: one blob, one object's bytes; in another session the same name."""
    session, other, content = await service.create(), await service.create(), some(MIB + 5)
    blobs = await asyncio.gather(*(upload(service.client, session, content, size=step) for step in (MIB, 99_999, MIB)))
    again = await upload(service.client, session, content)
    assert {each.blob_id for each in (*blobs, again)} == {again.blob_id}
    await service.parts.blobs.finish()
    assert len(await _live(service, session)) == 1
    assert (await upload(service.client, other, content)).blob_id == again.blob_id
    as_text = await upload(service.client, session, content, "text/plain")
    assert as_text.blob_id != again.blob_id and as_text.sha256 == again.sha256


async def test_nothing_is_seen_of_an_upload_that_breaks_off(service: Service) -> None:
    """A caller that goes away in the middle leaves no blob, and its bytes are freed."""
    session = await service.create()
    arrived = asyncio.Event()
    put = service.store.objects.put

    async def noticed(*asked: Any) -> None:
        await put(*asked)
        arrived.set()

    service.store.objects.put = noticed  # type: ignore[method-assign]

    async def half() -> AsyncIterator[pb.UploadBlobRequest]:
        for message in requests(session, some(3 * MIB)):
            yield message
        await asyncio.Event().wait()

    call = service.client.UploadBlob(half())
    waiting = asyncio.ensure_future(_ended(call))
    await arrived.wait()
    call.cancel()
    await waiting
    async with asyncio.timeout(30):
        while await _live(service, session) or service.parts.blobs._uploads:
            await asyncio.sleep(0.01)
    await service.parts.blobs.finish()
    assert await service.store.registry.get("blobs", session) is None


@pytest.mark.parametrize("size", [-1, 0, 2 * MIB, 3 * MIB + 1])
async def test_another_size_than_was_said_is_no_blob(service: Service, size: int) -> None:
    """An upload that ends too early or too late is refused, and nothing of it is kept."""
    session = await service.create()
    messages = list(requests(session, some(3 * MIB)))
    messages[0].size = size
    problem = await refusal(service.client.UploadBlob(iter(messages)))
    assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": "size"})
    await service.parts.blobs.finish()
    assert await _live(service, session) == []
    messages[0].size = 3 * MIB
    await service.client.UploadBlob(iter(messages))


async def test_of_uploads_that_break_off_none_is_taken_for_whole(service: Service) -> None:
    """Whenever a caller goes away: it had said the size, so a part is never a blob."""
    session = await service.create()
    for number in range(60):
        content = number.to_bytes(2, "big") * 100_000

        async def half(content: bytes = content, step: int = number % 20) -> AsyncIterator[pb.UploadBlobRequest]:
            for message in requests(session, content, size=10_000 * (1 + step)):
                message.size = len(content) + 1
                yield message
            await asyncio.Event().wait()

        call = service.client.UploadBlob(half())
        waiting = asyncio.ensure_future(_ended(call))
        for _ in range(number):
            await asyncio.sleep(0)
        call.cancel()
        await waiting
    async with asyncio.timeout(30):
        while service.parts.blobs._uploads:
            await asyncio.sleep(0.01)
    assert await service.store.registry.get("blobs", session) is None


async def test_a_session_has_a_quota(service: Service) -> None:
    """Over it an upload is refused and leaves nothing behind; what is there already may be sent again."""
    session = await service.create()
    message = pb.UploadBlobRequest(session_id=session, media_type=PNG, chunk=bytes(MIB))
    too_long = [message] * (MAX_BLOB_BYTES // MIB + 20)
    problem = await refusal(service.client.UploadBlob(iter(too_long)))
    assert (problem.code, problem.reason) == ("RESOURCE_EXHAUSTED", "BLOB_QUOTA")
    assert problem.metadata == {"limit_bytes": str(MAX_BLOB_BYTES)}
    await service.parts.blobs.finish()
    assert await _live(service, session) == []
    first = await upload(service.client, session, bytes(60 * MIB))
    problem = await refusal(service.client.UploadBlob(requests(session, some(31 * MIB))))
    assert (problem.reason, problem.metadata) == ("BLOB_QUOTA", {"limit_bytes": str(QUOTA_BYTES)})
    assert (await upload(service.client, session, bytes(60 * MIB))).blob_id == first.blob_id  # said again, not refused
    other = await service.create()
    await upload(service.client, other, some(MIB))


async def test_an_upload_without_end_is_ended(service: Service) -> None:
    """Soon after its limit the service stops reading: nobody can fill it by sending on."""
    session, sent = await service.create(), 0

    async def endless() -> AsyncIterator[pb.UploadBlobRequest]:
        nonlocal sent
        while True:
            yield pb.UploadBlobRequest(session_id=session, media_type=PNG, chunk=bytes(MIB))
            sent += MIB

    await refusal(service.client.UploadBlob(endless()))
    assert sent < MAX_BLOB_BYTES + DRAIN_BYTES + 32 * MIB
    await service.parts.blobs.finish()
    assert await _live(service, session) == []


async def test_uploads_at_once_cannot_pass_the_quota_together(service: Service) -> None:
    """Of three uploads of which two fit, two are kept."""
    session = await service.create()
    uploads = (upload(service.client, session, some(40 * MIB, seed)) for seed in range(3))
    done = await asyncio.gather(*uploads, return_exceptions=True)
    assert sum(isinstance(each, BlobRef) for each in done) == 2
    await service.parts.blobs.finish()
    assert len(await _live(service, session)) == 2


async def test_whose_blobs_they_are(service: Service) -> None:
    """Another tenant neither reads nor writes, and cannot tell whether there is a session."""
    session = await service.create()
    blob = await upload(service.client, session, b"mine")
    for stub, where in ((service.other, session), (service.client, NOBODY)):
        assert (await refusal(stub.UploadBlob(requests(where, b"x")))).reason == "SESSION_NOT_FOUND"
        request = pb.DownloadBlobRequest(session_id=where, blob_id=blob.blob_id)
        assert (await refusal(stub.DownloadBlob(request))).reason == "SESSION_NOT_FOUND"
    elsewhere = await service.create()
    request = pb.DownloadBlobRequest(session_id=elsewhere, blob_id=blob.blob_id)
    problem = await refusal(service.client.DownloadBlob(request))
    assert (problem.code, problem.reason) == ("NOT_FOUND", "BLOB_NOT_FOUND")
    assert problem.metadata == {"blob_id": blob.blob_id}
    acting = ((TENANT_KEY, "another"),)
    refused = await refusal(service.sandbox.UploadBlob(requests(session, b"x"), metadata=acting))
    assert refused.reason == "SESSION_NOT_FOUND"


async def test_a_session_that_has_ended_takes_no_blobs(service: Service) -> None:
    """Its blobs can be read for as long as it is there."""
    session = await service.create()
    blob = await upload(service.client, session, b"x")
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    assert (await refusal(service.client.UploadBlob(requests(session, b"y")))).reason == "SESSION_ENDED"
    assert await download(service.client, session, blob.blob_id) == b"x"


HOSTILE = ["", "x", "../../etc", "sess_*", "sess_>", "obj." + "0" * 26, "sess_" + "0" * 27, "sess_" + "A" * 26]


@pytest.mark.parametrize("bad", HOSTILE)
async def test_hostile_ids_are_refused(service: Service, bad: str) -> None:
    """What is no id never reaches a subject of the store."""
    session = await service.create()
    problem = await refusal(service.client.UploadBlob(requests(bad, b"x")))
    assert (problem.reason, problem.metadata) == ("ID_INVALID", {"field": "session_id"})
    request = pb.DownloadBlobRequest(session_id=session, blob_id=bad)
    assert (await refusal(service.client.DownloadBlob(request))).reason == "ID_INVALID"


@pytest.mark.parametrize(
    "bad", ["", "png", "image/", "/png", "image/png\n", "a" * 101 + "/b", "image/*", "te xt/plain"]
)
async def test_a_media_type_is_one(service: Service, bad: str) -> None:
    """It goes back to browsers and models as it is."""
    session = await service.create()
    problem = await refusal(service.client.UploadBlob(requests(session, b"x", bad)))
    assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": "media_type"})


async def test_messages_of_one_upload_agree(service: Service) -> None:
    """Another session or media type, a chunk over its limit, or no message at all: refused, and nothing is kept."""
    session, other = await service.create(), await service.create()
    first = pb.UploadBlobRequest(session_id=session, media_type=PNG, chunk=b"x")
    for field, second in (
        ("session_id", pb.UploadBlobRequest(session_id=other, chunk=b"x")),
        ("media_type", pb.UploadBlobRequest(media_type="text/plain", chunk=b"x")),
        ("chunk", pb.UploadBlobRequest(chunk=bytes(MIB + 1))),
    ):
        problem = await refusal(service.client.UploadBlob(iter([first, second])))
        assert (problem.reason, problem.metadata) == ("ARGUMENT_INVALID", {"field": field})
    assert (await refusal(service.client.UploadBlob(iter([])))).reason == "ARGUMENT_INVALID"
    await service.parts.blobs.finish()
    assert await _live(service, session) == []
    assert await service.store.registry.get("blobs", session) is None


async def test_an_upload_that_took_too_long_is_no_blob(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour the janitor may take the bytes, so nothing gets a name any more; said again, it works."""
    session = await service.create()
    monkeypatch.setattr("services.session.objects.NAMED_WITHIN_SECONDS", -1.0)
    problem = await refusal(service.client.UploadBlob(requests(session, b"late")))
    assert (problem.code, problem.reason) == ("UNAVAILABLE", "LOG_UNAVAILABLE")
    assert await service.store.registry.get("blobs", session) is None
    monkeypatch.undo()
    await upload(service.client, session, b"late")


async def test_a_copy_of_a_session_finds_its_blobs_under_the_same_names(service: Service) -> None:
    """`copy` gives another session bytes of its own, and may be called again."""
    source, target = await service.create(), await service.create()
    contents = [some(MIB), b"", b"small"]
    blobs = [await upload(service.client, source, content) for content in contents]
    await service.parts.blobs.copy(source, target)
    await service.parts.blobs.copy(source, target)
    for blob, content in zip(blobs, contents, strict=True):
        assert await download(service.client, target, blob.blob_id) == content
    assert len(await _live(service, target)) == 2


async def test_a_fork_has_the_blobs_of_its_events(service: Service) -> None:
    """What the shared events refer to can be read in the new session, under the same names."""
    source = await service.create()
    blob = await upload(service.client, source, b"shared")
    answer = await service.client.ForkSession(pb.ForkSessionRequest(session_id=source))
    assert await download(service.client, answer.session.session_id, blob.blob_id) == b"shared"


async def test_an_archived_session_takes_no_blobs(service: Service) -> None:
    """Until it is restored; what is there can be read all the time."""
    session = await service.create()
    blob = await upload(service.client, session, b"x")
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session))
    assert (await refusal(service.client.UploadBlob(requests(session, b"y")))).reason == "SESSION_ARCHIVED"
    assert await download(service.client, session, blob.blob_id) == b"x"
    await service.client.ArchiveSession(pb.ArchiveSessionRequest(session_id=session, restore=True))
    await upload(service.client, session, b"y")


async def test_a_deleted_session_has_no_blobs(service: Service) -> None:
    """Neither is read any more, nor taken."""
    session = await service.create()
    blob = await upload(service.client, session, b"x")
    await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=session))
    assert (await refusal(service.client.UploadBlob(requests(session, b"y")))).reason == "SESSION_NOT_FOUND"
    request = pb.DownloadBlobRequest(session_id=session, blob_id=blob.blob_id)
    assert (await refusal(service.client.DownloadBlob(request))).reason == "SESSION_NOT_FOUND"


@pytest.mark.nats
async def test_a_service_that_dies_in_an_upload_leaves_nothing_half(run: Run) -> None:
    """After a restart the session has no blob, what is left has no name, and the upload works again."""
    content = some(3 * MIB)
    async with run() as service:
        session = await service.create()
        stop = asyncio.Event()

        swap = service.store.registry.swap

        async def stuck(bucket: str, *rest: Any) -> bool:
            if bucket == "blobs":
                stop.set()
                await asyncio.Event().wait()
            return await swap(bucket, *rest)

        service.store.registry.swap = stuck  # type: ignore[method-assign]
        call = asyncio.ensure_future(_ended(service.client.UploadBlob(requests(session, content))))
        await stop.wait()
    await call
    async with run() as service:
        assert await service.store.registry.get("blobs", session) is None
        left = await _live(service, session)
        assert len(left) == 1
        blob = await upload(service.client, session, content)
        assert await download(service.client, session, blob.blob_id) == content


def test_names_follow_from_content() -> None:
    """A blob's id has the form of ids, and differs with the content and the media type."""
    names = {
        core.id_of(hashlib.sha256(b"%d" % number).hexdigest(), kind) for number in range(99) for kind in ("a", "b")
    }
    assert len(names) == 198
    assert all(ids.MINTED.fullmatch(name) for name in names)


async def _ended(call: Any) -> None:
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await call


async def _live(service: Service, session: str) -> list[str]:
    """Lists the objects of a session that hold bytes."""
    objects = service.store.objects
    return [name for name in await objects.list(session) if await objects.get(session, name, 0)]
