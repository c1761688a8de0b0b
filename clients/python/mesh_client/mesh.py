"""A mesh: sessions are made and found here."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2 import CreateSessionRequest
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from mesh_client.link import PATIENCE, Link
from mesh_client.session import Session, fresh, message


class Mesh:
    """One mesh, at the address of its session service (`host:port`). Close it, or use it in `with`."""

    def __init__(self, address: str, api_key: str, ca_file: Path | None = None, patience: float = PATIENCE) -> None:
        self._link = Link(address, api_key, ca_file, patience)
        self._stub = SessionServiceStub(self._link.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.channel.close()

    def create(self, config: SessionConfig, text: str) -> Session:
        """Starts a session with its first message. Raises MeshError."""
        request = CreateSessionRequest(request_id=fresh("create"), config=config, initial_events=[message(text)])
        return self.session(self._link.call(self._stub.CreateSession, request).session.session_id)

    def session(self, session_id: str) -> Session:
        """Returns a handle on a session. Asks nobody."""
        return Session(self._link, self._stub, session_id)
