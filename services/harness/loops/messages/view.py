"""Makes the request to the model from the log: `view(state, policy) -> request`, the same for the same log.

A reply stands where it was caused: behind everything that it had read, before what landed while it was written.
Between two replies the model is told the results of the first one's calls, then what doors of its hands have refused,
then the messages, each in order. What is before a summary is not told; its first message is the summary.

What the API would not take is never sent: empty text, thinking at a message's end, images beyond its limits (see
`images`). A turn that the model refused is left out as a whole: with it in sight every later answer is refused too.
What the API has refused all the same is shown in plainer words (see `plain`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.harness import images
from services.harness.blocks import text_block, whole
from services.harness.core import Replied
from services.harness.loops.messages.policy import DEFAULT, Policy
from services.harness.loops.messages.telling import NO_BLOBS, Telling
from services.harness.loops.messages.told import (
    Block,
    Head,
    Spelled,
    Told,
    cause,
    conversation,
    since,
    start_of,
    systems,
)
from services.harness.loops.messages.trimming import NOTHING, tallied
from services.harness.turn.policies import routes_of
from services.harness.turn.state import State

MAX_OUTPUT_TOKENS = 16_384  # of one answer, when the session names no other
LEFT_OUT = "[an image of before is left out here: a request holds only the newest ones]"
FETCHING = "session_events"  # the tool that reads the log


@dataclass(frozen=True)
class View:
    """What the model is told. `prior` counts the messages that the request before had; 0 for the first one.

    `before` is what it goes on from, and `told` what the next one can go on from: both without effect on what is told.
    """

    request: dict[str, Any]
    prior: int
    head: Head
    before: Told | None = None
    told: Told | None = None


@dataclass(frozen=True)
class Summary:
    """A request for a summary of what was said before position `end`, in the harness's words."""

    end: int
    words: str


def view(
    state: State,
    newest_model: str,
    blobs: Mapping[str, Sequence[Block]] = NO_BLOBS,
    told: Told | None = None,
    policy: Policy = DEFAULT,
    summary: Summary | None = None,
) -> View:
    """Returns the parts of a Messages API request, without cache markers.

    `newest_model` is used when the session names none. `blobs` holds the blocks that take the place of each reference,
    by the blob's id. `told` is what a request before has left, if anything is: it saves time. A `summary` goes on from
    nothing, and nothing goes on from it.
    """
    fetches = fetchable(state, policy)
    fresh = None if summary else since(state, told, policy, fetches)
    before = None if fresh is None else told
    start = start_of(state, policy)
    facts = conversation(state, start=start) if fresh is None else fresh
    text, changes = systems(state, start, before.reply if before else None)
    ordered = sorted([*facts, *changes], key=cause)
    if summary:
        ordered = [fact for fact in ordered if cause(fact) < (summary.end, 0)]
    place = max((place for place, fact in enumerate(ordered) if isinstance(fact, Replied)), default=-1)
    tally = tallied(before.tally if before else NOTHING, ordered[: place + 1], policy.trims)
    if before is not None and tally.cuts != before.tally.cuts:
        return view(state, newest_model, blobs, None, policy)
    telling = Telling(state, blobs, policy, start, tally, fetches, before)
    reached = before
    for number, fact in enumerate(ordered):
        telling.take(fact)
        if number == place and isinstance(fact, Replied):
            reached = telling.reached(fact, state)
    if summary:
        telling.ask(summary.words)
    telling.tell()
    pictured = _within_limits(telling.said)
    head = told.head if told else None
    if head is None or not head.is_of(state, newest_model, start):
        head = _head(state, newest_model, start, text, policy)
    request = {**head.parts, "messages": telling.said}
    reached = None if pictured or telling.referred or summary else reached
    return View(request, telling.prior, head, None if telling.cut else before, reached)


def fetchable(state: State, policy: Policy) -> bool:
    """Tells whether the model can fetch what is cut."""
    return bool(policy.trims) and FETCHING in routes_of(state)


def _head(state: State, newest_model: str, start: int, system: str, policy: Policy) -> Head:
    parts: dict[str, Any] = {
        "model": state.config.model or newest_model,
        "max_tokens": state.config.max_output_tokens or MAX_OUTPUT_TOKENS,
    }
    if policy.edits:
        parts["context_management"] = {"edits": json.loads(policy.edits)}
    if tools := _tools(state):
        parts["tools"] = tools
    if system.strip():
        parts["system"] = [text_block(whole(system))]
    return Head(state.config, state.offers, start, parts)


def _tools(state: State) -> list[Block]:
    specs = [spec for _, _, spec in routes_of(state).values()] + list(state.config.custom_tools)
    return [spec.definition() for spec in specs]


def _within_limits(said: Sequence[Any]) -> bool:
    """Leaves out the oldest images when there are more than a request may hold. Tells whether there are any."""
    messages = [message for message in said if not isinstance(message, Spelled) and message["role"] == "user"]
    found = [(blocks, place) for message in messages for blocks, place in _pictures(message)]
    sizes = [len(str(blocks[place]["source"].get("data", ""))) for blocks, place in found]
    for blocks, place in found[: images.dropped(sizes)]:
        blocks[place] = text_block(LEFT_OUT)
    return bool(found)


def _pictures(message: Block) -> list[tuple[list[Block], int]]:
    """Finds a message's images and documents: the list that each is in, and its place there."""
    lists = [message["content"]]
    found: list[tuple[list[Block], int]] = []
    for block in message["content"]:
        if block.get("type") == "tool_result":
            lists.append(block["content"])
    for blocks in lists:
        for place, block in enumerate(blocks):
            if block.get("type") in ("image", "document") and isinstance(block.get("source"), dict):
                found.append((blocks, place))
    return found
