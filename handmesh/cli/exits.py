"""What the command's exit code says. Pure."""

from __future__ import annotations

from handmesh.session.v1 import event_pb2

DONE = 0
FAILED = 1
USAGE = 2
REFUSED = 3
LIMIT = 4
INTERRUPTED = 5
OVERCOME = 10
PARTS = {"session": 11, "harness": 12, "hand": 13, "proxy": 14, "model": 15, "network": 16}
TIMED_OUT = 124
CTRL_C = 130

MEANINGS = {
    DONE: "the agent is done",
    FAILED: "something failed",
    USAGE: "wrong options or a request that the mesh finds malformed",
    REFUSED: "the model refused to answer",
    LIMIT: "a limit was reached",
    INTERRUPTED: "somebody interrupted the turn",
    OVERCOME: "`trace`: a part had failed, and the session went on",
    **{code: f"`trace`: a fault of the {part} is in the way" for part, code in PARTS.items()},
    TIMED_OUT: "--timeout was over",
    CTRL_C: "Ctrl-C",
}

_BY_REASON = {
    event_pb2.TURN_END_REASON_DONE: DONE,
    event_pb2.TURN_END_REASON_INTERRUPTED: INTERRUPTED,
    event_pb2.TURN_END_REASON_LIMIT: LIMIT,
    event_pb2.TURN_END_REASON_FAILED: FAILED,
    event_pb2.TURN_END_REASON_REFUSED: REFUSED,
}


def of_turn(ended: event_pb2.TurnEnded) -> int:
    """Returns the exit code for the way a turn ended. A reason that this version does not know is a failure."""
    return _BY_REASON.get(ended.reason, FAILED)


def of_status(code: str) -> int:
    """Returns the exit code for a failed call, by its gRPC status."""
    return USAGE if code in ("INVALID_ARGUMENT", "OUT_OF_RANGE") else FAILED


def of_verdict(part: str, state: str) -> int:
    """Returns the exit code for what `trace` found."""
    if not part:
        return DONE
    return PARTS[part] if state == "standing" else OVERCOME
