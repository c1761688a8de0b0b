"""One caller of the runner: reads requests, says the answer to each in turn, never makes the runner wait."""

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
    """A caller's socket. It is asked one thing at a time; a request that comes early waits for its turn."""

    def __init__(
        self,
        caller: socket.socket,
        selector: selectors.BaseSelector,
        answer: Callable[[Connection, dict[str, Any]], None],
        gone: Callable[[Connection], None],
    ) -> None:
        """Waits for requests. `answer` is called with each; `gone` when the connection is closed."""
        caller.setblocking(False)
        self.following: Execution | None = None
        self._offset: int | None = None
        self._caller = caller
        self._selector = selector
        self._answer = answer
        self._gone = gone
        self._requests = bytearray()
        self._unsent = bytearray()
        self._asked = False  # whether an answer is under way
        self._taking = False  # whether requests are being taken up
        self._more = False  # whether more is ready to be said than was
        self._wanted = selectors.EVENT_READ
        selector.register(caller, selectors.EVENT_READ, self._ready)

    @property
    def idle(self) -> bool:
        """Whether the caller has asked for nothing that it has not been told."""
        return not (self._asked or self._unsent or self._requests)

    def say(self, line: dict[str, Any]) -> None:
        """Answers by one line, the last of this answer."""
        self._said(json.dumps(line).encode("ascii") + b"\n")

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
        while run is not None:
            text = ""
            if self._offset is not None:
                text, self._offset = run.chunk(self._offset)
            if text:
                self._unsent += json.dumps({"chunk": text, "next": self._offset}).encode("ascii") + b"\n"
            elif run.outcome:
                self._said(run.answer())
                return
            else:
                break
            if len(self._unsent) >= _FULL_BYTES:
                self._more = True  # goes on when the caller has taken this
                break
        self._send()

    def close(self) -> None:
        """Ends the connection. Idempotent."""
        if self._caller.fileno() < 0:
            return
        self._selector.unregister(self._caller)
        self._caller.close()
        self.following = None
        self._gone(self)

    def _said(self, last: bytes) -> None:
        self._unsent += last
        self._asked, self.following = False, None
        self._send()
        self._next()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._receive()
        if events & selectors.EVENT_WRITE and self._caller.fileno() >= 0:
            self.pump() if self._more and len(self._unsent) < _FULL_BYTES else self._send()
        self._next()

    def _next(self) -> None:
        """Takes up what was asked meanwhile, once the answer before it is sent."""
        if self._taking:
            return  # it is being taken up further down the stack
        self._taking = True
        while self._caller.fileno() >= 0 and not (self._asked or self._unsent) and b"\n" in self._requests:
            self._dispatch()
        self._taking = False

    def _receive(self) -> None:
        try:
            data = self._caller.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._requests += data
        if not data:
            self.close()
        elif len(self._requests) > MAX_REQUEST_BYTES and (self._asked or b"\n" not in self._requests):
            self._unsent += b'{"error": "ARGUMENT_INVALID", "message": "the request is too long"}\n'
            self._send()
            self.close()

    def _dispatch(self) -> None:
        end = self._requests.index(b"\n")
        line = bytes(self._requests[:end])
        del self._requests[: end + 1]
        self._asked = True
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
            self.close()
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent or self._more else 0)
        if wanted != self._wanted:
            self._wanted = wanted
            self._selector.modify(self._caller, wanted, self._ready)
