"""Puts what was said into the messages of a request, one fact after the other, in the order of cause. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from services.harness import images
from services.harness.blocks import REFERENCE, blank, text_block, whole
from services.harness.core import (
    Attached,
    CallFinished,
    Compacted,
    Detached,
    DoorRefused,
    HandNews,
    Message,
    Replied,
    Said,
    ToolResult,
    Transferred,
)
from services.harness.loops.messages import plain, trimming
from services.harness.loops.messages.policy import Policy
from services.harness.loops.messages.sendable import sendable
from services.harness.loops.messages.told import Block, System, Told, read_by
from services.harness.loops.messages.trimming import THINKING, Tally
from services.harness.turn import refusals
from services.harness.turn.state import State

NO_BLOBS: Mapping[str, Sequence[Block]] = MappingProxyType({})
REFUSED_TURN = "[A turn is left out here: the model refused to answer it.]"
CHANGED = "The instructions of this session have changed. From here on these hold, and no others:\n\n"
NONE_LEFT = "The instructions of this session have been taken back. None hold from here on."
_PICTURES = ("image", "document")


class Telling:
    """The messages so far, and what the next one of the user's will hold. `told` is what it goes on from."""

    def __init__(
        self,
        state: State,
        blobs: Mapping[str, Sequence[Block]],
        policy: Policy,
        start: int,
        tally: Tally,
        fetchable: bool,
        told: Told | None,
    ) -> None:
        self.said: list[Any] = list(told.messages) if told else []
        self.prior = told.prior if told else 0
        self.referred = False  # whether blobs are among what was told
        self.cut = False  # whether some of what was told before is left out
        self._shown = state.plainness
        self._blobs = blobs
        self._policy = policy
        self._start = start
        self._tally = tally
        self._fetchable = fetchable
        self._renditions = {key: self._whole_blocks(content) for key, content in state.renditions.items()}
        self._opening = self._summary(state.compacted) if start else []
        self._asked = told.asked if told else ()  # ids of the last reply's calls, in its order
        self._results: dict[str, tuple[ToolResult, int]] = {}
        self._refusals: list[DoorRefused | HandNews] = list(told.refusals) if told else []
        self._texts: list[Block] = list(told.texts if told else self._opening)
        self._notes: list[Block] = list(told.notes) if told else []  # of thinking that is left out
        self._border = told.border if told else 0  # messages of turns that have ended
        self._system = ""  # one that is said behind the next message
        self._late = told.late if told else None  # the message with the newest one, and its text

    def reached(self, reply: Replied, state: State) -> Told | None:
        """Returns what a view of later goes on with, when this reply was taken last."""
        if self._system:
            return None
        return Told(
            reply,
            self._start,
            self._policy,
            self._fetchable,
            self._tally,
            read_by(state, reply),
            self._shown,
            self.prior,
            self._border,
            self._asked,
            tuple(self._texts),
            tuple(self._refusals),
            tuple(self._notes),
            self._late,
            len(self.said),
        )

    def take(self, fact: Said | System) -> None:
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
            case System(text=text):
                self._system = CHANGED + text if text.strip() else NONE_LEFT

    def ask(self, words: str) -> None:
        """Adds words of the harness at the end."""
        self._texts.append(text_block(words))

    def tell(self) -> None:
        """Ends the user's message. What doors refused, or became of hands, is no reason for one: it waits."""
        results, texts = [self._result(id) for id in self._asked], self._texts
        self._asked, self._results, self._texts = (), {}, []
        if not (results or texts):
            return
        refused: list[Block] = []
        if self._refusals:
            refused = self._degraded(refusals.told(self._refusals), self._refusals[-1].position)
            self._refusals = []
        notes, self._notes = self._notes, []
        self.said.append({"role": "user", "content": results + notes + refused + texts})
        if self._system:
            self._tell_system()

    def _tell_system(self) -> None:
        """Says what has changed behind the user's message, where it leaves what was said before as it is."""
        block = text_block(whole(self._system))
        if self._policy.system_messages:
            self.said.append({"role": "system", "content": [block]})
        else:
            self.said[-1]["content"].append(text_block(f"[{block['text']}]"))
        self._late, self._system = (len(self.said) - 1, self._system), ""

    def _replied(self, fact: Replied) -> None:
        if fact.stop_reason == "refusal":
            self._refused()
            return
        self._asked = tuple(call.id for call in fact.calls)
        blocks = sendable(fact.content)
        if fact.position <= self._shown.upto:
            blocks = plain.reply(blocks, short=fact.position <= self._shown.upto_short)
        elif self._tally.is_cut("thinking", fact.position):
            blocks = self._thoughtless(blocks, fact.position)
        if not blocks and self.said and _is_system(self.said[-1]):
            blocks = [text_block("(no answer)")]  # behind a system message there has to be one
        if blocks:
            self.said.append({"role": "assistant", "content": blocks})
        if not fact.calls and fact.stop_reason != "pause_turn":
            self._border = len(self.said)

    def _refused(self) -> None:
        """Leaves the turn out as a whole, but for what is not of it."""
        if self._late and self._late[0] >= self._border:
            self._system, self._late = self._late[1], None
        del self.said[self._border :]
        self.cut = True
        self.prior = len(self.said)
        self._texts = [*(() if self._border else self._opening), text_block(REFUSED_TURN)]

    def _thoughtless(self, blocks: list[Block], position: int) -> list[Block]:
        kept = [block for block in blocks if block.get("type") not in THINKING]
        if len(kept) == len(blocks):
            return blocks
        self._notes.append(text_block(trimming.cleared_thinking(position, self._fetchable)))
        return kept

    def _result(self, id: str) -> Block:
        result, position = self._results.get(id) or (ToolResult("No result was recorded for this call.", "UNKNOWN"), 0)
        if position and self._tally.is_cut("tool_results", position):
            size = len(result.output) + len(result.content)
            blocks = [text_block(trimming.cleared_result(size, position, self._fetchable))]
        else:
            blocks = self._degraded(self._whole_blocks(result.content), position) if result.content else []
            if not any(block.get("type") == "text" for block in blocks):
                output = text_block(result.output if result.output.strip() else "(no output)")
                blocks[:0] = self._degraded([output], position)
        told: Block = {"type": "tool_result", "tool_use_id": id, "content": blocks}
        if result.outcome != "OK":
            told["is_error"] = True
        return told

    def _summary(self, fact: Compacted | None) -> list[Block]:
        return [whole(block) for block in self._whole_blocks(fact.content) if not blank(block)] if fact else []

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
        kept = [whole(block) for block in blocks if not blank(block)]
        if position <= self._shown.upto:
            return plain.told(kept, short=position <= self._shown.upto_short)
        if self._tally.is_cut("images", position):
            note = text_block(trimming.cleared_image(position, self._fetchable))
            kept = [note if block.get("type") in _PICTURES else block for block in kept]
        return [fit for block in kept for fit in images.fitted(block, self._renditions)]


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message["role"] == "system"
