"""Token counts and the prompt cache, by hand-made prompts of known size."""

from __future__ import annotations

from typing import Any

import pytest

from handmesh.scripted_model.usage import PrefixCache, Usage, count_tokens

BLOCK = 103  # tokens of one block below: 400 bytes and what a block costs beside its text


def block(letter: str, ttl: str | None = None) -> dict[str, Any]:
    marker = {"cache_control": {"type": "ephemeral", "ttl": ttl}} if ttl else {}
    return {"type": "text", "text": letter * 400, **marker}


def request(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": [*blocks]}], **fields}


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(minimum=100)


def test_tokens_follow_the_size() -> None:
    """Four bytes are a token and each block costs a little more; images have a flat price."""
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    assert count_tokens(request(block("a"))) == BLOCK
    assert count_tokens(request(block("a"), block("b"), system="c" * 400)) == 3 * BLOCK
    assert count_tokens(request(image)) == 1503
    assert count_tokens(request(block("a"), tools=[{"name": "t", "input_schema": {}}])) > BLOCK


def test_a_prefix_is_written_once_and_read_again(cache: PrefixCache) -> None:
    """The first request pays for the prefix, the second reads it; what lies behind the marker is never cached."""
    asked = request(block("a", "5m"), block("b"))
    assert cache.account(asked, 0) == Usage(BLOCK, cache_5m_input_tokens=BLOCK)
    assert cache.account(asked, 1) == Usage(BLOCK, cache_read_input_tokens=BLOCK)


def test_a_conversation_that_grows_reads_what_it_had(cache: PrefixCache) -> None:
    """A marker that moves on finds the place where it stood before."""
    cache.account(request(block("a"), block("b", "5m")), 0)
    grown = request(block("a"), block("b"), block("c"), block("d", "5m"))
    assert cache.account(grown, 1) == Usage(0, cache_read_input_tokens=2 * BLOCK, cache_5m_input_tokens=2 * BLOCK)


def test_a_marker_looks_back_over_twenty_blocks(cache: PrefixCache) -> None:
    """A stored prefix that ends 20 blocks before a marker is found, one that ends 21 before is not."""
    cache.account(request(block("a", "5m")), 0)
    near = request(block("a"), *[block("b")] * 19, block("c", "5m"))
    far = request(block("a"), *[block("d")] * 20, block("c", "5m"))
    assert cache.account(near, 1).cache_read_input_tokens == BLOCK
    assert cache.account(far, 1).cache_read_input_tokens == 0


def test_a_changed_beginning_reads_nothing(cache: PrefixCache) -> None:
    """Tools, system and model stand before the messages: a change there is a different prefix."""
    cache.account(request(block("a", "5m")), 0)
    for other in (
        request(block("a", "5m"), system="other"),
        request(block("a", "5m"), tools=[{"name": "t", "input_schema": {"type": "object"}}]),
        {**request(block("a", "5m")), "model": "n"},
        request(block("x", "5m")),
    ):
        assert cache.account(other, 1).cache_read_input_tokens == 0


def test_a_prefix_lapses_unless_it_is_read(cache: PrefixCache) -> None:
    """Five minutes after its last use a prefix is gone; each use renews it."""
    asked = request(block("a", "5m"))
    cache.account(asked, 0)
    assert cache.account(asked, 299).cache_read_input_tokens == BLOCK
    assert cache.account(asked, 299 + 299).cache_read_input_tokens == BLOCK
    assert cache.account(asked, 299 + 299 + 301).cache_read_input_tokens == 0


def test_an_hour_is_booked_as_an_hour(cache: PrefixCache) -> None:
    """Each part of a prefix is written for as long as the marker behind it says, and lives so long."""
    asked = request(block("a", "1h"), block("b", "5m"), block("c"))
    assert cache.account(asked, 0) == Usage(BLOCK, cache_1h_input_tokens=BLOCK, cache_5m_input_tokens=BLOCK)
    assert cache.account(asked, 3000) == Usage(BLOCK, cache_read_input_tokens=BLOCK, cache_5m_input_tokens=BLOCK)


def test_a_marker_at_the_root_is_on_the_last_block(cache: PrefixCache) -> None:
    """`cache_control` at the request's root caches the whole prompt."""
    asked = request(block("a"), block("b"), cache_control={"type": "ephemeral"})
    assert cache.account(asked, 0) == Usage(0, cache_5m_input_tokens=2 * BLOCK)
    assert cache.account(asked, 1) == Usage(0, cache_read_input_tokens=2 * BLOCK)


def test_a_short_prefix_is_not_cached() -> None:
    """Below the minimum a marker does nothing, as in the API."""
    cache, asked = PrefixCache(minimum=BLOCK + 1), request(block("a", "5m"))
    assert [cache.account(asked, now) for now in (0, 1)] == [Usage(BLOCK), Usage(BLOCK)]


def test_the_cache_is_bounded() -> None:
    """The prefix that was used longest ago makes room for a new one."""
    cache = PrefixCache(capacity=2, minimum=100)
    for letter in "aba":
        cache.account(request(block(letter, "5m")), 0)
    cache.account(request(block("c", "5m")), 1)
    assert cache.account(request(block("a", "5m")), 2).cache_read_input_tokens == BLOCK
    assert cache.account(request(block("b", "5m")), 2).cache_read_input_tokens == 0
