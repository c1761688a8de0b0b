"""Traces: which work belongs together, in whatever process it is done. Costs next to nothing until `start`.

    with tracing.span("execute_tool bash", {"gen_ai.tool.name": "bash"}) as span:
        span.set({"handmesh.outcome": "OK"})
    tracing.current()            # the `traceparent` of what is being done, or ""
    tracing.continue_from(text)  # what follows in this task belongs to that

A `traceparent` is handed on, and kept in events, whether or not this process records spans. Spans and log lines have
ids, names of tools and models, numbers and reasons: never content, and nothing that a person wrote.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from services.kit.errors import ServiceError

TRACEPARENT = "traceparent"  # in a call's metadata
INTERNAL, SERVER, CLIENT = "INTERNAL", "SERVER", "CLIENT"  # kinds of spans

_WORD = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
NONE: Attributes = {}

_parent: contextvars.ContextVar[str] = contextvars.ContextVar("traceparent", default="")
_session: contextvars.ContextVar[str] = contextvars.ContextVar("session_id", default="")


class Span:
    """A piece of work. This one is not recorded, and changes nothing; one that is recorded extends it."""

    __slots__ = ()

    def set(self, attributes: Attributes) -> None:
        """Says more about the work."""

    def fail(self, reason: str) -> None:
        """Says that the work failed, for a reason that is one of few words."""

    def end(self) -> None:
        """Ends the work, where it was not begun with `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Recording(Protocol):
    """A span as the SDK records it, which only the exporter's module imports."""

    def set_attributes(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def end(self) -> None:
        """Hands the span to the exporter. Never waits."""


class Recorder(Protocol):
    """Makes spans and sends them away in the background. What cannot be sent is dropped; nobody waits or fails."""

    def begin(
        self, name: str, kind: str, parent: str, attributes: Attributes, *, outside: bool, since: int = 0
    ) -> tuple[Recording, str]:
        """Begins a span and returns it with its traceparent. `outside` is a parent that a client has sent; `since`
        when it began (Unix time, nanoseconds), if not now."""

    def failed(self, recording: Recording) -> None:
        """Marks a span as failed. Without a word: messages may hold what nobody is to read."""

    def stop(self, seconds: float) -> None:
        """Sends what is left, for at most so long, and waits for that."""


NOTHING = Span()
_recorder: Recorder | None = None


def start(recorder: Recorder | None) -> None:
    """Records spans from now on, or none any more."""
    global _recorder
    _recorder = recorder


def recorder() -> Recorder | None:
    """Returns what records spans in this process, if anything does."""
    return _recorder


def span(name: str, attributes: Attributes = NONE, *, kind: str = INTERNAL) -> Span:
    """Begins work that is part of what is being done. Whatever is done within `with` is part of it.

    Work that belongs to nothing is not recorded: a trace begins with a client's call.
    """
    if _recorder is None:
        return NOTHING
    parent = _parent.get()
    return Live(_recorder, name, kind, parent, attributes) if parent else NOTHING


def current() -> str:
    """Returns the `traceparent` of what is being done in this task, or nothing."""
    return _parent.get()


def trace_id() -> str:
    """Returns the id of the trace that is being written, or nothing."""
    return _parent.get()[3:35]


def session_id() -> str:
    """Returns the session that the work at hand is about, or nothing."""
    return _session.get()


def continue_from(traceparent: str) -> None:
    """Makes what follows in this task, and in the tasks that it makes, part of other work. Bad ones count as none."""
    _parent.set(traceparent if _FORM.fullmatch(traceparent) else "")


def word(text: str) -> str:
    """Returns an id or a name as it may be told. What has the look of neither is not told."""
    return text if _WORD.fullmatch(text) else "_other"


def about(session_id: str) -> None:
    """Says which session the rest of this task is about: log lines name it."""
    _session.set(session_id)


class Live(Span):
    """A span that is recorded. Becomes the current one within `with`."""

    __slots__ = ("_failed", "_recorder", "_recording", "_token", "traceparent")

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        kind: str,
        parent: str,
        attributes: Attributes,
        *,
        outside: bool = False,
        since: int = 0,
    ) -> None:
        self._recorder = recorder
        self._recording, self.traceparent = recorder.begin(name, kind, parent, attributes, outside=outside, since=since)
        self._token: contextvars.Token[str] | None = None
        self._failed = False

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self._recording.set_attributes(attributes)

    def fail(self, reason: str) -> None:
        """Marks the span as failed. The first reason counts."""
        if self._failed:
            return
        self._failed = True
        self._recording.set_attributes({"error.type": reason})
        self._recorder.failed(self._recording)

    def end(self) -> None:
        """Ends the span."""
        self._recording.end()

    def __enter__(self) -> Self:
        self._token = _parent.set(self.traceparent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _parent.reset(self._token)
        if isinstance(problem, Exception):
            self.fail(problem.reason if isinstance(problem, ServiceError) else type(problem).__name__)
        elif problem is not None:
            self.set({"handmesh.cancelled": True})
        self.end()
