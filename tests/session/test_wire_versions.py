"""Replicas of the last release hear those of this one: what they cannot read breaks their line to NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from services.session.grants import Grants, Revoked
from services.session.holders import Holders, Word
from services.session.log import Stop

WORD_0_1 = {"kind", "session_id", "replica", "handle", "instance"}
REVOKED_0_1 = {"session_id", "below_epoch", "hand_token_id"}


class Wire:
    """Keeps what is said on the key to which replicas of 0.1 listen, and lets all hear everything."""

    def __init__(self) -> None:
        self.said: list[set[str]] = []
        self._ears: dict[tuple[str, str], list[Callable[[bytes], None]]] = {}

    async def send(self, topic: str, key: str, data: bytes) -> None:
        if key == "all":
            self.said.append(set(json.loads(data)))
        for hear in self._ears.get((topic, key), ()):
            hear(data)

    async def listen(self, topic: str, key: str, hear: Callable[[bytes], None], gap: Any = None) -> Stop:
        self._ears.setdefault((topic, key), []).append(hear)

        async def stop() -> None:
            self._ears[topic, key].remove(hear)

        return stop


async def test_what_is_said_of_claims_can_be_read() -> None:
    """Every word to everybody has the fields of 0.1 alone; what is new is heard by the others all the same."""
    wire, heard = Wire(), list[Word]()

    def answer(word: Word) -> str:
        heard.append(word)
        return "harness"

    one, two = Holders(wire, lambda _: None), Holders(wire, answer)
    await one.listen(lambda: None)
    await two.listen(lambda: None)
    assert await one.has("sess_a", "item") and await one.claim("sess_a", "harness") == "harness"
    await one.free("sess_a")
    assert wire.said and all(fields <= WORD_0_1 for fields in wire.said)
    assert await one.done("sess_a", "claim_a", 7, refused=True)
    assert (heard[-1].claim_id, heard[-1].wake_time, heard[-1].refused) == ("claim_a", 7, True)
    assert Word.from_bytes(b'{"kind":"who","session_id":"s","of_a_later_version":1}') == Word("who", "s")


async def test_an_answer_is_to_its_own_question() -> None:
    """That a harness is at work on a session is no word that its claim was ended: else nobody ends it."""
    wire = Wire()
    one, two = Holders(wire, lambda _: None), Holders(wire, lambda word: "harness" if word.kind == "who" else None)
    await one.listen(lambda: None)
    await two.listen(lambda: None)
    asked = one.done("sess_a", "claim_a", None, refused=False), one.has("sess_a")
    assert await asyncio.gather(*asked) == [False, True]


async def test_what_is_said_of_rights_can_be_read() -> None:
    """A replica of 0.1 knows no clients' credentials, and is not told of them; those that know them are."""
    wire: Any = Wire()
    none: Any = None
    grants = Grants(none, wire, none, none, lambda: 0)
    watching = grants.watch()
    assert await anext(watching) is None
    await grants.revoke("sess_a", 3)
    await grants.revoke_hand("ht_a")
    await grants.revoke_caller("key_a")
    assert all(fields <= REVOKED_0_1 for fields in wire.said)
    async with asyncio.timeout(5):
        assert await anext(watching) == Revoked("sess_a", 3)
        assert await anext(watching) == Revoked("", 0, "ht_a")
        assert await anext(watching) == Revoked("", 0, caller_id="key_a")
    await watching.aclose()
