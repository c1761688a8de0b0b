"""The doors of a sandbox: loopback ports of its own, whose connections the service takes out of it.

The service parks connections on the runner's socket, each for one door. Whoever connects to the port of that door gets
one of them: the runner says `{"visit": 1}` on it, and from then on carries bytes both ways. A tool can speak to nothing
else by it: what parks has no more requests to make here. Nothing but a sandbox with doors imports this module.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

PORTS = {"git": 8417, "egress": 8418}  # those of each door, or others where a tool listens there already
MAX_VISITS = 64  # connections of tools at once, of all doors: who comes then waits to be let in
MAX_PARKED = 16  # connections of the service that wait for a tool, of one door
WAIT_SECONDS = 20.0  # for the service, which may be starting again
_READ_BYTES = 256 << 10
_FULL_BYTES = 256 << 10  # not taken by one side: then the other side has to wait
_CLOSED = "the sandbox service has not opened this door (it may be starting again): try again in a while\n"


class Doors:
    """The doors that were opened. `patience` and `turn` are the daemon's."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Opens none."""
        self._selector = selector
        self._listeners: dict[str, socket.socket] = {}
        self._parked: dict[str, deque[socket.socket]] = {}
        self._waiting: deque[tuple[float, str, socket.socket]] = deque()  # who came first, first; and until when
        self._visits: set[Visit] = set()
        self._letting_in = True

    def open(self, names: list[str]) -> dict[str, int]:
        """Opens doors, and returns the ports of all that are open. Idempotent. Raises Problem for another name."""
        if not set(names) <= set(PORTS):
            raise Problem("ARGUMENT_INVALID", "there is no such door")
        for name in names:
            if name not in self._listeners:
                self._listeners[name] = _listening(PORTS[name])
                self._parked[name] = deque()
                if self._letting_in:
                    self._listen(name, self._listeners[name])
        return {name: listener.getsockname()[1] for name, listener in self._listeners.items()}

    def check(self, name: str) -> None:
        """Raises Problem unless a connection may be parked."""
        if name not in self._listeners:
            raise Problem("ARGUMENT_INVALID", "this door is not open")
        if len(self._parked[name]) >= MAX_PARKED:
            raise Problem("FULL", f"{MAX_PARKED} connections are parked")

    def park(self, name: str, caller: socket.socket) -> None:
        """Gives a caller's connection to whoever waits, or to the next who comes."""
        caller.setblocking(False)
        for entry in self._waiting:
            if entry[1] == name:
                self._waiting.remove(entry)
                self._begin(entry[2], caller)
                return
        self._parked[name].append(caller)
        self._selector.register(caller, selectors.EVENT_READ, lambda _: self._left(name, caller))

    def _left(self, name: str, caller: socket.socket) -> None:
        """Lets go of a caller that went away, or that speaks out of turn."""
        if caller not in self._parked[name]:
            return  # a tool has got it in this very turn
        self._selector.unregister(caller)
        self._parked[name].remove(caller)
        caller.close()

    def _listen(self, name: str, listener: socket.socket) -> None:
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept(name, listener))

    def _accept(self, name: str, listener: socket.socket) -> None:
        try:
            tool, _ = listener.accept()
        except OSError:
            return  # it is gone
        tool.setblocking(False)
        if self._parked[name]:
            caller = self._parked[name].popleft()
            self._selector.unregister(caller)
            self._begin(tool, caller)
        else:
            self._waiting.append((time.monotonic() + WAIT_SECONDS, name, tool))
        self._admit()

    def _begin(self, tool: socket.socket, caller: socket.socket) -> None:
        visit = Visit(self._selector, tool, caller, self._ended)
        self._visits.add(visit)
        visit.begin(json.dumps({"visit": 1}).encode("ascii") + b"\n")

    def _ended(self, visit: Visit) -> None:
        self._visits.discard(visit)
        self._admit()

    def _admit(self) -> None:
        """Lets tools in while there is room."""
        room = len(self._visits) + len(self._waiting) < MAX_VISITS
        if room is not self._letting_in:
            self._letting_in = room
            for name, listener in self._listeners.items():
                self._listen(name, listener) if room else self._selector.unregister(listener)

    def patience(self) -> float:
        """Tells for how many seconds nothing is due unless something happens."""
        return max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else float("inf")

    def turn(self) -> None:
        """Turns those away who have waited long enough."""
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _turn_away(self._waiting.popleft()[2])
            self._admit()


class Visit:
    """A tool's connection and the service's, with what one has said and the other has not taken yet."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        tool: socket.socket,
        caller: socket.socket,
        ended: Callable[[Visit], None],
    ) -> None:
        """Takes both sockets, which do not block. `ended` is called once, when they are closed."""
        self._selector = selector
        self._other = {tool: caller, caller: tool}
        self._unsent = {tool: bytearray(), caller: bytearray()}  # by who has to take it
        self._silent: set[socket.socket] = set()  # will say no more
        self._told: set[socket.socket] = set()  # know that the other side will say no more
        self._listed: dict[socket.socket, int] = {}  # the events that each is registered for
        self._first, self._ended = caller, ended

    def begin(self, line: bytes) -> None:
        """Says a line to the caller, and begins to carry."""
        self._unsent[self._first] += line
        self._send(self._first)

    def _ready(self, side: socket.socket, events: int) -> None:
        if events & selectors.EVENT_READ and self._other and self._wanted(side) & selectors.EVENT_READ:
            self._receive(side)
        if events & selectors.EVENT_WRITE and self._other:
            self._send(side)

    def _receive(self, side: socket.socket) -> None:
        try:
            data = side.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close()
            return
        if not data:
            self._silent.add(side)
        self._unsent[self._other[side]] += data
        self._send(self._other[side])

    def _send(self, side: socket.socket) -> None:
        unsent, other = self._unsent[side], self._other[side]
        try:
            while unsent:
                del unsent[: side.send(unsent[:_READ_BYTES])]
            if other in self._silent and side not in self._told:
                self._told.add(side)
                side.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        if len(self._told) == len(self._other):
            self._close()
            return
        for each in self._other:
            self._list(each)

    def _wanted(self, side: socket.socket) -> int:
        reads = side not in self._silent and len(self._unsent[self._other[side]]) < _FULL_BYTES
        return (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self._unsent[side] else 0)

    def _list(self, side: socket.socket) -> None:
        before, wanted = self._listed.get(side, 0), self._wanted(side)
        self._listed[side] = wanted
        if before == wanted:
            return
        data: Any = lambda events: self._ready(side, events)  # noqa: E731 - what the daemon calls
        if not wanted:
            self._selector.unregister(side)
        elif before:
            self._selector.modify(side, wanted, data)
        else:
            self._selector.register(side, wanted, data)

    def _close(self) -> None:
        for side in self._other:
            if self._listed.get(side):
                self._selector.unregister(side)
            side.close()
        self._other = {}
        self._ended(self)


def _listening(port: int) -> socket.socket:
    """Listens on loopback: on a port, or on a free one where somebody else has it."""
    for number in (port, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", number))
            listener.listen(MAX_VISITS)
        except OSError:
            listener.close()
            continue
        listener.setblocking(False)
        return listener
    raise Problem("FULL", "there is no port for a door")


def _turn_away(tool: socket.socket) -> None:
    """Answers an HTTP client, and closes. What it has said is read: the system would tell it of a reset instead."""
    head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    answer = f"{head}Retry-After: 5\r\nContent-Length: {len(_CLOSED)}\r\n\r\n{_CLOSED}"
    try:
        tool.send(answer.encode("ascii"))
        tool.shutdown(socket.SHUT_WR)
        tool.recv(_READ_BYTES)
    except OSError:
        pass  # it is gone
    tool.close()
