"""One call, as grpc gives it out, that goes on with the next replica when one does not answer.

A replica that answers UNAVAILABLE, or is not there, has not done what it was asked, or will do it once however often it
is asked: that is the contract's rule for every method but those that are to be called `once`. A stream that has said
something is never begun again here: who reads it knows from where.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from handmesh.replicas.members import Member, Members
from handmesh.replicas.ranking import PIN_KEY, pin_of

PAUSES = (0.05, 0.15, 0.45, 1.0)  # seconds between rounds in which all replicas were asked: they carry over a restart
LONGEST_PAUSE = PAUSES[-1]


def away() -> grpc.aio.AioRpcError:
    """Makes the error of a call for which there is no replica."""
    none = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the service's name stands for no address")


@dataclass(frozen=True)
class Method:
    """A method of all replicas. `kind` is the channel's function that makes it: `unary_unary` and so on."""

    members: Members
    kind: str
    path: str
    arguments: dict[str, Any]
    once: bool

    def at(self, member: Member) -> Any:
        """Returns the method of one replica."""
        made = member.methods.get(self.path)
        if made is None:
            made = getattr(member.channel, self.kind)(self.path, **self.arguments)
            member.methods[self.path] = made
        return made


@dataclass
class Tries:
    """Where a call goes, try after try. `wait` tries for as long as the call may take."""

    method: Method
    sandbox_id: str
    pin: str
    timeout: float | None
    wait: bool
    _tried: list[Member] = field(default_factory=list)
    _round: int = 0
    _until: float | None = None

    async def next(self) -> tuple[Member, float | None]:
        """Returns the replica to ask, and the seconds that it has. Raises AioRpcError when there is none."""
        members = self.method.members
        if self.timeout is not None and self._until is None:
            self._until = asyncio.get_running_loop().time() + self.timeout
        if not members.known:
            await members.found()
        if self.method.once:
            member = await members.reached(self.sandbox_id, self.pin)
        else:
            member = members.first(self.sandbox_id, self.pin, self._tried)
        if member is None:
            raise away()
        self._tried.append(member)
        return member, self._left()

    async def again(self, error: grpc.aio.AioRpcError) -> None:
        """Waits, if need be, until another try is worth it. Raises `error` when none is."""
        if error.code() is not grpc.StatusCode.UNAVAILABLE or self.method.once:
            raise error
        if any(member not in self._tried for member in self.method.members.all):
            return
        if self._round == len(PAUSES) and not self.wait:
            raise error
        pause = PAUSES[self._round] if self._round < len(PAUSES) else LONGEST_PAUSE
        left = self._left()
        if left is not None and left <= pause:
            raise error
        self._round = min(self._round + 1, len(PAUSES))
        self._tried.clear()
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))

    def _left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())


class Call:
    """What grpc's calls have in common, of the try that is under way. It begins when it is waited for."""

    def __init__(self, method: Method, request: Any, timeout: float | None, metadata: Any, wait: bool) -> None:
        self._method = method
        self._request = request
        self._metadata = metadata
        self._tries = Tries(method, *pin_of(request, metadata), timeout, wait)
        self._call: Any = None
        self._cancelled = False
        if metadata is not None:
            self._metadata = tuple(pair for pair in metadata if pair[0] != PIN_KEY)

    async def _begin(self, request: Any = None) -> Any:
        member, left = await self._tries.next()
        if self._cancelled:
            raise asyncio.CancelledError
        asked = self._request if request is None else request
        self._call = self._method.at(member)(asked, timeout=left, metadata=self._metadata)
        return self._call

    def cancel(self) -> bool:
        """Ends it."""
        self._cancelled = True
        return self._call is not None and bool(self._call.cancel())

    def cancelled(self) -> bool:
        """Says whether it was ended by `cancel`."""
        return self._cancelled

    def done(self) -> bool:
        """Says whether it has ended."""
        return self._call is not None and bool(self._call.done())

    async def initial_metadata(self) -> Any:
        """Returns what the replica said first."""
        return await self._call.initial_metadata()

    async def trailing_metadata(self) -> Any:
        """Returns what the replica said last."""
        return await self._call.trailing_metadata()

    async def code(self) -> Any:
        """Returns its status."""
        return await self._call.code()

    async def details(self) -> Any:
        """Returns its status's text."""
        return await self._call.details()


class UnaryCall(Call):
    """One request, one answer."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        while True:
            call = await self._begin()
            try:
                return await call
            except grpc.aio.AioRpcError as error:
                await self._tries.again(error)


class StreamCall(Call):
    """One request, many answers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._answers: AsyncGenerator[Any, None] | None = None

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._answers is None:
            self._answers = self._all()
        return self._answers

    async def read(self) -> Any:
        """Returns the next answer, `grpc.aio.EOF` after the last one."""
        try:
            return await anext(aiter(self))
        except StopAsyncIteration:
            return grpc.aio.EOF

    async def _all(self) -> AsyncGenerator[Any, None]:
        while True:
            call = await self._begin()
            said = False
            try:
                async for answer in call:
                    said = True
                    yield answer
                return
            except grpc.aio.AioRpcError as error:
                if said:
                    raise
                await self._tries.again(error)
            finally:
                call.cancel()


class RequestsCall(Call):
    """Many requests, one answer. The first request says what it is about. It is made once, of a replica that is up."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        requests = _async(self._request)
        first = await anext(requests, None)
        self._tries.sandbox_id, self._tries.pin = pin_of(first, self._metadata)
        return await (await self._begin(_behind(first, requests)))


async def _async(requests: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


async def _behind(first: Any, others: AsyncIterator[Any]) -> AsyncIterator[Any]:
    if first is not None:
        yield first
    async for request in others:
        yield request
