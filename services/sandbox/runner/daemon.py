"""The runner's loop: callers, children, pipes and deadlines in one thread, none of which may stop it.

A few lines longer than a module should be: it is one loop.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from .children import Children
from .config import OUTPUTS, PROTOCOL, Config
from .connection import Connection
from .execution import Execution, Order
from .kept import Kept, Room
from .problem import Problem
from .processes import Watched, acting_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from .doors import Doors

MAX_CONNECTIONS = 512
_MAX_ID_LENGTH = 128
_ANCHOR_SECONDS = 5.0


class Daemon:
    """Holds the executions of one sandbox, and answers for them."""

    def __init__(self, config: Config, listener: socket.socket) -> None:
        """Takes over a listening socket."""
        self._config = config
        self._kept = Kept(Room(outputs=config.records_bytes, answers=config.records_bytes // 2))
        self._connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._children = Children(config, self._selector, self._tell)
        self._doors: Doors | None = None
        self._oom = [Watched(path) for path in config.oom_files]
        self._count = 0
        self._generation = 0  # counts the sandbox's owners; epochs are compared within one
        self._epoch = 0
        self._outfitted = False
        self._inherited = False  # whether what the last owner's tools were given and left is still there
        self._give_up = time.monotonic() + config.claim_seconds
        self._next_look = 0.0
        self._claimed = False
        self._ending = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, lambda _: self._accept(listener))
        self._listen_to_signals()

    def _listen_to_signals(self) -> None:
        waking, wake = os.pipe()
        for descriptor in (waking, wake):
            os.set_blocking(descriptor, False)
        self._selector.register(waking, selectors.EVENT_READ, lambda _: os.read(waking, 4096))
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.getpid() != 1:  # as process 1 it ignores what tools send, and ends by SIGKILL from outside only
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_ending", True))

    def run(self) -> None:
        """Serves until it is told to end, nobody claims it, or its anchor is gone."""
        while not self._ending and (self._claimed or time.monotonic() < self._give_up) and self._anchored():
            try:
                self._children.turn()
                if self._doors is not None:
                    self._doors.turn()
                for key, events in self._selector.select(self._patience()):
                    key.data(events)
            except Exception:  # the top: whatever one caller or tool brings about, the others go on
                import traceback

                traceback.print_exc()
        self._children.end()

    def _patience(self) -> float | None:
        patience = self._children.patience()
        if self._doors is not None:
            patience = min(patience, self._doors.patience())
        if not self._claimed:
            patience = min(patience, max(0.0, self._give_up - time.monotonic()))
        if self._config.anchor is not None:
            patience = min(patience, max(0.0, self._next_look - time.monotonic()))
        return None if patience == float("inf") else patience

    def _anchored(self) -> bool:
        """Looks now and then whether the anchor is still there. A mounted folder that was removed has no links."""
        if self._config.anchor is None or time.monotonic() < self._next_look:
            return True
        self._next_look = time.monotonic() + _ANCHOR_SECONDS
        try:
            return os.stat(self._config.anchor).st_nlink > 0
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it cannot be told now

    def _tell(self, run: Execution) -> None:
        for connection in list(self._connections):
            if connection.following is run:
                connection.pump()
        if run.outcome:
            self._kept.ended(run)

    def _accept(self, listener: socket.socket) -> None:
        self._claimed = True
        try:
            caller, _ = listener.accept()
        except OSError:
            return  # the caller is gone, or descriptors are short for a moment
        if len(self._connections) >= MAX_CONNECTIONS:
            idle = next((it for it in self._connections if it.idle), None)
            if idle is None:
                caller.close()
                return
            idle.close()  # its caller connects again when it wants something
        self._connections.append(Connection(caller, self._selector, self._answer, self._connections.remove))

    def _answer(self, connection: Connection, request: dict[str, Any]) -> None:
        operations: dict[str, Callable[[Connection, dict[str, Any]], None]] = {
            "ping": self._ping,
            "fence": self._raise_fence,
            "start": self._start,
            "run": self._run,
            "follow": self._follow,
            "cancel": self._cancel,
            "list": self._list,
            "transfer": self._transfer,
            "doors": self._open_doors,
            "outfit": self._outfit,
            "visit": self._visit,
        }
        operation = operations.get(request.get("op", ""))
        if operation is None:
            raise Problem("ARGUMENT_INVALID", "no such operation")
        operation(connection, request)

    def _ping(self, connection: Connection, _: dict[str, Any]) -> None:
        running = sum(not run.outcome for run in self._kept.all())
        connection.say({"runner": PROTOCOL, "epoch": self._epoch, "running": running})

    def _fence(self, generation: int, epoch: int) -> bool:
        """Refuses who is older than the newest that was seen. 0 is not fenced. False for one of an owner of before."""
        if generation > self._generation:
            self._own(generation)
        if 0 < generation < self._generation:
            return False
        if 0 < epoch < self._epoch:
            raise Problem("EPOCH_STALE", "a newer harness owns the session", epoch=self._epoch)
        self._epoch = max(self._epoch, epoch)
        return True

    def _own(self, generation: int) -> None:
        self._generation, self._epoch = generation, 0

    def _raise_fence(self, connection: Connection, request: dict[str, Any]) -> None:
        """Lets nothing start any more under a lower generation. What has started goes on."""
        if int(request["generation"]) > self._generation:
            self._own(int(request["generation"]))
            self._outfitted, self._inherited = False, True
        connection.say({"generation": self._generation})

    def _disinherit(self) -> None:
        """Forgets the last owner's variables and shell, before the first thing that the new one does."""
        if self._inherited:
            self._inherited = False
            self._children.renew()

    def _start(self, connection: Connection, request: dict[str, Any]) -> None:
        _, fresh = self._ordered(request)
        connection.say({"started": fresh})

    def _run(self, connection: Connection, request: dict[str, Any]) -> None:
        run, _ = self._ordered(request)
        connection.follow(run, None)

    def _ordered(self, request: dict[str, Any]) -> tuple[Execution, bool]:
        """Starts an execution, unless its id is known already. Returns it and whether it was started."""
        generation = int(request.get("generation", 0))
        mine = self._fence(generation, int(request["epoch"]))
        order = Order(
            id=_checked_id(request),
            name=str(request["name"]),
            input=dict(request["input"]),
            digest=str(request["digest"]),
            timeout=float(request["timeout_ms"]) / 1000.0,
            generation=generation,
        )
        known = self._kept.find(order.id)
        if known is None and not mine:
            text = "another session owns the sandbox"
            raise Problem("GENERATION_CONFLICT", text, generation=self._generation)
        if known is None:
            if generation:
                self._disinherit()
            run = self._new(order)
            self._children.start(run)
            self._kept.add(run)
            return run, True
        if known.order.digest not in ("", order.digest):  # empty: cancelled before it was known
            raise Problem("EXECUTION_ID_REUSED", "the id was used for another tool or input")
        return known, False

    def _new(self, order: Order) -> Execution:
        self._count += 1
        return Execution(order, self._count, self._config, self._oom)

    def _follow(self, connection: Connection, request: dict[str, Any]) -> None:
        run = self._kept.find(str(request["id"]))
        if run is None:
            raise Problem("EXECUTION_UNKNOWN", "no such execution")
        offset = request["offset"]
        connection.follow(run, None if offset is None else max(0, int(offset)))

    def _cancel(self, connection: Connection, request: dict[str, Any]) -> None:
        self._fence(int(request.get("generation", 0)), int(request["epoch"]))
        id = _checked_id(request)
        run = None if self._kept.forgot(id) else self._kept.find(id)
        if run is None and not self._kept.forgot(id):
            never = self._new(Order(id, "", {}, "", 0.0))
            never.settle("INTERRUPTED", "interrupted before it started")
            self._kept.add(never)
            self._kept.ended(never)
        elif run is not None:
            run.stop("INTERRUPTED")
        connection.say({"known": run is not None})

    def _list(self, connection: Connection, _: dict[str, Any]) -> None:
        known = [
            {
                "id": run.order.id,
                "name": run.order.name,
                "outcome": run.outcome,
                "started_at": run.started_at,
                "generation": run.order.generation,
            }
            for run in self._kept.all()
        ]
        connection.say({"executions": known})

    def _transfer(self, connection: Connection, request: dict[str, Any]) -> None:
        """Gives the caller a child of its own, see `transfers`."""
        self._children.check_guest()
        with connection.release() as caller:
            self._children.host(caller, request)

    def _open_doors(self, connection: Connection, request: dict[str, Any]) -> None:
        """Opens doors, and tells which are open. Before any tool runs, so that none has their ports."""
        if self._doors is None and request["names"]:
            from .doors import Doors

            self._doors = Doors(self._selector)
        ports = {} if self._doors is None else self._doors.open([str(name) for name in request["names"]])
        connection.say({"ports": ports, "folder": self._trust_folder, "outfitted": self._outfitted})

    @property
    def _trust_folder(self) -> str:
        return os.path.join(self._config.records, "trust")

    def _outfit(self, connection: Connection, request: dict[str, Any]) -> None:
        """Gives tools that start from now on more variables, and authorities to trust."""
        if not self._fence(int(request.get("generation", 0)), 0):
            raise Problem("GENERATION_CONFLICT", "another session owns the sandbox", generation=self._generation)
        self._disinherit()
        if request["trust"] is not None:
            from . import trust

            trust.write(self._trust_folder, str(request["trust"]["system"]), str(request["trust"]["own"]))
        self._children.outfit({str(name): str(value) for name, value in request["env"].items()})
        self._outfitted = True
        connection.say({})

    def _visit(self, connection: Connection, request: dict[str, Any]) -> None:
        """Parks the caller's connection at a door."""
        if self._doors is None:
            raise Problem("ARGUMENT_INVALID", "no door is open")
        self._doors.check(str(request["door"]))
        self._doors.park(str(request["door"]), connection.release())


def _checked_id(request: dict[str, Any]) -> str:
    id = str(request["id"])
    if not 0 < len(id) <= _MAX_ID_LENGTH:
        raise Problem("ID_INVALID", f"an execution id has 1 to {_MAX_ID_LENGTH} characters")
    return id


def main() -> None:
    """Runs a runner by the JSON in the first argument."""
    config = Config.parse(sys.argv[1])
    if config.socket_fd is not None:
        listener = socket.socket(fileno=os.dup(config.socket_fd))  # it may have come as one of `shell.DESCRIPTORS`
        os.close(config.socket_fd)
    else:
        assert config.socket is not None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(config.socket)
        os.chmod(config.socket, 0o777)  # the directory decides who reaches it
        listener.listen(128)
    os.makedirs(config.records, exist_ok=True)
    with acting_as(config.tool_uid):
        os.makedirs(os.path.join(config.workspace, OUTPUTS), exist_ok=True)
    Daemon(config, listener).run()
