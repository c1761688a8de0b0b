"""The log on JetStream: one message per subject, so the subject itself says whether a position is taken."""

from __future__ import annotations

from collections.abc import Sequence

from services.kit.errors import Unavailable
from services.session.log import BATCH_SPAN, StoredBatch, TakenError
from services.session.logs.jetstream.connection import Connection, StoredMessage
from services.session.logs.jetstream.streams import shard_of

COUNT = "Handmesh-Count"
PREVIOUS = "Handmesh-Previous"
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
WRONG_LAST_SEQUENCE = 10071
TOO_MANY_PER_SUBJECT = 10077  # also when the stream is full
MULTI_SUBJECTS = 512  # of one read; nats-server refuses more than 1,024
LEAST_READ_BYTES = 256 * 1024  # of one read, so that small ones take few


class JetStreamLog:
    """Batches in the streams LOG-0 to LOG-7."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def append(self, session_id: str, batch: StoredBatch) -> None:
        headers = {EXPECTED: "0", COUNT: str(batch.count)}
        if batch.prev_digest:
            headers[PREVIOUS] = batch.prev_digest
        subject = _subject(session_id, batch.first_position)
        code = await self._connection.publish(subject, batch.data, headers)
        if not code:
            return
        taken = code == WRONG_LAST_SEQUENCE or (
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
            messages, whole = await self._connection.collect(
                _stream(session_id),
                {
                    "multi_last": [_subject(session_id, position) for position in range(first, stop)],
                    "max_bytes": max(max_bytes, LEAST_READ_BYTES),
                },
            )
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

    async def head(self, session_id: str) -> StoredBatch | None:
        message = await self._connection.last(_stream(session_id), f"log.{shard_of(session_id)}.{session_id}.*")
        return None if message is None else _batch(message)


def _stream(session_id: str) -> str:
    return f"LOG-{shard_of(session_id)}"


def _subject(session_id: str, position: int) -> str:
    return f"log.{shard_of(session_id)}.{session_id}.{position}"


def _batch(message: StoredMessage) -> StoredBatch:
    return StoredBatch(
        first_position=int(message.subject.rpartition(".")[2]),
        count=int(message.headers[COUNT]),
        prev_digest=message.headers.get(PREVIOUS, ""),
        data=message.data,
    )
