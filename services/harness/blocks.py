"""Content blocks that stand for blobs: how they look, what becomes one, and what one becomes for the model. Pure.

    {"type": "handmesh_blob", "blob_id": ..., "media_type": ..., "size": ..., "sha256": ...}

A blob of the media type `BLOCKS` holds a JSON array of blocks, which take the reference's place. An image, a PDF or a
text becomes a block of its kind; of anything else the model is told only that it is there.

In a reply a reference stands for the whole answer, byte for byte. Behind it lie the answer's tool calls without their
input, so that whoever reads the log alone knows them.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from services.harness.core import BlobRef

REFERENCE = "handmesh_blob"
INVALID_JSON = "INVALID_JSON"  # the only key of a call's input that was no JSON object: the text that the model wrote
BLOCKS = "application/vnd.handmesh.blocks+json"
TEXT = "text/plain"
PDF = "application/pdf"
IMAGE = "image"
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_OUTPUT_BYTES = 256 * 1024  # of a result's text in its event; with the blocks it stays under 1 MiB
MAX_CONTENT_BYTES = 512 * 1024  # of a result's blocks in its event
MAX_TEXT_BYTES = 64 * 1024  # of a block of text in a result whose blocks do not fit
MAX_REPLY_BYTES = 960 * 1024  # of a reply's blocks in its event
MAX_OPENED_BYTES = 32 * 1024 * 1024  # of one blob that the model is shown: no request is bigger
LEAST_BYTES = 64 * 1024  # of a block that is worth a blob of its own

Block = dict[str, Any]


def size_of(text: str) -> int:
    """Counts a text's bytes in an event."""
    return len(text.encode("utf-8", "surrogatepass"))


def spelled(blocks: list[Block]) -> str:
    """Writes blocks as an event holds them."""
    return json.dumps(blocks, ensure_ascii=False, separators=(",", ":"))


def reference(ref: BlobRef) -> Block:
    """Makes the block that stands for a blob."""
    return {
        "type": REFERENCE,
        "blob_id": ref.blob_id,
        "media_type": ref.media_type,
        "size": ref.size,
        "sha256": ref.sha256,
    }


def references(content: str) -> list[Block]:
    """Finds the blocks of a content that stand for blobs."""
    if REFERENCE not in content:
        return []
    return [block for block in json.loads(content) if isinstance(block, dict) and block.get("type") == REFERENCE]


def unpacked(block: Block) -> tuple[bytes, str]:
    """Returns what a blob that stands for a block holds, and its media type: text or an image as it is, else JSON."""
    source = block.get("source")
    if block.keys() == {"type", "text"} and block["type"] == "text":
        return str(block["text"]).encode("utf-8", "replace"), TEXT
    if block.keys() == {"type", "source"} and isinstance(source, dict) and source.get("type") == "base64":
        media_type = source.get("media_type")
        kind = {PDF: "document"}.get(str(media_type), "image" if media_type in IMAGES else "")
        if block["type"] == kind:
            try:
                return base64.b64decode(source.get("data", ""), validate=True), str(media_type)
            except (binascii.Error, TypeError, ValueError):
                pass  # the model is to say what is wrong with it
    return spelled([block]).encode("utf-8", "surrogatepass"), BLOCKS


def shown(media_type: str) -> bool:
    """Says whether the model is shown what a blob holds."""
    plain = media_type.partition(";")[0]
    return plain in IMAGES or plain in (BLOCKS, PDF, "application/json") or plain.startswith("text/")


def opened(block: Block, data: bytes | None) -> list[Block]:
    """Returns the blocks that take a reference's place. No data: the blob is not shown, or is not there."""
    media_type = str(block.get("media_type", ""))
    plain = media_type.partition(";")[0]
    if data is None or not shown(media_type):
        return [text_block(f"[blob {block.get('blob_id')}: {media_type}, {block.get('size')} bytes, not shown here]")]
    if plain == BLOCKS:
        blocks = json.loads(data)
        return [each for each in blocks if isinstance(each, dict)]
    if plain in IMAGES or plain == PDF:
        source = {"type": "base64", "media_type": plain, "data": base64.b64encode(data).decode()}
        return [{"type": "document" if plain == PDF else "image", "source": source}]
    return [text_block(data.decode("utf-8", "replace"))]


def text_block(text: str) -> Block:
    """Makes a block of text."""
    return {"type": "text", "text": text}


def text_of(content: str) -> str:
    """Returns the text of a content's blocks, a blank line between two; empty for no content."""
    blocks = json.loads(content) if content else []
    return "\n\n".join(str(block["text"]) for block in blocks if block.get("type") == "text" and block.get("text"))


def shortened(output: str, note: str, limit: int = MAX_OUTPUT_BYTES) -> str:
    """Keeps a text's head and tail, at most `limit` bytes, with a note between them about what is left out."""
    data = output.encode("utf-8", "replace")
    half = limit // 2 - 512
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(data) - 2 * half} bytes left out here: {note}]\n{tail}"


def stand_in(reply: str, ref: BlobRef) -> str:
    """Returns the blocks of a reply whose content lies in a blob: the reference, and the calls without their input."""
    calls = [
        {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
        for block in json.loads(reply)
        if block.get("type") == "tool_use"
    ]
    return spelled([reference(ref), *calls])


def whole(value: Any) -> Any:
    """Puts a replacement for every half of a character: no JSON on the wire can hold one."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole(each) for each in value]
    if isinstance(value, dict):
        return {whole(key): whole(each) for key, each in value.items()}
    return value


def blank(block: Block) -> bool:
    """Tells whether a block is text that says nothing."""
    return block.get("type") == "text" and not str(block.get("text", "")).strip()
