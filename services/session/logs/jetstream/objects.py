"""Objects on JetStream: a chunk is one message, on a subject of its own.

    OBJECTS   obj.<space>.<object>.<number>

A later message on a subject takes the place of the one before, so the serving process frees a chunk with an empty
message: it needs no right to purge, which only the janitor has.
"""

from __future__ import annotations

from collections import Counter

from services.kit.errors import Refused, Unavailable
from services.session.logs.jetstream.connection import Connection
from services.session.logs.jetstream.streams import OBJECTS


class JetStreamObjects:
    """Chunks in the stream OBJECTS (see `Objects`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, space: str, object_id: str, number: int, chunk: bytes) -> None:
        code = (await self._connection.publish(f"obj.{space}.{object_id}.{number}", chunk)).code
        if code:
            raise _refused(code)

    async def get(self, space: str, object_id: str, number: int) -> bytes | None:
        subject = f"obj.{space}.{object_id}.{number}"
        message = await self._connection.direct(OBJECTS, subject)
        if message is None and self._connection.replicated:
            message = await self._connection.last(OBJECTS, subject)  # the node that was asked may not have it yet
        return message.data or None if message else None

    async def free(self, space: str, object_id: str, chunks: int) -> None:
        for number in range(chunks):
            await self.put(space, object_id, number, b"")

    async def list(self, space: str) -> dict[str, int]:
        found: Counter[str] = Counter()
        seen = 0
        while True:
            question = {"subjects_filter": f"obj.{space}.>", "offset": seen}
            answer = await self._connection.ask(f"$JS.API.STREAM.INFO.{OBJECTS}", question)
            if "error" in answer:
                raise _refused(answer["error"].get("err_code", 0))
            subjects = answer["state"].get("subjects") or {}
            found.update(subject.split(".")[2] for subject in subjects)
            seen += len(subjects)
            if not subjects or seen >= answer.get("total", 0):
                return dict(found)

    async def remove(self, space: str) -> None:
        try:
            answer = await self._connection.ask(f"$JS.API.STREAM.PURGE.{OBJECTS}", {"filter": f"obj.{space}.>"})
        except Unavailable as problem:  # what an identity may not publish is not answered
            raise Refused("LOG_UNAVAILABLE", "the store did not let this identity purge") from problem
        if "error" in answer:
            raise _refused(answer["error"].get("err_code", 0))


def _refused(code: int) -> Unavailable:
    return Unavailable("LOG_UNAVAILABLE", f"the store of big content refuses ({code})", retry_after=1.0)
