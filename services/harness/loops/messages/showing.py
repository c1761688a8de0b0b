"""Shows an answer while it is written: contiguous pieces under the id that its event will have."""

from __future__ import annotations

from handmesh.session.v1.session_pb2 import Preview
from services.harness.ports import Previews


class Showing:
    """One answer's previews."""

    def __init__(self, previews: Previews, event_id: str) -> None:
        self._previews = previews
        self._event_id = event_id
        self._offsets: dict[int, int] = {}

    def show(self, block: int, kind: str, piece: str) -> None:
        """Shows the next piece of a block (see `Model.ask`)."""
        preview = Preview(event_id=self._event_id, block_index=block, offset=self._offsets.get(block, 0))
        setattr(preview, kind, piece)
        self._offsets[block] = self._offsets.get(block, 0) + len(piece)
        self._previews.show(preview)

    def discard(self) -> None:
        """Says that the event will not come, if anything of it was shown."""
        if self._offsets:
            self._previews.show(Preview(event_id=self._event_id, discarded=True))

    async def close(self) -> None:
        """Sends what is left."""
        await self._previews.close()
