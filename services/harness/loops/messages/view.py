"""Makes the request to the model from the log: `view(state) -> request`, the same for the same log.

A reply stands where it was caused: behind everything that it had read, before what landed while it was written.
Between two replies the model is told the results of the first one's calls, then what doors of its hands have refused,
then the messages, each in order.

What the API would not take is never sent: empty text, thinking at a message's end, images beyond its limits (see
`images`). A turn that the model refused is left out as a whole: with it in sight every later answer is refused too.
What the API has refused all the same is shown in plainer words (see `plain`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from services.harness import images
from services.harness.blocks import REFERENCE, text_block
from services.harness.core import (
    Attached,
    CallFinished,
    Detached,
    DoorRefused,
    HandNews,
    Message,
    Replied,
    Said,
    ToolResult,
    Transferred,
)
from services.harness.loops.messages import plain, refusals
from services.harness.loops.messages.told import Block, Head, Spelled, Told, cause, conversation, read_by, since
from services.harness.turn.policies import routes_of
from services.harness.turn.state import State

MAX_OUTPUT_TOKENS = 16_384  # of one answer, when the session names no other
NO_BLOBS: Mapping[str, Sequence[Block]] = MappingProxyType({})
REFUSED_TURN = "[A turn is left out here: the model refused to answer it.]"
LEFT_OUT = "[an image of before is left out here: a request holds only the newest ones]"
_THINKING = frozenset({"thinking", "redacted_thinking"})


class Kept(list[Block]):
    """A reply's blocks, and the text of all of them as the model wrote it."""

    def __init__(self, blocks: Sequence[Block], text: str) -> None:
        super().__init__(blocks)
        self.text = text


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


def view(
    state: State,
    newest_model: str,
    blobs: Mapping[str, Sequence[Block]] = NO_BLOBS,
    told: Told | None = None,
) -> View:
    """Returns the parts of a Messages API request, without cache markers.

    `newest_model` is used when the session names none. `blobs` holds the blocks that take the place of each reference,
    by the blob's id. `told` is what a request before has left, if anything is: it saves time.
    """
    fresh = since(state, told)
    before = None if fresh is None else told
    ordered = sorted(conversation(state) if fresh is None else fresh, key=cause)
    last = next((fact for fact in reversed(ordered) if isinstance(fact, Replied)), None)
    telling = _Telling(state, blobs, before)
    reached = before
    for fact in ordered:
        telling.take(fact)
        if fact is last:
            reached = telling.reached(last, state)
    telling.tell()
    pictured = _within_limits(telling.said)
    head = told.head if told and told.head and told.head.is_of(state, newest_model) else _head(state, newest_model)
    request = {**head.parts, "messages": telling.said}
    reached = None if pictured or telling.referred else reached
    return View(request, telling.prior, head, None if telling.cut else before, reached)


def _head(state: State, newest_model: str) -> Head:
    parts: dict[str, Any] = {
        "model": state.config.model or newest_model,
        "max_tokens": state.config.max_output_tokens or MAX_OUTPUT_TOKENS,
    }
    if tools := _tools(state):
        parts["tools"] = tools
    if state.config.system.strip():
        parts["system"] = [text_block(_whole(state.config.system))]
    return Head(state.config, state.offers, parts)


def _tools(state: State) -> list[Block]:
    specs = [spec for _, _, spec in routes_of(state).values()] + list(state.config.custom_tools)
    return [spec.definition() for spec in specs]


class _Telling:
    """The messages so far, and what the next one of the user's will hold."""

    def __init__(self, state: State, blobs: Mapping[str, Sequence[Block]], told: Told | None) -> None:
        self.said: list[Any] = list(told.messages) if told else []
        self.prior = told.prior if told else 0
        self.referred = False  # whether blobs are among what was told
        self.cut = False  # whether some of what was told before is left out
        self._shown = state.plainness
        self._blobs = blobs
        self._renditions = {key: self._whole_blocks(content) for key, content in state.renditions.items()}
        self._asked = told.asked if told else ()  # ids of the last reply's calls, in its order
        self._results: dict[str, tuple[ToolResult, int]] = {}
        self._refusals: list[DoorRefused | HandNews] = list(told.refusals) if told else []
        self._texts: list[Block] = list(told.texts) if told else []
        self._border = told.border if told else 0  # messages of turns that have ended

    def reached(self, reply: Replied, state: State) -> Told:
        """Returns what a view of later goes on with, when this reply was taken last."""
        return Told(
            reply,
            read_by(state, reply),
            self._shown,
            self.prior,
            self._border,
            self._asked,
            tuple(self._texts),
            tuple(self._refusals),
            len(self.said),
        )

    def take(self, fact: Said) -> None:
        """Takes the next fact, in the order of cause."""
        match fact:
            case Message(content=content, position=position):
                self._texts += self._degraded(self._whole_blocks(content), position) or [text_block("(empty message)")]
            case CallFinished(id=id, result=result, position=position):
                self._results[id] = result, position
            case DoorRefused() | Attached() | Transferred() | Detached():
                self._refusals.append(fact)
            case Replied():
                self.tell()
                self.prior = len(self.said)
                self._replied(fact)

    def tell(self) -> None:
        """Ends the user's message. What doors refused, or became of hands, is no reason for one: it waits."""
        results, texts = [self._result(id) for id in self._asked], self._texts
        self._asked, self._results, self._texts = (), {}, []
        refused: list[Block] = []
        if self._refusals and (results or texts):
            refused = self._degraded(refusals.told(self._refusals), self._refusals[-1].position)
            self._refusals = []
        if blocks := results + refused + texts:
            self.said.append({"role": "user", "content": blocks})

    def _replied(self, fact: Replied) -> None:
        if fact.stop_reason == "refusal":
            del self.said[self._border :]
            self.cut = True
            self.prior = len(self.said)
            self._texts = [text_block(REFUSED_TURN)]
            return
        self._asked = tuple(call.id for call in fact.calls)
        blocks = _sendable(fact.content)
        if fact.position <= self._shown.upto:
            blocks = plain.reply(blocks, short=fact.position <= self._shown.upto_short)
        if blocks:
            self.said.append({"role": "assistant", "content": blocks})
        if not fact.calls and fact.stop_reason != "pause_turn":
            self._border = len(self.said)

    def _result(self, id: str) -> Block:
        result, position = self._results.get(id) or (ToolResult("No result was recorded for this call.", "UNKNOWN"), 0)
        blocks = self._degraded(self._whole_blocks(result.content), position) if result.content else []
        if not any(block.get("type") == "text" for block in blocks):
            output = text_block(result.output if result.output.strip() else "(no output)")
            blocks[:0] = self._degraded([output], position)
        told: Block = {"type": "tool_result", "tool_use_id": id, "content": blocks}
        if result.outcome != "OK":
            told["is_error"] = True
        return told

    def _whole_blocks(self, content: str) -> list[Block]:
        """Returns a content's blocks, those of blobs in their places; one that nobody has looked up is only named."""
        found: list[Block] = []
        for block in json.loads(content):
            if block.get("type") == REFERENCE:
                self.referred = True
                name = str(block.get("blob_id"))
                found += self._blobs.get(name) or [text_block(f"[blob {name}]")]
            else:
                found.append(block)
        return found

    def _degraded(self, blocks: Sequence[Block], position: int) -> list[Block]:
        """Returns blocks as the API takes them, and plainly as far as it has refused that too."""
        whole = [_whole(block) for block in blocks if not _blank(block)]
        if position <= self._shown.upto:
            return plain.told(whole, short=position <= self._shown.upto_short)
        return [fit for block in whole for fit in images.fitted(block, self._renditions)]


def _sendable(content: str) -> list[Block]:
    """Returns a reply's blocks as the API takes them back: those that it gave, but for what it would refuse."""
    blocks: list[Block] = json.loads(content)
    kept = [block for block in blocks if not _blank(block)]
    while kept and kept[-1].get("type") in _THINKING:
        kept.pop()
    if len(kept) == len(blocks) and ("\\u" not in content.lower() or _encodes(blocks)):
        return Kept(blocks, content)
    return [block if block.get("type") in _THINKING else _whole(block) for block in kept]


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(value: Any) -> Any:
    """Puts a replacement for every half of a character: no JSON on the wire can hold one."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in value.items()}
    return value


def _blank(block: Block) -> bool:
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


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
