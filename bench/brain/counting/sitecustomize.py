"""Counts what a service is asked, from within: put first on its PYTHONPATH, it wraps each server of grpc.aio.

Each unary call is a line of JSON in the file that HANDMESH_BENCH_CALLS names: [method, kinds of its events,
when it came, when it was answered], in ns of the monotonic clock.
"""

import json
import os
import time
from pathlib import Path

import grpc.aio

_file = Path(os.environ["HANDMESH_BENCH_CALLS"]).open("a", buffering=1)  # noqa: SIM115 - lives as long as the process
_make = grpc.aio.server


class _Counting(grpc.aio.ServerInterceptor):
    def __init__(self):
        self._wrapped = {}

    async def intercept_service(self, continuation, details):
        handler = await continuation(details)
        if handler is None or handler.request_streaming or handler.response_streaming:
            return handler
        if details.method not in self._wrapped:
            self._wrapped[details.method] = _counted(details.method, handler)
        return self._wrapped[details.method]


def _counted(method, handler):
    async def answer(request, context):
        came = time.monotonic_ns()
        try:
            return await handler.unary_unary(request, context)
        finally:
            events = [event.WhichOneof("kind") for event in getattr(request, "events", ())]
            _file.write(json.dumps([method, events, came, time.monotonic_ns()]) + "\n")

    return grpc.unary_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)


def _server(*args, interceptors=None, **options):
    return _make(*args, interceptors=[_Counting(), *(interceptors or ())], **options)


grpc.aio.server = _server
