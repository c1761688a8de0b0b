"""Steps of a migration: each is taken once, whoever dies at whichever moment, and never back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from services.session import migrate_turn
from services.session.logs.jetstream import streams
from services.session.logs.jetstream.streams import wanted
from services.session.migrate import migrate
from services.session.migrations import LEVEL, NEWEST, SCHEMA, STEPS, Level, Progress, Step
from services.session.operator import Operator, StoreError
from tests.session.running import make_settings, running
from tests.session.test_integrity_operators import _run, operator
from tests.support.nats import NatsServer

pytestmark = pytest.mark.nats

BEFORE = tuple(f"$KV.blobs.m{number}" for number in range(4))


class Mortal(Operator):
    """Dies at its n-th request, before or after it has reached NATS: whatever it says later does not arrive."""

    def __init__(self, requests: int, arrives: bool) -> None:
        super().__init__()
        self.left = requests
        self._arrives = arrives

    async def _request(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self._arrives):
            raise StoreError("died")
        answer = await super()._request(subject, data, headers)
        if self.left == 0:
            raise StoreError("died")
        return answer


async def _doubled(operator: Operator, progress: Progress) -> None:
    """A long step: each value that was there is written again as a record. It goes on where it was."""
    for number in range(int(progress.cursor or 0), len(BEFORE)):
        value, revision = await operator.entry("KV_blobs", BEFORE[number])
        if not value.startswith(b"{"):
            await operator.put(BEFORE[number], json.dumps({"old": value.decode()}).encode(), revision)
        await progress.save(str(number + 1), number + 1, len(BEFORE))


async def _counted(operator: Operator, progress: Progress) -> None:
    """A short step, whose end tells how often it was begun anew if it were not idempotent."""
    await operator.put("$KV.blobs.count", str(len(BEFORE)).encode())


LONGER = (*STEPS, Step(NEWEST + 1, "values become records", _doubled), Step(NEWEST + 2, "they are counted", _counted))
DONE = [f"step {step.number}: {step.name}" for step in LONGER]


async def aged(migrator: Operator) -> None:
    """Makes the store what the first release left: values of the old form, and no level."""
    await migrator.ask(f"STREAM.DELETE.{SCHEMA}")
    for number, subject in enumerate(BEFORE):
        await migrator.put(subject, f"v{number}".encode())


async def world(migrator: Operator) -> dict[str, object]:
    """Returns what a migration is about: the values, the level, and the streams."""
    values = {subject: (await migrator.entry("KV_blobs", subject))[0].decode() for subject in BEFORE}
    values["count"] = (await migrator.entry("KV_blobs", "$KV.blobs.count"))[0].decode()
    configs = await asyncio.gather(*(migrator.ask(f"STREAM.INFO.{config['name']}") for config in wanted()))
    streams_there = {answer["config"]["name"]: answer["config"] for answer in configs}
    return {"values": values, "level": Level.of(await migrator.value(SCHEMA, LEVEL)), "streams": streams_there}


async def test_steps_are_taken_in_order_and_once(own_nats_server: NatsServer) -> None:
    """A store of the first release is brought forward; the second time nothing is left; a dry run changes nothing."""
    async with operator(own_nats_server, "migrate") as migrator:
        await aged(migrator)
        planned = await migrate(migrator, steps=LONGER, dry_run=True)
        assert planned == [f"made {SCHEMA}", *DONE]
        assert (await migrator.ask(f"STREAM.INFO.{SCHEMA}"))["error"]["err_code"] == 10059
        assert await migrate(migrator, steps=LONGER) == planned
        assert (await world(migrator))["values"] == {
            **{subject: json.dumps({"old": f"v{number}"}) for number, subject in enumerate(BEFORE)},
            "count": "4",
        }
        assert await migrate(migrator, steps=LONGER) == await migrate(migrator, steps=LONGER, dry_run=True) == []


@pytest.mark.parametrize("arrives", [False, True], ids=["before", "after"])
async def test_killed_at_every_request_the_end_is_the_same(
    own_nats_server: NatsServer, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies at its first request, at its second, and so on, each time in an aged store; the next run ends it."""
    monkeypatch.setattr(migrate_turn, "DEAD_SECONDS", 0.0)  # nobody renews that fast: a dead holder is seen at once
    credentials = own_nats_server.migrate_credentials
    async with operator(own_nats_server, "migrate") as migrator:
        await aged(migrator)
        await migrate(migrator, steps=LONGER)
        whole = await world(migrator)
        lived, requests = False, 0
        while not lived:
            requests += 1
            await aged(migrator)
            mortal = Mortal(requests, arrives)
            await mortal.open(_settings(own_nats_server.url, credentials), "migrate")
            try:
                await migrate(mortal, steps=LONGER)
                lived = mortal.left > 0
            except StoreError:
                pass
            finally:
                await mortal.client.close()
            await migrate(migrator, steps=LONGER)
            assert await world(migrator) == whole, f"killed at request {requests}"
        assert requests > len(wanted()) + 20


def _settings(url: str, credentials: Any) -> Any:
    from services.session.operator import OperatorSettings

    return OperatorSettings(url, credentials, "info")


async def test_two_at_once_take_turns(own_nats_server: NatsServer) -> None:
    """Each step's work is done by one of them alone, and the other finds it done."""
    at_work, most, begun = 0, 0, 0

    async def slow(operator: Operator, progress: Progress) -> None:
        nonlocal at_work, most, begun
        at_work, begun = at_work + 1, begun + 1
        most = max(most, at_work)
        await asyncio.sleep(0.2)
        at_work -= 1

    steps = (*STEPS, Step(NEWEST + 1, "slow", slow))
    async with operator(own_nats_server, "migrate") as one, operator(own_nats_server, "migrate") as two:
        done = await asyncio.gather(migrate(one, steps=steps), migrate(two, steps=steps))
    assert (most, begun) == (1, 1)
    assert sorted(done) == [[], [f"step {NEWEST + 1}: slow"]]


async def test_a_holder_that_was_silent_too_long_stops(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds that another has its turn, and its work ends there."""
    monkeypatch.setattr(migrate_turn, "RENEW_SECONDS", 0.05)

    async def overtaken(operator: Operator, progress: Progress) -> None:
        await operator.put(migrate_turn.TURN, b"another")
        await asyncio.Event().wait()

    async with operator(own_nats_server, "migrate") as migrator:
        with pytest.raises(StoreError, match="another has taken over"):
            await migrate(migrator, steps=(*STEPS, Step(NEWEST + 1, "overtaken", overtaken)))
        assert Level.of(await migrator.value(SCHEMA, LEVEL)).number == NEWEST


async def test_there_is_no_way_back(own_nats_server: NatsServer, identities: Any) -> None:
    """A store of a newer version: `migrate` and the service refuse at once, and say who may go on and what else helps.
    The service's own user cannot write the level."""
    async with operator(own_nats_server, "migrate") as migrator:
        await migrator.put(LEVEL, Level(NEWEST + 1, "9.9.9").pack())
        before = await world(migrator)
        said = rf"handmesh 9\.9\.9 .* step {NEWEST + 1}, .* up to {NEWEST}\. .*restore a backup"
        with pytest.raises(StoreError, match=said):
            await migrate(migrator)
        code, printed = await _run("migrate", own_nats_server.url, own_nats_server.migrate_credentials)
        assert code == 1 and "migrate: handmesh 9.9.9" in printed
        with pytest.raises(streams.UnusableStoreError, match=said):
            async with running(make_settings(identities, own_nats_server), identities):
                pass
        async with operator(own_nats_server, "session") as service:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("services.session.operator.ANSWER_SECONDS", 0.5)
                with pytest.raises(StoreError, match=r"(?i)permissions violation"):
                    await service.put(LEVEL, Level(NEWEST, "").pack())
        assert await world(migrator) == before


def test_steps_are_numbered_from_one_without_a_gap() -> None:
    """The level of a store tells which steps it has taken."""
    assert [step.number for step in LONGER] == list(range(1, len(LONGER) + 1))
