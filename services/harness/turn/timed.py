"""How long a model takes, as who asked it sees it."""

from __future__ import annotations

from collections.abc import Callable

from handmesh.session.v1.event_pb2 import ModelTimes
from services.harness.answer import Show
from services.harness.condition import Condition


class Timed:
    """Shows one answer, and notes when its first piece came and when it was whole. `now` is Unix time, in seconds."""

    def __init__(self, show: Show, now: Callable[[], float], condition: Condition) -> None:
        self._show = show
        self._now = now
        self._condition = condition
        self._asked = now()
        self.times = ModelTimes()
        self.times.ask_time.FromNanoseconds(int(self._asked * 1e9))
        condition.asks()

    def show(self, block: int, kind: str, piece: str) -> None:
        """Shows the next piece of a block (see `Model.ask`)."""
        if not self.times.HasField("first_piece"):
            self.times.first_piece.FromNanoseconds(self._since())
        self._condition.hears()
        self._show(block, kind, piece)

    def ends(self) -> None:
        """The answer is whole."""
        self.times.whole.FromNanoseconds(self._since())

    def _since(self) -> int:
        return max(0, int((self._now() - self._asked) * 1e9))
