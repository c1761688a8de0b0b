"""One caller of the runner: reads one request, says the answer, never makes the runner wait."""

from __future__ import annotations

import json
import selectors
import socket
from typing import TYPE_CHECKING, Any

from .config import MAX_REQUEST_BYTES
from .problem import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from .execution import Execution

_READ_BYTES = 256 << 10
_FULL_BYTES = 256 << 10  # of unsent answer: nothing is added until the caller has taken it


class Connection:
    """A caller's socket. It holds at most one request and one answer, and closes when both are done."""

    def __init__(
        self,
        caller: socket.socket,
        selector: selectors.BaseSelector,
        answer: Callable[[Connection, dict[str, Any]], None],
        gone: Callable[[Connection], None],
    ) -> None:
        """Waits for the request. `answer` is called with it; `gone` when the connection is closed."""
        caller.setblocking(False)
        self.following: Execution | None = None
        self._offset: int | None = None
        self._caller = caller
        self._selector = selector
        self._answer = answer
        self._gone = gone
        self._request = bytearray()
        self._unsent = bytearray()
        self._asked = False
        self._complete = False
        self._more = False  # whether more is ready to be said than was
        selector.register(caller, selectors.EVENT_READ, self._ready)

    def say(self, line: dict[str, Any]) -> None:
        """Answers by one line and nothing more."""
        self._unsent += json.dumps(line).encode("ascii") + b"\n"
        self._complete = True
        self._send()

    def follow(self, run: Execution, offset: int | None) -> None:
        """Answers by an execution's output from an offset on, then its result. Without an offset by the result."""
        self.following, self._offset = run, offset
        self.pump()

    def release(self) -> socket.socket:
        """Lets go of the caller's socket, which is somebody else's from now on, and is not here any more."""
        self._selector.unregister(self._caller)
        caller, self._caller = self._caller, socket.socket()
        self._caller.close()
        self._gone(self)
        return caller

    def pump(self) -> None:
        """Says what there is to say of the execution that it follows, as far as the caller takes it."""
        run = self.following
        self._more = False
        while run is not None and not self._complete:
            text = ""
            if self._offset is not None:
                text, self._offset = run.chunk(self._offset)
            if text:
                self._unsent += json.dumps({"chunk": text, "next": self._offset}).encode("ascii") + b"\n"
            elif run.outcome:
                self.say({"result": run.result()})
                return
            else:
                break
            if len(self._unsent) >= _FULL_BYTES:
                self._more = True  # goes on when the caller has taken this
                break
        self._send()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._receive()
        if events & selectors.EVENT_WRITE and self._caller.fileno() >= 0:
            self.pump() if self._more and len(self._unsent) < _FULL_BYTES else self._send()

    def _receive(self) -> None:
        try:
            data = self._caller.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
        elif not self._asked:
            self._request += data
            if b"\n" in data:
                self._asked = True
                self._dispatch()
            elif len(self._request) > MAX_REQUEST_BYTES:
                self.say({"error": "ARGUMENT_INVALID", "message": "the request is too long"})

    def _dispatch(self) -> None:
        line, self._request = bytes(self._request).split(b"\n", 1)[0], bytearray()
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("no object")
            self._answer(self, request)
        except Problem as problem:
            self.say(problem.answer)
        except (ValueError, KeyError, TypeError) as error:
            self.say({"error": "ARGUMENT_INVALID", "message": f"not a request: {type(error).__name__}"})

    def _send(self) -> None:
        if self._caller.fileno() < 0:
            return
        try:
            while self._unsent:
                del self._unsent[: self._caller.send(self._unsent[:_READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        if self._complete and not self._unsent:
            self._close()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent or self._more else 0)
        self._selector.modify(self._caller, wanted, self._ready)

    def _close(self) -> None:
        if self._caller.fileno() < 0:
            return
        self._selector.unregister(self._caller)
        self._caller.close()
        self.following = None
        self._gone(self)
