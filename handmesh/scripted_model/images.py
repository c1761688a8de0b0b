"""Checks the images and PDFs that a request carries in base64: kind, size in bytes, size in pixels."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator
from typing import Any

from handmesh.scripted_model.content import blocks
from handmesh.scripted_model.errors import ApiError, invalid

MAX_IMAGE_BYTES = 5 * 1024 * 1024  # of the base64 text: that is what the API measures
MAX_PIXELS = 8000
MAX_PIXELS_OF_MANY = 2000
MANY_IMAGES = 20  # more than so many, and the smaller limit holds for each


def check_images(request: dict[str, Any]) -> Iterator[ApiError]:
    """Yields what is wrong with the request's base64 sources, in the request's order."""
    sources = list(base64_sources(request))
    images = [source for source in sources if source[1] == "image"]
    limit = MAX_PIXELS_OF_MANY if len(images) > MANY_IMAGES else MAX_PIXELS
    for path, kind, source in sources:
        yield from _check_source(path, kind, source, limit)


def base64_sources(request: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields (path of the block, its type, its source) of each base64 image and document, nested ones included."""
    for index, message in enumerate(request["messages"]):
        yield from _sources(message["content"], f"messages.{index}.content")


def _sources(content: Any, path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for index, block in enumerate(blocks(content)):
        here = f"{path}.{index}"
        if block["type"] in ("image", "document") and block["source"].get("type") == "base64":
            yield f"{here}.{block['type']}", block["type"], block["source"]
        elif block["type"] == "tool_result":
            yield from _sources(block.get("content"), f"{here}.tool_result.content")


def _check_source(path: str, kind: str, source: dict[str, Any], limit: int) -> Iterator[ApiError]:
    where = f"{path}.source.base64"
    if kind == "image" and len(source["data"]) > MAX_IMAGE_BYTES:
        size = len(source["data"])
        yield invalid(f"{where}: image exceeds 5 MB maximum: {size} bytes > {MAX_IMAGE_BYTES} bytes")
        return
    try:
        data = base64.b64decode(source["data"], validate=True)
    except (binascii.Error, ValueError):
        yield invalid(f"{where}.data: Invalid base64 data")
        return
    if kind == "document":
        if not data.startswith(b"%PDF-"):
            yield invalid(f"{where}.data: The PDF specified was not valid.")
        return
    if media_type(data) != source["media_type"]:
        yield invalid(f"{where}.data: Image does not match the provided media type {source['media_type']}")
        return
    size_in_pixels = dimensions(data)
    if size_in_pixels is None:
        yield invalid("Could not process image")
    elif max(size_in_pixels) > limit:
        yield _too_large(where, limit)


def _too_large(where: str, limit: int) -> ApiError:
    many = " for many-image requests" if limit == MAX_PIXELS_OF_MANY else ""
    return ApiError(
        400,
        "invalid_request_error",
        f"{where}.data: At least one of the image dimensions exceed max allowed size{many}: {limit} pixels",
        details={"error_code": "image_dimensions_too_large", "max_side_length_pixels": limit},
    )


def media_type(data: bytes) -> str | None:
    """Returns the media type that an image's first bytes tell, or None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def dimensions(data: bytes) -> tuple[int, int] | None:
    """Returns (width, height) in pixels from an image's header, or None if the header is cut or broken."""
    try:
        match media_type(data):
            case "image/png" if data[12:16] == b"IHDR":
                return struct.unpack(">II", data[16:24])
            case "image/gif":
                return struct.unpack("<HH", data[6:10])
            case "image/jpeg":
                return _jpeg_dimensions(data)
            case "image/webp":
                return _webp_dimensions(data)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg_dimensions(data: bytes) -> tuple[int, int] | None:
    position = 2
    while data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte before a marker
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start-of-frame segment
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return width, height
        else:
            position += 2 + int(struct.unpack(">H", data[position + 2 : position + 4])[0])
    return None


def _webp_dimensions(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", data[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            width, height = data[24:27], data[27:30]
            if len(height) < 3:
                return None
            return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    return None
