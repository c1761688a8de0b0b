"""Reads what the turn at hand is about, for types that need no more of a conversation than that. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from services.harness.blocks import REFERENCE, spelled, text_block
from services.harness.core import Message, Replied, Said
from services.harness.turn.state import State


def asked(state: State) -> list[Message]:
    """Returns the messages that no turn has dealt with, oldest first."""
    return [fact for fact in _since(state) if isinstance(fact, Message)]


def unanswered(state: State) -> list[Message]:
    """Returns those of them that no answer has read, oldest first."""
    read = state.reply.read if state.reply is not None else 0
    return [message for message in asked(state) if message.position > read]


def answers(state: State) -> list[Replied]:
    """Returns what was answered to all of them, oldest first: nothing that was said before the last one came."""
    return [fact for fact in _since(state) if isinstance(fact, Replied) and fact.read >= state.message]


def _since(state: State) -> Iterator[Said]:
    link, found = state.conversation, []
    while link is not None and link.fact.position > state.settled:
        found.append(link.fact)
        link = link.before
    return reversed(found)


def text_of(content: str, blobs: Mapping[str, Sequence[dict[str, Any]]] | None = None) -> str:
    """Returns the text in a content (JSON text of blocks), a paragraph for each block.

    `blobs` are the opened ones (`Shelf.opened`). Of what is no text only its kind is said.
    """
    blocks: list[dict[str, Any]] = []
    for block in json.loads(content):
        opened = (blobs or {}).get(str(block.get("blob_id"))) if block.get("type") == REFERENCE else None
        blocks += [block] if opened is None else opened
    return "\n\n".join(_text(block) for block in blocks)


def content_of(text: str) -> str:
    """Returns a text as content."""
    return spelled([text_block(text)])


def _text(block: Mapping[str, Any]) -> str:
    return str(block["text"]) if block.get("type") == "text" else f"[{str(block.get('type'))[:40]}]"
