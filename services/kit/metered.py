"""Counts a server's calls: outside the guard, so that refused ones count too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc

from services.kit import metrics
from services.kit.access import ACCESS

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def spelled(method: str) -> str:
    """Spells a method as labels have it: without packages, `SessionService/EmitEvent`."""
    service, _, name = method.lstrip("/").partition("/")
    return f"{service.rpartition('.')[2]}/{name}"


_METHOD = metrics.Label("method", map(spelled, ACCESS))
_CODE = metrics.Label("code", _CODES.values())

CALLS = metrics.Counter(
    "handmesh_grpc_calls_total", "Calls that this service has answered, by method and status.", _METHOD, _CODE
)
SECONDS = metrics.Histogram(
    "handmesh_grpc_call_seconds", "How long unary calls took; a stream lasts as long as its caller likes.", _METHOD
)
IN_FLIGHT = metrics.Gauge(
    "handmesh_grpc_calls_in_flight", "Calls that are being answered, streams among them.", _METHOD
)


class Meter(grpc.aio.ServerInterceptor):
    """Wraps every method of a server."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], call: Any) -> Any:
        """Finds the method's handler, wrapped; wraps it once."""
        method: str = call.method
        if method not in self._wrapped:
            handler = await continuation(call)
            if handler is None:
                return None
            self._wrapped[method] = _wrap(spelled(method), handler)
        return self._wrapped[method]


def _wrap(method: str, handler: Any) -> Any:
    answer = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    async def unary(request: Any, context: Any) -> Any:
        began = time.perf_counter()
        IN_FLIGHT.add(method)
        code = "OK"
        try:
            return await answer(request, context)
        except BaseException as problem:
            code = _code(problem, context)
            raise
        finally:
            IN_FLIGHT.add(method, by=-1)
            CALLS.add(method, code)
            SECONDS.observe(time.perf_counter() - began, method)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        IN_FLIGHT.add(method)
        code = "OK"
        try:
            async with aclosing(answer(request, context)) as answers:
                async for one in answers:
                    yield one
        except BaseException as problem:
            code = _code(problem, context)
            raise
        finally:
            IN_FLIGHT.add(method, by=-1)
            CALLS.add(method, code)

    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        stream if handler.response_streaming else unary,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def _code(problem: BaseException, context: Any) -> str:
    """Names the status with which a call ends: a caller that has left is CANCELLED."""
    said = context.code()  # a StatusCode once somebody has said one, else 0
    if said:
        return said.name if isinstance(said, grpc.StatusCode) else _CODES.get(said, metrics.OTHER)
    return "CANCELLED" if isinstance(problem, (asyncio.CancelledError, GeneratorExit)) else "UNKNOWN"
