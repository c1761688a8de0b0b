"""What does not fit into an event lies in blobs, and the model sees it all the same."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from handmesh.client import blobs as client_blobs
from handmesh.session.v1.event_pb2 import Event, MessageReceived
from services.harness import blocks
from services.harness.core import BlobRef, ToolResult
from services.harness.loops.messages import make
from services.harness.ports import Ports
from services.kit.errors import Full, Unavailable
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Told, message, ports, said

MIB = 1024 * 1024
READ = ("bash", {"command": "read"})
QUOTA = Full("BLOB_QUOTA", "the blobs of a session have at most 1 bytes", limit_bytes=1)


class Answers(MemoryHands):
    """A hand whose calls all answer the same."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__()
        self.result = result

    async def _run(self, tool: str, input: str) -> ToolResult:
        return self.result


async def run(log: MemoryLog, world: Ports) -> None:
    await make().run(log, world, "test", Told())


def image(size: int = 3 * MIB) -> dict[str, Any]:
    """As many bytes that look like an image of 8 x 8 pixels."""
    filler = bytes(number % 251 for number in range(size - 57))
    header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 8, 8) + b"\x08\2\0\0\0crc."
    data = base64.b64encode(header + filler + b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0IEND\xaeB`\x82").decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def told(model: ScriptedModel) -> list[dict[str, Any]]:
    """The blocks that the model was told last."""
    content: list[dict[str, Any]] = model.requests[-1]["messages"][-1]["content"]
    return content


async def test_an_image_of_a_tool_reaches_the_model_through_a_blob() -> None:
    """3 MiB: the event names the blob, which holds the image itself; the model sees the block as the tool gave it."""
    picture = image()
    result = ToolResult("picture.png", content=json.dumps([picture, {"type": "text", "text": "seen"}]))
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    await run(log, ports(model, Answers(result)))
    (finished,) = log.only("tool_finished")
    (ref,) = finished.blobs
    block, text = json.loads(finished.result.content_json)
    assert block == blocks.reference(BlobRef(ref.blob_id, "image/png", 3 * MIB, ref.sha256))
    assert text == {"type": "text", "text": "seen"}
    assert base64.b64encode(log.blobs[ref.blob_id]).decode() == picture["source"]["data"]
    assert told(model)[0]["content"] == [picture, text]


async def test_another_harness_fetches_what_the_log_refers_to() -> None:
    """Nothing of the first one is needed: the request is built from the log and its blobs, each fetched once."""
    picture = image(2 * MIB)
    log = MemoryLog()
    result = ToolResult("", content=json.dumps([picture]))
    await run(log, ports(ScriptedModel(said(t1=READ), said()), Answers(result)))
    model = ScriptedModel(said(), said())
    await log.add(message("and now?", "m2"))
    await run(log, ports(model))
    results = model.requests[0]["messages"][2]["content"]
    assert picture in results[0]["content"]
    assert len(log.fetched) == 1


async def test_long_output_keeps_head_and_tail() -> None:
    """The event says how much is left out and where all of it is; the blob holds all of it."""
    output = "begin " + "é" * 2 * MIB + " end"
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    await run(log, ports(model, Answers(ToolResult(output))))
    (finished,) = log.only("tool_finished")
    (ref,) = finished.blobs
    shown = finished.result.output
    assert shown.startswith("begin ") and shown.endswith(" end") and finished.result.truncated
    assert ref.blob_id in shown and "bytes left out" in shown
    assert len(shown.encode()) <= blocks.MAX_OUTPUT_BYTES
    assert log.blobs[ref.blob_id] == output.encode()
    assert told(model)[0]["content"] == [
        {"type": "text", "text": shown}
        | ({"cache_control": {"type": "ephemeral"}} if "cache_control" in told(model)[0]["content"][0] else {})
    ]


async def test_long_text_in_blocks_keeps_head_and_tail_too() -> None:
    """A server's text of any length does not fill the model's context."""
    content = json.dumps([{"type": "text", "text": "<" + "x" * MIB + ">"}])
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    await run(log, ports(model, Answers(ToolResult("", content=content))))
    (block,) = told(model)[0]["content"]
    assert block["text"].startswith("<x") and block["text"].endswith("x>")
    assert len(block["text"]) <= blocks.MAX_TEXT_BYTES
    (ref,) = log.only("tool_finished")[0].blobs
    assert log.blobs[ref.blob_id] == b"<" + b"x" * MIB + b">"


async def test_many_small_blocks_go_into_one_blob() -> None:
    """However a result's bytes are spread, its event fits."""
    many = [{"type": "text", "text": f"{number} " + "x" * 200} for number in range(6_000)]
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    await run(log, ports(model, Answers(ToolResult("", content=json.dumps(many)))))
    assert len(log.only("tool_finished")[0].blobs) == 1
    assert told(model)[0]["content"] == many


async def test_what_fits_stays_in_the_event() -> None:
    """No blob is made for a small image or output, or for many."""
    result = ToolResult("x" * 100_000, content=json.dumps([image(60_000) for _ in range(5)]))
    log = MemoryLog()
    await run(log, ports(ScriptedModel(said(t1=READ), said()), Answers(result)))
    (finished,) = log.only("tool_finished")
    assert not finished.blobs and not log.blobs
    assert finished.result.content_json == result.content


async def test_a_big_picture_is_a_blob_though_it_would_fit() -> None:
    """A hand's screenshots are files beside the log: the event refers to them, and the model is shown them."""
    content = [image(100_000), {"type": "text", "text": "seen"}]
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    await run(log, ports(model, Answers(ToolResult("", content=json.dumps(content)))))
    (ref,) = log.only("tool_finished")[0].blobs
    assert len(log.blobs[ref.blob_id]) == 100_000
    assert told(model)[0]["content"] == content


async def test_without_room_the_model_is_told_so() -> None:
    """Over the quota a result is still a result: what could not be kept is named, and the turn goes on."""
    result = ToolResult("x" * MIB, content=json.dumps([image(), {"type": "text", "text": "seen"}]))
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    log.blob_refusal = QUOTA
    await run(log, ports(model, Answers(result)))
    (finished,) = log.only("tool_finished")
    assert not finished.blobs
    assert "there was no room to keep it" in finished.result.output
    left, text = told(model)[0]["content"]
    assert left["text"] == f"[{3 * MIB} bytes of image/png left out: there was no room to keep them]"
    assert text == {"type": "text", "text": "seen"}
    assert log.kinds()[-1] == "turn_ended"


async def test_a_reply_over_the_limit_is_kept_byte_for_byte() -> None:
    """Its event names the blob and the calls; the call runs with its whole input, here and in another harness."""
    written = "é" * 200_000
    answer = said("x" * MIB, t1=("bash", {"command": written}))
    inputs: list[str] = []

    async def work(tool: str, input: str) -> None:
        inputs.append(input)

    log, model = MemoryLog(), ScriptedModel(answer, said())
    await run(log, ports(model, MemoryHands(work)))
    first = log.only("model_replied")[0]
    reference, call = json.loads(first.content_json)
    assert reference["type"] == "handmesh_blob" and reference["media_type"] == blocks.BLOCKS
    assert call == {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
    assert log.blobs[reference["blob_id"]].decode() == answer.content
    assert json.loads(inputs[0]) == {"command": written}
    assert model.requests[1]["messages"][1]["content"] == json.loads(answer.content)
    other = ScriptedModel(said())
    await log.add(message("again", "m2"))
    await run(log, ports(other))
    assert other.requests[0]["messages"][1]["content"] == json.loads(answer.content)


async def test_a_reply_without_room_ends_the_turn() -> None:
    """The log says why, and the session goes on with its next message."""
    log = MemoryLog()
    log.blob_refusal = QUOTA
    await run(log, ports(ScriptedModel(said("x" * MIB))))
    assert [(it.part, it.reason) for it in log.only("error_raised")] == [("session", "BLOB_QUOTA")]
    assert log.kinds()[-2:] == ["error_raised", "turn_ended"]


async def test_a_call_whose_input_is_lost_does_not_run() -> None:
    """A reply's blob that is gone: the model is told that the call did not run, and nothing runs without its input."""
    log = MemoryLog()
    stub = blocks.stand_in(said("x", t1=READ).content, BlobRef("blob_" + "0" * 26, blocks.BLOCKS, 1, "0" * 64))
    hands = MemoryHands()

    async def lost() -> None:
        log.blobs.clear()

    answer = said("x" * MIB, t1=READ)
    await run(log, ports(ScriptedModel(answer, said()), hands))
    assert list(hands.executions) == ["t1"]
    again = MemoryLog()
    await again.add(Event(event_id="w", harness_woke=log.events[2].harness_woke))
    reply = Event(event_id="r")
    reply.model_replied.CopyFrom(log.only("model_replied")[0])
    reply.model_replied.content_json = stub
    reply.model_replied.read_position = 3
    await again.add(reply)
    hands = MemoryHands()
    await run(again, ports(ScriptedModel(said()), hands))
    assert not hands.executions
    assert "did not run" in again.only("tool_finished")[0].result.output


async def test_a_message_may_refer_to_blobs() -> None:
    """Each kind becomes its block: image, PDF, text, blocks; anything else, and what is not there, is named only."""
    log, model = MemoryLog(), ScriptedModel(said())
    held = {
        "image/png": base64.b64decode(image(90)["source"]["data"]),
        "application/pdf": b"%PDF-",
        "text/markdown": "# é".encode(),
        blocks.BLOCKS: json.dumps([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]).encode(),
        "video/mp4": b"mp4",
    }
    refs = [await log.put_blob(data, media_type) for media_type, data in held.items()]
    refs.append(BlobRef("blob_" + "z" * 26, "image/png", 3, "0" * 64))
    content = json.dumps([blocks.reference(ref) for ref in refs])
    await log.add(Event(event_id="m2", message_received=MessageReceived(content_json=content)))
    await run(log, ports(model))
    shown = told(model)[1:]
    assert [block["type"] for block in shown] == ["image", "document", "text", "text", "text", "text", "text"]
    assert shown[0]["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": image(90)["source"]["data"],
    }
    assert [block["text"] for block in shown[2:5]] == ["# é", "a", "b"]
    assert "video/mp4" in shown[5]["text"] and "z" * 26 in shown[6]["text"]


async def test_a_reference_that_lies_harms_nothing() -> None:
    """Whatever a client or a tool writes into one, the turn goes on."""
    log, model = MemoryLog(), ScriptedModel(said())
    bad = await log.put_blob(b"not json", blocks.BLOCKS)
    odd: list[dict[str, Any]] = [
        {"type": "handmesh_blob"},
        {"type": "handmesh_blob", "blob_id": ["x"], "media_type": 7, "size": "big"},
        blocks.reference(bad),
        {"type": "handmesh_blob", "blob_id": bad.blob_id, "media_type": "image/png"},
    ]
    await log.add(Event(event_id="m2", message_received=MessageReceived(content_json=json.dumps(odd))))
    await run(log, ports(model))
    assert log.kinds()[-1] == "turn_ended"


async def test_content_waits_for_a_session_service_that_is_away() -> None:
    """An upload is said again until it is there: nothing is left out for a restart."""
    log, model = MemoryLog(), ScriptedModel(said(t1=READ), said())
    put, tries = log.put_blob, []

    async def away(data: bytes, media_type: str) -> BlobRef:
        tries.append(media_type)
        if len(tries) == 1:
            raise Unavailable("SESSION_UNAVAILABLE", "away")
        return await put(data, media_type)

    log.put_blob = away  # type: ignore[method-assign]
    await run(log, ports(model, Answers(ToolResult("", content=json.dumps([image(2 * MIB)])))))
    assert len(tries) == 2
    assert len(log.only("tool_finished")[0].blobs) == 1


def test_client_and_harness_mean_the_same() -> None:
    """The form of a reference and what becomes a blob are the same on both sides of the wire."""
    ref = BlobRef("blob_x", "image/png", 3, "00")
    assert client_blobs.REFERENCE == blocks.REFERENCE and client_blobs.BLOCKS == blocks.BLOCKS
    wire = client_blobs.event_pb2.BlobRef(blob_id="blob_x", media_type="image/png", size=3, sha256="00")
    assert client_blobs.reference(wire) == blocks.reference(ref)
    for block in (
        image(90),
        {"type": "text", "text": "é"},
        {"type": "odd", "x": 1},
        {**image(90), "cache_control": {}},
    ):
        assert client_blobs.unpacked(block)[1] == blocks.unpacked(block)[1]
        if blocks.unpacked(block)[1] != blocks.BLOCKS:
            assert client_blobs.unpacked(block) == blocks.unpacked(block)
