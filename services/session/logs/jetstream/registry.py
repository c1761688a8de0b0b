"""The registry on JetStream: each bucket is one of NATS's own key-value stores, to look at with its tools."""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.kit.errors import Unavailable
from services.session.log import Entry
from services.session.logs.jetstream import leader
from services.session.logs.jetstream.connection import Connection, StoredMessage, header_of
from services.session.logs.jetstream.events import EXPECTED, MULTI_SUBJECTS, WRONG_LAST_SEQUENCE
from services.session.logs.jetstream.link import Message


class JetStreamRegistry:
    """Entries in the streams KV_<bucket>."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, bucket: str, key: str) -> Entry | None:
        message = await self._connection.last(f"KV_{bucket}", f"$KV.{bucket}.{key}")
        return None if message is None else Entry(message.data, message.revision)

    async def get_many(self, bucket: str, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        prefix = f"$KV.{bucket}."
        for start in range(0, len(keys), MULTI_SUBJECTS):
            subjects = [prefix + key for key in keys[start : start + MULTI_SUBJECTS]]
            question = json.dumps({"multi_last": subjects}).encode()
            messages = map(StoredMessage, await self._collect(f"KV_{bucket}", question, subjects))
            found |= {message.subject.removeprefix(prefix): message.data for message in messages}
        return found

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        stored = await self._connection.publish(f"$KV.{bucket}.{key}", value)
        if stored.code:
            raise _refused(stored.code)

    async def swap(self, bucket: str, key: str, value: bytes, revision: int) -> int:
        header = header_of(**{EXPECTED: str(revision)})
        stored = await self._connection.publish(f"$KV.{bucket}.{key}", value, header)
        if stored.code not in (0, *WRONG_LAST_SEQUENCE):
            raise _refused(stored.code)
        return stored.sequence

    async def changes(
        self, bucket: str, after: int, prefix: str = "", most: int = 1_000
    ) -> tuple[list[tuple[str, Entry]], bool]:
        subject = f"$KV.{bucket}."
        question = {"seq": after + 1, "batch": most, "next_by_subj": f"{subject}{prefix}>"}
        messages, whole, _ = await self._connection.collect(f"KV_{bucket}", json.dumps(question).encode())
        if whole and self._connection.replicated:
            whole = await self._go_on(f"KV_{bucket}", f"{subject}{prefix}>", after, messages, most)
        found = [
            (each.subject.removeprefix(subject), Entry(each.data, each.revision))
            for each in map(StoredMessage, messages)
        ]
        return found, whole

    async def _collect(self, stream: str, question: bytes, subjects: Sequence[str]) -> Sequence[Message]:
        if not self._connection.replicated:
            return (await self._connection.collect(stream, question))[0]
        least = await leader.end(self._connection, stream)
        return (await leader.collect(self._connection, stream, question, subjects, least))[0]

    async def _go_on(self, stream: str, subject: str, after: int, messages: list[Message], most: int) -> bool:
        """Takes from the leader what the node that was asked had not heard of yet; says whether that was all."""
        while len(messages) < most:
            if messages:
                after = StoredMessage(messages[-1]).revision
            message = await leader.following(self._connection, stream, subject, after + 1)
            if message is None:
                return True
            messages.append(message)
        return False

    async def keys(self, bucket: str, prefix: str) -> list[str]:
        subject = f"$KV.{bucket}."
        found: list[str] = []
        while True:
            question = {"subjects_filter": f"{subject}{prefix}>", "offset": len(found)}
            answer = await self._connection.ask(f"$JS.API.STREAM.INFO.KV_{bucket}", question)
            if "error" in answer:
                raise _refused(answer["error"].get("err_code", 0))
            subjects = answer["state"].get("subjects") or {}
            found += [each.removeprefix(subject) for each in subjects]
            if not subjects or len(found) >= answer.get("total", 0):
                return found


def _refused(code: int) -> Unavailable:
    return Unavailable("LOG_UNAVAILABLE", f"the registry's store refuses ({code})", retry_after=1.0)
