"""Counts tokens plausibly: sizes stand in for a tokenizer, and prefixes seen before are read from the cache.

The arithmetic is the API's: `input_tokens` is what lies behind the last breakpoint, the rest of the prompt is either
read from the cache or written to it, and the three add up to the whole prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from handmesh.scripted_model.breakpoints import segments

BYTES_PER_TOKEN = 4
TOKENS_PER_IMAGE = 1_500
TOKENS_PER_SEGMENT = 3  # what a block costs beside its text
MIN_CACHED_TOKENS = 1_024  # a shorter prefix is not cached, as in the API
CACHED_PREFIXES = 4_096
LOOKBACK = 20  # blocks before a breakpoint at which an older breakpoint is looked for
SECONDS = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True)
class Usage:
    """Tokens of one request. `input_tokens` are those that the cache had no part in."""

    input_tokens: int
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_5m_input_tokens: int = 0
    cache_1h_input_tokens: int = 0
    thinking_tokens: int = 0

    @property
    def cache_creation_input_tokens(self) -> int:
        """Returns the tokens written to the cache."""
        return self.cache_5m_input_tokens + self.cache_1h_input_tokens


def tokens_of_text(text: str) -> int:
    """Returns a plausible number of tokens: one for each four bytes, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


@dataclass(frozen=True)
class _Link:
    """The prompt up to and with one block: its digest, its tokens, and the block's marker."""

    digest: bytes
    tokens: int
    ttl: str | None


def _chain(request: dict[str, Any]) -> list[_Link]:
    digest, tokens, links = hashlib.sha256(request["model"].encode()), 0, []
    for segment in segments(request):
        text = json.dumps(segment.value, sort_keys=True, separators=(",", ":"))
        digest.update(text.encode())
        tokens += TOKENS_PER_SEGMENT + _tokens_of_block(segment.value)
        links.append(_Link(digest.digest(), tokens, segment.ttl))
    return links


def _tokens_of_block(block: dict[str, Any]) -> int:
    match block.get("type"):
        case "image":
            return TOKENS_PER_IMAGE
        case "text":
            return tokens_of_text(str(block.get("text")))
        case "tool_result" if isinstance(block.get("content"), list):
            return sum(map(_tokens_of_block, block["content"]))
        case _:
            return tokens_of_text(json.dumps(block, ensure_ascii=False))


def count_tokens(request: dict[str, Any]) -> int:
    """Returns the tokens of the whole prompt: tools, system and messages."""
    chain = _chain(request)
    return chain[-1].tokens if chain else 0


class PrefixCache:
    """Remembers which prompt prefixes were stored, for as long as their marker says and at most `capacity` of them."""

    def __init__(self, capacity: int = CACHED_PREFIXES, minimum: int = MIN_CACHED_TOKENS) -> None:
        self._capacity = capacity
        self._minimum = minimum
        self._expiry: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # digest -> (when it lapses, its ttl)

    def account(self, request: dict[str, Any], now: float) -> Usage:
        """Returns the input side of a request's usage and stores its prefixes; `now` in seconds, of any one clock."""
        chain = _chain(request)
        marks = [index for index, link in enumerate(chain) if link.ttl and link.tokens >= self._minimum]
        total = chain[-1].tokens if chain else 0
        if not marks:
            return Usage(total)
        read = self._read(chain, marks, now)
        written = {"5m": 0, "1h": 0}
        covered = read
        for mark in marks:
            link = chain[mark]
            ttl = link.ttl or "5m"
            written[ttl] += max(0, link.tokens - covered)
            covered = max(covered, link.tokens)
            self._store(link.digest, now + SECONDS[ttl], ttl)
        return Usage(
            total - covered,
            cache_read_input_tokens=read,
            cache_5m_input_tokens=written["5m"],
            cache_1h_input_tokens=written["1h"],
        )

    def _read(self, chain: list[_Link], marks: list[int], now: float) -> int:
        """Returns the tokens of the longest stored prefix that a breakpoint can see, and renews it."""
        for mark in reversed(marks):
            for index in range(mark, max(-1, mark - LOOKBACK - 1), -1):
                lapses, ttl = self._expiry.get(chain[index].digest, (now, "5m"))
                if lapses > now:
                    self._store(chain[index].digest, now + SECONDS[ttl], ttl)
                    return chain[index].tokens
        return 0

    def _store(self, digest: bytes, lapses: float, ttl: str) -> None:
        self._expiry[digest] = (lapses, ttl)
        self._expiry.move_to_end(digest)
        while len(self._expiry) > self._capacity:
            self._expiry.popitem(last=False)
