"""Asks a service whether it serves, the way any client or orchestrator would."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ANSWER_SECONDS = 2.0
"""How long one answer may take."""


async def serves(address: str) -> bool:
    """Says whether the service at `host:port` on this machine answers SERVING; False for any other answer, or none."""
    if not await listens(address):
        return False
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def listens(address: str) -> bool:
    """Says whether anything accepts TCP connections at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError):
        return False
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass
    return True
