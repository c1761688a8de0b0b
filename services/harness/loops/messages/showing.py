"""Shows an answer while it is written: contiguous pieces under the id that its event will have."""

from __future__ import annotations

import asyncio

from handmesh.session.v1.session_pb2 import Preview
from services.harness.journal import Journal
from services.harness.ports import Previews


class Showing:
    """One answer's previews. Pieces that come before the session is this harness's wait until it is."""

    def __init__(self, journal: Journal, event_id: str) -> None:
        self._journal = journal
        self._event_id = event_id
        self._offsets: dict[int, int] = {}
        self._waiting: list[Preview] = []
        self._previews: Previews | None = None
        self._opening = asyncio.create_task(self._open(), name="open previews")

    async def _open(self) -> None:
        await self._journal.owned()
        self._previews = self._journal.log.previews(self._journal.epoch)
        for preview in self._waiting:
            self._previews.show(preview)
        self._waiting.clear()

    async def opened(self) -> None:
        """Waits until what there is can be shown."""
        await asyncio.shield(self._opening)

    def show(self, block: int, kind: str, piece: str) -> None:
        """Shows the next piece of a block (see `Model.ask`)."""
        preview = Preview(event_id=self._event_id, block_index=block, offset=self._offsets.get(block, 0))
        setattr(preview, kind, piece)
        self._offsets[block] = self._offsets.get(block, 0) + len(piece)
        self._show(preview)

    def discard(self) -> None:
        """Says that the event will not come, if anything of it was shown."""
        if self._offsets:
            self._show(Preview(event_id=self._event_id, discarded=True))

    def _show(self, preview: Preview) -> None:
        if self._previews is None:
            self._waiting.append(preview)
        else:
            self._previews.show(preview)

    async def close(self) -> None:
        """Sends what is left. What was never opened has shown nothing to anybody."""
        self._opening.cancel()
        await asyncio.wait({self._opening})
        if self._previews is not None:
            await self._previews.close()
