"""Traces over gRPC: a caller's `traceparent` comes with its call, and a unary call is a span on both sides.

Streams have no spans of their own, since they end with their caller and not with their work; but what they do belongs
to whatever their caller does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message

from services.kit import tracing
from services.kit.access import CLIENT as CLIENTS
from services.kit.access import MESH
from services.kit.errors import ServiceError
from services.kit.overdue import OverdueError
from services.kit.tracing import CLIENT, NOTHING, SERVER, TRACEPARENT, Live, Span

_KEYS = {
    "session_id": "handmesh.session.id",
    "sandbox_id": "handmesh.sandbox.id",
    "execution_id": "handmesh.execution.id",
    "epoch": "handmesh.epoch",
}
# Of a server's span: the others say that the caller was at fault.
_OURS = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
_TRACED = MESH | CLIENTS
# Half of all calls: a span on one side says enough, as long as they go well.
_MANY = frozenset(f"/handmesh.session.v1.SessionService/{each}" for each in ("EmitEvents", "CheckGrant"))
_fields: dict[str, tuple[tuple[str, str], ...]] = {}


def _about(method: str, request: object) -> dict[str, str | int]:
    """Returns the attributes of a call: gRPC's, and the ids of ours that the request names."""
    attributes: dict[str, str | int] = {"rpc.system.name": "grpc", "rpc.method": method.removeprefix("/")}
    if isinstance(request, Message):
        for field, key in _ids_of(request.DESCRIPTOR):
            if value := getattr(request, field):
                attributes[key] = value
    return attributes


def _ids_of(descriptor: Any) -> tuple[tuple[str, str], ...]:
    found = _fields.get(descriptor.full_name)
    if found is None:
        found = tuple((field, key) for field, key in _KEYS.items() if field in descriptor.fields_by_name)
        _fields[descriptor.full_name] = found
    return found


def entered(kind: str, traceparent: str | None, request: object) -> None:
    """Makes the rest of this task part of what the caller does, and about the session that the request names.

    `kind` is who calls (see `identity.Caller`): hands, and those whom nobody knows, belong to no trace.
    """
    if traceparent and kind in _TRACED:
        tracing.continue_from(traceparent)
    session_id = getattr(request, "session_id", "")
    if session_id:
        tracing.about(session_id)


def served(method: str, request: object, *, kind: str) -> Span:
    """Begins the span of a call that is being answered, whose ids were checked. A client's call begins a trace."""
    recorder, parent, outside = tracing.recorder(), tracing.current(), kind == "client"
    if recorder is None or not (parent or outside):
        return NOTHING
    return _Served(recorder, method[1:], SERVER, parent, _about(method, request), outside=outside)


class _Served(Live):
    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = "OK"
        if isinstance(problem, ServiceError):
            code = problem.code
            self.set({"handmesh.reason": problem.reason})
        elif isinstance(problem, OverdueError):
            code = "DEADLINE_EXCEEDED"
        elif problem is not None:
            code = "INTERNAL" if isinstance(problem, Exception) else "CANCELLED"
        self.set({"rpc.response.status_code": code})
        if code in _OURS:
            self.fail(code)
        super().__exit__(None, None, None)


class TracedChannel:
    """A channel whose calls take the `traceparent` along. It is no interceptor: those cost each call a task."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> TracedChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._channel.__aexit__(*problem)

    def unary_unary(self, method: str, *args: Any, **kinds: Any) -> Callable[..., Any]:
        return partial(_call, self._channel.unary_unary(method, *args, **kinds), method)

    def unary_stream(self, method: str, *args: Any, **kinds: Any) -> Callable[..., Any]:
        return partial(_stream, self._channel.unary_stream(method, *args, **kinds))

    def stream_unary(self, method: str, *args: Any, **kinds: Any) -> Callable[..., Any]:
        return partial(_stream, self._channel.stream_unary(method, *args, **kinds))

    def stream_stream(self, method: str, *args: Any, **kinds: Any) -> Callable[..., Any]:
        return partial(_stream, self._channel.stream_stream(method, *args, **kinds))


def _call(multicallable: Any, method: str, request: Any, *, metadata: Any = None, **rest: Any) -> Any:
    parent = tracing.current()
    if not parent:
        return multicallable(request, metadata=metadata, **rest)
    recorder = tracing.recorder()
    if recorder is None:
        return multicallable(request, metadata=_with(metadata, parent), **rest)
    if method in _MANY:
        call = multicallable(request, metadata=_with(metadata, parent), **rest)
        call.add_done_callback(partial(_heard, recorder, method, parent, request, time.time_ns()))
        return call
    span = Live(recorder, method[1:], CLIENT, parent, _about(method, request))
    call = multicallable(request, metadata=_with(metadata, span.traceparent), **rest)
    call.add_done_callback(partial(_ended, span))
    return call


def _stream(multicallable: Any, request: Any = None, *, metadata: Any = None, **rest: Any) -> Any:
    parent = tracing.current()
    return multicallable(request, metadata=_with(metadata, parent) if parent else metadata, **rest)


def _with(metadata: Any, traceparent: str) -> tuple[tuple[str, str | bytes], ...]:
    return (*(metadata or ()), (TRACEPARENT, traceparent))


def _ended(span: Live, call: Any) -> None:
    code = _code(call)
    span.set({"rpc.response.status_code": code})
    if code == "CANCELLED":
        span.set({"handmesh.cancelled": True})
    elif code != "OK":
        span.fail(code)
    span.end()


def _heard(recorder: tracing.Recorder, method: str, parent: str, request: Any, since: int, call: Any) -> None:
    """Makes a span of a call only if it went wrong: else who answered it has one."""
    if _code(call) != "OK":
        _ended(Live(recorder, method[1:], CLIENT, parent, _about(method, request), since=since), call)


def _code(call: Any) -> str:
    try:
        call.code().send(None)  # the call has ended: it says so at once
    except StopIteration as said:
        return str(said.value.name)
    return "UNKNOWN"
