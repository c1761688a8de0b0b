"""Channels to a mesh: plain text on this machine, TLS elsewhere, and what both need to live long."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from handmesh.client.errors import raised
from handmesh.client.tracing import traceparent

MESSAGE_BYTES = 8 * 1024 * 1024
"""Most bytes of one message, either way: as the services allow. A page of events has at most 3 MiB."""

CALL_SECONDS = 30.0
"""How long one call may take, with all its retries."""

KEEPALIVE_MS = 10_000
"""How long an open stream may be silent before the service is asked, and how long it then has to answer."""

# Most calls of the client are idempotent by an id that they carry, so they may be said again.
_RETRY = {
    "maxAttempts": 4,
    "initialBackoff": "0.05s",
    "maxBackoff": "1s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
_KEEPALIVE = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Link:
    """A channel to one address, with the caller's key. It connects at the first call.

    Calls that end as UNAVAILABLE are made again, but for the (service, method) pairs in `once`.
    """

    def __init__(
        self,
        address: str,
        api_key: str | None,
        ca_file: Path | None,
        once: Sequence[tuple[str, str]] = (),
        keepalive_ms: int = KEEPALIVE_MS,
    ) -> None:
        self.address = address
        self.metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        methods: list[dict[str, object]] = [{"name": [{"service": each, "method": method}]} for each, method in once]
        config = json.dumps({"methodConfig": [*methods, {"name": [{}], "retryPolicy": _RETRY}]})
        options = [*_OPTIONS, *((name, keepalive_ms) for name in _KEEPALIVE), ("grpc.service_config", config)]
        if is_loopback(address) and ca_file is None:
            self.channel = grpc.aio.insecure_channel(address, options)
        else:
            roots = ca_file.read_bytes() if ca_file is not None else None
            self.channel = grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots), options)

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        timeout: float = CALL_SECONDS,
    ) -> Response:
        """Makes one unary call. Raises HandmeshError, with DEADLINE_EXCEEDED after `timeout` seconds."""
        try:
            metadata = (*self.metadata, ("traceparent", traceparent()))
            return await method(request, metadata=metadata, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None

    async def close(self) -> None:
        """Ends what is still running and closes."""
        await self.channel.close()


def is_loopback(address: str) -> bool:
    """Says whether `host:port` is on this machine, where a mesh speaks plain text unless it has an authority."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
