"""What this process connects to and looks up."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class Sockets:
    """Counts what this process connects to and looks up, by an audit hook: it sees every socket of Python's."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
            self.seen.append((event, arguments[1] if event == "socket.connect" else arguments[0]))

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[tuple[str, Any]]]:
        """Records while the context lasts."""
        self.seen, self.on = [], True
        try:
            yield self.seen
        finally:
            self.on = False


SOCKETS = Sockets()  # a hook cannot be taken away again: one for the run
