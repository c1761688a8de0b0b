"""Shows an answer while it is written: contiguous pieces under the id that its event will have."""

from __future__ import annotations

from handmesh.session.v1.session_pb2 import Preview
from services.harness.ports import Previews


class Showing:
    """One answer's previews. What comes before `begin` is kept until then."""

    def __init__(self) -> None:
        self._previews: Previews | None = None
        self._event_id = ""
        self._offsets: dict[int, int] = {}
        self._kept: list[tuple[int, str, str]] = []

    def begin(self, previews: Previews, event_id: str) -> None:
        """Says where and under which id to show, once that is known."""
        self._previews, self._event_id = previews, event_id
        kept, self._kept = self._kept, []
        for block, kind, piece in kept:
            self.show(block, kind, piece)

    def show(self, block: int, kind: str, piece: str) -> None:
        """Shows the next piece of a block (see `Model.ask`)."""
        if self._previews is None:
            self._kept.append((block, kind, piece))
            return
        preview = Preview(event_id=self._event_id, block_index=block, offset=self._offsets.get(block, 0))
        setattr(preview, kind, piece)
        self._offsets[block] = self._offsets.get(block, 0) + len(piece)
        self._previews.show(preview)

    def discard(self) -> None:
        """Says that the event will not come, if anything of it was shown."""
        if self._previews is not None and self._offsets:
            self._previews.show(Preview(event_id=self._event_id, discarded=True))

    def drop(self) -> None:
        """Drops what is left: the event comes."""
        if self._previews is not None:
            self._previews.drop()
