"""Channels to a mesh: plain text on this machine, TLS elsewhere, and what both need to live long."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from handmesh.client.errors import raised
from handmesh.client.tracing import traceparent
from handmesh.replicas.channel import Replicas, is_single

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
    """A channel to a service, with the caller's key. It connects at the first call.

    `address` is `host:port`, or several of replicas with commas: then a session's calls go to the same one, and to the
    next when that one does not answer.

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
        self._api_key, self._ca_file = api_key, ca_file
        self.metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        shared = [*_OPTIONS, *((name, keepalive_ms) for name in _KEEPALIVE)]
        self.channel: grpc.aio.Channel
        if is_single(address):
            methods: list[dict[str, object]] = [
                {"name": [{"service": each, "method": method}]} for each, method in once
            ]
            config = json.dumps({"methodConfig": [*methods, {"name": [{}], "retryPolicy": _RETRY}]})
            self.channel = _open(address, "", ca_file, [*shared, ("grpc.service_config", config)])
        else:
            self.channel = Replicas(address, lambda target, name: _open(target, name, ca_file, shared), once)

    def to(self, address: str) -> Link:
        """Opens a link to one replica of the service, as the same caller."""
        return Link(address, self._api_key, self._ca_file)

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


def _open(target: str, name: str, ca_file: Path | None, options: list[tuple[str, Any]]) -> grpc.aio.Channel:
    """Opens a channel to one replica, whose certificate shows `name`, by default that of the target."""
    if ca_file is None and not name and is_loopback(target):  # what a name stands for makes nothing plain text
        return grpc.aio.insecure_channel(target, options)
    roots = ca_file.read_bytes() if ca_file is not None else None
    named = [("grpc.default_authority", name)] if name else []
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(roots), [*options, *named])


def is_loopback(address: str) -> bool:
    """Says whether `host:port` is on this machine, where a mesh speaks plain text unless it has an authority."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
