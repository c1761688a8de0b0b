"""Blobs beside NATS's own object store, as nats-py speaks to it: the same bytes, in interleaved rounds of one run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Iterator

import nats

from bench.figure import Figure
from bench.log.appends import session
from bench.log.world import World, well
from handmesh.session.v1 import session_pb2 as pb

MIB = 1024 * 1024
BLOB_BYTES = 16 * MIB
RANGES = 4  # that a download is made in
MESSAGE_BYTES = 512 * 1024  # of an upload, as the client library sends it


async def measure(world: World, size: str) -> AsyncIterator[Figure]:
    """Yields how fast blobs are taken and given, in MB/s and beside the object store."""
    stub, metadata = world.client(), world.metadata
    session_id = await session(stub, world)
    login = json.loads(world.nats.migrate_credentials.read_text())
    raw = await nats.connect(world.nats.url, user=login["user"], password=login["password"])
    store = await raw.jetstream().create_object_store("BENCH")
    taken: dict[str, list[float]] = {"upload": [], "put": [], "download": [], "get": []}
    for number in range(4 if size == "ci" else 12):
        content = os.urandom(BLOB_BYTES)
        await well(world.directory)
        began = time.perf_counter()
        blob = (await stub.UploadBlob(_messages(session_id, content), metadata=metadata)).blob
        taken["upload"].append(_rate(began))
        await well(world.directory)
        began = time.perf_counter()
        await store.put(f"o{number}", content)
        taken["put"].append(_rate(began))
        began = time.perf_counter()
        got = [await _range(stub, world, session_id, blob.blob_id, part) for part in range(RANGES)]
        taken["download"].append(_rate(began))
        assert b"".join(got) == content
        began = time.perf_counter()
        assert (await store.get(f"o{number}")).data == content
        taken["get"].append(_rate(began))
    await raw.close()
    for ours, theirs, bound in (("upload", "put", 1.0), ("download", "get", 1.0)):
        ratios = tuple(one / other for one, other in zip(taken[ours], taken[theirs], strict=True))
        shown = {f"{name}_mb_s": round(sorted(taken[name])[len(taken[name]) // 2]) for name in (ours, theirs)}
        name = f"blobs: {ours} of 16 MiB : object store {theirs}, in MB/s"
        yield Figure(name, "ratio", ratios, bound, least=True, more=shown)


def _messages(session_id: str, content: bytes) -> Iterator[pb.UploadBlobRequest]:
    yield pb.UploadBlobRequest(session_id=session_id, media_type="application/octet-stream", size=len(content))
    for start in range(0, len(content), MESSAGE_BYTES):
        yield pb.UploadBlobRequest(chunk=content[start : start + MESSAGE_BYTES])


async def _range(stub: object, world: World, session_id: str, blob_id: str, part: int) -> bytes:
    length = BLOB_BYTES // RANGES
    request = pb.DownloadBlobRequest(session_id=session_id, blob_id=blob_id, offset=part * length, length=length)
    call = stub.DownloadBlob(request, metadata=world.metadata)  # type: ignore[attr-defined]
    return b"".join([answer.chunk async for answer in call])


def _rate(began: float) -> float:
    return BLOB_BYTES / 1_000_000 / (time.perf_counter() - began)
