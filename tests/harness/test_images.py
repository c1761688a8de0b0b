"""Images that the model's API would refuse stay in the log as they were and are shown as it takes them."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from handmesh.scripted_model import ScriptedModel
from services.harness import images
from services.harness.adapters.pictures import ProcessPictures
from services.harness.core import ToolResult
from tests.harness.api import Session, client, talking
from tests.harness.test_model_turns import LS
from tests.harness.test_view import png
from tests.support.requirements import in_ci

SCRIPT = {"default": {"repeat": True, "steps": [{"say": [LS]}, {"say": [{"text": "seen"}]}]}}
TEXT = {"default": {"repeat": True, "steps": [{"say": [{"text": "seen"}]}]}}


def image(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def raw(block: dict[str, Any]) -> bytes:
    return base64.b64decode(block["source"]["data"])


def drawn(width: int, height: int, kind: str = "PNG", noise: bool = False, clear: bool = False) -> bytes:
    """Draws an image; noise does not compress."""
    if not in_ci():
        pytest.importorskip("PIL", reason="needs Pillow: pip install -e '.[harness]'")
    from PIL import Image

    mode, bands = ("RGBA", 4) if clear else ("RGB", 3)
    size = width * height * bands
    pixels = random.Random(1).randbytes(size) if noise else b"\x7f" * size
    made = io.BytesIO()
    Image.frombytes(mode, (width, height), pixels).save(made, kind)
    return made.getvalue()


class Shows:
    """Lets each call answer with blocks of its own."""

    def __init__(self, session: Session, *answers: list[dict[str, Any]]) -> None:
        answers_left = list(answers)

        async def run(tool: str, input: str) -> ToolResult:
            return ToolResult("a picture", content=json.dumps(answers_left.pop(0) if answers_left else []))

        session.hands._run = run  # type: ignore[method-assign]


def last_body(server: ScriptedModel) -> dict[str, Any]:
    body = server.requests[-1].body
    assert body is not None
    return body


REFUSED: list[tuple[dict[str, Any], str]] = [
    (png(9_000, 10), "9000 x 10 pixels"),
    (png(0, 10), "broken"),
    (image(raw(png())[:30]), "broken"),
    (image(raw(png())[:-12]), "broken"),
    (image(b"BM" + b"x" * 100, "image/bmp"), "a kind that the model's API does not take (image/bmp)"),
    (image(b"<svg/>", "image/svg+xml"), "a kind"),
    (image(b""), "not base64"),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%%"}}, "not base64"),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": 7}}, "not base64"),
    ({"type": "image"}, "no source"),
    ({"type": "image", "source": 7}, "no source"),
    ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}, "no PDF"),
]


@pytest.mark.parametrize(("block", "why"), REFUSED)
@pytest.mark.parametrize("by_tool", [True, False])
async def test_what_the_api_would_refuse_is_kept_and_not_sent(
    tmp_path: Path, block: dict[str, Any], why: str, by_tool: bool
) -> None:
    """In a tool's result or a message: in the log as it was, a note for the model, stored once, and no 400 ever."""
    async with talking(tmp_path, SCRIPT) as (server, session):
        if by_tool:
            Shows(session, [block], [block])
            await session.run()
        else:
            await session.say([block, {"type": "text", "text": "look"}])
        await session.say("next")
        await session.say("and next")
    assert {request.status for request in server.requests} == {200}
    assert set(session.ends()) == {"DONE"}
    (rendered,) = session.log.only("content_rendered")
    assert why in rendered.why
    assert rendered.source_sha256 == images.identity(block)
    kept = [it.result.content_json for it in session.log.only("tool_finished")]
    kept += [it.content_json for it in session.log.only("message_received")]
    assert any(block in json.loads(content or "[]") for content in kept)
    assert f"[not shown: {rendered.why}]" in json.dumps(last_body(server), ensure_ascii=False)


async def test_an_image_with_a_wrong_label_is_sent_with_the_right_one(tmp_path: Path) -> None:
    """A PNG that is said to be a JPEG: shown, with its true media type."""
    async with talking(tmp_path, TEXT) as (server, session):
        await session.say([image(raw(png()), "image/jpeg")])
    assert {request.status for request in server.requests} == {200}
    assert last_body(server)["messages"][0]["content"][1]["source"]["media_type"] == "image/png"


async def test_of_very_many_images_the_newest_are_sent(tmp_path: Path) -> None:
    """150 over the turns: never more than 100 in a request, each older one named; what is sent changes seldom."""
    async with talking(tmp_path, TEXT) as (server, session):
        for turn in range(30):
            await session.say([png(8, 8 + turn) for _ in range(5)])
    assert {request.status for request in server.requests} == {200}
    bodies = [json.dumps(request.body) for request in server.requests]
    assert max(body.count('"image/png"') for body in bodies) <= images.MAX_IMAGES
    replies = session.log.only("model_replied")
    broken = sum(after.prefix_hash != before.prompt_hash for before, after in itertools.pairwise(replies))
    assert broken == 1
    assert json.loads(session.log.only("message_received")[1].content_json)[0]["type"] == "image"


async def test_many_bytes_of_images_stay_under_the_limit_of_a_request(tmp_path: Path) -> None:
    """Twelve images of 3 MB: each may be sent, all of them together may not; the oldest are named."""
    data = raw(png())
    big = [image(data[:-12] + bytes([number]) * 3_000_000 + data[-12:]) for number in range(12)]
    async with talking(tmp_path, TEXT) as (server, session):
        for block in big:
            ref = await session.log.put_blob(raw(block), "image/png")
            reference = {"type": "handmesh_blob", "blob_id": ref.blob_id, "media_type": "image/png"}
            await session.say([reference | {"size": ref.size, "sha256": ref.sha256}])
    assert {request.status for request in server.requests} == {200}
    assert session.ends() == ["DONE"] * 12
    assert "left out here" in json.dumps(last_body(server))


TOO_BIG: list[tuple[str, dict[str, Any]]] = [
    ("a 27 MB PNG of noise", {"width": 3_000, "height": 3_000, "noise": True}),
    ("a wide JPEG", {"width": 7_900, "height": 200, "kind": "JPEG"}),
    ("a clear PNG", {"width": 2_400, "height": 2_400, "clear": True, "noise": True}),
    ("a WebP", {"width": 2_100, "height": 100, "kind": "WEBP"}),
    ("a GIF", {"width": 100, "height": 2_100, "kind": "GIF"}),
]


@pytest.mark.parametrize(("name", "how"), TOO_BIG)
async def test_an_image_that_is_too_big_is_made_smaller_once(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    """The log holds it whole; the smaller one is a blob event, and every harness after sends the same bytes of it."""
    data = drawn(**how)
    media_type = f"image/{how.get('kind', 'PNG').lower()}"
    async with talking(tmp_path, TEXT) as (server, session):
        session.pictures = ProcessPictures()
        ref = await session.log.put_blob(data, media_type)
        reference = {"type": "handmesh_blob", "blob_id": ref.blob_id, "media_type": media_type}
        await session.say([reference | {"size": ref.size, "sha256": ref.sha256}])
        async with client(tmp_path, server.base_url) as model:
            other = Session(model)
            other.log, other._names = session.log, session._names
            await other.say("next")
    assert {request.status for request in server.requests} == {200}
    assert len(session.log.only("content_rendered")) == 1
    bodies = [request.body for request in server.requests if request.body is not None]
    shown = [body["messages"][0]["content"][1] for body in bodies]
    assert shown[0]["type"] == "image" and shown[0] == shown[1]
    assert max(images.dimensions(raw(shown[0])) or (0,)) == 1_568
    assert session.log.only("model_replied")[1].prefix_hash == session.log.only("model_replied")[0].prompt_hash


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG\r\n\x1a\n" + b"x" * 1_000, raw(png(60_000, 60_000)), raw(png(9_000, 9))]
)
async def test_what_cannot_be_made_smaller_is_nothing(data: bytes) -> None:
    """Broken, or a bomb of 3,600 million pixels: the process says so and is gone."""
    assert await ProcessPictures().shrink(data) is None


def test_a_smaller_image_never_sees_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What decodes images from anywhere is started without the environment: no key can be in it."""
    seen: list[Any] = []
    start = asyncio.create_subprocess_exec

    async def spy(*args: Any, **more: Any) -> Any:
        seen.append(more["env"])
        return await start(*args, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    asyncio.run(ProcessPictures().shrink(b""))
    assert seen == [{}]
