"""The session service as vault_proxy meets it: a peer on the wire that knows grants, revocations and events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import McpServer
from handmesh.session.v1.event_pb2 import Event, ToolsOffered
from handmesh.session.v1.session_pb2_grpc import SessionServiceServicer
from services.kit import ids
from services.kit.errors import Unauthenticated, Unavailable
from services.kit.key_file import KeyFile
from tests.vault_proxy.bao import SessionPass

GRANT_KEY = "x-handmesh-grant"
NAME = "handmesh.session.v1.SessionService"
WATCHERS = 2  # streams of a vault proxy: one for grants, one for clients' credentials


class SessionPeer(SessionServiceServicer):
    """Answers CheckGrant, CheckCaller, WatchRevocations and EmitEvent; everything else is not built."""

    def __init__(self) -> None:
        self.grants: dict[str, pb.CheckGrantResponse] = {}
        self.vouchers: dict[str, tuple[str, str]] = {}  # voucher -> tenant and vault
        self.checks = 0
        self.vouched = 0
        self.offers: dict[int, ToolsOffered] = {}  # by position, of any session
        self.issuer_key_file: Path | None = None  # of the OpenBao that trusts this peer
        self.clients = KeyFile(None)
        self.events: list[tuple[str, Event]] = []
        self.emitted = asyncio.Event()
        self.watched = asyncio.Event()
        self.refuse_events = 0
        self.mute = False  # no sign of life: the stream never counts as up
        self._watchers: set[asyncio.Queue[pb.WatchRevocationsResponse | None]] = set()

    def grant(
        self,
        *servers: McpServer,
        vault_ids: tuple[str, ...] = (),
        tenant: str = "default",
        session_id: str | None = None,
        epoch: int = 2,
        git_rules: tuple[pb.GitRule, ...] = (),
    ) -> str:
        """Makes a grant of a session and returns it."""
        grant = secrets.token_urlsafe(32)
        self.grants[grant] = pb.CheckGrantResponse(
            session_id=session_id or ids.mint("sess"),
            tenant=tenant,
            epoch=epoch,
            mcp_servers=servers,
            vault_ids=vault_ids,
            git_rules=git_rules,
        )
        return grant

    def voucher(self, vault_id: str, tenant: str = "default") -> str:
        """Gives a client of a tenant a voucher for a vault."""
        voucher = secrets.token_urlsafe(32)
        self.vouchers[voucher] = tenant, vault_id
        return voucher

    def session_of(self, grant: str) -> str:
        """Returns the session that a grant is for."""
        return self.grants[grant].session_id

    def revoke(self, grant: str, below_epoch: int = 0) -> None:
        """Voids a grant, and tells the watchers."""
        session_id = self.grants.pop(grant).session_id
        for watcher in self._watchers:
            watcher.put_nowait(pb.WatchRevocationsResponse(session_id=session_id, below_epoch=below_epoch))

    def break_streams(self) -> None:
        """Ends the streams of revocations, as a restart would."""
        self.watched.clear()
        for watcher in self._watchers:
            watcher.put_nowait(None)

    async def CheckGrant(self, request: pb.CheckGrantRequest, context: Any) -> pb.CheckGrantResponse:
        self.checks += 1
        self.vouched += request.vault_access
        shown = [value for key, value in context.invocation_metadata() if key == GRANT_KEY]
        found = self.grants.get(shown[0]) if len(shown) == 1 else None
        if found is None:
            raise Unauthenticated("GRANT_INVALID", f"not this one: {shown}")
        answer = pb.CheckGrantResponse()
        answer.CopyFrom(found)
        if request.offered_position in self.offers:
            answer.tools_offered.CopyFrom(self.offers[request.offered_position])
        if not request.vault_access or self.issuer_key_file is None:
            return answer
        holder = SessionPass(self.issuer_key_file, found.tenant, tuple(found.vault_ids), found.session_id, found.epoch)
        answer.vault_jwt = (await holder.voucher()).reveal()
        return answer

    async def CheckCaller(self, request: pb.CheckCallerRequest, context: Any) -> pb.CheckCallerResponse:
        found = await self.clients.ask(request.credential)
        scope = pb.Scope.ValueType(found.scope)
        return pb.CheckCallerResponse(caller_id=found.id, tenant=found.tenant or "", name=found.name, scope=scope)

    async def RedeemVoucher(self, request: pb.RedeemVoucherRequest, context: Any) -> pb.RedeemVoucherResponse:
        if request.voucher not in self.vouchers:
            raise Unauthenticated("GRANT_INVALID", "the voucher is not valid, or not any more")
        tenant, vault_id = self.vouchers.pop(request.voucher)
        answer = pb.RedeemVoucherResponse(tenant=tenant, vault_id=vault_id)
        if self.issuer_key_file is not None:
            answer.vault_jwt = (await SessionPass(self.issuer_key_file, tenant, (vault_id,)).voucher()).reveal()
        return answer

    async def WatchRevocations(
        self, request: pb.WatchRevocationsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.WatchRevocationsResponse]:
        queue: asyncio.Queue[pb.WatchRevocationsResponse | None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            if not self.mute:
                yield pb.WatchRevocationsResponse()
            if len(self._watchers) >= WATCHERS:
                self.watched.set()
            while (news := await queue.get()) is not None:
                yield news
        finally:
            self._watchers.discard(queue)

    async def EmitEvent(self, request: pb.EmitEventRequest, context: Any) -> pb.EmitEventResponse:
        if self.refuse_events:
            self.refuse_events -= 1
            raise Unavailable("LOG_UNAVAILABLE", "not now")
        self.events.append((request.session_id, request.event))
        self.emitted.set()
        return pb.EmitEventResponse(position=len(self.events))

    async def uses(self, session_id: str, count: int) -> list[Event]:
        """Waits for so many uses of credentials by a session, and returns them."""
        while len(found := [event for session, event in self.events if session == session_id]) < count:
            self.emitted.clear()
            await self.emitted.wait()
        return found
