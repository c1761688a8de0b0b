"""One session's big content: puts away what does not fit into an event, and fetches what events refer to."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from services.harness import blocks
from services.harness.adapters import codec
from services.harness.blocks import Block
from services.harness.core import (
    Attached,
    BlobRef,
    CallFinished,
    Detached,
    DoorRefused,
    Replied,
    Said,
    ToolResult,
    Transferred,
)
from services.kit.errors import Full, Gone, Invalid, Refused, Unavailable

if TYPE_CHECKING:
    from services.harness.ports import SessionLog

REMEMBERED_BYTES = 64 * 1024 * 1024  # of blobs that were put or fetched, for the next question to the model
SAY_AGAIN_SECONDS = 60.0  # how long content is put away again while the session service is away
PAUSE_SECONDS = 0.25


class Shelf:
    """What a run needs of its session's blobs."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._remembered: OrderedDict[str, bytes] = OrderedDict()

    def clear(self) -> None:
        """Forgets what it remembers: nobody asks for a while."""
        self._remembered.clear()

    async def fitted(self, result: ToolResult) -> tuple[ToolResult, tuple[BlobRef, ...]]:
        """Returns a result that fits into its event, and the blobs that hold the rest, and its big pictures.

        Without room for blobs the rest is left out, and the result says so; a picture that fits stays where it is then.
        """
        kept: list[BlobRef] = []
        output, content = result.output, result.content
        cut = blocks.size_of(output) > blocks.MAX_OUTPUT_BYTES
        if cut:
            ref = await self._keep(output.encode("utf-8", "replace"), blocks.TEXT, kept)
            output = blocks.shortened(output, _where(ref))
        if blocks.size_of(content) > blocks.MAX_CONTENT_BYTES:
            content = await self._shrunk(content, kept)
        content = await self._without_pictures(content, kept)
        fitting = replace(result, output=output, content=content, truncated=result.truncated or cut)
        return fitting, tuple(kept)

    async def fitted_blocks(self, content: str) -> tuple[str, tuple[BlobRef, ...]]:
        """Returns blocks as an event holds them, and the blobs that hold what does not fit."""
        kept: list[BlobRef] = []
        if blocks.size_of(content) > blocks.MAX_CONTENT_BYTES:
            content = await self._shrunk(content, kept)
        return content, tuple(kept)

    async def fitted_reply(self, content: str) -> str:
        """Returns a reply's blocks as its event holds them. Raises Full, or Refused, when there is no room for them."""
        if blocks.size_of(content) <= blocks.MAX_REPLY_BYTES:
            return content
        return blocks.stand_in(content, await self._put(content.encode(), blocks.BLOCKS))

    async def whole(self, reply: Replied) -> Replied:
        """Returns a reply as the model gave it. One that is lost has its calls cut: they do not run without input."""
        found = blocks.references(reply.content)
        if not found:
            return reply
        data = await self._fetched(found[0])
        if data is None:
            lost = blocks.spelled(blocks.opened(found[0], None))
            return replace(reply, content=lost, calls=tuple(replace(call, cut=True) for call in reply.calls))
        content = data.decode()
        return replace(reply, content=content, calls=codec.calls_of(content, reply.stop_reason))

    async def opened(self, facts: Iterable[Said], contents: Iterable[str] = ()) -> Mapping[str, list[Block]]:
        """Fetches what facts and contents refer to: by blob, the blocks that take the reference's place."""
        found: dict[str, list[Block]] = {}
        said = [content_of(fact) for fact in facts if not isinstance(fact, Replied)]  # those were made whole when read
        for content in (*said, *contents):
            for block in blocks.references(content):
                name = str(block.get("blob_id"))
                if name not in found:
                    found[name] = _opened(block, await self._fetched(block))
        return found

    async def _without_pictures(self, content: str, kept: list[BlobRef]) -> str:
        """Moves big pictures into blobs: people and programs fetch them as files, and a log with many stays small."""
        if blocks.size_of(content) < blocks.LEAST_BYTES or blocks.IMAGE not in content:
            return content
        left: list[Block] = json.loads(content)
        for place, block in enumerate(left):
            data, media_type = blocks.unpacked(block)
            if media_type in blocks.IMAGES and len(data) >= blocks.LEAST_BYTES:
                ref = await self._keep(data, media_type, kept)
                left[place] = block if ref is None else _stand_in(ref, len(data), media_type)
        return blocks.spelled(left) if kept else content

    async def _shrunk(self, content: str, kept: list[BlobRef]) -> str:
        """Moves the biggest blocks into blobs until the rest fits. The blocks' order stays."""
        left: list[Block] = json.loads(content)
        sizes = [blocks.size_of(blocks.spelled([block])) for block in left]
        for place in sorted(range(len(left)), key=sizes.__getitem__, reverse=True):
            if blocks.size_of(blocks.spelled(left)) <= blocks.MAX_CONTENT_BYTES or sizes[place] < blocks.LEAST_BYTES:
                break
            left[place] = await self._moved(left[place], kept)
        if blocks.size_of(blocks.spelled(left)) > blocks.MAX_CONTENT_BYTES:  # very many small blocks
            whole = blocks.spelled(left).encode("utf-8", "surrogatepass")
            left = [_stand_in(await self._keep(whole, blocks.BLOCKS, kept), len(whole), blocks.BLOCKS)]
        return blocks.spelled(left)

    async def _moved(self, block: Block, kept: list[BlobRef]) -> Block:
        """Returns what stands for a block: a reference, or of a text its head and tail, as for a tool's output."""
        data, media_type = blocks.unpacked(block)
        ref = await self._keep(data, media_type, kept)
        if media_type != blocks.TEXT:
            return _stand_in(ref, len(data), media_type)
        note = _where(ref)
        return blocks.text_block(blocks.shortened(block["text"], note, blocks.MAX_TEXT_BYTES))

    async def _keep(self, data: bytes, media_type: str, kept: list[BlobRef]) -> BlobRef | None:
        try:
            ref = await self._put(data, media_type)
        except (Full, Refused, Invalid):
            return None
        kept.append(ref)
        return ref

    async def _put(self, data: bytes, media_type: str) -> BlobRef:
        deadline = asyncio.get_running_loop().time() + SAY_AGAIN_SECONDS
        while True:
            try:
                ref = await self._log.put_blob(data, media_type)
            except Unavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                self._remember(ref.blob_id, data)
                return ref

    async def _fetched(self, block: Block) -> bytes | None:
        """Returns what a blob holds, or None when the model is not shown it: it is not there, or too big."""
        name = str(block.get("blob_id"))
        if not blocks.shown(str(block.get("media_type", ""))):
            return None
        if name in self._remembered:
            self._remembered.move_to_end(name)
            return self._remembered[name]
        try:
            data = await self._log.get_blob(name, blocks.MAX_OPENED_BYTES)
        except (Gone, Invalid):
            return None
        if data is not None:
            self._remember(name, data)
        return data

    def _remember(self, name: str, data: bytes) -> None:
        self._remembered[name] = data
        while sum(map(len, self._remembered.values())) > REMEMBERED_BYTES:
            self._remembered.popitem(last=False)


def content_of(fact: Said) -> str:
    """Returns the content blocks of something that was said, as JSON text; empty when it has none."""
    match fact:
        case CallFinished(result=result):
            return result.content
        case DoorRefused() | Attached() | Transferred() | Detached():
            return ""
    return fact.content


def _where(ref: BlobRef | None) -> str:
    return f"all of it is the blob {ref.blob_id}" if ref else "there was no room to keep it"


def _stand_in(ref: BlobRef | None, size: int, media_type: str) -> Block:
    if ref is None:
        return blocks.text_block(f"[{size} bytes of {media_type} left out: there was no room to keep them]")
    return blocks.reference(ref)


def _opened(block: Block, data: bytes | None) -> list[Block]:
    try:
        return blocks.opened(block, data)
    except (ValueError, RecursionError):
        return blocks.opened(block, None)  # said to hold blocks, and does not
