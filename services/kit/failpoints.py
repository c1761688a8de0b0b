"""Places where a test may end, stop or fail a service: one line of code each, with a name that never changes.

    failpoints.hit("harness.call_started")

does nothing, and costs one comparison, unless HANDMESH_FAILPOINTS names a folder. Then a file in it that is named like
the point says what happens the next time that a process comes there: `kill`, `pause` or `error`, and if need be
`after 2`: two times pass first. It happens once: the file is renamed to `<point>.hit-<process id>` before, so that of
several processes only one is struck, and a test sees which.

    kill    the process is gone at once (SIGKILL)
    pause   the process stands still (SIGSTOP) until somebody sends SIGCONT
    error   the call fails as if a part could not be reached
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from services.kit.errors import Unavailable
from services.kit.logs import Log

POINTS: dict[str, str] = {
    "session.session_stored": "the first events are in the log; the work queue does not know",
    "session.child_started": "a session's log says that it has started another; that one has no event yet",
    "session.event_stored": "events are in the log; neither their emitter nor the work queue knows",
    "session.end_stored": "the session has ended; its grants are not revoked",
    "session.claim_ended": "a claim has ended and the log needs nobody; the work queue still has the session",
    "session.item_removed": "the work queue has the session no more; nobody has looked into the log since",
    "session.memory_stored": "a version of a memory is there; its writer has not heard",
    "harness.woke": "the session is this harness's; nothing else is done",
    "harness.model_asked": "the model has the request; nothing has come back",
    "harness.model_streaming": "a piece of the answer has come",
    "harness.model_answered": "the whole answer has come; the log does not have it",
    "harness.reply_stored": "the answer is in the log; none of its calls is sent",
    "harness.summary_answered": "the model has written a summary; the log does not have it",
    "harness.summary_stored": "a summary is in the log; the model is not asked with it",
    "harness.call_started": "the log says that a call starts; the hand was not asked",
    "harness.result_returned": "the hand has answered; the log does not have the result",
    "harness.result_stored": "a result is in the log; those of other calls may not be",
    "harness.decision_stored": "a question to a person or a client is in the log",
    "harness.run_ended": "nothing is left to do; the claim is not given back",
    "harness.sandbox_made": "a sandbox was made; the log does not name it",
    "sandbox.sandbox_booted": "a sandbox runs; its record is not finished",
    "sandbox.sandbox_made": "a sandbox is finished; nobody was told",
    "sandbox.execution_asked": "a call has come in; the runner does not have it",
    "sandbox.execution_finished": "the runner has answered; the caller has not heard",
    "sandbox.hand_leaving": "a hand is marked as leaving; nothing else is done",
    "sandbox.hand_fenced": "nothing starts any more for a hand's old owner; what runs may run still",
    "sandbox.hand_decided": "nothing runs in a hand that leaves, and it will leave; no log says so",
    "sandbox.hand_left": "the old owner's log says that a hand left; its record names that owner still",
    "sandbox.hand_owned": "a hand's record names its new owner; that one's log does not say so",
    "sandbox.hand_arrived": "both logs tell of a transfer; the hand's record says that it is under way",
    "sandbox.hand_shared": "a hand's record names a reader; that one's log does not say so",
    "sandbox.place_destroyed": "a sandbox's processes are gone; its folder and record are not",
    "vault_proxy.call_asked": "a call has come in; the server does not have it",
    "vault_proxy.call_answered": "the server has answered; the caller has not heard",
}
"""Every point, and what is true when a process comes there."""

ACTIONS = ("kill", "pause", "error")
_REASONS = {
    "session": "SESSION_UNAVAILABLE",
    "harness": "SESSION_UNAVAILABLE",  # as if it had lost its log: it is nobody's server
    "sandbox": "SANDBOX_UNAVAILABLE",
    "vault_proxy": "VAULT_PROXY_UNAVAILABLE",
}

_log = Log("services.kit.failpoints")
_folder: Path | None = None
_passed: dict[str, int] = {}  # point -> how often this process let it pass since it was last armed


def arm(folder: Path | None) -> None:
    """Looks into a folder at every point from now on; None: at none."""
    global _folder
    _folder = folder
    _passed.clear()


def hit(point: str, failure: Callable[[], Exception] | None = None) -> None:
    """Does what a test has asked for at this point; nothing in a mesh that serves anybody.

    When the test asked for an error, raises what `failure` makes, or Unavailable without it.
    """
    if _folder is not None:
        _look(_folder, point, failure)


def _look(folder: Path, point: str, failure: Callable[[], Exception] | None) -> None:
    file = folder / point
    try:
        action, passes = _parsed(file.read_text())
        if _passed.get(point, 0) < passes:
            _passed[point] = _passed.get(point, 0) + 1
            return
        file.rename(folder / f"{point}.hit-{os.getpid()}")
    except FileNotFoundError:
        return  # it is not armed, or another process was faster
    _passed.pop(point, None)
    _log.warning("failpoint", point=point, action=action)
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            raise failure() if failure is not None else _unavailable(point)


def _parsed(text: str) -> tuple[str, int]:
    """Reads `kill` or `kill after 2`."""
    match text.split():
        case [action] if action in ACTIONS:
            return action, 0
        case [action, "after", count] if action in ACTIONS and count.isdecimal():
            return action, int(count)
    raise ValueError(f"a failpoint is kill, pause or error, and perhaps `after 2`, not {text!r}")


def _unavailable(point: str) -> Unavailable:
    return Unavailable(_REASONS[point.partition(".")[0]], f"a test asked for this failure: {point}")
