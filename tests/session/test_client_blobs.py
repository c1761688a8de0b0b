"""The client library puts what is too big for an event into blobs by itself."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handmesh.client import Addresses, Client, HandmeshError, Session
from handmesh.client import blobs as client_blobs
from handmesh.session.v1.event_pb2 import BlobRef, CustomToolRequested, Event, ModelReplied
from tests.session.running import MAX_BLOB_BYTES, Service

MIB = 1024 * 1024


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    """A client of the service."""
    address = service.served.client_address
    async with Client(Addresses(address, address, address, address), service.served.key) as client:
        yield client


def image(size: int) -> dict[str, Any]:
    data = base64.b64encode(bytes(number % 251 for number in range(size))).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


async def stored(session: Session) -> list[dict[str, Any]]:
    """The content of the session's last message, as the log has it."""
    events = [event async for event in session.events(kinds=["message_received"])]
    blocks: list[dict[str, Any]] = json.loads(events[-1].message_received.content_json)
    return blocks


async def held(session: Session, block: dict[str, Any]) -> bytes:
    return b"".join([piece async for piece in session.download(block["blob_id"])])


async def test_small_content_stays_in_the_message(client: Client) -> None:
    """What fits is sent as it is: no blob is made."""
    session = await client.create_session()
    await session.send([text("x" * 700_000)])
    assert [block["type"] for block in await stored(session)] == ["text"]


async def test_a_big_image_goes_into_a_blob(client: Client) -> None:
    """The blob holds the image itself; the other blocks stay where they are."""
    session = await client.create_session()
    picture = image(5 * MIB)
    await session.send([text("look"), picture, text("what is it?")])
    before, block, after = await stored(session)
    assert (before, after) == (text("look"), text("what is it?"))
    assert (block["type"], block["media_type"], block["size"]) == ("handmesh_blob", "image/png", 5 * MIB)
    assert base64.b64encode(await held(session, block)).decode() == picture["source"]["data"]


async def test_a_big_text_goes_into_a_blob(client: Client) -> None:
    """As text in UTF-8; half a character goes as JSON, and comes back as it was."""
    session = await client.create_session()
    await session.send("é" * MIB)
    (block,) = await stored(session)
    assert block["media_type"] == "text/plain"
    assert await held(session, block) == ("é" * MIB).encode()
    odd = {**text("x" * MIB), "citations": []}
    await session.send([odd])
    (block,) = await stored(session)
    assert block["media_type"] == client_blobs.BLOCKS
    assert json.loads(await held(session, block)) == [odd]


async def test_many_small_blocks_go_into_one_blob(client: Client) -> None:
    """However the bytes are spread, the message fits."""
    session = await client.create_session()
    blocks = [text(f"{number}: " + "x" * 200) for number in range(8_000)]
    await session.send(blocks)
    (block,) = await stored(session)
    assert json.loads(await held(session, block)) == blocks


async def test_a_session_can_begin_with_big_content(client: Client) -> None:
    """The first message is there once, also when the whole call is made again."""
    for _ in range(2):
        session = await client.create_session(content="x" * 2 * MIB, request_id="big-first")
    events = [event async for event in session.events(kinds=["message_received"])]
    assert len(events) == 1
    assert (await stored(session))[0]["size"] == 2 * MIB


async def test_a_blob_can_be_sent_by_name(client: Client) -> None:
    """Uploaded piece by piece, then named in a message; a range of it can be had."""
    session = await client.create_session()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield bytes([number]) * (MIB + 1)

    blob = await session.upload(pieces(), "application/pdf")
    assert isinstance(blob, BlobRef) and blob.size == 3 * MIB + 3
    await session.send([client_blobs.reference(blob)])
    assert await stored(session) == [client_blobs.reference(blob)]
    part = b"".join([piece async for piece in session.download(blob.blob_id, MIB, 2)])
    assert part == b"\0\1"


async def test_a_big_answer_of_a_custom_tool_goes_into_blobs(client: Client, service: Service) -> None:
    """Of a long text head and tail stay in the event, big blocks have references; the event names every blob."""
    session = await client.create_session(content="go")
    epoch, _ = await service.wake(session.id)
    call = {"type": "tool_use", "id": "t1", "name": "ask", "input": {}}
    replied = ModelReplied(content_json=json.dumps([call]), read_position=2)
    await service.emit(session.id, Event(model_replied=replied), epoch)
    await service.emit(
        session.id,
        Event(custom_tool_requested=CustomToolRequested(tool_use_id="t1", name="ask", input_json="{}")),
        epoch,
    )
    output, picture = "a" * MIB + "é" * MIB + "z" * MIB, image(5 * MIB)
    content = json.dumps([text("look"), picture])
    for _ in range(2):
        position = await session.answer_custom_tool("t1", output, content_json=content, event_id="answer")
    (event,) = [event async for event in session.events(position, position + 1)]
    answer = event.custom_tool_answered
    blocks = json.loads(answer.result.content_json)
    assert blocks[0] == text("look") and blocks[1]["media_type"] == "image/png"
    assert base64.b64encode(await held(session, blocks[1])).decode() == picture["source"]["data"]
    assert len(answer.result.output.encode()) <= client_blobs.OUTPUT_BYTES
    assert answer.result.output.startswith("aaaa") and answer.result.output.endswith("zzzz")
    kept = {blob.blob_id: blob for blob in answer.blobs}
    assert blocks[1]["blob_id"] in kept and len(kept) == 2
    (whole,) = [name for name, blob in kept.items() if blob.media_type == "text/plain"]
    assert whole in answer.result.output
    assert (await held(session, {"blob_id": whole})).decode() == output
    assert {blob.blob_id for blob in await session.blobs()} == set(kept)


async def test_a_small_answer_stays_in_the_event(client: Client, service: Service) -> None:
    """No blob is made for what fits; what is no array of blocks is the service's to refuse."""
    session = await client.create_session(content="go")
    for content in ("[" + "x" * MIB, json.dumps({"a": "x" * MIB})):
        with pytest.raises(HandmeshError):
            await session.answer_custom_tool("t1", "small", content_json=content)
    assert await session.blobs() == []


async def test_errors_are_the_clients_own(client: Client) -> None:
    """Over a limit, and a blob that is not there."""
    session = await client.create_session()
    with pytest.raises(HandmeshError) as full:
        await session.upload(bytes(MAX_BLOB_BYTES + 1), "image/png")
    assert full.value.reason == "BLOB_QUOTA"
    with pytest.raises(HandmeshError) as missing:
        await anext(session.download("blob_" + "0" * 26))
    assert missing.value.reason == "BLOB_NOT_FOUND"
