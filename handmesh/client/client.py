"""The client of a mesh: `connect()` finds it, a `Client` starts and finds sessions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc

from handmesh.client import blobs, export, settings
from handmesh.client.addresses import Addresses, api_key_file, local_api_key
from handmesh.client.api_keys import ApiKeys
from handmesh.client.channels import Link
from handmesh.client.errors import HandmeshError, raised
from handmesh.client.hand_tokens import HandTokens
from handmesh.client.hands import Hands
from handmesh.client.memories import Memories
from handmesh.client.session import Session, blocks_of, message, new_event_id
from handmesh.client.vaults import ONCE, Vaults
from handmesh.harness.v1 import harness_pb2
from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceStub
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub

if TYPE_CHECKING:
    from handmesh.harness.v1.harness_pb2_grpc import HarnessServiceAsyncStub
    from handmesh.sandbox.v1.sandbox_pb2_grpc import SandboxServiceAsyncStub
    from handmesh.session.v1.session_pb2_grpc import SessionServiceAsyncStub


IMPORT_SECONDS = 600.0
"""How long an import may take."""

MESSAGE_EVENTS, MESSAGE_BYTES = 500, 2 * 1024 * 1024
"""Events, and about how many bytes of them, that go to the service at once."""


def connect(
    address: str | Addresses | None = None,
    api_key: str | None = None,
    *,
    ca_file: Path | None = None,
    data_directory: Path | None = None,
) -> Client:
    """Returns a client of a mesh. It connects at the first call, so this never waits.

    Without arguments it is the mesh that the environment names (HANDMESH_ADDRESS, HANDMESH_API_KEY), else the one on
    this machine, whose address and key lie in its data directory. `address` is `host:port` of a proxy in front of all
    services, or each service's address. An address may be several, with commas:
    replicas. Other machines are spoken to in TLS; `ca_file` (PEM) says whom to trust.

    Raises HandmeshError: `IDENTITY_UNKNOWN` when there is no key, `UNAVAILABLE` when no mesh runs on this machine.
    """
    found = settings.read()
    directory = data_directory or found.data_directory
    if address is None and data_directory is None and found.address is not None:
        others = found.harness_address, found.sandbox_address, found.vault_proxy_address
        address = Addresses(found.address, *(each or found.address for each in others))
    key = api_key or (found.api_key if data_directory is None else None) or local_api_key(directory)
    if key is None:
        text = f"no API key: {api_key_file(directory)} is not there. `handmesh up` makes it"
        raise HandmeshError("IDENTITY_UNKNOWN", text, code="UNAUTHENTICATED")
    if address is None:
        address = Addresses.local(directory)
    if address is None:  # without word of who listens there, the key is not sent to the default ports
        text = f"no mesh runs on {directory}. Start one with: handmesh up"
        raise HandmeshError("UNAVAILABLE", text, code="UNAVAILABLE")
    addresses = Addresses.behind(address) if isinstance(address, str) else address
    return Client(addresses, key, ca_file or found.ca_file)


class Client:
    """A client of one mesh. Use it as an async context manager, or `close` it; share it between tasks."""

    def __init__(self, addresses: Addresses, api_key: str, ca_file: Path | None = None) -> None:
        self.addresses = addresses
        self.session_link = Link(addresses.session, api_key, ca_file)
        self.session_stub: SessionServiceAsyncStub = SessionServiceStub(self.session_link.channel)
        self.harness_link = Link(addresses.harness, api_key, ca_file)
        self.harness_stub: HarnessServiceAsyncStub = HarnessServiceStub(self.harness_link.channel)
        self.sandbox_link = Link(addresses.sandbox, api_key, ca_file)
        self.sandbox_stub: SandboxServiceAsyncStub = SandboxServiceStub(self.sandbox_link.channel)
        self.vault_proxy_link = Link(addresses.vault_proxy, api_key, ca_file, ONCE)
        self.vaults = Vaults(self)
        self.memories = Memories(self.session_link)
        self.hand_tokens = HandTokens(self)
        self.api_keys = ApiKeys(self)
        self.hands = Hands(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what is still running and closes."""
        await self.session_link.close()
        await self.harness_link.close()
        await self.sandbox_link.close()
        await self.vault_proxy_link.close()

    async def create_session(
        self,
        config: config_pb2.SessionConfig | None = None,
        content: str | Sequence[dict[str, Any]] | None = None,
        *,
        request_id: str = "",
    ) -> Session:
        """Starts a session, with a first message if `content` is given, in one step.

        A message that does not fit into an event needs two: the session, then the message that refers to its blobs.

        A `request_id` of your own makes it idempotent across your calls.
        """
        request = session_pb2.CreateSessionRequest(
            request_id=request_id or f"cli_{secrets.token_hex(13)}", config=config or config_pb2.SessionConfig()
        )
        small = content is None or blobs.fits(blocks_of(content))
        if content is not None and small:
            request.initial_events.append(event_pb2.Event(event_id=new_event_id(), message_received=message(content)))
        answer = await self.session_link.call(self.session_stub.CreateSession, request)
        session = self.session(answer.session.session_id)
        if content is not None and not small:
            await session.send(content, event_id=f"first-{session.id}")
        return session

    def session(self, session_id: str) -> Session:
        """Returns a handle on a session that is there. Asks nobody."""
        return Session(self, session_id)

    async def sessions(
        self,
        *,
        statuses: Sequence[session_pb2.SessionStatus.ValueType] = (),
        labels: Mapping[str, str] | None = None,
        harness: str = "",
        include_archived: bool = False,
        page_size: int = 0,
    ) -> AsyncIterator[session_pb2.Session]:
        """Yields the sessions that fit all filters, newest first, page by page."""
        request = session_pb2.ListSessionsRequest(
            statuses=statuses, labels=labels, harness=harness, include_archived=include_archived, page_size=page_size
        )
        while True:
            page = await self.session_link.call(self.session_stub.ListSessions, request)
            for session in page.sessions:
                yield session
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def harness_types(self) -> list[harness_pb2.HarnessType]:
        """Returns the harness types that the harness knows which answers, and why it is not of some of them."""
        request = harness_pb2.ListHarnessTypesRequest()
        return list((await self.harness_link.call(self.harness_stub.ListHarnessTypes, request)).types)

    async def served_types(self) -> list[session_pb2.ServedType]:
        """Returns the harness types that any harness of the mesh takes sessions of, with the room that there is."""
        request = session_pb2.ListServedTypesRequest()
        return list((await self.session_link.call(self.session_stub.ListServedTypes, request)).types)

    async def audit(self, session_id: str | None = None) -> AsyncIterator[session_pb2.AuditEntry]:
        """Yields what credentials were used for and what doors refused, oldest first: by a session, which may be
        deleted, or by all of the tenant's."""
        request = session_pb2.ListAuditEntriesRequest(session_id=session_id, page_size=1_000)
        while True:
            answer = await self.session_link.call(self.session_stub.ListAuditEntries, request)
            for entry in answer.entries:
                yield entry
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def import_session(
        self, lines: Callable[[], Iterable[str]], *, request_id: str = "", blobs: bool = True
    ) -> Session:
        """Makes a session from an exported log, with its blobs unless they are not wanted, and returns it. `lines` is
        called for each look at it: that it is whole is checked first.

        Raises HandmeshError: `LOG_INVALID`, with the position of the first event that cannot be right, before or
        after the service saw it; `BLOB_QUOTA` when the blobs are too many for a session of this mesh.
        """
        export.check(lines())
        for _ in export.read(lines()):
            pass  # what is no event is found before anything is sent
        rest = iter(lines())  # the events are read from it first, then the blobs
        pieces = export.pieces(rest) if blobs else iter(())
        requests = _batched(export.read(rest), request_id or f"cli_{secrets.token_hex(13)}", pieces)
        try:
            call = self.session_stub.ImportSession(
                requests, metadata=self.session_link.metadata, timeout=IMPORT_SECONDS
            )
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None
        return self.session(answer.session.session_id)

    async def sandboxes(self, session_id: str | None = None) -> list[sandbox_pb2.Sandbox]:
        """Returns the sandboxes that there are, or those of one session, oldest first."""
        request = sandbox_pb2.ListSandboxesRequest(session_id=session_id)
        return list((await self.sandbox_link.call(self.sandbox_stub.ListSandboxes, request)).sandboxes)

    async def executions(self, sandbox_id: str) -> list[sandbox_pb2.Execution]:
        """Returns what a sandbox has run, oldest first."""
        request = sandbox_pb2.ListExecutionsRequest(sandbox_id=sandbox_id)
        return list((await self.sandbox_link.call(self.sandbox_stub.ListExecutions, request)).executions)

    async def files(self, sandbox_id: str, path: str = "") -> sandbox_pb2.ListFilesResponse:
        """Returns the files below a directory of a sandbox (default `/workspace`), and whether there are more."""
        request = sandbox_pb2.ListFilesRequest(sandbox_id=sandbox_id, path=path)
        return await self.sandbox_link.call(self.sandbox_stub.ListFiles, request)

    async def read_file(self, sandbox_id: str, path: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields a file of a sandbox in pieces, from an offset in bytes on. Raises HandmeshError: `FILE_NOT_FOUND`."""
        request = sandbox_pb2.ReadFileRequest(sandbox_id=sandbox_id, path=path, offset=offset)
        try:
            async for answer in self.sandbox_stub.ReadFile(request, metadata=self.sandbox_link.metadata):
                yield answer.chunk
        except grpc.aio.AioRpcError as error:
            raise raised(error) from None

    async def release(self, sandbox_id: str) -> None:
        """Ends a sandbox and all that runs in it, and removes its files. Idempotent."""
        request = sandbox_pb2.ReleaseRequest(sandbox_id=sandbox_id)
        await self.sandbox_link.call(self.sandbox_stub.Release, request)


def _batched(
    events: Iterator[event_pb2.Event], request_id: str, pieces: Iterator[event_pb2.BlobRef | bytes]
) -> Iterator[session_pb2.ImportSessionRequest]:
    request, size = session_pb2.ImportSessionRequest(request_id=request_id), 0
    for event in events:
        request.events.append(event)
        size += event.ByteSize()
        if len(request.events) == MESSAGE_EVENTS or size >= MESSAGE_BYTES:
            yield request
            request, size = session_pb2.ImportSessionRequest(), 0
    if request.events:
        yield request
    for piece in pieces:
        if isinstance(piece, bytes):
            yield session_pb2.ImportSessionRequest(chunk=piece)
        else:
            yield session_pb2.ImportSessionRequest(blob=piece)
