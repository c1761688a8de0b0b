"""The session service on the wire: messages to values and back. What it does is done in the modules beside.

A little longer than a module should be: one method for each of the contract's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceServicer
from services.kit import ids
from services.kit.errors import Denied
from services.kit.grants import GRANT_KEY
from services.kit.guard import encoded
from services.kit.identity import current as caller
from services.session import codec
from services.session.asking import anchor_of, ask_of
from services.session.audit import Audit
from services.session.blobs import Blobs
from services.session.children import Children
from services.session.claims import HAND_OVER_SECONDS, Claims
from services.session.credentials import ApiKeyCalls, Credentials
from services.session.emitters import HARNESS
from services.session.git_rules import git_rules
from services.session.grants import CACHE_SECONDS, Grants
from services.session.hand_tokens import HandTokenCalls, HandTokens
from services.session.lifecycle import Lifecycle
from services.session.lifecycle_fork import Forks
from services.session.lifecycle_import import Imports
from services.session.listing import Filter, Listing
from services.session.memories import Memories
from services.session.memory_rules import memory_rules
from services.session.previews import Previews
from services.session.reader import Reader
from services.session.served import Room
from services.session.sessions import Sessions
from services.session.upkeep import Upkeep
from services.session.verifying import Verifier
from services.session.vouchers import VoucherCalls, Vouchers
from services.session.watcher import Watcher
from services.session.writer import Writer

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Parts:
    """What the servicer translates to."""

    sessions: Sessions
    lifecycle: Lifecycle
    forks: Forks
    imports: Imports
    listing: Listing
    upkeep: Upkeep
    children: Children
    reader: Reader
    watcher: Watcher
    previews: Previews
    claims: Claims
    grants: Grants
    writer: Writer
    verifier: Verifier
    blobs: Blobs
    memories: Memories
    vouchers: Vouchers
    audit: Audit
    hand_tokens: HandTokens
    credentials: Credentials

    async def run(self) -> None:
        """Does what is done behind the calls, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.claims.run())
            tasks.create_task(self.writer.run())
            tasks.create_task(self.credentials.follow_file())

    async def finish(self, hand_over: float = HAND_OVER_SECONDS) -> None:
        """Carries through what was begun. Harnesses have so many seconds to come to another replica."""
        await self.sessions.finish()
        await self.claims.finish(hand_over)
        await self.blobs.finish()
        await self.writer.finish()


class SessionServicer(VoucherCalls, HandTokenCalls, ApiKeyCalls, SessionServiceServicer):
    """`SessionService`. A method that is missing here answers UNIMPLEMENTED."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._vouchers = parts.vouchers
        self._hand_tokens = parts.hand_tokens
        self._credentials = parts.credentials

    async def CreateSession(self, request: pb.CreateSessionRequest, context: Context) -> pb.CreateSessionResponse:
        if caller().kind == HARNESS:
            return pb.CreateSessionResponse(session=await self._parts.children.create(grant_of(context), request))
        return pb.CreateSessionResponse(session=await self._parts.sessions.create(caller(), request))

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        return pb.GetSessionResponse(session=await self._parts.sessions.get(request.session_id, caller().tenant))

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        which = Filter(
            statuses=frozenset(request.statuses),
            labels=dict(request.labels),
            harness=request.harness,
            created_after=codec.nanoseconds(request.created_after),
            created_before=codec.nanoseconds(request.created_before),
            updated_before=codec.nanoseconds(request.updated_before),
            archived=request.include_archived,
        )
        tenant = caller().tenant or ""
        answer = self._parts.listing.summary if request.summary else self._parts.listing.page
        sessions, token = await answer(tenant, which, request.page_size, request.page_token)
        return pb.ListSessionsResponse(sessions=sessions, next_page_token=token)

    async def UpdateSession(self, request: pb.UpdateSessionRequest, context: Context) -> pb.UpdateSessionResponse:
        expected = request.expected_position if request.HasField("expected_position") else None
        session = await self._parts.sessions.update(request.session_id, request.config, expected, caller().tenant)
        return pb.UpdateSessionResponse(session=session)

    async def EndSession(self, request: pb.EndSessionRequest, context: Context) -> pb.EndSessionResponse:
        session_id, reason = request.session_id, request.reason
        if caller().kind == HARNESS:
            session = await self._parts.children.end(grant_of(context), session_id, reason)
        else:
            session = await self._parts.sessions.end(session_id, reason, caller().tenant)
        return pb.EndSessionResponse(session=session)

    async def VerifySession(self, request: pb.VerifySessionRequest, context: Context) -> pb.VerifySessionResponse:
        report = await self._parts.verifier.verify(request.session_id, caller().tenant)
        return pb.VerifySessionResponse(
            violations=[
                pb.Violation(invariant=each.invariant, position=each.position, message=each.message)
                for each in report.violations
            ],
            last_position=report.last_position,
            high_water_position=report.high_water_position,
        )

    async def ArchiveSession(self, request: pb.ArchiveSessionRequest, context: Context) -> pb.ArchiveSessionResponse:
        session = await self._parts.lifecycle.archive(request.session_id, request.restore, caller().tenant)
        return pb.ArchiveSessionResponse(session=session)

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        await self._parts.lifecycle.delete(request.session_id, caller().tenant)
        return pb.DeleteSessionResponse()

    async def ForkSession(self, request: pb.ForkSessionRequest, context: Context) -> pb.ForkSessionResponse:
        return pb.ForkSessionResponse(session=await self._parts.forks.fork(request, caller().tenant))

    async def ImportSession(
        self, request_iterator: AsyncIterator[pb.ImportSessionRequest], context: Context
    ) -> pb.ImportSessionResponse:
        session = await self._parts.imports.take(request_iterator, caller().tenant or "")
        return pb.ImportSessionResponse(session=session)

    async def EmitEvent(self, request: pb.EmitEventRequest, context: Context) -> pb.EmitEventResponse:
        expected = request.expected_position if request.HasField("expected_position") else None
        emitted = await self._parts.sessions.emit(
            caller(), request.session_id, [request.event], expected, request.epoch
        )
        _send_grant(context, emitted.grant)
        appended = emitted.appended
        return pb.EmitEventResponse(
            position=appended.first_position,
            emit_time=codec.timestamp(appended.time),
            duplicate=appended.duplicate,
        )

    async def EmitEvents(self, request: pb.EmitEventsRequest, context: Context) -> pb.EmitEventsResponse:
        expected = request.expected_position if request.HasField("expected_position") else None
        emitted = await self._parts.sessions.emit(caller(), request.session_id, request.events, expected, request.epoch)
        _send_grant(context, emitted.grant)
        appended = emitted.appended
        return pb.EmitEventsResponse(
            first_position=appended.first_position,
            emit_time=codec.timestamp(appended.time),
            duplicate=appended.duplicate,
        )

    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        sent = await self._parts.children.send(grant_of(context), request)
        return pb.SendMessageResponse(
            position=sent.first_position, emit_time=codec.timestamp(sent.time), duplicate=sent.duplicate
        )

    async def GetEvents(self, request: pb.GetEventsRequest, context: Context) -> pb.GetEventsResponse:
        await self._parts.reader.check(request.session_id, caller().tenant)
        page = await self._parts.reader.page(request.session_id, ask_of(request), anchor_of(request))
        rest = pb.GetEventsResponse(next_position=page.next_position, last_position=page.last_position)
        return encoded(pb.GetEventsResponse, page.data + rest.SerializeToString())

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        await self._parts.reader.check(request.session_id, caller().tenant)
        async for seen in self._parts.watcher.watch(request.session_id, request.start_position, request.previews):
            rest = pb.WatchEventsResponse(previews=seen.previews, last_position=seen.last_position)
            yield encoded(pb.WatchEventsResponse, seen.data + rest.SerializeToString())

    async def PublishPreviews(
        self, request_iterator: AsyncIterator[pb.PublishPreviewsRequest], context: Context
    ) -> pb.PublishPreviewsResponse:
        return await self._parts.previews.publish(request_iterator)

    async def ClaimWork(self, request: pb.ClaimWorkRequest, context: Context) -> AsyncIterator[pb.ClaimWorkResponse]:
        for session_id in request.working_session_ids:
            ids.check("session_id", session_id)
        harnesses = list(request.harness_types) or [codec.DEFAULT_HARNESS]
        working = request.working_session_ids
        async for claim in self._parts.claims.claim(request.capacity, harnesses, working, request.instance):
            if claim is None:
                yield pb.ClaimWorkResponse()
            else:
                events = codec.unseal(claim.events)
                yield pb.ClaimWorkResponse(
                    session_id=claim.session_id, claim_id=claim.claim_id, harness=claim.harness, events=events
                )

    async def ReleaseWork(self, request: pb.ReleaseWorkRequest, context: Context) -> pb.ReleaseWorkResponse:
        wake_time = codec.nanoseconds(request.wake_time) if request.HasField("wake_time") else None
        again = await self._parts.claims.release(request.claim_id, wake_time, request.refused, request.session_id)
        return pb.ReleaseWorkResponse(offered_again=again)

    async def OfferWork(self, request: pb.OfferWorkRequest, context: Context) -> pb.OfferWorkResponse:
        await self._parts.reader.check(request.session_id, caller().tenant)
        found, harness = await self._parts.claims.offer(request.session_id)
        return pb.OfferWorkResponse(outcome=pb.OfferOutcome.ValueType(found), harness=harness)

    async def ListServedTypes(self, request: pb.ListServedTypesRequest, context: Context) -> pb.ListServedTypesResponse:
        served = await self._parts.claims.served()
        waiting = await self._parts.claims.waiting() if request.count_waiting else {}
        types = [
            pb.ServedType(name=name, harnesses=room.harnesses, room=room.sessions, waiting=waiting.get(name, 0))
            for name, room in sorted((dict.fromkeys(waiting, Room()) | served).items())
        ]
        return pb.ListServedTypesResponse(types=types)

    async def CheckGrant(self, request: pb.CheckGrantRequest, context: Context) -> pb.CheckGrantResponse:
        granted = await self._parts.grants.check(grant_of(context))
        if (request.vault_access or request.offered_position) and caller().kind != "vault_proxy":
            raise Denied("METHOD_DENIED", "only a vault proxy asks for that", identity=caller().kind)
        offered = None
        if request.offered_position:
            offered = await self._parts.reader.offered(granted.session_id, request.offered_position)
        return pb.CheckGrantResponse(
            session_id=granted.session_id,
            tenant=granted.tenant,
            epoch=granted.epoch,
            expire_time=codec.timestamp(granted.expire_time),
            mcp_servers=granted.config.mcp_servers,
            vault_ids=granted.config.vault_ids,
            git_rules=git_rules(granted.config),
            memory_stores=memory_rules(granted.config),
            cache_time=Duration(seconds=CACHE_SECONDS),
            tools_offered=offered,
            vault_jwt=self._parts.grants.vouch(granted) if request.vault_access else "",
        )

    async def ListAuditEntries(
        self, request: pb.ListAuditEntriesRequest, context: Context
    ) -> pb.ListAuditEntriesResponse:
        entries, token = await self._parts.audit.page(
            caller().tenant or "", request.session_id, request.page_size, request.page_token
        )
        return pb.ListAuditEntriesResponse(entries=entries, next_page_token=token)

    async def WatchRevocations(
        self, request: pb.WatchRevocationsRequest, context: Context
    ) -> AsyncIterator[pb.WatchRevocationsResponse]:
        async for revoked in self._parts.grants.watch():
            if revoked is None:
                yield pb.WatchRevocationsResponse()
            else:
                yield pb.WatchRevocationsResponse(
                    session_id=revoked.session_id,
                    below_epoch=revoked.below_epoch,
                    hand_token_id=revoked.hand_token_id,
                    caller_id=revoked.caller_id,
                )

    async def UploadBlob(
        self, request_iterator: AsyncIterator[pb.UploadBlobRequest], context: Context
    ) -> pb.UploadBlobResponse:
        async def whole() -> bool:
            return await _listens(context)

        return pb.UploadBlobResponse(blob=await self._parts.blobs.upload(request_iterator, caller().tenant, whole))

    async def DownloadBlob(
        self, request: pb.DownloadBlobRequest, context: Context
    ) -> AsyncIterator[pb.DownloadBlobResponse]:
        found = await self._parts.blobs.find(request.session_id, request.blob_id, caller().tenant)
        yield pb.DownloadBlobResponse(blob=found)
        async for piece in self._parts.blobs.download(
            request.session_id, request.blob_id, request.offset, request.length, caller().tenant
        ):
            yield pb.DownloadBlobResponse(chunk=piece)

    async def ListBlobs(self, request: pb.ListBlobsRequest, context: Context) -> pb.ListBlobsResponse:
        return pb.ListBlobsResponse(blobs=await self._parts.blobs.all_of(request.session_id, caller().tenant))


def _send_grant(context: Context, grant: str) -> None:
    """Sends a new epoch's grant, once, beside the answer: messages are logged and traced, metadata is not."""
    if grant:
        context.set_trailing_metadata(((GRANT_KEY, grant),))


async def _listens(context: Context) -> bool:
    """Says whether the caller is still there, by sending it something: on a call that was broken off that fails."""
    try:
        await context.send_initial_metadata(())
    except grpc.aio.InternalError:
        return False
    return not context.cancelled()


def grant_of(context: Context) -> str:
    """Returns the grant that a call shows, or nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == GRANT_KEY and isinstance(value, str):
            return value
    return ""
