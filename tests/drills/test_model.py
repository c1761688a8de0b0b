"""The service against a model of it: whatever callers do, in whatever order, both agree, and the log stays sound."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.kit.errors import ServiceError
from services.kit.identity import Caller
from services.session.__main__ import parts
from services.session.log import Store
from services.session.logs.memory import make
from services.session.reader import Page
from services.session.server import Parts
from services.session.slices import Ask
from services.session.verify import check, check_acknowledged
from tests.drills.process import seen
from tests.drills.size import size
from tests.session.running import WOKE, finished, message, note, replied, turn_ended

pytestmark = pytest.mark.timeout(3_600)

EXAMPLES = size(200, 2_000)
STEPS = 50
CLIENT = Caller("client", "default")
HARNESS = Caller("harness")


@dataclass
class Model:
    """What must be true of a session: its events' ids in order, and what callers have been promised."""

    session: str
    ids: list[str] = field(default_factory=lambda: ["session_started"])
    epoch: int = 0
    calls: list[str] = field(default_factory=list)  # open tool calls
    settled: list[str] = field(default_factory=list)
    ended: bool = False
    said: list[tuple[Caller, list[ev.Event], int, int]] = field(
        default_factory=list
    )  # what was acknowledged, and where

    @property
    def head(self) -> int:
        return len(self.ids)


class Service(RuleBasedStateMachine):
    """Appends of clients and harnesses, right and wrong, repeats, restarts and doubts, over three sessions."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._names = itertools.count()
        self._models: list[Model] = []
        self._store: Store
        self._parts: Parts

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    @initialize()
    def start(self) -> None:
        self._store = self._run(self._stack.enter_async_context(make()))
        self._parts = parts(self._store)
        for _ in range(3):
            made = self._run(self._parts.sessions.create(CLIENT, pb.CreateSessionRequest()))
            self._models.append(Model(made.session_id))

    def _name(self) -> str:
        return f"e{next(self._names)}"

    def _emit(
        self, model: Model, caller: Caller, events: list[ev.Event], epoch: int = 0, expected: int | None = None
    ) -> str:
        """Emits, and returns the reason of a refusal or nothing; what was taken is the model's from then on."""
        for event in events:
            event.event_id = event.event_id or self._name()
        copies = [ev.Event.FromString(event.SerializeToString()) for event in events]
        try:
            emitted = self._run(self._parts.sessions.emit(caller, model.session, events, expected, epoch))
        except ServiceError as refused:
            return refused.reason
        appended = emitted.appended
        assert not appended.duplicate and appended.first_position == model.head + 1
        model.ids += [event.event_id for event in copies]
        model.said.append((caller, copies, epoch, appended.first_position))
        return ""

    which = st.integers(0, 2)

    @rule(at=which, count=st.integers(1, 16), expects=st.sampled_from([None, 0, -1, 1]))
    def client_speaks(self, at: int, count: int, expects: int | None) -> None:
        """A client's messages and notes: one or a batch, with the right, a stale or a future expectation."""
        model = self._models[at]
        events = [message() if number % 2 else note() for number in range(count)]
        expected = None if expects is None else model.head + expects
        reason = self._emit(model, CLIENT, events, expected=expected)
        assert reason == ("SESSION_ENDED" if model.ended else "POSITION_CONFLICT" if expects else "")

    @rule(at=which, behind=st.integers(0, 2))
    def harness_wakes(self, at: int, behind: int) -> None:
        """A harness takes the session up, having read all of it or less."""
        model = self._models[at]
        reason = self._emit(model, HARNESS, [ev.Event(harness_woke=WOKE)], expected=max(0, model.head - behind))
        if model.ended:
            assert reason == "SESSION_ENDED"
        elif behind and model.head:
            assert reason == "POSITION_CONFLICT"
        else:
            assert reason == ""
            model.epoch = model.head

    @precondition(lambda self: any(model.epoch for model in self._models))
    @rule(at=which, stale=st.booleans(), calls=st.integers(0, 3), again=st.booleans())
    def model_replies(self, at: int, stale: bool, calls: int, again: bool) -> None:
        """The model replies in the current epoch or an old one, with new tool calls or one that was made before."""
        model = self._models[at]
        names = [self._name() for _ in range(calls)]
        known = model.calls + model.settled
        repeats = again and bool(known)
        reason = self._emit(
            model, HARNESS, [replied(*names, *known[:1] * repeats)], model.epoch - 1 if stale else model.epoch
        )
        if model.ended:
            assert reason == "SESSION_ENDED"
        elif stale or not model.epoch:
            assert reason == "EPOCH_STALE"
        elif repeats:
            assert reason == "TOOL_CALL_SETTLED"
        else:
            assert reason == ""
            model.calls += names

    @precondition(lambda self: any(model.epoch for model in self._models))
    @rule(at=which, sort=st.sampled_from(["open", "settled", "unknown"]))
    def tool_finishes(self, at: int, sort: str) -> None:
        """A result for an open call, a settled one, or one that nobody made."""
        model = self._models[at]
        known = {"open": model.calls, "settled": model.settled, "unknown": []}[sort]
        call = known[0] if known else "nobody"
        reason = self._emit(model, HARNESS, [finished(call)], model.epoch)
        if model.ended:
            assert reason == "SESSION_ENDED"
        elif not model.epoch:
            assert reason == "EPOCH_STALE"
        elif call in model.calls:
            assert reason == ""
            model.calls.remove(call)
            model.settled.append(call)
        else:
            assert reason == ("TOOL_CALL_SETTLED" if call in model.settled else "TOOL_CALL_UNKNOWN")

    @rule(at=which)
    def turn_ends(self, at: int) -> None:
        """A turn ends once its calls have their results."""
        model = self._models[at]
        if model.epoch and not model.ended and not model.calls:
            assert self._emit(model, HARNESS, [turn_ended(model.head)], model.epoch) == ""
            mark = self._run(self._parts.writer._marks.read(model.session))
            assert mark.position == model.head

    @precondition(lambda self: any(model.said for model in self._models))
    @rule(at=which, which_one=st.integers(0, 10_000))
    def somebody_repeats(self, at: int, which_one: int) -> None:
        """What was acknowledged is said again, at any later time: the same answer, and nothing is appended."""
        model = self._models[at]
        if model.said:
            caller, events, epoch, position = model.said[which_one % len(model.said)]
            copies = [ev.Event.FromString(event.SerializeToString()) for event in events]
            if events[0].HasField("harness_woke") and position != model.epoch:
                return  # an old epoch's grant is not given out again
            emitted = self._run(self._parts.sessions.emit(caller, model.session, copies, None, epoch))
            assert (emitted.appended.duplicate, emitted.appended.first_position) == (True, position)

    @rule()
    def service_restarts(self) -> None:
        """Another process takes over the store."""
        self._run(self._parts.finish())
        self._parts = parts(self._store)

    @rule()
    def store_was_away(self) -> None:
        """What is remembered is compared with the store again."""
        self._parts.writer.doubt()

    @precondition(lambda self: len(self._models) == 3 and sum(model.ended for model in self._models) < 2)
    @rule(at=which)
    def session_ends(self, at: int) -> None:
        """A session ends; again changes nothing."""
        model = self._models[at]
        self._run(self._parts.sessions.end(model.session, "", "default"))
        if not model.ended:
            model.ended = True
            model.ids.append(self._read(model)[-1].event_id)

    @rule(at=which, start=st.integers(1, 60), span=st.integers(0, 60), last=st.integers(0, 5), back=st.booleans())
    def somebody_reads(self, at: int, start: int, span: int, last: int, back: bool) -> None:
        """A slice has the ids of its positions, forwards or backwards."""
        model = self._models[at]
        ask = Ask(start=start, end=start + span, last=last, descending=back, page_size=1_000)
        page: Page = self._run(self._parts.reader.page(model.session, ask))
        positions = range(start, min(start + span, model.head + 1))
        expected = [model.ids[position - 1] for position in (positions[-last:] if last else positions)]
        assert [event.event_id for event in page.events] == (expected[::-1] if back else expected)
        assert page.last_position == model.head

    def _read(self, model: Model) -> list[ev.Event]:
        page: Page = self._run(self._parts.reader.page(model.session, Ask(page_size=1_000)))
        return list(page.events)

    def teardown(self) -> None:
        """At the end of each run the whole of every log is read and checked."""
        for model in self._models:
            events = self._read(model)
            assert [event.event_id for event in events] == model.ids
            acknowledged = {
                event.event_id: first + number for _, said, _, first in model.said for number, event in enumerate(said)
            }
            assert check(seen(events)) + check_acknowledged(seen(events), acknowledged) == []
            report = self._run(self._parts.verifier.verify(model.session, "default"))
            assert report.violations == [] and report.last_position == model.head
        if self._models:
            self._run(self._parts.finish())
            self._run(self._stack.aclose())
        self._loop.close()


def test_the_service_does_what_the_model_says() -> None:
    """200 runs of 50 steps, over the store in memory: what JetStream does otherwise is in its conformance suite."""
    run_state_machine_as_test(
        Service,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
