"""Calls that wait for something that has not come, such as another session's answer: they hold nobody.

Such a call is sent again when the log has grown since it was sent last, as what it waits for may have come, and at its
time. Until then it is as if it were not there; when nothing else is to be done, the session rests.
"""

from __future__ import annotations

from services.harness.turn.core import Action, Rest, RunCalls


class Waits:
    """What waits in one run over a session. Times are Unix time, in seconds."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[int, float]] = {}  # the log's head when it was sent, and until when it waits

    def note(self, call_id: str, head: int, until: float) -> None:
        """Remembers that a call waits. `head` is the log's before it was sent."""
        self._calls[call_id] = (head, until)

    def left(self, action: Action, head: int, now: float, times_out: float | None = None) -> Action:
        """Returns an action without the calls that wait: a rest when that is all.

        `times_out` is when the first of the calls ends that a client has not answered.
        """
        if not isinstance(action, RunCalls):
            return action
        untils: dict[str, float] = {}
        for run in action.calls:
            since, until = self._calls.get(run.call.id, (0, 0.0))
            if since == head and now < until:
                untils[run.call.id] = until
        if not untils:
            return action
        calls = tuple(run for run in action.calls if run.call.id not in untils)
        if calls or action.provision:
            return RunCalls(calls, action.provision)
        return Rest("calls wait for other sessions", min(filter(None, (times_out, *untils.values()))))

    def due(self, now: float) -> float | None:
        """Returns the next moment after `now` at which a call is sent again."""
        return min((until for _, until in self._calls.values() if until > now), default=None)
