"""Replicas of this service: each owns the sandboxes that were made on its node, and hands other calls on.

    a call that names a sandbox      goes to the node that the id names; when that has no such sandbox (ids of before
                                     there were replicas name none), to the others
    a call that names a hand         is answered here; by another replica when no such hand is known here
    a new sandbox                    is made here, unless another replica has made it already: for the same request, or
                                     for a hand outside of sessions that has the same name
    a list                           is that of all replicas that answer

What is handed on is said again as it came, with the caller's own key or grant: the owner checks it as if it had come
there. A call that was handed on is not handed on again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from handmesh.sandbox.v1 import sandbox_pb2 as pb
from services.kit.channels import raised
from services.kit.errors import Gone, ServiceError, Unavailable
from services.kit.guard import Context, handler_of
from services.kit.identity import FORWARDED_KEY
from services.kit.identity import current as caller
from services.kit.logs import Log
from services.sandbox.replicas import Replica, Replicas

AWAY = "SANDBOX_UNAVAILABLE"
RETRY_SECONDS = 1.0
LIST_SECONDS = 5.0  # for one replica's part of a list
_HANDED_ON = ("authorization", "x-handmesh-")  # of a call's metadata
_MISSES = frozenset({"SANDBOX_GONE", "ENVIRONMENT_UNKNOWN", "HAND_UNKNOWN", "WORKER_UNKNOWN"})  # ask another
_LISTS: dict[str, Callable[[Sequence[Any]], Any]] = {}

_log = Log("services.sandbox.forwarding")
Answer = Callable[[Any, Context], Any]


class Forwarding(grpc.aio.ServerInterceptor):
    """Wraps the methods of `SandboxService`, within the guard. `environments` are the names that each replica knows."""

    def __init__(self, peers: Replicas, environments: Collection[str]) -> None:
        self._peers = peers
        self._environments = environments
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """Finds the method's handler, wrapped; wraps it once."""
        method: str = call.method
        handler = self._wrapped.get(method)
        if handler is None:
            handler = await continuation(call)
            if handler is None or not self._peers.methods.get(method):
                return handler
            handler = self._wrapped[method] = self._wrap(method, handler)
        return handler

    def _wrap(self, method: str, handler: Any) -> Any:
        answer, name = handler_of(handler), method.rpartition("/")[2]

        async def unary(request: Any, context: Context) -> Any:
            if caller().handed_on:
                return await answer(request, context)
            if name in _LISTS:
                return await self._listed(method, name, answer, request, context)
            if name == "Provision" and (maker := await self._maker(request, context)) is not None:
                return await _asked(maker, method, request, context)
            return await self._first(method, name, answer, request, context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            places = [None] if caller().handed_on else self._places(request)
            missed = Missed(self._peers, request)
            for peer in places:
                said = False
                answers: AsyncGenerator[Any, None] = (
                    answer(request, context) if peer is None else _streamed(peer, method, request, context)
                )
                try:
                    async with aclosing(answers):
                        async for one in answers:
                            said = True
                            yield one
                    return
                except ServiceError as problem:
                    if said:
                        raise
                    missed.note(problem)
            raise missed.said()

        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(
            stream if handler.response_streaming else unary,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _first(self, method: str, name: str, answer: Answer, request: Any, context: Context) -> Any:
        """Asks who should know first; the others as long as nobody knows. Tells what the first one said."""
        missed, found = Missed(self._peers, request), None
        for peer in self._places(request):
            try:
                if peer is None:
                    found = await answer(request, context)
                else:
                    found = await _asked(peer, method, request, context)
            except ServiceError as problem:
                missed.note(problem)
            else:
                if name != "Release" or missed.named:  # what names no node is released wherever it may be
                    return found
        if found is not None and not missed.away:
            return found
        raise missed.said()

    def _places(self, request: Any) -> list[Replica | None]:
        """Returns the replicas in the order in which to ask them; None is this one.

        Of those that are away only the one is asked that an id names; or all, when it names none.
        """
        sandbox_id = getattr(request, "sandbox_id", "")
        owner = self._peers.owner(sandbox_id)
        known = self._peers.up() if self._peers.knows(sandbox_id) else self._peers.others
        others = [peer for peer in known if peer is not owner]
        return [None, *others] if owner is None else [owner, None, *others]

    async def _maker(self, request: pb.ProvisionRequest, context: Context) -> Replica | None:
        """Returns the replica that has made a sandbox for a request before, or a hand of that name outside of sessions,
        if it is another one that can be asked."""
        standing = request.hand if not request.session_id else ""
        if not (request.request_id or standing) or request.environment not in ("", *self._environments):
            return None
        wanted = pb.ListSandboxesRequest(session_id=request.session_id or None)
        for peer, found in await self._asked_all("ListSandboxes", wanted, context):
            for it in found.sandboxes:
                if (request.request_id and it.request_id == request.request_id) or (
                    standing and it.standing_hand == standing
                ):
                    return peer
        return None

    async def _listed(self, method: str, name: str, answer: Answer, request: Any, context: Context) -> Any:
        mine, others = await asyncio.gather(answer(request, context), self._asked_all(name, request, context))
        return _LISTS[name]([mine, *(found for _, found in others)])

    async def _asked_all(self, name: str, request: Any, context: Context) -> list[tuple[Replica, Any]]:
        """Asks all other replicas; those that do not answer have nothing, and the log says so."""
        method = f"/{self._peers.service}/{name}"

        async def ask(peer: Replica) -> tuple[Replica, Any] | None:
            try:
                return peer, await _asked(peer, method, request, context, LIST_SECONDS)
            except ServiceError as problem:
                _log.warning("a replica was not asked", replica=peer.address, method=name, reason=problem.reason)
                return None

        return [found for found in await asyncio.gather(*map(ask, self._peers.up())) if found is not None]


class Missed:
    """What replicas said that do not know what a call is about."""

    def __init__(self, peers: Replicas, request: Any) -> None:
        self.named = peers.knows(getattr(request, "sandbox_id", ""))
        self._first: ServiceError | None = None
        self.away: ServiceError | None = None

    def note(self, problem: ServiceError) -> None:
        """Takes what one said. Raises it when that settles the call."""
        away = problem.reason == AWAY and not (self._first is None and self.named)
        if problem.reason not in _MISSES and not away:
            raise problem
        if away:
            self.away = self.away or problem
        else:
            self._first = self._first or problem

    def said(self) -> ServiceError:
        """Returns what to tell: what the first one said; that one is away which may know more, unless the id names a
        node that was asked."""
        told = self._first if self.named else self.away or self._first
        return told or Gone("SANDBOX_GONE", "there is no such sandbox (any more)")


def _handed_on(context: Context) -> tuple[tuple[str, Any], ...]:
    said = (pair for pair in context.invocation_metadata() or () if pair[0] != FORWARDED_KEY)
    return (*(pair for pair in said if pair[0].startswith(_HANDED_ON)), (FORWARDED_KEY, caller().kind))


async def _asked(peer: Replica, method: str, request: Any, context: Context, seconds: float | None = None) -> Any:
    timeout = min((it for it in (seconds, context.time_remaining()) if it is not None), default=None)
    try:
        return await peer.call(method)(request, metadata=_handed_on(context), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise _problem(error, peer) from None


async def _streamed(peer: Replica, method: str, request: Any, context: Context) -> AsyncGenerator[Any, None]:
    call = peer.call(method)(request, metadata=_handed_on(context), timeout=context.time_remaining())
    try:
        async for answer in call:
            yield answer
    except grpc.aio.AioRpcError as error:
        raise _problem(error, peer) from None
    finally:
        call.cancel()


def _problem(error: grpc.aio.AioRpcError, peer: Replica) -> ServiceError:
    """Returns what the owner said; that it is away when it said nothing: what it has is there when it is back."""
    problem = raised(error, AWAY)
    if isinstance(problem, Unavailable) and problem.reason == AWAY:
        text = "the replica that has the sandbox does not answer"
        return Unavailable(AWAY, text, retry_after=RETRY_SECONDS, node=peer.address)
    return problem


def _sandboxes(found: Sequence[pb.ListSandboxesResponse]) -> pb.ListSandboxesResponse:
    every = [it for each in found for it in each.sandboxes]
    every.sort(key=lambda it: (it.create_time.ToNanoseconds(), it.sandbox_id))
    return pb.ListSandboxesResponse(sandboxes=every)


def _environments(found: Sequence[pb.ListEnvironmentsResponse]) -> pb.ListEnvironmentsResponse:
    """Returns each environment once, as one says who can follow it, with the free sandboxes of all."""
    rows: dict[str, Any] = {}
    for it in (it for each in found for it in each.environments):
        kept = rows.setdefault(it.name, it)
        if kept is not it:
            kept.pool_free += it.pool_free
            if it.available and not kept.available:
                kept.available, kept.problem = True, ""
    return pb.ListEnvironmentsResponse(environments=[rows[name] for name in sorted(rows)])


_LISTS |= {"ListSandboxes": _sandboxes, "ListEnvironments": _environments}
