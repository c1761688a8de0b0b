"""Big content: uploads and downloads, and messages that hold references instead of it.

An event has at most 1 MiB. What is bigger lies beside the log as a blob, and a content block stands for it:

    {"type": "handmesh_blob", "blob_id": "blob_...", "media_type": "image/png", "size": 5000000, "sha256": "..."}

A harness puts the content in its place before the model sees it. What a blob of which media type becomes is told in
`docs/blobs.md`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from handmesh.client.channels import Link
from handmesh.client.errors import HandmeshError, raised
from handmesh.session.v1 import event_pb2, session_pb2

if TYPE_CHECKING:
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub

REFERENCE = "handmesh_blob"
"""The type of a content block that stands for a blob."""

BLOCKS = "application/vnd.handmesh.blocks+json"
"""The media type of a blob that holds content blocks: a JSON array of them."""

TEXT = "text/plain"
"""The media type of a blob that becomes a text block: UTF-8."""

CHUNK_BYTES = 512 * 1024
"""Bytes sent in one message of an upload; a service takes up to 1 MiB."""

INLINE_BYTES = 768 * 1024
"""Most bytes of the JSON text of a message's content, so that the event around it stays under 1 MiB."""

RESULT_BYTES = 512 * 1024
"""The same of a tool's answer, beside which there may be `OUTPUT_BYTES` of text."""

OUTPUT_BYTES = 256 * 1024
"""Most bytes of a tool's output; of more, head and tail stay in the event, and the whole lies in a blob."""

TRANSFER_SECONDS = 600.0
"""How long an upload or a download may take."""

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types that become image blocks."""

Upload = Callable[[bytes, str], Awaitable[event_pb2.BlobRef]]
Block = dict[str, Any]


async def upload(
    link: Link,
    stub: SessionServiceAsyncStub,
    session_id: str,
    content: bytes | AsyncIterable[bytes],
    media_type: str,
) -> event_pb2.BlobRef:
    """Uploads a blob, from memory or piece by piece, and checks that it arrived whole. Idempotent by content.

    Raises HandmeshError: `BLOB_QUOTA`, `SESSION_NOT_FOUND`, `SESSION_ENDED`, and `BLOB_DAMAGED` when what the service
    keeps is not what was sent.
    """
    digest = hashlib.sha256()

    async def messages() -> AsyncIterator[session_pb2.UploadBlobRequest]:
        size = len(content) if isinstance(content, bytes) else None
        yield session_pb2.UploadBlobRequest(session_id=session_id, media_type=media_type, size=size)
        async for piece in _pieces(content):
            digest.update(piece)
            yield session_pb2.UploadBlobRequest(session_id=session_id, chunk=piece)

    try:
        answer = await stub.UploadBlob(messages(), metadata=link.metadata, timeout=TRANSFER_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None
    if answer.blob.sha256 != digest.hexdigest():
        raise _damaged(answer.blob.blob_id)
    return answer.blob


async def _pieces(content: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        for start in range(0, len(content), CHUNK_BYTES):
            yield content[start : start + CHUNK_BYTES]
        return
    async for part in content:
        for start in range(0, len(part), CHUNK_BYTES):
            yield part[start : start + CHUNK_BYTES]


async def download(
    link: Link, stub: SessionServiceAsyncStub, session_id: str, blob_id: str, offset: int = 0, length: int = 0
) -> AsyncIterator[bytes]:
    """Yields a blob, or `length` bytes of it (0: all) from `offset` on, in pieces of at most 256 KiB.

    Raises HandmeshError: `BLOB_NOT_FOUND`, `SESSION_NOT_FOUND`. After a break, go on from the bytes that came.
    """
    request = session_pb2.DownloadBlobRequest(session_id=session_id, blob_id=blob_id, offset=offset, length=length)
    call = stub.DownloadBlob(request, metadata=link.metadata, timeout=TRANSFER_SECONDS)
    try:
        async for answer in call:
            if answer.chunk:
                yield answer.chunk
    except grpc.aio.AioRpcError as error:
        raise raised(error) from None
    finally:
        call.cancel()


def reference(blob: event_pb2.BlobRef) -> Block:
    """Makes the content block that stands for a blob."""
    return {
        "type": REFERENCE,
        "blob_id": blob.blob_id,
        "media_type": blob.media_type,
        "size": blob.size,
        "sha256": blob.sha256,
    }


def fits(blocks: Sequence[Block], limit: int = INLINE_BYTES) -> bool:
    """Says whether content blocks fit into an event as they are, with at most so many bytes of JSON text."""
    return len(spelled(blocks).encode("utf-8", "surrogatepass")) <= limit


def spelled(blocks: Sequence[Block]) -> str:
    """Writes content blocks as an event holds them."""
    return json.dumps(list(blocks), ensure_ascii=False)


async def shrunk(blocks: Sequence[Block], upload: Upload, limit: int = INLINE_BYTES) -> list[Block]:
    """Moves the biggest blocks into blobs until the rest fits into an event. The blocks' order stays."""
    left = list(blocks)
    sizes = [len(spelled([block]).encode("utf-8", "surrogatepass")) for block in left]
    for place in sorted(range(len(left)), key=sizes.__getitem__, reverse=True):
        if fits(left, limit) or sizes[place] <= 1024:
            break
        left[place] = reference(await upload(*unpacked(left[place])))
    if not fits(left, limit):  # very many small blocks
        left = [reference(await upload(spelled(blocks).encode("utf-8", "surrogatepass"), BLOCKS))]
    return left


async def shrunk_text(content_json: str, upload: Upload) -> str:
    """Shrinks a tool's blocks that come as JSON text. What is no array of blocks stays: the service says what is wrong
    with it."""
    if len(content_json.encode("utf-8", "surrogatepass")) <= RESULT_BYTES:
        return content_json
    try:
        found = json.loads(content_json)
    except ValueError:
        return content_json
    if not isinstance(found, list) or not all(isinstance(block, dict) for block in found):
        return content_json
    return spelled(await shrunk(found, upload, RESULT_BYTES))


async def shortened(output: str, upload: Upload) -> str:
    """Keeps of a long text its head and tail, with a note between them that names the blob which has all of it."""
    data = output.encode("utf-8", "surrogatepass")
    if len(data) <= OUTPUT_BYTES:
        return output
    blob = await upload(output.encode("utf-8", "replace"), TEXT)
    half = OUTPUT_BYTES // 2 - 512
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(data) - 2 * half} bytes left out here: all of it is in {blob.blob_id}]\n{tail}"


def unpacked(block: Block) -> tuple[bytes, str]:
    """Returns what a blob that stands for a block holds, and its media type: text or an image as it is, else JSON."""
    if block.keys() == {"type", "text"} and block["type"] == "text":
        try:
            return block["text"].encode(), TEXT
        except (AttributeError, UnicodeEncodeError):
            pass  # no text, or half a character: as JSON it stays what it is
    source = block.get("source")
    if block.keys() == {"type", "source"} and isinstance(source, dict) and source.get("type") == "base64":
        media_type = source.get("media_type")
        if (block["type"], media_type) == ("document", "application/pdf") or (
            block["type"] == "image" and media_type in IMAGES
        ):
            try:
                return base64.b64decode(source.get("data", ""), validate=True), str(media_type)
            except (binascii.Error, TypeError, ValueError):
                pass  # the model is to say what is wrong with it
    return spelled([block]).encode("utf-8", "surrogatepass"), BLOCKS


def _damaged(blob_id: str) -> HandmeshError:
    message = "what the service keeps is not what was sent"
    return HandmeshError("BLOB_DAMAGED", message, {"blob_id": blob_id}, code="DATA_LOSS")
