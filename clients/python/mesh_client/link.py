"""A channel to a mesh, and how long this client goes on trying."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc

from mesh_client.errors import MeshError, raised

CALL_SECONDS = 30.0
"""How long one try of a call may take."""

PATIENCE = 60.0
"""Seconds for which a mesh that is away is tried again."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two tries: doubled from the first to the longest."""

HEALTHY_AFTER = 5.0
"""A stream that stood for so many seconds was a good one, even if it had nothing to say."""

BROKEN = frozenset({"UNAVAILABLE", "CANCELLED"})
"""What a service that goes away, or a network that breaks, looks like. A refusal has another code."""

OPTIONS = [
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),  # a page of events has up to 3 MiB, and one event more
    ("grpc.keepalive_time_ms", 10_000),  # a link that is dead without a word is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]

Request = TypeVar("Request")
Response = TypeVar("Response")


class Endurance:
    """Waits between tries, until they have failed for `patience` seconds on end."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.renew()

    def renew(self) -> None:
        """Begins anew: something worked."""
        self._pause = FIRST_PAUSE
        self._gives_up: float | None = None

    def wait(self, problem: MeshError) -> None:
        """Waits for the next try, or raises the problem of the last one when there is to be none."""
        now = time.monotonic()
        if self._gives_up is None:
            self._gives_up = now + self._patience
        if now + self._pause > self._gives_up:
            raise problem
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


class Link:
    """A channel with the caller's key: in TLS with `ca_file`, or to another machine; plain text to this one."""

    def __init__(self, address: str, api_key: str, ca_file: Path | None = None, patience: float = PATIENCE) -> None:
        self.metadata = (("authorization", f"Bearer {api_key}"),)
        self.patience = patience
        if ca_file is None and address.rpartition(":")[0] in ("127.0.0.1", "[::1]", "localhost"):
            self.channel = grpc.insecure_channel(address, OPTIONS)
        else:
            roots = ca_file.read_bytes() if ca_file else None
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), OPTIONS)

    def call(self, method: Callable[..., Response], request: Request) -> Response:
        """Makes a unary call, again while the mesh is away: so the request has to carry an id that makes it idempotent.

        Raises MeshError.
        """
        endurance = Endurance(self.patience)
        while True:
            try:
                return method(request, metadata=self.metadata, timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                problem = raised(error)
            if problem.code not in BROKEN:
                raise problem
            endurance.wait(problem)
