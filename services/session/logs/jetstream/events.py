"""The log on JetStream: one message per subject, so the subject itself says whether a position is taken."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from services.kit.errors import Unavailable
from services.session.log import BATCH_SPAN, StoredBatch, TakenError
from services.session.logs.jetstream import leader
from services.session.logs.jetstream.connection import Connection
from services.session.logs.jetstream.link import PLAIN, Message
from services.session.logs.jetstream.questions import NOTHING_THERE
from services.session.logs.jetstream.streams import shard_of

COUNT = "Handmesh-Count"
PREVIOUS = "Handmesh-Previous"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
WRONG_LAST_SEQUENCE = (10071, 10164)  # the second of several nodes, while another append is on its way
TOO_MANY_PER_SUBJECT = 10077  # also when the stream is full
MULTI_SUBJECTS = 1_015  # of one read, a page and what may begin before it; nats-server refuses more than 1,024
LEAST_READ_BYTES = 256 * 1024  # of one read, so that small ones take few


class JetStreamLog:
    """Batches in the streams LOG-0 to LOG-7."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        header = _ALONE if batch.count == 1 else _HEADER % batch.count
        if batch.prev_digest:
            header += _PREVIOUS % batch.prev_digest.encode()
        subject = _subject(session_id, batch.first_position)
        answer = (await self._connection.carry(subject, batch.data, header + b"\r\n")).data
        code = 0 if _STORED.match(answer) else int(json.loads(answer).get("error", {}).get("err_code", 0))
        if not code:
            return
        taken = code in WRONG_LAST_SEQUENCE or (
            code == TOO_MANY_PER_SUBJECT and await self._connection.last(_stream(session_id), subject)
        )
        if taken:
            raise TakenError
        raise Unavailable("LOG_UNAVAILABLE", f"the log's store refuses to append ({code})", retry_after=1.0)

    async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> Sequence[StoredBatch]:
        found: list[StoredBatch] = []
        first = max(1, start - BATCH_SPAN + 1)  # a batch that began before may hold `start`
        while first < end and max_bytes > 0:
            stop = min(first + MULTI_SUBJECTS, end)
            messages, whole = await self._collect(session_id, first, stop, max(max_bytes, LEAST_READ_BYTES))
            if not messages:
                break
            for batch in map(_batch, messages):
                first = batch.last_position + 1
                if batch.last_position >= start and max_bytes > 0:
                    found.append(batch)
                    max_bytes -= len(batch.data)
            if whole:
                first = max(first, stop)
        return found

    async def _collect(self, session_id: str, first: int, stop: int, max_bytes: int) -> tuple[list[Message], bool]:
        stream, question = _stream(session_id), _question(session_id, first, stop, max_bytes)
        if not self._connection.replicated:
            messages, whole, _ = await self._connection.collect(stream, question)
            return messages, whole
        last = await leader.last(self._connection, stream, _all(session_id))
        if last is None or _batch(last).last_position < first:
            return [], True
        subjects = [_subject(session_id, position) for position in range(first, stop)]
        return await leader.collect(self._connection, stream, question, subjects, _sequence(last))

    async def head(self, session_id: str, hint: StoredBatch | None = None) -> StoredBatch | None:
        stream = _stream(session_id)
        if self._connection.replicated:
            last = await leader.last(self._connection, stream, _all(session_id))
            return None if last is None else _batch(last)
        if hint is not None:
            question = _QUESTION % (
                f'"{_subject(session_id, hint.first_position)}","{_subject(session_id, hint.last_position + 1)}"',
                LEAST_READ_BYTES,
            )
            messages, whole, _ = await self._connection.collect(stream, question.encode())
            if whole and len(messages) == 1 and (there := _batch(messages[0])) == hint:
                return there
        message = await self._connection.request(
            f"$JS.API.DIRECT.GET.{stream}",
            f'{{"last_by_subj":"{_all(session_id)}"}}'.encode(),
        )
        return None if message.status == NOTHING_THERE else _batch(message)


_HEADER = PLAIN + f"{EXPECTED}: 0\r\n{COUNT}: %d\r\n".encode()
_ALONE = _HEADER % 1
_PREVIOUS = f"{PREVIOUS}: %s\r\n".encode()
_STORED = re.compile(rb'\{"stream":"LOG-\d+", ?"seq":[1-9]\d*[,}]')
_QUESTION = '{"multi_last":[%s],"max_bytes":%d}'
_FIELDS = re.compile(rb"Nats-Subject: \S+\.(\d+)\r\n|" + f"{COUNT}: (\\d+)\r\n|{PREVIOUS}: (\\S+)\r\n".encode())


def _stream(session_id: str) -> str:
    return f"LOG-{shard_of(session_id)}"


def _subject(session_id: str, position: int) -> str:
    return f"log.{shard_of(session_id)}.{session_id}.{position}"


def _all(session_id: str) -> str:
    return f"log.{shard_of(session_id)}.{session_id}.*"


def _sequence(message: Message) -> int:
    return int(message.headers()["Nats-Sequence"])


def _question(session_id: str, first: int, stop: int, max_bytes: int) -> bytes:
    prefix = _subject(session_id, 0)[:-1]
    subjects = f'","{prefix}'.join(map(str, range(first, stop)))
    return (_QUESTION % (f'"{prefix}{subjects}"', max_bytes)).encode()


def _batch(message: Message) -> StoredBatch:
    """Reads a stored message. Its headers are looked through once: a long read has a thousand of them."""
    position = count = 0
    previous = ""
    for where, many, digest in _FIELDS.findall(message.header):
        if where:
            position = int(where)
        elif many:
            count = int(many)
        else:
            previous = digest.decode()
    return StoredBatch(position, count, previous, message.data)
