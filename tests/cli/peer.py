"""A mesh in memory that speaks the real contract on a real port: what the client and the command are tested against.

It keeps logs in lists, asks for the API key, and gives rich errors. What its agent does is the test's: `brain` is
called in a thread with each message that is received.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from handmesh.harness.v1 import harness_pb2, harness_pb2_grpc
from handmesh.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from handmesh.session.v1 import event_pb2, session_pb2, session_pb2_grpc
from handmesh.vault_proxy.v1 import vault_proxy_pb2_grpc
from tests.cli.vault_peer import VaultPeer

KEY = "hmk_test"
PAGE = 3
"""Events and sessions in one page, so that paging happens."""

Item = event_pb2.Event | session_pb2.Preview
Brain = Callable[["Peer", str, int], None]


class Peer(
    session_pb2_grpc.SessionServiceServicer,
    harness_pb2_grpc.HarnessServiceServicer,
    sandbox_pb2_grpc.SandboxServiceServicer,
):
    """The services. `items` holds, by session, all that watchers see: events and previews, in order."""

    def __init__(self, port: int = 0) -> None:
        self.brain: Brain = lambda peer, session_id, position: None
        self.configs: dict[str, Any] = {}
        self.items: dict[str, list[Item]] = {}
        self.requests: dict[str, str] = {}
        self.blobs: dict[tuple[str, str], tuple[event_pb2.BlobRef, bytes]] = {}  # by session and blob
        self.break_after: list[int] = []  # so many items, and a watch is broken; one entry for each break
        self.on_watch: Callable[[], Any] = lambda: None
        self.sandboxes: list[sandbox_pb2.Sandbox] = []
        self.files: dict[tuple[str, str], bytes] = {}  # by sandbox and path
        self.woken: list[str] = []
        self.types = [harness_pb2.HarnessType(name="messages", description="Claude.")]
        self.served = {"messages": (1, 100)}  # harnesses and room
        self.meanwhile = 0  # so many changes of sessions come too late
        self.archived: set[str] = set()
        self.watches = 0
        self.forgetful = False  # sends the whole log again, whatever position a watcher asks for
        self.changed = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        session_pb2_grpc.add_SessionServiceServicer_to_server(self, self._server)
        harness_pb2_grpc.add_HarnessServiceServicer_to_server(self, self._server)
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self, self._server)
        self.vaults = VaultPeer(self)
        vault_proxy_pb2_grpc.add_VaultProxyServiceServicer_to_server(self.vaults, self._server)
        healthy = health.HealthServicer()
        healthy.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(healthy, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def stop(self) -> None:
        """Ends all calls and frees the port."""
        self._server.stop(0).wait()

    def events(self, session_id: str) -> list[event_pb2.Event]:
        """Returns a session's log."""
        return [item for item in self.items[session_id] if isinstance(item, event_pb2.Event)]

    def append(self, session_id: str, emitter: str = "harness", **kind: Any) -> event_pb2.Event:
        """Appends an event of the given kind: `append(id, turn_ended=...)`; returns it."""
        return self._append(session_id, event_pb2.Event(**kind), emitter)

    def show(self, session_id: str, **preview: Any) -> None:
        """Shows watchers a preview."""
        with self.changed:
            self.items[session_id].append(session_pb2.Preview(**preview))
            self.changed.notify_all()

    def start(self, session_id: str) -> str:
        """Starts a session of a given id."""
        self.configs[session_id] = None
        self.items[session_id] = []
        self.append(session_id, "session", session_started=event_pb2.SessionStarted())
        return session_id

    def _append(self, session_id: str, event: event_pb2.Event, emitter: str) -> event_pb2.Event:
        with self.changed:
            log = self.events(session_id)
            for known in log:
                if event.event_id and known.event_id == event.event_id:
                    return known
            kept = event_pb2.Event()
            kept.CopyFrom(event)
            kept.position, kept.emitter = len(log) + 1, emitter
            kept.event_id = kept.event_id or f"e{kept.position}"
            kept.emit_time.FromSeconds(1_700_000_000 + kept.position)
            self.items[session_id].append(kept)
            self.changed.notify_all()
        if kept.HasField("message_received"):
            threading.Thread(target=self.brain, args=(self, session_id, kept.position), daemon=True).start()
        return kept

    def _known(self, session_id: str, context: grpc.ServicerContext) -> str:
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {KEY}":
            refuse(context, "UNAUTHENTICATED", "IDENTITY_UNKNOWN", "the API key is not known to this mesh")
        if session_id and session_id not in self.items:
            refuse(context, "NOT_FOUND", "SESSION_NOT_FOUND", "no such session", session_id=session_id)
        return session_id

    def _session(self, session_id: str) -> session_pb2.Session:
        session = session_pb2.Session(session_id=session_id, config=self.configs[session_id])
        session.status = session_pb2.SESSION_STATUS_IDLE
        session.last_position = len(self.events(session_id))
        session.create_time.FromSeconds(1_700_000_000)
        log = self.events(session_id)
        for reply in (event.model_replied for event in log if event.HasField("model_replied")):
            session.usage.input_tokens += reply.usage.input_tokens
            session.cost_micros += reply.cost_micros
        session.turns = sum(event.HasField("turn_ended") for event in log)
        marks = [event for event in log if event.WhichOneof("kind") in ("budget_reached", "config_changed")]
        if marks and marks[-1].HasField("budget_reached"):
            session.status = session_pb2.SESSION_STATUS_PAUSED
            session.paused_budget = marks[-1].budget_reached.budget
        return session

    def CreateSession(self, request, context):
        self._known("", context)
        session_id = self.requests.get(request.request_id)
        if session_id is None:
            session_id = self.requests[request.request_id] = f"sess_{len(self.items) + 1:026d}"
            self.start(session_id)
            self.configs[session_id] = request.config
            for event in request.initial_events:
                self._append(session_id, event, "client")
        return session_pb2.CreateSessionResponse(session=self._session(session_id))

    def VouchVault(self, request, context):
        self._known("", context)
        return session_pb2.VouchVaultResponse(voucher=f"for {request.vault_id}")

    def GetSession(self, request, context):
        return session_pb2.GetSessionResponse(session=self._session(self._known(request.session_id, context)))

    def UpdateSession(self, request, context):
        session_id = self._known(request.session_id, context)
        if self.meanwhile:
            self.meanwhile -= 1
            refuse(context, "ABORTED", "POSITION_CONFLICT", "the log has moved on", last_position="9")
        self.configs[session_id] = request.config
        self.append(session_id, "session", config_changed=event_pb2.ConfigChanged(config=request.config))
        return session_pb2.UpdateSessionResponse(session=self._session(session_id))

    def ListSessions(self, request, context):
        self._known("", context)
        ids = sorted(self.items, reverse=True)
        first = int(request.page_token or 0)
        page = ids[first : first + min(PAGE, request.page_size or PAGE)]
        token = str(first + len(page)) if first + len(page) < len(ids) else ""
        return session_pb2.ListSessionsResponse(sessions=map(self._session, page), next_page_token=token)

    def ListAuditEntries(self, request, context):
        self._known("", context)
        audited = [
            session_pb2.AuditEntry(session_id=session_id, event=event)
            for session_id in self.items
            if session_id == (request.session_id or session_id)
            for event in self.events(session_id)
            if event.HasField("credential_used") or event.HasField("door_refused")
        ]
        first = int(request.page_token or 0)
        token = str(first + 1) if first + 1 < len(audited) else ""
        return session_pb2.ListAuditEntriesResponse(entries=audited[first : first + 1], next_page_token=token)

    def EmitEvent(self, request, context):
        session_id = self._known(request.session_id, context)
        if any(event.HasField("session_ended") for event in self.events(session_id)):
            refuse(context, "FAILED_PRECONDITION", "SESSION_ENDED", "the session has ended")
        event = self._append(session_id, request.event, "client")
        return session_pb2.EmitEventResponse(position=event.position)

    def EndSession(self, request, context):
        session_id = self._known(request.session_id, context)
        self.append(session_id, "session", session_ended=event_pb2.SessionEnded(reason=request.reason))
        return session_pb2.EndSessionResponse(session=self._session(session_id))

    def ArchiveSession(self, request, context):
        session_id = self._known(request.session_id, context)
        (self.archived.discard if request.restore else self.archived.add)(session_id)
        return session_pb2.ArchiveSessionResponse(session=self._session(session_id))

    def DeleteSession(self, request, context):
        del self.items[self._known(request.session_id, context)]
        return session_pb2.DeleteSessionResponse()

    def ForkSession(self, request, context):
        log = self.events(self._known(request.session_id, context))
        return session_pb2.ForkSessionResponse(session=self._made(log[: request.position or len(log)], request))

    def ImportSession(self, request_iterator, context):
        self._known("", context)
        requests = list(request_iterator)
        events = [event for request in requests for event in request.events]
        session = self._made(events, requests[0])
        name = ""
        for request in requests:
            if request.HasField("blob"):
                name = request.blob.blob_id
                self.blobs[session.session_id, name] = (request.blob, b"")
            if request.chunk:
                blob, data = self.blobs[session.session_id, name]
                self.blobs[session.session_id, name] = (blob, data + request.chunk)
        return session_pb2.ImportSessionResponse(session=session)

    def ListBlobs(self, request, context):
        wanted = self._known(request.session_id, context)
        found = [blob for (session_id, _), (blob, _) in self.blobs.items() if session_id == wanted]
        return session_pb2.ListBlobsResponse(blobs=found)

    def DownloadBlob(self, request, context):
        _, data = self.blobs[self._known(request.session_id, context), request.blob_id]
        for start in range(0, len(data), 1_000):
            yield session_pb2.DownloadBlobResponse(chunk=data[start : start + 1_000])

    def _made(self, events, request):
        session_id = self.requests.get(request.request_id)
        if session_id is None:
            session_id = self.requests[request.request_id] = f"sess_{len(self.requests) + 1:026d}"
            self.items[session_id] = list(events)
            self.configs[session_id] = getattr(request, "config", None)
        return self._session(session_id)

    def ListSandboxes(self, request, context):
        self._known("", context)
        mine = [sandbox for sandbox in self.sandboxes if request.session_id in ("", sandbox.session_id)]
        return sandbox_pb2.ListSandboxesResponse(sandboxes=mine)

    def ListFiles(self, request, context):
        self._known("", context)
        below = (request.path or "/workspace") + "/"
        there = [
            sandbox_pb2.FileInfo(path=path, size=len(content))
            for (sandbox_id, path), content in sorted(self.files.items())
            if sandbox_id == request.sandbox_id and path.startswith(below)
        ]
        return sandbox_pb2.ListFilesResponse(files=there[:PAGE], truncated=len(there) > PAGE)

    def ReadFile(self, request, context) -> Iterator[sandbox_pb2.ReadFileResponse]:
        self._known("", context)
        content = self.files.get((request.sandbox_id, request.path))
        if content is None:
            refuse(context, "NOT_FOUND", "FILE_NOT_FOUND", "no such file")
        for at in range(request.offset, len(content), 4):
            yield sandbox_pb2.ReadFileResponse(chunk=content[at : at + 4])

    def GetEvents(self, request, context):
        log = self.events(self._known(request.session_id, context))
        first, end = max(1, request.start_position), request.end_position or len(log) + 1
        chosen = [event for event in log if first <= event.position < end]
        chosen = [event for event in chosen if not request.kinds or event.WhichOneof("kind") in request.kinds]
        chosen = chosen[-request.last :] if request.last else chosen
        more = chosen[PAGE].position if len(chosen) > PAGE else 0
        return session_pb2.GetEventsResponse(events=chosen[:PAGE], next_position=more, last_position=len(log))

    def WatchEvents(self, request, context) -> Iterator[session_pb2.WatchEventsResponse]:
        session_id = self._known(request.session_id, context)
        self.watches += 1
        self.on_watch()
        left = self.break_after.pop(0) if self.break_after else None
        seen = 0
        while context.is_active():
            new = self._items_after(session_id, seen)
            seen += len(new)
            for item in new:
                if left == 0:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
                if isinstance(item, event_pb2.Event) and (self.forgetful or item.position >= request.start_position):
                    yield session_pb2.WatchEventsResponse(events=[item])
                elif isinstance(item, session_pb2.Preview) and request.previews:
                    yield session_pb2.WatchEventsResponse(previews=[item])
                else:
                    continue
                left = None if left is None else left - 1

    def _items_after(self, session_id: str, seen: int) -> list[Item]:
        """Waits a moment for items behind the first `seen`, and returns them."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.items[session_id]) > seen, timeout=0.1)
            return self.items[session_id][seen:]

    def ListHarnessTypes(self, request, context):
        if not self.types:
            refuse(context, "UNAVAILABLE", "UNAVAILABLE", "no harness answers")
        return harness_pb2.ListHarnessTypesResponse(types=self.types)

    def ListServedTypes(self, request, context):
        found = [session_pb2.ServedType(name=name, harnesses=n, room=room) for name, (n, room) in self.served.items()]
        return session_pb2.ListServedTypesResponse(types=found)

    def Wake(self, request, context):
        self.woken.append(self._known(request.session_id, context))
        return harness_pb2.WakeResponse(outcome=harness_pb2.WAKE_OUTCOME_STARTED)


def refuse(context: grpc.ServicerContext, code: str, reason: str, message: str, **metadata: str) -> None:
    """Ends a call as the services do: with a rich status."""
    status_code = grpc.StatusCode[code]
    status = Status(code=status_code.value[0], message=f"{message} [{reason}]")
    status.details.add().Pack(ErrorInfo(reason=reason, domain="handmesh", metadata=metadata))
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(status_code, status.message)
