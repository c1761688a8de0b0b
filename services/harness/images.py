"""Tells which images and documents the model's API takes, and keeps a request's images within its limits. Pure.

The limits are the API's own: bytes of base64, pixels of a side, images in one request. More than a few images and the
smaller limit of pixels holds for each; so that an image looks the same in every request, it always holds here. The API
itself makes images smaller than that before the model sees them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Block = dict[str, Any]
MAX_BASE64_BYTES = 5 * 1024 * 1024  # of one image
MAX_SIDE = 2_000  # pixels
MAX_IMAGES = 100  # in one request
MAX_ALL_BYTES = 24 * 1024 * 1024  # of all images and documents in one request, in base64: a request has at most 32 MB
KEPT_SHARE = 2  # when there are too many, so much of both limits is left free, so that the next request changes nothing
_HEAD = 64 * 1024  # characters of base64 in which an image's size nearly always stands
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}
_PDF = "application/pdf"


@dataclass(frozen=True, slots=True)
class Unfit:
    """What the API would not take. `shrinkable`: a smaller one of it would do."""

    why: str
    shrinkable: bool = False


def judge(block: Block) -> Unfit | str | None:
    """Returns why the API would refuse an image or a document; its true media type, if only that is wrong; or None."""
    source = block.get("source")
    kind = block.get("type")
    if kind not in ("image", "document") or (isinstance(source, dict) and source.get("type") != "base64"):
        return None
    if not isinstance(source, dict):
        return Unfit(f"the {kind} has no source")
    data, told = source.get("data"), source.get("media_type")
    if not isinstance(data, str) or not data or not data.isascii():
        return Unfit(f"the {kind}'s data is not base64")
    if kind == "document":
        return None if told == _PDF and data.startswith("JVBERi") else Unfit("the document is no PDF")
    return _judge_image(data, told)


def _judge_image(data: str, told: Any) -> Unfit | str | None:
    head = _decoded(data[:_HEAD]) if len(data) > _HEAD else _decoded(data)
    if head is None:
        return Unfit("the image's data is not base64")
    true = media_type(head)
    if true is None:
        return Unfit(f"the image is of a kind that the model's API does not take ({str(told)[:40]})")
    size = dimensions(head)
    if size is None and len(data) > _HEAD and (whole := _decoded(data)) is not None:
        size = dimensions(whole)
    if size is None or min(size) < 1 or not _ends(data, true):
        return Unfit("the image is broken")
    if len(data) > MAX_BASE64_BYTES:
        return Unfit(f"the image has {len(data) * 3 // 4} bytes, {size[0]} x {size[1]} pixels: too many", True)
    if max(size) > MAX_SIDE:
        return Unfit(f"the image has {size[0]} x {size[1]} pixels: too many", True)
    return true if true != told else None


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _ends(data: str, kind: str) -> bool:
    """Tells whether an image has an end, where its kind has one at a known place."""
    tail = _decoded(data[-(len(data) % 4 or 4) - 60 :] if len(data) > 64 else data)
    if tail is None or len(data) % 4:
        return False
    return kind != "image/png" or b"IEND" in tail or b"IEND" in (_decoded(data) or b"")  # more may stand behind its end


def fitted(block: Block, renditions: dict[str, list[Block]]) -> list[Block]:
    """Returns what takes a block's place in a request: itself, what was made of it, or a note."""
    verdict = judge(block)
    if verdict is None:
        return [block]
    if isinstance(verdict, str):
        return [{**block, "source": {**block["source"], "media_type": verdict}}]
    return renditions.get(identity(block)) or [note(verdict)]


def note(unfit: Unfit) -> Block:
    """Says to the model what is not shown."""
    return {"type": "text", "text": f"[not shown: {unfit.why}]"}


def identity(block: Block) -> str:
    """Returns the SHA-256 of a block's data as it stands in the log, in hex."""
    source = block.get("source")
    data = source.get("data") if isinstance(source, dict) else ""
    return hashlib.sha256(str(data).encode("utf-8", "surrogatepass")).hexdigest()


def dropped(sizes: Sequence[int]) -> int:
    """Returns how many of the oldest images are left out. `sizes` are all images' bytes of base64, oldest first.

    When one too many comes, many go at once: what is sent then stays the same for a while, and so does its prefix.
    """
    first = count = total = 0
    for place, size in enumerate(sizes):
        count, total = count + 1, total + size
        if count > MAX_IMAGES or total > MAX_ALL_BYTES:
            while first < place and (count > MAX_IMAGES // KEPT_SHARE or total > MAX_ALL_BYTES // KEPT_SHARE):
                count, total, first = count - 1, total - sizes[first], first + 1
    return first


def media_type(data: bytes) -> str | None:
    """Returns the media type that an image's first bytes tell, or None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data.startswith(b"RIFF") and data[8:12] == b"WEBP" else None


def dimensions(data: bytes) -> tuple[int, int] | None:
    """Returns width and height in pixels from an image's header, or None if it is cut or broken."""
    try:
        match media_type(data):
            case "image/png" if data[12:16] == b"IHDR":
                return struct.unpack(">II", data[16:24])
            case "image/gif":
                return struct.unpack("<HH", data[6:10])
            case "image/jpeg":
                return _jpeg(data)
            case "image/webp":
                return _webp(data)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte before a marker
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X" if len(data) >= 30:
            return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None
