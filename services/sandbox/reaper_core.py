"""Rules of the reaper: which sandboxes nobody needs any more. Pure; times are seconds of one clock."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from services.sandbox.hand import ExecutionInfo, Labels

MISSING_SECONDS = 30.0
"""For so long a session must be unknown to the session service before its sandboxes go."""


class Fate(Enum):
    """What the session service says of a session."""

    LIVES = "LIVES"
    OVER = "OVER"  # it has ended, or is archived
    MISSING = "MISSING"  # there is no such session: it was deleted, or never was
    UNKNOWN = "UNKNOWN"  # nothing was said that this could be told from


class Judge:
    """Remembers since when sessions are missed. Bounded by the sessions that own sandboxes: see `keep_only`."""

    def __init__(self) -> None:
        """Misses nobody yet."""
        self._since: dict[str, float] = {}

    def may_go(self, session_id: str, fate: Fate, now: float) -> bool:
        """Says whether a session's sandboxes may be destroyed, now that this was heard of it.

        What was not heard changes nothing; a session that is there again is missed from the start the next time.
        """
        match fate:
            case Fate.OVER:
                return True
            case Fate.MISSING:
                return now - self._since.setdefault(session_id, now) >= MISSING_SECONDS
            case Fate.LIVES:
                self._since.pop(session_id, None)
                return False
            case Fate.UNKNOWN:
                return False

    def due(self, now: float) -> set[str]:
        """Returns the sessions that were missed long enough, and are to be asked for once more."""
        return {session_id for session_id, since in self._since.items() if now - since >= MISSING_SECONDS}

    def keep_only(self, session_ids: Collection[str]) -> None:
        """Forgets the sessions that own no sandbox any more."""
        self._since = {session_id: since for session_id, since in self._since.items() if session_id in session_ids}


def idle_since(labels: Labels, executions: Collection[ExecutionInfo]) -> float | None:
    """Returns since when nothing was begun in a sandbox, in Unix seconds. None while something runs."""
    if any(execution.outcome is None for execution in executions):
        return None
    return max([labels.create_time, *(execution.start_time for execution in executions)])


def concerned(labels: Labels) -> set[str]:
    """Returns the sessions whose end matters to a sandbox: its owner's, and its readers'."""
    return {labels.session_id, *(reader.session_id for reader in labels.readers)} - {""}


def is_nobodys(labels: Labels) -> bool:
    """Says whether a sandbox is only its maker's, who may have forgotten it. A standing hand is kept until released."""
    return not (labels.session_id or labels.standing or labels.move)
