"""Channels to the other services: mutual TLS, keepalive, retries, and errors as they were raised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from handmesh.replicas.channel import Replicas, is_single
from services.kit import certificates, errors
from services.kit.certificates import Certificate
from services.kit.guard import DETAILS_KEY, DOMAIN
from services.kit.renewed import RenewedChannel
from services.kit.tracing_calls import TracedChannel
from services.kit.watched import Watched

MESSAGE_BYTES = 8 * 1024 * 1024  # more than a page of 3 MiB, or 1 MiB of events with what surrounds them

SIZE_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]
KEEPALIVE_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # what gRPC goes by where a ping is under way; else 60 s
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_RETRY_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.05s",
    "maxBackoff": "1s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}  # the back-off carries a channel over a peer's restart
_BY_CODE = {kind.code: kind for kind in errors.ServiceError.__subclasses__()}
# How calls end that nobody answered. Not cancelled by us, or this would be no status: a server that stops does it.
_AWAY = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def connect(
    addresses: str, tls_dir: Path, once: Sequence[tuple[str, str]] = (), *, pinned: bool = True
) -> grpc.aio.Channel:
    """Opens a channel to another service as the service whose certificate lies in `tls_dir`, and is renewed there.
    Connects lazily.

    `addresses` is `host:port`, or several with commas; a name may stand for several, too. Then what a call is about,
    a session or a sandbox, says which of the replicas it goes to (by chance unless `pinned`); others are next.
    Calls that end as UNAVAILABLE are made again, but for the (service, method) pairs in `once`: those that a server
    which has died may have begun and has forgotten.
    """
    files = certificates.watched(tls_dir)
    if is_single(addresses):
        methods: list[dict[str, Any]] = [{"name": [{"service": service, "method": method}]} for service, method in once]
        return _open(files, addresses, "", [*methods, {"name": [{}], "retryPolicy": _RETRY_POLICY}])
    return Replicas(addresses, lambda target, name: _open(files, target, name, []), once, pinned=pinned)


def _open(files: Watched[Certificate], target: str, name: str, methods: list[dict[str, Any]]) -> grpc.aio.Channel:
    """Opens a channel to one replica. Its certificate is to show `name`, by default that of the target."""
    options = [
        *SIZE_OPTIONS,
        *KEEPALIVE_OPTIONS,
        ("grpc.service_config", json.dumps({"methodConfig": methods})),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 1_000),  # what one attempt to connect may take, with its handshake
        ("grpc.max_reconnect_backoff_ms", 1_000),
        *([("grpc.default_authority", name)] if name else []),
    ]

    def open_(shown: Certificate) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(shown.ca, shown.key, shown.cert)
        return grpc.aio.secure_channel(target, credentials, options)

    return cast(grpc.aio.Channel, TracedChannel(RenewedChannel(files, open_)))


def raised(error: grpc.aio.AioRpcError, unavailable: str = "SESSION_UNAVAILABLE") -> errors.ServiceError:
    """Turns a failed call back into the error that the service raised.

    `unavailable` is the reason when the service itself did not answer.
    """
    kind = _BY_CODE.get(error.code().name, errors.Broken)
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _rebuilt(kind, Status.FromString(value))
    if kind is errors.Broken and error.code() in _AWAY:
        kind = errors.Unavailable
    reason = unavailable if kind is errors.Unavailable else "INTERNAL"
    silent = kind(reason, f"the call ended as {error.code().name}")
    silent.answered = False
    return silent


def _rebuilt(kind: type[errors.ServiceError], status: Status) -> errors.ServiceError:
    reason, metadata, retry_after = "INTERNAL", {}, None
    for detail in status.details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    rebuilt = kind(reason, status.message.removesuffix(f" [{reason}]"), retry_after=retry_after)
    rebuilt.metadata = metadata
    return rebuilt
