"""The grants by which this service speaks for sessions at the vault proxy: for each session the newest that was shown.

In memory only. After a restart a session's doors lead nowhere until its harness calls again.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_SESSIONS = 10_000


class Passes:
    """Grants that were checked, by session. Never shown: they are secrets."""

    def __init__(self) -> None:
        """Has none."""
        self._kept: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def note(self, session_id: str, epoch: int, grant: str) -> None:
        """Takes note of a session's grant, which was just found to be valid; an older one than it has is left."""
        if epoch >= self._kept.get(session_id, (0, ""))[0]:
            self._kept[session_id] = (epoch, grant)
            self._kept.move_to_end(session_id)
            if len(self._kept) > MOST_SESSIONS:
                self._kept.popitem(last=False)

    def of(self, session_id: str) -> str | None:
        """Returns a session's newest grant."""
        return self._kept.get(session_id, (0, None))[1]

    def void(self, session_id: str, below_epoch: int) -> None:
        """Forgets a session's grant of a lower epoch; 0 means of any."""
        epoch, _ = self._kept.get(session_id, (0, ""))
        if below_epoch == 0 or epoch < below_epoch:
            self._kept.pop(session_id, None)
