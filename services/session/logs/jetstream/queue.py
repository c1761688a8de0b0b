"""The work queue on JetStream: a stream that refuses a second message for a session while the first is there.

So the message itself says that the session is queued or taken, to every replica. Each harness type has a consumer;
what is taken comes back when its acknowledgement is missing for `HOLD_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from services.kit.errors import Unavailable
from services.session.log import HOLD_SECONDS, PATIENCE_SECONDS
from services.session.logs.jetstream import leader
from services.session.logs.jetstream.connection import Connection, StoredMessage
from services.session.logs.jetstream.events import TOO_MANY_PER_SUBJECT
from services.session.logs.jetstream.streams import WORK

NANO = 1_000_000_000
INHERITED = 2  # deliveries, as far as its handle says: more than one
TIMED = b"timed"  # the content of a message that is there because a time has come


class JetStreamQueue:
    """Sessions in the stream WORK."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._consumers: set[str] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    async def put(self, harness: str, session_id: str, timed: bool = False) -> bool:
        code = (await self._connection.publish(f"work.{harness}.{session_id}", TIMED if timed else b"")).code
        if code not in (0, TOO_MANY_PER_SUBJECT):
            raise Unavailable("LOG_UNAVAILABLE", f"the work queue refuses ({code})", retry_after=1.0)
        return not code

    async def take(self, harness: str, seconds: float) -> JetStreamItem | None:
        await self._make_consumer(harness)
        pull = _Pull(self._connection)
        heard = False
        try:
            async with asyncio.timeout(seconds + PATIENCE_SECONDS):
                await self._connection.ready()
                await pull.start(harness, seconds)
                message = await asyncio.shield(pull.answer)
            heard = message is not None
        except TimeoutError:
            return None
        except (OSError, nats.errors.Error) as problem:
            raise Unavailable("LOG_UNAVAILABLE", "the work queue does not answer", retry_after=0.2) from problem
        finally:
            if not heard:
                self._leave(pull, seconds)
        if message is None or (message.headers or {}).get("Status"):
            return None
        session_id = message.subject.rpartition(".")[2]
        return JetStreamItem(self._connection, session_id, message.reply, message.data == TIMED)

    def adopt(self, session_id: str, handle: str) -> JetStreamItem:
        return JetStreamItem(self._connection, session_id, handle)

    async def inherit(self, harness: str, session_id: str) -> JetStreamItem | None:
        message = await leader.last(self._connection, WORK, f"work.{harness}.{session_id}")
        if message is None:
            return None
        sequence = StoredMessage(message).revision
        answer = await self._connection.ask(f"$JS.API.CONSUMER.INFO.{WORK}.offer-{harness}", {})
        delivered = answer.get("delivered", {"stream_seq": 0})
        if delivered["stream_seq"] < sequence:
            return None  # nobody has it yet
        # NATS goes by the message's sequence in the stream. The one in the consumer must only be of a delivery that is
        # not older than what waits for an acknowledgement: the last one is not. The rest is for who reads it.
        handle = f"$JS.ACK.{WORK}.offer-{harness}.{INHERITED}.{sequence}.{delivered['consumer_seq']}.0.0"
        item = JetStreamItem(self._connection, session_id, handle)
        await item.hold()
        return item

    async def waiting(self) -> dict[str, int]:
        there: Counter[str] = Counter()
        while True:
            question = {"subjects_filter": "work.>", "offset": there.total()}
            answer = await self._connection.ask(f"$JS.API.STREAM.INFO.{WORK}", question)
            there.update(subject.split(".")[1] for subject in answer["state"].get("subjects") or ())
            if there.total() >= answer.get("total", 0):
                break
        asked = (self._connection.ask(f"$JS.API.CONSUMER.INFO.{WORK}.offer-{harness}", {}) for harness in there)
        consumers = zip(list(there), await asyncio.gather(*asked), strict=True)
        waiting = {name: there[name] - consumer.get("num_ack_pending", 0) for name, consumer in consumers}
        return {name: count for name, count in waiting.items() if count > 0}

    def _leave(self, pull: _Pull, seconds: float) -> None:
        """Stays for what may still come, and gives it back: a pull cannot be taken back without a race."""
        task = asyncio.get_running_loop().create_task(pull.leave(seconds + PATIENCE_SECONDS))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _make_consumer(self, harness: str) -> None:
        if harness in self._consumers:
            return
        name = f"offer-{harness}"
        config = {
            "name": name,
            "durable_name": name,
            "filter_subject": f"work.{harness}.*",
            "ack_policy": "explicit",
            "ack_wait": int(HOLD_SECONDS * NANO),
            "max_deliver": -1,
            "max_ack_pending": -1,  # how much is taken is bounded by the harnesses' capacity
            "deliver_policy": "all",
            "replay_policy": "instant",
            "max_waiting": 4_096,
        }
        answer = await self._connection.ask(
            f"$JS.API.CONSUMER.CREATE.{WORK}.{name}.work.{harness}.*", {"stream_name": WORK, "config": config}
        )
        if "error" in answer:
            code = answer["error"].get("err_code")
            raise Unavailable("LOG_UNAVAILABLE", f"the work queue refuses a consumer ({code})", retry_after=1.0)
        self._consumers.add(harness)


class _Pull:
    """One request for one message, which comes to an inbox of its own. None: there will be no answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subscription: Subscription | None = None
        self.answer: asyncio.Future[Msg | None] = asyncio.get_running_loop().create_future()

    async def start(self, harness: str, seconds: float) -> None:
        client = self._connection.client
        inbox = client.new_inbox()
        self._connection.gaps.add(self._give_up)
        self.answer.add_done_callback(lambda _: self._connection.gaps.discard(self._give_up))
        self._subscription = await client.subscribe(inbox, cb=self._on_message)
        await self._subscription.unsubscribe(limit=1)
        question = json.dumps({"batch": 1, "expires": int(seconds * NANO)}).encode()
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{WORK}.offer-{harness}", question, reply=inbox)

    async def _on_message(self, message: Msg) -> None:
        if not self.answer.done():
            self.answer.set_result(message)

    def _give_up(self) -> None:
        if not self.answer.done():
            self.answer.set_result(None)  # NATS has forgotten the request with the connection

    async def leave(self, seconds: float) -> None:
        await asyncio.wait({self.answer}, timeout=seconds)
        self._give_up()
        message = self.answer.result()
        try:
            if message is not None and message.reply:
                await self._connection.client.publish(message.reply, b"-NAK")
            elif message is None and self._subscription is not None:
                await self._subscription.unsubscribe()
        except (OSError, nats.errors.Error):
            return  # the connection is gone, and the message comes back by itself


@dataclass(frozen=True)
class JetStreamItem:
    """A taken session: the message that waits for our acknowledgement."""

    connection: Connection
    session_id: str
    handle: str  # the subject for our acknowledgement
    timed: bool = False

    @property
    def again(self) -> bool:
        tokens = self.handle.split(".")  # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>. ...
        return int(tokens[4 if len(tokens) < 11 else 6]) > 1

    async def hold(self) -> None:
        await self._say(b"+WPI")

    async def done(self) -> None:
        await self.connection.request(self.handle, b"+ACK")

    async def back(self, seconds: float = 0.0) -> None:
        await self._say(f'-NAK {{"delay": {int(seconds * NANO)}}}'.encode() if seconds > 0 else b"-NAK")

    async def _say(self, word: bytes) -> None:
        try:
            await self.connection.client.publish(self.handle, word)
        except (OSError, nats.errors.Error):
            return  # it comes back by itself
