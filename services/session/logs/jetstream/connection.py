"""One connection to NATS, and requests on it that end in time.

nats-py gives up a connection for good in some cases (a control line that is too long, refused credentials); then the
process ends too, and whoever supervises it starts it again. Its own `request` waits with `asyncio.wait_for`, which
before Python 3.12 can swallow a cancellation, and a stream that was cancelled would then be served for ever: so
answers are waited for here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client

from services.kit.errors import Unavailable
from services.kit.logs import Log as Journal
from services.session.log import MAX_STORED_BYTES, PATIENCE_SECONDS, UnusableStoreError
from services.session.logs.jetstream import leader
from services.session.logs.jetstream.lane import Lane
from services.session.logs.jetstream.link import PLAIN, Message
from services.session.logs.jetstream.questions import NOTHING_THERE, Collector, Question, outcome
from services.session.settings import Settings

CONNECT_SECONDS = 30.0  # the parts of a mesh start at the same time
RECONNECT_SECONDS = 0.1
PING_SECONDS = 5
LOOK_SECONDS = 0.1  # between two looks at what is overdue
NO_RESPONDERS = "503"

_journal = Journal("services.session.nats")


class StoredMessage:
    """A message that a stream holds."""

    __slots__ = ("data", "headers", "revision", "subject")

    def __init__(self, message: Message) -> None:
        self.data = message.data
        self.headers: Mapping[str, str] = message.headers()
        self.subject = self.headers["Nats-Subject"]
        self.revision = int(self.headers["Nats-Sequence"])


@dataclass(frozen=True)
class Stored:
    """JetStream's answer to a message: its sequence in the stream, or 0 and an error's code."""

    sequence: int
    code: int = 0


class Connection:
    """What the store's parts share."""

    def __init__(self) -> None:
        self.client = Client()
        self.lane = Lane(self._on_lost_answers)
        self.gaps: set[Callable[[], None]] = set()  # called when messages may have been missed
        self.replicated = False  # streams have several nodes, of which any may answer a direct get, late (`leader`)
        self._connected = asyncio.Event()
        self._in_use = False
        self._away_since = 0.0
        self._problem = "no answer"
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._questions: dict[bytes, Question] = {}
        self._looking: asyncio.TimerHandle | None = None
        self._tokens = itertools.count()
        self._inbox = ""

    async def lost(self) -> str:
        """Waits until the connection is gone for good, and says why."""
        return await asyncio.shield(self._lost)

    async def open(self, settings: Settings) -> None:
        """Connects, trying again while NATS is starting."""
        credentials: dict[str, str] = {}
        if settings.nats_credentials_file:
            credentials = json.loads(settings.nats_credentials_file.read_text())
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(settings.nats_url, credentials)
                await self.lane.open(settings.nats_url, credentials)
        except TimeoutError:
            raise UnusableStoreError(
                f"HANDMESH_NATS_URL is {settings.nats_url}, and NATS does not let us in: {self._problem}"
            ) from None
        if self.client.max_payload < MAX_STORED_BYTES:
            raise UnusableStoreError(
                f"nats-server's max_payload is {self.client.max_payload}; set it to 8MB, "
                f"for a batch of events has up to {MAX_STORED_BYTES} bytes"
            )
        self._inbox = self.client.new_inbox()
        self.lane.listen(self._inbox + ".*", self._on_answer)
        self._in_use = True
        self._connected.set()

    async def close(self) -> None:
        """Closes the connection."""
        self._in_use = False
        await self.lane.close()
        await self.client.close()

    async def _connect(self, address: str, credentials: Mapping[str, str]) -> None:
        await self.client.connect(
            address,
            user=credentials.get("user"),
            password=credentials.get("password"),
            name="handmesh session",
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_SECONDS,  # type: ignore[arg-type]  # slept, so a float is as good
            connect_timeout=2,
            ping_interval=PING_SECONDS,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            closed_cb=self._on_close,
        )

    async def _on_error(self, problem: Exception) -> None:
        self._problem = type(problem).__name__
        _journal.debug("nats error", kind=self._problem)

    async def _on_disconnect(self) -> None:
        self._connected.clear()
        if self._in_use:
            _journal.warning("nats disconnected", kind=self._problem)
            self._tell_gaps()

    def _on_lost_answers(self) -> None:
        self._away_since = asyncio.get_running_loop().time()
        for question in self._questions.values():
            if not question.ended.done():  # the answer is lost with the connection
                question.ended.set_exception(nats.errors.ConnectionClosedError())

    async def _on_reconnect(self) -> None:
        _journal.info("nats reconnected")
        self._connected.set()
        self._tell_gaps()

    async def _on_close(self) -> None:
        self.lane.abandon()
        if self._in_use and not self._lost.done():
            self._lost.set_result("the connection to NATS was closed for good")

    def _tell_gaps(self) -> None:
        for gap in tuple(self.gaps):
            gap()

    async def ready(self) -> None:
        """Waits until NATS can hear nats-py's client."""
        await self._connected.wait()

    async def request(self, subject: str, data: bytes = b"", header: bytes = b"") -> Message:
        """Asks, and returns the answer. Raises Unavailable when none comes in time: it may have happened."""
        return _answered(await self._exchange(subject, data, header, Question(asyncio.get_running_loop())))

    async def carry(self, subject: str, data: bytes, header: bytes) -> Message:
        """Asks as `request` does, and waits for the answer even in a task that is cancelled (see `Log.append`)."""
        question = Question(asyncio.get_running_loop())
        return _answered(await self._exchange(subject, data, header, question, carried=True))

    def _patience(self) -> float:
        """Says how long to wait: not at all for a NATS that has been away so long, or calls would queue up for it."""
        if self.lane.connected:
            return PATIENCE_SECONDS
        return max(0.0, self._away_since + PATIENCE_SECONDS - asyncio.get_running_loop().time())

    async def _exchange(
        self,
        subject: str,
        data: bytes,
        header: bytes,
        question: Question,
        *,
        carried: bool = False,
    ) -> Any:
        token = str(next(self._tokens))
        try:
            if not self.lane.connected:
                async with asyncio.timeout(self._patience()):
                    await self.lane.ready()
            self._questions[token.encode()] = question
            if self._looking is None:
                self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
            self.lane.send(subject, data, f"{self._inbox}.{token}", header)
            return await (outcome(question) if carried else question.ended)
        except (OSError, TimeoutError, nats.errors.Error) as problem:
            raise _unavailable(problem) from problem
        finally:
            self._questions.pop(token.encode(), None)

    def _look(self) -> None:
        """Gives up questions that are overdue: one look now and then costs less than a timer for each."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for question in self._questions.values():
            if question.due <= now and not question.ended.done():
                question.ended.set_exception(nats.errors.TimeoutError())
        self._looking = loop.call_later(LOOK_SECONDS, self._look) if self._questions else None

    async def ask(self, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Asks JetStream's API. An `error` in the answer is the caller's to look at."""
        answer = await self.request(subject, json.dumps(question).encode())
        return dict(json.loads(answer.data))

    async def publish(self, subject: str, data: bytes, header: bytes = b"") -> Stored:
        """Stores a message, durably, unless JetStream refuses it."""
        answer = json.loads((await self.request(subject, data, header)).data)
        return Stored(int(answer.get("seq", 0)), int(answer.get("error", {}).get("err_code", 0)))

    async def last(self, stream: str, subject: str) -> StoredMessage | None:
        """Returns the last message of a stream on a subject, which may hold wildcards. Sees every publish that has
        returned."""
        if self.replicated:
            message = await leader.last(self, stream, subject)
            return None if message is None else StoredMessage(message)
        return await self.direct(stream, subject)

    async def direct(self, stream: str, subject: str) -> StoredMessage | None:
        """Returns the last message on a subject, as any of the stream's nodes knows it."""
        answer = await self.request(f"$JS.API.DIRECT.GET.{stream}", b'{"last_by_subj":"%s"}' % subject.encode())
        return None if answer.status == NOTHING_THERE else StoredMessage(answer)

    async def collect(self, stream: str, question: bytes) -> tuple[list[Message], bool, int]:
        """Asks any of a stream's nodes for many messages. Returns those that came, whether they were all, and up to
        which sequence that node had the stream: 0 when it had nothing to send, or was not asked for subjects."""
        collector = Collector(asyncio.get_running_loop())
        await self._exchange(f"$JS.API.DIRECT.GET.{stream}", question, b"", collector)
        return collector.found, collector.whole, collector.up_to

    def _on_answer(self, message: Message) -> None:
        question = self._questions.get(message.subject.rpartition(b".")[2])
        if question is not None:
            question.take(message)


def header_of(**pairs: str) -> bytes:
    """Spells headers. An underscore in a name stands for a hyphen."""
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in pairs.items())
    return PLAIN + lines.encode() + b"\r\n"


def _answered(message: Message) -> Message:
    if message.status == NO_RESPONDERS:
        raise _unavailable(nats.errors.NoRespondersError())
    return message


def _unavailable(problem: Exception) -> Unavailable:
    _journal.warning("nats does not answer", kind=type(problem).__name__)
    return Unavailable("LOG_UNAVAILABLE", "the log's store does not answer", retry_after=0.2)


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Connection]:
    """Opens the connection, and closes it at the end."""
    connection = Connection()
    try:
        await connection.open(settings)
        yield connection
    finally:
        await connection.close()
