"""The rules for images and PDFs in base64, over headers made by hand."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest

from handmesh.scripted_model.errors import ApiError
from handmesh.scripted_model.images import MAX_IMAGE_BYTES, dimensions, media_type
from handmesh.scripted_model.validation import check_message_request

HEADERS = {"anthropic-version": "2026-10-21"}
WHERE = "messages.0.content.{}.image.source.base64"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 4) + b"hi"
    huffman = b"\xff\xff\xc4" + struct.pack(">H", 2)  # with a fill byte before the marker
    frame = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width)
    return b"\xff\xd8" + comment + huffman + frame


def webp(kind: bytes, body: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + body


def lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height))


def lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14))


def extended(width: int, height: int) -> bytes:
    return webp(b"VP8X", b"\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"))


KINDS = {
    "png": (png, "image/png"),
    "gif": (gif, "image/gif"),
    "jpeg": (jpeg, "image/jpeg"),
    "webp lossy": (lossy, "image/webp"),
    "webp lossless": (lossless, "image/webp"),
    "webp extended": (extended, "image/webp"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_size_are_read_from_the_header(kind: str) -> None:
    """Every format that the API takes tells its media type, width and height."""
    make, expected = KINDS[kind]
    assert (media_type(make(640, 480)), dimensions(make(640, 480))) == (expected, (640, 480))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_header_has_no_size(kind: str) -> None:
    """An image whose header is cut off anywhere gives None, never an exception."""
    make, _ = KINDS[kind]
    whole = make(640, 480)
    assert [dimensions(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


def image(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def raw(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def request(*blocks: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": [*blocks]}]}


def refusal(*blocks: Any) -> tuple[int, str, str] | None:
    error = check_message_request(request(*blocks), HEADERS)
    return None if error is None else (error.status, error.type, error.message)


def test_a_right_image_is_taken() -> None:
    """Each format passes when its media type says what it is."""
    assert refusal(*(image(make(10, 10), kind) for make, kind in KINDS.values())) is None


RULES = {
    "data is base64": (raw("@@@"), f"{WHERE.format(0)}.data: Invalid base64 data"),
    "data is what its media type says": (
        image(png(1, 1), "image/jpeg"),
        f"{WHERE.format(0)}.data: Image does not match the provided media type image/jpeg",
    ),
    "data is an image": (
        image(b"hello"),
        f"{WHERE.format(0)}.data: Image does not match the provided media type image/png",
    ),
    "an image is whole": (image(png(1, 1)[:20]), "Could not process image"),
    "an image has at most 5 MB of base64": (
        raw("A" * (MAX_IMAGE_BYTES + 4)),
        f"{WHERE.format(0)}: image exceeds 5 MB maximum: 5242884 bytes > 5242880 bytes",
    ),
    "a side has at most 8000 pixels": (
        image(png(1, 8001)),
        f"{WHERE.format(0)}.data: At least one of the image dimensions exceed max allowed size: 8000 pixels",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_wrong_image_is_refused(rule: str) -> None:
    """Each rule for images gives a 400 with the API's sentence."""
    block, sentence = RULES[rule]
    assert refusal(block) == (400, "invalid_request_error", sentence)


def test_many_images_must_be_smaller() -> None:
    """A side of 2001 pixels passes among 20 images and is refused among 21, with details for programs."""
    assert refusal(*[image(png(2001, 1))] * 20) is None
    assert check_message_request(request(*[image(png(2001, 1))] * 21), HEADERS) == ApiError(
        400,
        "invalid_request_error",
        f"{WHERE.format(0)}.data: At least one of the image dimensions exceed max allowed size for many-image "
        "requests: 2000 pixels",
        details={"error_code": "image_dimensions_too_large", "max_side_length_pixels": 2000},
    )


def test_images_in_tool_results_are_checked() -> None:
    """An image that a tool returned is held to the same rules, and found by its path."""
    body = request({"type": "text", "text": "look"})
    body["tools"] = [{"name": "see", "input_schema": {"type": "object"}}]
    body["messages"] += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "see", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image(b"?")]}]},
    ]
    error = check_message_request(body, HEADERS)
    assert error is not None
    assert error.message == (
        "messages.2.content.0.tool_result.content.0.image.source.base64.data: Image does not match the provided media "
        "type image/png"
    )


def test_a_pdf_is_a_pdf() -> None:
    """A document in base64 is a PDF by its first bytes."""

    def document(data: bytes) -> dict[str, Any]:
        source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(data).decode()}
        return {"type": "document", "source": source}

    assert refusal(document(b"%PDF-1.7")) is None
    assert refusal(document(b"hello")) == (
        400,
        "invalid_request_error",
        "messages.0.content.0.document.source.base64.data: The PDF specified was not valid.",
    )
