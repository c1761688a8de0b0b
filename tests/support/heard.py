"""What this process does that an attack must not make it do: connect, look names up, start programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Heard:
    """Records events of Python's own audit, so that nothing of it goes by. `what` takes what to keep of an event."""

    def __init__(self, what: dict[str, Callable[[tuple[Any, ...]], Any]]) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.on = False
        self._what = what
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event in self._what:
            self.seen.append((event, self._what[event](arguments)))

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[tuple[str, Any]]]:
        """Records while the context lasts."""
        self.seen, self.on = [], True
        try:
            yield self.seen
        finally:
            self.on = False


# A hook cannot be taken away again: one of each for the run.
SOCKETS = Heard(
    {
        "socket.connect": lambda arguments: arguments[1],
        "socket.getaddrinfo": lambda arguments: arguments[0],
        "socket.sendto": lambda arguments: arguments[0],
    }
)
PROGRAMS = Heard(
    {
        "subprocess.Popen": lambda arguments: [str(each) for each in arguments[1]],
        "os.exec": lambda arguments: [str(each) for each in arguments[1]],
        "os.posix_spawn": lambda arguments: [str(each) for each in arguments[1]],
        "os.system": lambda arguments: [str(arguments[0])],
    }
)
