"""Carries the bytes of one sandbox's doors: takes each tool's connection, finds it a way out, and splices the two."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from http import HTTPStatus

from services.kit.errors import Full, Gone, ServiceError, Unavailable
from services.kit.logs import Log
from services.sandbox.hand import Hand, Visit
from services.sandbox.runner.doors import MAX_VISITS
from services.sandbox.vault_proxy import Stream

IDLE_SECONDS = 300.0  # without a byte in either direction, a connection is ended
LINGER_SECONDS = 2.0  # likewise once the tool has said all and has had an answer, where the far side cannot be told
REST_SECONDS = 5.0  # for a tool to take an answer of ours, and to end what it says
RETRY_SECONDS = 0.5  # after a runner that did not answer
_PIECE_BYTES = 64 << 10
_log = Log("services.sandbox.doors_relay")

WayOut = Callable[[str], Awaitable[Stream]]  # from a door's name; raises ServiceError


class Seats:
    """How many connections of all sandboxes there may be: each takes two descriptors of this process."""

    def __init__(self, most: int) -> None:
        """Starts with all free."""
        self._most = most
        self._taken = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[Full | None]:
        """Takes one for as long as the context lasts, or gives what to say when there is none."""
        if self._taken >= self._most:
            yield Full("FULL", f"this sandbox service carries {self._most} connections of doors", limit=self._most)
            return
        self._taken += 1
        try:
            yield None
        finally:
            self._taken -= 1


class Relay:
    """The doors of one sandbox. `way_out` is asked for each connection that gets a seat."""

    def __init__(self, hand: Hand, sandbox_id: str, way_out: WayOut, seats: Seats) -> None:
        """Waits for nobody yet."""
        self._seats = seats
        self._hand = hand
        self._sandbox_id = sandbox_id
        self._way_out = way_out
        self._room = asyncio.Semaphore(MAX_VISITS)  # bounds the connections of this sandbox, whatever its runner says
        self._serving: set[asyncio.Task[None]] = set()
        self._keeping: dict[str, asyncio.Task[None]] = {}

    def open(self, names: Iterable[str]) -> None:
        """Takes connections of these doors from now on. Idempotent."""
        for name in names:
            if name not in self._keeping:
                self._keeping[name] = asyncio.create_task(self._keep(name))

    @property
    def ended(self) -> bool:
        """Whether the sandbox is gone."""
        return all(task.done() for task in self._keeping.values())

    async def close(self) -> None:
        """Cuts all connections. Tools that come then wait for another relay."""
        tasks = [*self._keeping.values(), *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        """Waits for one tool after the other, as long as the sandbox lives."""
        while True:
            await self._room.acquire()
            try:
                visit = await self._hand.visit(self._sandbox_id, name)
            except Gone:
                return
            except ServiceError:
                self._room.release()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            task = asyncio.create_task(self._serve(name, visit))
            self._serving.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._room.release()

    async def _serve(self, name: str, visit: Visit) -> None:
        try:
            with self._seats.one() as full:
                await carried(visit, lambda: self._way_out(name) if full is None else _raised(full))
        except Exception:  # the top of a task: one connection is nobody else's
            _log.error("door connection failed", exc_info=True, sandbox_id=self._sandbox_id, door=name)


async def _raised(error: ServiceError) -> Stream:
    raise error


async def carried(visit: Visit, way_out: Callable[[], Awaitable[Stream]]) -> None:
    """Serves one connection to its end, and closes it. What has no way out is told why, as HTTP."""
    try:
        try:
            far = await way_out()
        except ServiceError as error:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    await _told(visit, error)
            return
        try:
            await _Splice(visit, far).run()
        finally:
            far[1].close()
    finally:
        visit.writer.close()


async def _told(visit: Visit, error: ServiceError) -> None:
    """Answers, and reads what the tool still says: else the system would tell it of a reset instead."""
    later = isinstance(error, (Unavailable, Full))
    status = HTTPStatus.SERVICE_UNAVAILABLE if later else HTTPStatus.BAD_GATEWAY
    body = f"{error.reason}: {error.message}\n".encode()
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Retry-After: 5"] if later else []),
    ]
    visit.writer.write("\r\n".join(head).encode("ascii") + b"\r\n\r\n" + body)
    visit.writer.write_eof()
    while await visit.reader.read(_PIECE_BYTES):
        pass


class _Splice:
    """Carries bytes both ways until both sides have said all, or neither says anything for too long.

    Who takes nothing holds up the other. TLS cannot say that one direction has ended: then the far side is given time
    to answer, and the connection is ended once it has.
    """

    def __init__(self, near: Visit, far: Stream) -> None:
        self._near, self._far = near, far
        self._moved = asyncio.get_running_loop().time()
        self._answered = True  # whether the far side has spoken since the tool has
        self._near_ended = False

    async def run(self) -> None:
        far_reader, far_writer = self._far
        out = asyncio.create_task(self._pump(self._near.reader, far_writer, answer=False))
        back = asyncio.create_task(self._pump(far_reader, self._near.writer, answer=True))
        try:
            while not (out.done() and back.done()):
                if back.done() and not far_writer.can_write_eof():
                    return  # what TLS calls an end is the end of both directions
                self._near_ended = out.done() and not far_writer.can_write_eof()
                left = self._moved + self._patience() - asyncio.get_running_loop().time()
                if left <= 0 or any(it.done() and it.exception() is not None for it in (out, back)):
                    return
                running = [it for it in (out, back) if not it.done()]
                await asyncio.wait(running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (out, back):
                task.cancel()
            await asyncio.gather(out, back, return_exceptions=True)

    def _patience(self) -> float:
        return LINGER_SECONDS if self._near_ended and self._answered else IDLE_SECONDS

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bool) -> None:
        while data := await reader.read(_PIECE_BYTES):
            self._answered = answer
            self._move()
            writer.write(data)
            await writer.drain()
            self._move()
        if writer.can_write_eof():
            writer.write_eof()

    def _move(self) -> None:
        self._moved = asyncio.get_running_loop().time()
