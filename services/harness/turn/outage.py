"""How long what a call needs has been away, however long the call had run before. Pure: `now` is given."""

from __future__ import annotations

from collections.abc import Callable

TRY_AGAIN_SECONDS = 30.0  # how long a call that has been sent is asked for again while its hand is away


class Outage:
    """Of one call: from its first failure on, until an attempt has lasted, and so been answered for a while."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._asked = now()
        self._since: float | None = None

    def ask(self) -> None:
        """Notes that the call is asked for."""
        self._asked = self._now()

    def too_long(self) -> bool:
        """Takes a failed attempt, and says whether to give up. One that lasted longer than calls are tried again was at
        work: with its end another outage begins."""
        now = self._now()
        if self._since is None or now - self._asked > TRY_AGAIN_SECONDS:
            self._since = now
        return now - self._since >= TRY_AGAIN_SECONDS
