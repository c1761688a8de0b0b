"""What servers offered to sessions: remembered, so that a change is noticed, and compared with the session's log once.

The log outlives this process: what changed while no process remembered is found by comparing with `ToolsOffered`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.vault_proxy.core import catalog

MOST_PINS = 10_000  # of sessions and servers; a change of one that is forgotten is not noticed

Key = tuple[str, str]  # session id, server's name
Prints = Mapping[str, str]


@dataclass
class _Pin:
    prints: Prints
    compared: bool = False  # with the log, or a change was found since


class Pins:
    """Remembers prints, for as long as a session is known."""

    def __init__(self) -> None:
        self._pins: dict[Key, _Pin] = {}  # the oldest first

    def take(self, key: Key, prints: Prints) -> catalog.Change | None:
        """Remembers what a server offers now. Returns what changed since the last time."""
        pin = self._pins.pop(key, None)
        change = None if pin is None else catalog.difference(pin.prints, prints)
        self._pins[key] = _Pin(prints, pin is not None and (pin.compared or change is not None))
        while len(self._pins) > MOST_PINS:
            del self._pins[next(iter(self._pins))]
        return change

    def is_compared(self, key: Key) -> bool:
        """Says whether nothing is to be compared with the log: it was, a change was told since, or nothing is known."""
        pin = self._pins.get(key)
        return pin is None or pin.compared

    def compare(self, key: Key, offered: Prints, now: Prints) -> catalog.Change | None:
        """Returns how what is offered now differs from what the log says was offered."""
        pin = self._pins.get(key)
        if pin is not None:
            pin.compared = True
        return catalog.difference(offered, now)

    def drop(self, session_id: str) -> None:
        """Forgets a session."""
        for key in [key for key in self._pins if key[0] == session_id]:
            del self._pins[key]
