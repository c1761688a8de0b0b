"""One session, as a client sees it: say something, follow what happens, read the log."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from handmesh.client import blobs, export
from handmesh.client.errors import HandmeshError
from handmesh.client.watching import PATIENCE, watch
from handmesh.harness.v1 import harness_pb2
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2

if TYPE_CHECKING:
    from handmesh.client.client import Client

PAGE = 1_000
"""Events asked for at once; a page also ends at 3 MiB."""


FORK_SECONDS = 300.0
"""How long a fork may take: the events are copied."""

MOVE_TRIES = 20
"""How often a session is looked at that is to be moved and always changes."""


class Session:
    """A handle on one session. It holds the id and nothing else; every method asks the mesh.

    All methods raise HandmeshError. Those that emit may be called again after an error: the client never emits the same
    event twice by itself, and an `event_id` of your own makes that hold across your own calls.
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self.id = session_id

    async def get(self) -> session_pb2.Session:
        """Returns the session as a whole: configuration, status, usage."""
        request = session_pb2.GetSessionRequest(session_id=self.id)
        return (await self._client.session_link.call(self._client.session_stub.GetSession, request)).session

    async def emit(self, event: event_pb2.Event, *, expected_position: int | None = None) -> int:
        """Appends an event and returns its position. An event without an `event_id` gets one here."""
        request = session_pb2.EmitEventRequest(session_id=self.id, event=event, expected_position=expected_position)
        if not event.event_id:
            request.event.event_id = new_event_id()
        return (await self._client.session_link.call(self._client.session_stub.EmitEvent, request)).position

    async def send(self, content: str | Sequence[dict[str, Any]], *, event_id: str = "") -> int:
        """Sends the agent a message, text or content blocks of the model's API; returns its position.

        What does not fit into an event is uploaded first, and the message refers to it (see `handmesh.client.blobs`).
        """
        blocks = blocks_of(content)
        if not blobs.fits(blocks):
            blocks = await blobs.shrunk(blocks, self.upload)
        return await self.emit(event_pb2.Event(event_id=event_id, message_received=message(blocks)))

    async def upload(self, content: bytes | AsyncIterable[bytes], media_type: str) -> event_pb2.BlobRef:
        """Keeps something big beside the log. Idempotent by content; raises `BLOB_QUOTA` over the session's quota.

        `blobs.reference` makes the content block by which a message refers to it.
        """
        return await blobs.upload(self._client.session_link, self._client.session_stub, self.id, content, media_type)

    def download(self, blob_id: str, offset: int = 0, length: int = 0) -> AsyncIterator[bytes]:
        """Yields a blob, or `length` bytes of it (0: all) from `offset` on, in pieces of at most 256 KiB."""
        return blobs.download(self._client.session_link, self._client.session_stub, self.id, blob_id, offset, length)

    async def interrupt(self) -> int:
        """Asks the agent to stop its turn. The turn ends with `TURN_END_REASON_INTERRUPTED` a moment later."""
        return await self.emit(event_pb2.Event(interrupt_requested=event_pb2.InterruptRequested()))

    async def confirm(
        self, request: event_pb2.ToolConfirmationRequested, allowed: bool, *, reason: str = "", event_id: str = ""
    ) -> int:
        """Decides about a tool call. `reason` is told to the model when the call may not run."""
        decision = event_pb2.ToolConfirmed(
            tool_use_id=request.tool_use_id, allowed=allowed, message=reason, call_hash=request.call_hash
        )
        return await self.emit(event_pb2.Event(event_id=event_id, tool_confirmed=decision))

    async def answer_custom_tool(
        self,
        tool_use_id: str,
        output: str,
        *,
        outcome: tool_pb2.ToolOutcome.ValueType = tool_pb2.TOOL_OUTCOME_OK,
        content_json: str = "",
        event_id: str = "",
    ) -> int:
        """Answers a `CustomToolRequested` with what the tool said: text, or a JSON array of content blocks.

        What does not fit into an event is uploaded first, as in `send`; of a long text head and tail stay.
        """
        kept: list[event_pb2.BlobRef] = []

        async def keep(data: bytes, media_type: str) -> event_pb2.BlobRef:
            kept.append(await self.upload(data, media_type))
            return kept[-1]

        content_json = await blobs.shrunk_text(content_json, keep)
        output = await blobs.shortened(output, keep)
        result = tool_pb2.ToolResult(output=output, outcome=outcome, content_json=content_json)
        answer = event_pb2.CustomToolAnswered(tool_use_id=tool_use_id, result=result, blobs=kept)
        return await self.emit(event_pb2.Event(event_id=event_id, custom_tool_answered=answer))

    async def update(
        self, config: config_pb2.SessionConfig, *, expected_position: int | None = None
    ) -> session_pb2.Session:
        """Gives the session another configuration, from its next turn on; the budgets in it hold at once.

        It is the whole configuration: change what `get` returns. A session that is paused at a budget goes on.
        """
        request = session_pb2.UpdateSessionRequest(
            session_id=self.id, config=config, expected_position=expected_position
        )
        return (await self._client.session_link.call(self._client.session_stub.UpdateSession, request)).session

    async def move(self, harness: str) -> str:
        """Makes it a session of another harness type, and returns the one that it was of.

        Nothing else of its configuration changes, whoever changes that meanwhile.
        """
        for left in reversed(range(MOVE_TRIES)):
            found = await self.get()
            before, found.config.harness = found.config.harness, harness
            try:
                await self.update(found.config, expected_position=found.last_position)
            except HandmeshError as problem:
                if problem.reason != "POSITION_CONFLICT" or not left:
                    raise
            else:
                break
        return before

    async def end(self, reason: str = "") -> session_pb2.Session:
        """Ends the session for good: nothing is appended after it, and its grants are void."""
        request = session_pb2.EndSessionRequest(session_id=self.id, reason=reason)
        return (await self._client.session_link.call(self._client.session_stub.EndSession, request)).session

    async def archive(self, *, restore: bool = False) -> session_pb2.Session:
        """Makes the session read-only and takes it out of lists, or with `restore` undoes that. May be said again."""
        request = session_pb2.ArchiveSessionRequest(session_id=self.id, restore=restore)
        return (await self._client.session_link.call(self._client.session_stub.ArchiveSession, request)).session

    async def delete(self) -> None:
        """Deletes the session, its events and blobs, for good. May be said again."""
        request = session_pb2.DeleteSessionRequest(session_id=self.id)
        await self._client.session_link.call(self._client.session_stub.DeleteSession, request)

    async def fork(
        self, position: int = 0, config: config_pb2.SessionConfig | None = None, *, request_id: str = ""
    ) -> Session:
        """Makes a new session that begins with this one's events up to a position (0: all), and returns it.

        `config` is its configuration, if it is to have another. A `request_id` of your own makes the call idempotent
        across your calls.
        """
        request = session_pb2.ForkSessionRequest(
            session_id=self.id, position=position, config=config, request_id=request_id or new_event_id()
        )
        call = self._client.session_link.call(self._client.session_stub.ForkSession, request, FORK_SECONDS)
        return self._client.session((await call).session.session_id)

    async def blobs(self) -> list[event_pb2.BlobRef]:
        """Returns what is kept beside the log, whether or not an event refers to it."""
        request = session_pb2.ListBlobsRequest(session_id=self.id)
        return list((await self._client.session_link.call(self._client.session_stub.ListBlobs, request)).blobs)

    async def export(self, *, blobs: bool = True) -> AsyncIterator[str]:
        """Yields the lines of a file that holds the log as it is now, and the blobs unless they are not wanted (see
        `handmesh.client.export`)."""
        last_position = (await self.get()).last_position
        kept = await self.blobs() if blobs else []  # after the position: whatever an event refers to is there
        events = self.events(1, last_position + 1)
        async for line in export.written(self.id, last_position, events, kept, self.download):
            yield line

    async def wake(self) -> harness_pb2.WakeOutcome.ValueType:
        """Makes sure that a harness is at work on the session. Sessions wake by themselves as well."""
        request = harness_pb2.WakeRequest(session_id=self.id)
        return (await self._client.harness_link.call(self._client.harness_stub.Wake, request)).outcome

    async def events(
        self, start: int = 1, end: int = 0, *, last: int = 0, kinds: Sequence[str] = ()
    ) -> AsyncIterator[event_pb2.Event]:
        """Yields the events from `start` up to but without `end` (0: the log's end now), page by page.

        `last` keeps only the last so many of them; `kinds` only those of these kinds, such as `tool_finished`.
        """
        request = session_pb2.GetEventsRequest(
            session_id=self.id, start_position=start, end_position=end, page_size=PAGE, last=last, kinds=kinds
        )
        while True:
            page = await self._client.session_link.call(self._client.session_stub.GetEvents, request)
            for event in page.events:
                yield event
            if not page.next_position:
                return
            request.start_position, request.last = page.next_position, 0

    @overload
    def watch(
        self, start: int = 1, previews: Literal[False] = False, patience: float | None = PATIENCE
    ) -> AsyncIterator[event_pb2.Event]: ...

    @overload
    def watch(
        self, start: int = 1, *, previews: Literal[True], patience: float | None = PATIENCE
    ) -> AsyncIterator[event_pb2.Event | session_pb2.Preview]: ...

    def watch(self, start: int = 1, previews: bool = False, patience: float | None = PATIENCE) -> AsyncIterator[Any]:
        """Yields the events from `start` on, each once, then each new one; never ends by itself.

        With `previews` also pieces of events to come. Survives broken connections and restarts of the service for
        `patience` seconds (None: for ever).
        """
        request = session_pb2.WatchEventsRequest(session_id=self.id, start_position=start, previews=previews)
        return watch(self._client.session_link, self._client.session_stub, request, patience)


def blocks_of(content: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns content as content blocks of the model's API."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def message(content: str | Sequence[dict[str, Any]]) -> event_pb2.MessageReceived:
    """Makes a message from text, or from content blocks as the model's API takes them."""
    return event_pb2.MessageReceived(content_json=blobs.spelled(blocks_of(content)))


def new_event_id() -> str:
    """Names an event that has no natural name, so that it can be emitted again after a lost answer."""
    return f"cli_{secrets.token_hex(13)}"
