"""The one interceptor: who calls, which ids, and what a caller is told when something fails.

Order matters: identity first, then ids, then the method. A `ServiceError` becomes its status with a
`google.rpc.ErrorInfo`; anything else becomes INTERNAL with an incident's id, because grpc would otherwise send the
exception's text, secrets and all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from services.kit import identity, ids, tracing_calls
from services.kit.callers import Callers
from services.kit.errors import Broken, Invalid, ServiceError, Unimplemented
from services.kit.ids_in_messages import check_ids
from services.kit.limits import Limits, Shares
from services.kit.logs import Log
from services.kit.overdue import Overdue, OverdueError
from services.kit.tracing import TRACEPARENT

DOMAIN = "handmesh"
DETAILS_KEY = "grpc-status-details-bin"
_AUTHORIZATION = "authorization"
_SHOWN = frozenset({_AUTHORIZATION, identity.TENANT_KEY, identity.SESSION_KEY, identity.FORWARDED_KEY, TRACEPARENT})
_ANYONE = identity.Caller("anyone")
_FOREIGN = frozenset({"client", "hand"})  # callers that are not the mesh's own
_log = Log("services.kit.guard")

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class Guard(grpc.aio.ServerInterceptor):
    """Wraps every method of a server. `callers` tells clients by their credentials, `peers` services by their names.
    `forwards` is the service whose own replicas hand calls on to this one, if there are such."""

    def __init__(
        self, callers: Callers, limits: Limits | None = None, peers: identity.Peers | None = None, forwards: str = ""
    ) -> None:
        self._callers = callers
        self._forwards = forwards
        self._peers = peers or identity.Peers()
        self._shares = Shares(limits or Limits())
        self._overdue = Overdue(self._shares.limits.seconds)
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """Finds the method's handler, wrapped; wraps it once."""
        method: str = call.method
        if method not in self._wrapped:
            handler = await continuation(call)
            if handler is None:
                return None  # no such method: grpc answers, and nothing is kept for names that callers make up
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def _wrap(self, method: str, handler: Any) -> Any:
        answer = handler_of(handler)
        shares, overdue, callers = self._shares, self._overdue, self._callers

        def admit(caller: identity.Caller, shown: Mapping[str, str], request: Any) -> None:
            if identity.FORWARDED_KEY in shown:
                caller = replace(caller, handed_on=True)
            shares.count(caller)
            identity.authorize(caller, method)
            identity.enter(caller)
            if not handler.request_streaming:
                _check_readable(request)
            if isinstance(request, Message):
                check_ids(request)
            tracing_calls.entered(caller.kind, shown.get(TRACEPARENT), request)

        async def unary(request: Any, context: Context) -> Any:
            try:
                shown = _shown(context)
                caller, credential = self._known(context, shown)
                if caller is None:
                    caller = await callers.check(credential)
                admit(caller, shown, request)
                if handler.request_streaming:
                    async with self._stream(caller, credential):
                        return await answer(_checked(request, shares, caller), context)
                taken = shares.take(caller, request.ByteSize())
                try:
                    with tracing_calls.served(method, request, kind=caller.kind):
                        if caller.kind in _FOREIGN:
                            return await self._within(caller, answer(request, context), context)
                        return await answer(request, context)
                finally:
                    shares.give(caller, taken)
            except OverdueError:
                text = f"without a deadline of its own a call has {overdue.seconds:g} seconds"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
            except Exception as problem:
                await fail(problem, context, method)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                shown = _shown(context)
                caller, credential = self._known(context, shown)
                if caller is None:
                    caller = await callers.check(credential)
                admit(caller, shown, request)
                async with self._stream(caller, credential):
                    asked = _checked(request, shares, caller) if handler.request_streaming else request
                    async with aclosing(answer(asked, context)) as answers:
                        async for one in answers:  # closed at once when the caller leaves, not by the garbage collector
                            yield one
            except Exception as problem:
                await fail(problem, context, method)

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(
            stream if handler.response_streaming else unary,
            request_deserializer=_readable(handler.request_deserializer),
            response_serializer=_serializer(handler.response_serializer),
        )

    def _known(self, context: Context, shown: dict[str, str]) -> tuple[identity.Caller | None, str]:
        """Tells who calls, and by which credential. None is somebody who has to be asked for."""
        service = identity.certified(self._peers, context.auth_context())
        if service is None or service.kind != self._forwards:
            shown.pop(identity.FORWARDED_KEY, None)  # it is a replica's word alone
        service = identity.speaking(service, shown.get(identity.FORWARDED_KEY))
        if service is not None:
            return identity.acting(service, shown.get(identity.TENANT_KEY), shown.get(identity.SESSION_KEY)), ""
        authorization = shown.get(_AUTHORIZATION)
        if authorization is None:
            return _ANYONE, ""
        credential = identity.credential_of(authorization)
        if credential.startswith(identity.HAND_PREFIX):
            return identity.hand(credential), ""
        return self._callers.kept(credential), credential

    async def _within(self, caller: identity.Caller, work: Awaitable[Any], context: Context) -> Any:
        """Answers a call from outside of the mesh, which has its limits."""
        self._shares.begin(caller)
        try:
            return await (self._overdue.within(work) if context.time_remaining() is None else work)
        finally:
            self._shares.end(caller)

    @asynccontextmanager
    async def _stream(self, caller: identity.Caller, credential: str) -> AsyncIterator[None]:
        """Counts a stream, and lets it be open no longer than its caller's credential is good."""
        self._shares.open(caller)
        try:
            if credential:
                async with self._callers.stream(caller, credential):
                    yield
            else:
                yield
        finally:
            self._shares.close(caller)


class _Encoded:
    """Stands for a message whose bytes are there already."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


def encoded(kind: type[M], data: bytes) -> M:
    """Makes an answer of bytes that are such a message already: they are sent as they are, and never looked into."""
    return cast(M, _Encoded(data))


def _serializer(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
    def bytes_of(answer: Any) -> bytes:
        if type(answer) is _Encoded:
            return answer.data
        return serialize(answer) if serialize is not None else answer

    return bytes_of


def handler_of(handler: Any) -> Callable[[Any, Context], Any]:
    """Returns the one function that a grpc handler holds."""
    found: Callable[[Any, Context], Any] = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    return found


def _shown(context: Context) -> dict[str, str]:
    """Returns what a call shows of itself in its metadata. The first of several counts.

    Raises Unauthenticated for two authorizations: it could not be said which of them is meant.
    """
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in _SHOWN:
            if key == _AUTHORIZATION and key in found:
                raise identity.unknown()
            found.setdefault(key, value if isinstance(value, str) else value.decode("ascii", "replace"))
    return found


class _Unreadable:
    """Stands for a request whose bytes are no message: grpc itself would answer UNKNOWN, as for a bug of ours."""


def _readable(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _Unreadable()

    return read


def _check_readable(request: Any) -> None:
    if isinstance(request, _Unreadable):
        raise Invalid("ARGUMENT_INVALID", "the request's bytes are not the message that this method takes")


async def _checked(requests: AsyncIterator[Message], shares: Shares, caller: identity.Caller) -> AsyncIterator[Message]:
    first = True
    async for request in requests:
        _check_readable(request)
        check_ids(request, first=first)
        first = False
        taken = shares.take(caller, request.ByteSize())
        try:
            yield request
        finally:
            shares.give(caller, taken)


async def fail(problem: Exception, context: Context, method: str) -> NoReturn:
    """Ends the call with what the caller may know of the problem."""
    if isinstance(problem, grpc.aio.AbortError):
        raise problem
    raised = problem
    if isinstance(problem, NotImplementedError):
        problem = Unimplemented("UNIMPLEMENTED", f"{method} is not built yet")
    if not isinstance(problem, ServiceError):
        incident = ids.mint("inc")
        _log.error("method failed", exc_info=True, method=method, incident=incident)
        problem = Broken("INTERNAL", f"our own fault; the log tells under {incident}", incident=incident)
    # grpc keeps how its last call ended until the next one comes, and so every frame that the error came through.
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    kept = tuple(context.trailing_metadata() or ())
    await context.abort(
        getattr(grpc.StatusCode, problem.code),
        str(problem),
        (*kept, (DETAILS_KEY, details(problem).SerializeToString())),
    )
    raise asyncio.CancelledError  # abort has raised


def details(problem: ServiceError) -> Status:
    """Makes the rich status of an error: `ErrorInfo`, and `RetryInfo` when it says when to come back."""
    status = Status(code=getattr(grpc.StatusCode, problem.code).value[0], message=str(problem))
    status.details.add().Pack(ErrorInfo(reason=problem.reason, domain=DOMAIN, metadata=problem.metadata))
    if problem.retry_after is not None:
        delay = Duration()
        delay.FromMilliseconds(int(problem.retry_after * 1000))
        status.details.add().Pack(RetryInfo(retry_delay=delay))
    return status
