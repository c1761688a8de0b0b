"""A stream that is cut or goes wrong anywhere is never an answer, and never more than a failure that may pass."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmesh.scripted_model import ScriptedModel
from services.harness.adapters.anthropic import retry_after
from services.harness.adapters.sse import Events
from services.harness.answer import Answering, Malformed
from services.harness.ports import ModelFailure
from tests.harness.api import client, talking

ASK = json.dumps(
    {"model": "claude-x", "max_tokens": 50, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
).encode()
SAY: list[dict[str, Any]] = [
    {"thinking": "hm é\U0001f600"},
    {"text": "naïve \u2028 text"},
    {"tool_use": {"name": "bash", "input": {"command": "rm -rf é"}}},
]


async def recorded() -> bytes:
    """Returns the bytes of a whole answer's stream, as the scripted model sends them."""
    async with ScriptedModel({"default": {"repeat": True, "steps": [{"say": SAY, "chunk": 3}]}}) as server:
        host, _, port = server.base_url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        lines = ("POST /v1/messages HTTP/1.1", "host: x", "x-api-key: k", "anthropic-version: 2023-06-01")
        head = "\r\n".join((*lines, f"content-length: {len(ASK)}", "connection: close", "", ""))
        writer.write(head.encode() + ASK)
        raw = await reader.read()
        writer.close()
    body, whole = raw.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return whole


@pytest.fixture(scope="module")
def stream() -> bytes:
    """The bytes of a whole answer's stream."""
    return asyncio.run(recorded())


def taken(chunks: list[bytes]) -> Answering:
    events, answering = Events(), Answering(lambda *_: None)
    for chunk in chunks:
        for data in events.take(chunk):
            answering.take(data)
    return answering


def test_no_prefix_of_a_stream_is_an_answer(stream: bytes) -> None:
    """Cut after every byte count: whole only with the last event's last byte."""
    whole = taken([stream])
    assert whole.whole
    end = len(stream.rstrip(b"\n")) + 2
    events, answering = Events(), Answering(lambda *_: None)
    for count in range(end):
        for data in events.take(stream[count : count + 1]):
            answering.take(data)
        assert answering.whole == (count == end - 1)
    assert answering.content() == whole.content()


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_however_a_stream_is_cut_into_chunks_it_says_the_same(stream: bytes, data: st.DataObject) -> None:
    """Chunks end anywhere, inside characters and between the two newlines; lines may end in CRLF."""
    places = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    lines = stream.replace(b"\n", b"\r\n") if data.draw(st.booleans()) else stream
    chunks = [lines[a:b] for a, b in zip([0, *places], [*places, len(lines)], strict=True)]
    assert taken(chunks).content() == taken([stream]).content()


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_stream_with_wrong_bytes_is_an_answer_or_malformed(stream: bytes, data: st.DataObject) -> None:
    """Bytes changed, events left out, doubled or out of order: no other error comes out, and blocks stay blocks."""
    parts = stream.split(b"\n\n")
    parts = data.draw(st.permutations(parts)) if data.draw(st.booleans()) else parts
    wrong = bytearray(b"\n\n".join(parts[: data.draw(st.integers(1, len(parts)))]) + b"\n\n")
    for place, byte in data.draw(st.lists(st.tuples(st.integers(0, len(wrong) - 1), st.integers(0, 255)), max_size=5)):
        wrong[place] = byte
    try:
        answering = taken([bytes(wrong)])
    except Malformed:
        return
    for block in json.loads(answering.content()):
        assert isinstance(block["type"], str)
        assert block["type"] != "tool_use" or isinstance(block["input"], dict)


@asynccontextmanager
async def serving(answer: bytes, hold: bool = False) -> AsyncIterator[str]:
    """Serves these bytes to whoever connects, then closes, or says nothing more."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.decode().lower().split("\r\n") if line.startswith("content-length:"))
        await reader.readexactly(int(length.split(":")[1]))
        writer.write(answer)
        if hold:
            await left.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        left.set()
        server.close()
        await server.wait_closed()


def chunked(data: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%s\r\n" % (len(data), data) + b"0\r\n\r\n"


async def failure(directory: Path, answer: bytes, hold: bool = False, silence: float = 5.0) -> ModelFailure:
    async with serving(answer, hold) as url, client(directory, url, silence) as model:
        with pytest.raises(ModelFailure) as told:
            await model.ask(ASK, lambda *_: None)
    return told.value


async def test_a_connection_that_is_cut_after_any_byte_may_be_asked_again(tmp_path: Path, stream: bytes) -> None:
    """Over HTTP, in the head, in a chunk's size, in its data: retryable, whichever byte was the last."""
    answer = chunked(stream)
    last = answer.index(b"message_stop")
    for count in [*range(0, 100, 3), *range(100, last, 41), last]:
        cut = await failure(tmp_path, answer[:count])
        assert cut.retryable, count
        assert cut.reason in ("MODEL_UNAVAILABLE", "MODEL_STREAM_BROKEN"), count


async def test_an_error_frame_anywhere_is_what_it_says(tmp_path: Path, stream: bytes) -> None:
    """After every event, in mid tool input too: overloaded, and nothing of the answer is left."""
    parts = stream.split(b"\n\n")
    frame = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    for count in range(0, len(parts) - 2, 3):
        broken = await failure(tmp_path, chunked(b"\n\n".join([*parts[:count], frame, b""])))
        assert (broken.reason, broken.retryable) == ("MODEL_OVERLOADED", True)


@pytest.mark.parametrize("after", [0, 60, 200])
async def test_silence_is_bounded(tmp_path: Path, stream: bytes, after: int) -> None:
    """Nothing at all, headers and one event, then nothing: MODEL_SILENT, after the time that is set."""
    quiet = await failure(tmp_path, chunked(stream)[:after], hold=True, silence=0.2)
    assert (quiet.reason, quiet.retryable) == ("MODEL_SILENT", True)


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"nonsense\r\n\r\n", chunked(b"data: \xff\xfe\n\n")],
)
async def test_what_is_no_stream_is_a_broken_one(tmp_path: Path, answer: bytes) -> None:
    """A proxy's page, another protocol, bytes that are no text: retryable, without a word of it in the message."""
    broken = await failure(tmp_path, answer)
    assert broken.retryable
    assert "hello" not in broken.message


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    """Seconds, parts of them, an HTTP date, milliseconds; nonsense and the past are no wait."""
    now = 1_800_000_000.0
    assert retry_after({"retry-after": "7"}, now) == 7.0
    assert retry_after({"retry-after": " 0.5 "}, now) == 0.5
    assert retry_after({"retry-after": formatdate(now + 90, usegmt=True)}, now) == 90.0
    assert retry_after({"retry-after": formatdate(now - 90, usegmt=True)}, now) == 0.0
    assert retry_after({"retry-after-ms": "1500", "retry-after": "7"}, now) == 1.5
    for nonsense in ("", "soon", "-3", "1e9", "\u0663", "inf", "nan"):
        assert retry_after({"retry-after": nonsense}, now) is None


async def test_a_date_is_honoured_over_http(tmp_path: Path) -> None:
    """A 529 that names a date 40 s away: the failure asks for about that long."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    when = formatdate(time.time() + 40, usegmt=True).encode()
    head = b"HTTP/1.1 529 Busy\r\ncontent-type: application/json\r\nretry-after: %s\r\ncontent-length: %d\r\n\r\n"
    busy = await failure(tmp_path, head % (when, len(body)) + body)
    assert busy.reason == "MODEL_OVERLOADED"
    assert busy.retry_after is not None and 30 < busy.retry_after <= 40


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"error": {"status": 429, "retry_after": 3}}, "MODEL_RATE_LIMITED"),
    ({"error": {"status": 500}}, "MODEL_UNAVAILABLE"),
    ({"error": {"status": 529}}, "MODEL_OVERLOADED"),
    ({"say": SAY, "cut_after_events": 9}, "MODEL_STREAM_BROKEN"),
    ({"say": SAY, "cut_after_bytes": 700}, "MODEL_STREAM_BROKEN"),
    ({"say": SAY, "error_frame": {"after_events": 12, "type": "overloaded_error"}}, "MODEL_OVERLOADED"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
async def test_a_failure_that_passes_leaves_only_its_retries(
    tmp_path: Path, fault: dict[str, Any], reason: str
) -> None:
    """Twice, then an answer: two RetryScheduled that say why, one reply, nothing partial, every preview discarded."""
    rules = {"turns": [{**fault, "times": 2}, {"say": [{"text": "there"}]}]}
    async with talking(tmp_path, rules) as (_, session):
        await session.run()
    assert session.retries() == [reason, reason]
    assert session.ends() == ["DONE"]
    assert len(session.log.only("model_replied")) == 1
    assert session.hands.ran == []
    pieces = [it.event_id for it in session.log.shown if not it.discarded]
    replies = [event.event_id for event in session.log.events if event.HasField("model_replied")]
    discarded = {it.event_id for it in session.log.shown if it.discarded}
    assert set(pieces) <= {*discarded, *replies}
    assert not discarded & set(replies)


async def test_a_failure_that_stays_is_said_to_be_exhausted(tmp_path: Path) -> None:
    """After the last retry: ErrorRaised that may pass, a turn that FAILED; the next message is tried anew."""
    rules = {"turns": [{"error": {"status": 529}, "times": 7}, {"say": [{"text": "there"}]}]}
    async with talking(tmp_path, rules) as (_, session):
        await session.run()
        await session.say("again")
    assert len(session.retries()) == 6
    assert session.errors() == [("MODEL_OVERLOADED", True)]
    assert session.ends() == ["FAILED", "DONE"]
