"""A client that follows a session, and knows when it saw what."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from handmesh.client.session import Session
from handmesh.session.v1.session_pb2 import Preview

ANY_EVENT = ""  # what is in the log; a preview is not


class Watch:
    """Follows a session from its beginning. `seen` has (ns of the monotonic clock, kind, event or preview)."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.seen: list[tuple[int, str, Any]] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(), name=f"watch {session.id}")

    async def _follow(self) -> None:
        async for said in self.session.watch(previews=True):
            kind = "preview" if isinstance(said, Preview) else str(said.WhichOneof("kind"))
            self.seen.append((time.monotonic_ns(), kind, said))
            self._news.set()

    async def first_text(self, start: int, seconds: float) -> tuple[int, str]:
        """Waits for the first of an answer's text: a preview, or its event where it had none. Raises as `until`."""
        came, said = await self.until("preview", start, seconds, "model_replied")
        if isinstance(said, Preview):
            return came, said.text
        return came, str(json.loads(said.model_replied.content_json)[0]["text"])

    async def until(self, kind: str, start: int, seconds: float, other: str = "") -> tuple[int, Any]:
        """Waits for something of a kind, or of another one, from `seen[start]` on. Returns when it came, and what.

        Raises TimeoutError, what ended the stream, and RuntimeError when the session says that it failed.
        """
        async with asyncio.timeout(seconds):
            at = start
            while True:
                self._news.clear()
                for came, found, said in self.seen[at:]:
                    if found in (kind, other) or (kind == ANY_EVENT and found != "preview"):
                        return came, said
                    if found == "error_raised":
                        raise RuntimeError(f"session {self.session.id}: {said.error_raised}")
                at = len(self.seen)
                await self._more()

    async def _more(self) -> None:
        news = asyncio.create_task(self._news.wait())
        await asyncio.wait({news, self._task}, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        if self._task.done():
            self._task.result()

    def events(self) -> list[Any]:
        """Returns the events that were seen, without previews."""
        return [said for _, kind, said in self.seen if kind != "preview"]

    async def close(self) -> None:
        """Stops following."""
        self._task.cancel()
        await asyncio.wait({self._task})
