"""The crash matrix: which step of a turn (`research` calls the first ones 0 to 15), who is struck there and how.

A cell that needs another kind of session than two parallel calls says so. docs/crash.md has the table; a test holds
the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One point struck in one way, in a session of a kind. `passes`: how often the point is passed before."""

    step: int
    point: str
    kind: str = "both"
    passes: int = 0
    at_once: bool = False
    outcomes: frozenset[str] = frozenset({"OK"})

    def __str__(self) -> str:
        return f"{self.step}-{self.point}-{self.kind}-{self.passes}"


_MAY_BE_UNKNOWN = frozenset({"OK", "UNKNOWN"})

KILLS = [
    Cell(0, "session.session_stored", at_once=True),
    Cell(0, "session.event_stored"),  # the client's message
    Cell(1, "session.event_stored", passes=1),  # the harness's HarnessWoke
    Cell(1, "harness.woke"),
    Cell(2, "harness.model_asked"),
    Cell(3, "harness.model_streaming", passes=4),
    Cell(4, "harness.model_answered"),
    Cell(5, "session.event_stored", passes=3),  # ModelReplied
    Cell(5, "harness.reply_stored"),
    Cell(6, "session.event_stored", passes=4),  # SandboxProvisioned with both ToolStarted
    Cell(6, "harness.call_started"),
    Cell(6, "sandbox.execution_asked"),
    Cell(8, "sandbox.execution_finished"),
    Cell(9, "harness.result_returned"),
    Cell(9, "session.event_stored", passes=5),  # a ToolFinished
    Cell(10, "harness.result_stored"),
    Cell(11, "harness.call_started", kind="shop", outcomes=_MAY_BE_UNKNOWN),
    Cell(11, "harness.result_returned", kind="shop", outcomes=_MAY_BE_UNKNOWN),
    Cell(11, "vault_proxy.call_asked", kind="shop", outcomes=_MAY_BE_UNKNOWN),
    Cell(11, "vault_proxy.call_answered", kind="shop", outcomes=_MAY_BE_UNKNOWN),
    Cell(18, "session.child_started", kind="family"),
    Cell(18, "session.session_stored", kind="family", passes=1),  # the child's own log
    Cell(18, "harness.result_returned", kind="family"),  # the child is there, and its parent's harness is not
    Cell(18, "harness.call_started", kind="family", passes=1),  # the wait, or a call of the child's
    Cell(12, "harness.decision_stored", kind="asked"),  # the question
    Cell(12, "session.event_stored", kind="asked", passes=5),  # the question or the answer
    Cell(12, "harness.call_started", kind="asked"),
    Cell(12, "harness.decision_stored", kind="yours"),
    Cell(13, "session.event_stored", passes=7),  # ModelReplied with TurnEnded
    Cell(13, "harness.run_ended"),
    Cell(13, "session.claim_ended"),
    Cell(13, "session.item_removed"),
    Cell(15, "sandbox.sandbox_booted"),
    Cell(15, "sandbox.sandbox_made"),
    Cell(15, "harness.sandbox_made"),
    Cell(16, "harness.call_started", kind="memory"),
    Cell(16, "session.memory_stored", kind="memory", passes=1),  # one file is there before
    Cell(16, "harness.result_returned", kind="memory"),
    Cell(17, "harness.woke", kind="echo"),
    Cell(17, "harness.reply_stored", kind="echo"),
    Cell(17, "harness.model_asked", kind="review", passes=1),
    Cell(17, "harness.model_answered", kind="review", passes=2),
    Cell(17, "harness.reply_stored", kind="review"),
    Cell(17, "session.event_stored", kind="review", passes=3),  # the second answer of three
    Cell(19, "harness.summary_answered", kind="long"),
    Cell(19, "harness.summary_stored", kind="long"),
]
"""Struck with SIGKILL, one after the other."""

CLAUDE_CODE = [
    Cell(3, "harness.model_streaming", passes=4),
    Cell(6, "harness.call_started"),
    Cell(10, "harness.result_stored"),
    Cell(0, "session.event_stored"),
    Cell(1, "session.event_stored", passes=1),
    Cell(1, "harness.woke"),
    Cell(2, "harness.model_asked"),
    Cell(4, "harness.model_answered"),
    Cell(5, "session.event_stored", passes=3),
    Cell(5, "harness.reply_stored"),
    Cell(6, "session.event_stored", passes=4),
    Cell(9, "harness.result_returned"),
    Cell(9, "session.event_stored", passes=5),
    Cell(12, "harness.decision_stored", kind="asked"),
    Cell(13, "session.event_stored", passes=7),
    Cell(13, "harness.run_ended"),
]
"""Struck with SIGKILL in sessions of the type `claude_code`; the first three in every run of the tests."""

ENDS = [Cell(14, "session.end_stored"), Cell(14, "sandbox.place_destroyed")]
"""Struck with SIGKILL while a session ends."""

OUTSIDE = ["harness", "sandbox", "session", "nats", "vault_proxy"]
"""Step 7: struck from outside while a command runs."""

PAUSES = [
    Cell(1, "harness.woke"),
    Cell(3, "harness.model_streaming"),
    Cell(6, "harness.call_started"),
    Cell(9, "harness.result_returned"),
    Cell(2, "harness.model_asked"),
    Cell(4, "harness.model_answered"),
    Cell(5, "harness.reply_stored"),
    Cell(10, "harness.result_stored"),
    Cell(13, "harness.run_ended"),
    Cell(15, "harness.sandbox_made"),
    Cell(19, "harness.summary_answered", kind="long"),
    Cell(19, "harness.summary_stored", kind="long"),
]
"""Struck with SIGSTOP, side by side, each in a harness of its own, until others have taken over: the fencing drill."""

SHORT_PAUSES = [
    Cell(1, "session.event_stored", passes=1),
    Cell(6, "sandbox.execution_asked"),
    Cell(8, "sandbox.execution_finished"),
    Cell(11, "vault_proxy.call_asked", kind="shop"),
    Cell(11, "vault_proxy.call_answered", kind="shop"),
    Cell(12, "harness.decision_stored", kind="asked"),
    Cell(15, "sandbox.sandbox_booted"),
]
"""Struck with SIGSTOP for a moment: nobody takes over from these, so all must wait for them and go on."""

AWAY = ["kill openbao", "seal openbao", "stop openbao"]
"""Step 11: nobody can use a credential. Done before a session begins, mended when its turn has ended."""

STOPPED = {"nats": 3.0}
"""Step 7: struck from outside with SIGSTOP for so many seconds while a command runs: longer than NATS is waited for.
The mesh's own services are stopped at points (`SHORT_PAUSES`)."""

ERRORS = {
    "both": (
        "session.session_stored",
        "session.event_stored",
        "session.claim_ended",
        "session.item_removed",
        "harness.woke",
        "harness.model_asked",
        "harness.model_streaming",
        "harness.model_answered",
        "harness.reply_stored",
        "harness.call_started",
        "harness.result_returned",
        "harness.result_stored",
        "harness.sandbox_made",
        "sandbox.sandbox_booted",
        "sandbox.sandbox_made",
        "sandbox.execution_asked",
        "sandbox.execution_finished",
    ),
    "asked": ("harness.decision_stored",),
    "family": ("session.child_started",),
    "shop": ("vault_proxy.call_asked", "vault_proxy.call_answered"),
    "memory": ("session.memory_stored",),
    "long": ("harness.summary_answered", "harness.summary_stored"),
}
"""Struck with a failure, side by side, in sessions of a kind. Where nothing is called there is none: `run_ended`."""


STEPS = (
    "a message is in the log, no harness has the session",
    "a harness has the session, nothing else is done",
    "the model was asked, nothing has come back",
    "the model answers",
    "the answer is whole, and not in the log",
    "the answer is in the log, its calls have not begun",
    "a call is in the log as started, the hand was not asked",
    "a command runs",
    "a command is done, nobody was told",
    "a result has come back, and is not in the log",
    "some results of several are in the log",
    "a server's tool was called",
    "a person or a client is asked",
    "the turn has ended, the claim is held",
    "a session ends",
    "a sandbox is made",
    "a tool of the mesh's own was called",
    "a session of another harness type is at work",
    "a session starts another one and waits for it",
    "the conversation is summarised",
)


def table() -> list[str]:
    """Returns the rows of docs/crash.md: what is done at each step, and to whom."""
    done: dict[int, list[str]] = {step: [] for step in range(len(STEPS))}
    for cell in [*KILLS, *ENDS]:
        done[cell.step].append(f"kill `{cell.point}`{_kind(cell)}")
    done[7] += [f"kill {victim}" for victim in OUTSIDE]
    done[7] += [f"stop {victim} for {seconds:.0f} s" for victim, seconds in STOPPED.items()]
    done[11] += [f"{what} (shop)" for what in AWAY]
    for cell in PAUSES:
        done[cell.step].append(f"stop past the deadline `{cell.point}`{_kind(cell)}")
    for cell in SHORT_PAUSES:
        done[cell.step].append(f"stop for 1 s `{cell.point}`{_kind(cell)}")
    return [f"| {step} | {STEPS[step]} | {', '.join(dict.fromkeys(what))} |" for step, what in done.items()]


def _kind(cell: Cell) -> str:
    return "" if cell.kind == "both" else f" ({cell.kind})"
