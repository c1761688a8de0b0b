"""What was told before saves time and changes nothing: requests are the same, byte for byte, without it."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from services.harness.core import (
    CallFinished,
    Compacted,
    Config,
    Configured,
    DoorRefused,
    Ended,
    Fact,
    Message,
    Offered,
    Other,
    Rendered,
    Replied,
    Retry,
    Started,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.harness.loops.messages import compaction
from services.harness.loops.messages.policy import DEFAULT, Policy, policy_of
from services.harness.loops.messages.request import Request, written
from services.harness.loops.messages.told import Told, since
from services.harness.loops.messages.view import view
from services.harness.model_profiles import NEW, SMALL
from services.harness.turn.state import State, fold, fold_all
from services.harness.usage import Usage
from tests.harness.test_view import png, text

STOPS = ("end_turn", "end_turn", "tool_use", "tool_use", "tool_use", "tool_use", "pause_turn", "refusal", "max_tokens")
SPEC = ToolSpec("bash", "Runs a command.", '{"type":"object"}')


TRIMS = {kind: {"above": 500, "keep": 2, "at_least": 20} for kind in ("tool_results", "thinking", "images")}
POLICIES = [
    policy_of("", SMALL),
    policy_of(json.dumps({"trim": TRIMS}), NEW),
    policy_of(json.dumps({"ignore": True, "trim": TRIMS}), SMALL),
]


def asked(state: State, told: Told | None, policy: Policy = DEFAULT) -> Request:
    """Makes a request with what was told before, which has to be the one that is made without."""
    request = written(view(state, "m", told=told, policy=policy))
    assert request == written(view(state, "m", policy=policy))
    return request


class Story:
    """A log that grows by chance, and asks the model now and then."""

    def __init__(self, seed: int, rare: float, policy: Policy = DEFAULT) -> None:
        self.policy = policy
        self.steps: set[tuple[int, ...]] = set()  # what was trimmed, each time that something was
        self.dice = random.Random(seed)
        self.rare = rare  # how often something comes that forbids to go on from what was told
        self.state = State()
        self.told: Told | None = None
        self.calls: list[ToolCall] = []
        self.went_on = 0  # requests that went on from the one before
        self.add(Started(0, Config(system="Be good.")))
        self.add(Offered(0, "main", (SPEC,)))

    def add(self, fact: Fact) -> None:
        self.state = fold(self.state, replace(fact, position=self.state.head + 1))

    def ask(self) -> None:
        """Asks; things happen before the answer comes, which may be none."""
        self.went_on += since(self.state, self.told, self.policy) is not None
        self.told = asked(self.state, self.told, self.policy).told
        if self.told:
            self.steps.add(tuple(self.told.tally.cuts.values()))
        read = self.state.head
        while self.dice.random() < 0.3:
            self.happen()
        if self.dice.random() < self.rare and compaction.possible(self.state, POLICIES[0]) and not self.calls:
            self.add(Compacted(0, compaction.end_of(self.state), text(f"summary {read}")))
            return
        if self.dice.random() < 0.1:
            self.add(Retry(0, 1, 0.0, self.dice.choice(["MODEL_REQUEST_REFUSED", "CONTEXT_FULL", "MODEL_OVERLOADED"])))
            return
        stop = self.dice.choice(STOPS)
        said = self.dice.choice(["", " ", f"said {read}", "\\ud800", "x" * 50])
        blocks: list[dict[str, object]] = [{"type": "text", "text": said}] if self.dice.random() < 0.8 else []
        if self.dice.random() < 0.5:
            blocks.insert(0, {"type": "thinking", "thinking": "hm", "signature": "s"})
        self.calls = [ToolCall(f"t{read}.{n}", "bash", "{}") for n in range(2 if stop == "tool_use" else 0)]
        blocks += [{"type": "tool_use", "id": call.id, "name": "bash", "input": {}} for call in self.calls]
        used = Usage(self.dice.randrange(700), 10)
        self.add(Replied(0, json.dumps(blocks), stop, read, tuple(self.calls), used))
        if self.dice.random() < 0.5 and not self.calls:
            self.add(Ended(0, "DONE", self.state.head))

    def happen(self) -> None:
        """Lets something come from outside."""
        if self.dice.random() < self.rare:
            rare = [
                Message(0, json.dumps([png(), {"type": "text", "text": "look"}])),
                Rendered(0, "0" * 64, text("smaller")),
                Configured(0, Config(system=self.dice.choice(["Be good.", "Be bad."]))),
                Message(0, json.dumps([{"type": "handmesh_blob", "blob_id": "blob_1", "media_type": "text/plain"}])),
            ]
            self.add(self.dice.choice(rare))
            return
        match self.dice.randrange(4):
            case 0:
                self.add(Message(0, text(f"message {self.state.head}")))
            case 1 if self.calls:
                self.add(CallFinished(0, self.calls.pop().id, ToolResult(f"out {self.state.head}")))
            case 2:
                self.add(DoorRefused(0, "egress", f"h{self.state.head}:443", "EGRESS_DENIED", "not on the list"))
            case _:
                self.add(Other(0))


@pytest.mark.parametrize("rare", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(45))
def test_a_request_is_the_same_whatever_was_told(seed: int, rare: float) -> None:
    """Over messages, results, refusals, retries, images, blobs, summaries and other configurations, in any order."""
    story = Story(seed, rare, POLICIES[seed % len(POLICIES)])
    for _ in range(60):
        story.happen()
        story.happen()
        story.ask()
    assert story.went_on > 10 or rare
    assert len(story.steps) > 1 or rare or not story.policy.trims


def test_what_was_told_is_of_no_use_for_another_log() -> None:
    """A log that was read anew has other facts, even where they say the same: its view begins anew."""
    facts = [Started(1, Config()), Message(2, text("a")), Replied(3, text("b"), "end_turn", 2), Message(4, text("c"))]
    told = asked(fold_all(facts), None).told
    again = fold_all(replace(fact) for fact in facts)
    assert told is not None
    assert since(again, told) is None
    asked(again, told)


def test_what_is_told_anew_does_not_grow_with_the_log() -> None:
    """After a hundred turns a view takes what came since the reply before, and no more."""
    state, told = fold_all([Started(1, Config())]), None
    for turn in range(100):
        state = fold(state, Message(state.head + 1, text(f"message {turn}")))
        told = asked(state, told).told
        state = fold(state, Replied(state.head + 1, text("answer"), "end_turn", state.head))
    assert len(since(state, told) or ()) == 2


@pytest.mark.parametrize("other", range(1, len(POLICIES)))
def test_what_was_told_by_another_policy_is_of_no_use(other: int) -> None:
    """A policy can change at a turn's end: the view begins anew."""
    for seed in range(20):
        story = Story(seed, 0.05)
        for _ in range(20):
            story.happen()
            story.ask()
        asked(story.state, story.told, POLICIES[other])
        if story.told:
            assert since(story.state, story.told, POLICIES[other]) is None
