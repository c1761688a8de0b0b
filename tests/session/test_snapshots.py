"""A cold session goes on from its snapshot, and from nothing that the log does not bear out."""

from __future__ import annotations

import json
from collections import ChainMap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmesh.session.v1 import session_pb2 as pb
from services.session import snapshots
from services.session.core import Call, Fact, Usage, WriteState, fold, known
from services.session.integrity import Marks
from services.session.log import StoredBatch
from services.session.names import SEGMENT, Names
from services.session.snapshots import BUCKET, EVERY, Snapshots, decode, encode
from services.session.writer import Writer
from tests.session.running import Service, note


def again(state: WriteState) -> WriteState:
    """Writes a state and reads it."""
    told, _, fresh = encode(state).partition(b"\n")
    assert isinstance(state.names, Names)
    return decode(json.loads(told), [segment.to_bytes() for segment in state.names.segments], fresh)


def test_a_state_comes_back_as_it_was() -> None:
    """Every field, and every name with its position."""
    state = WriteState(digest="d", tenant="t", usage=Usage(1, 2, 3, 4), calls={"a": Call.ASKED})
    for number in range(SEGMENT + 100):
        fold(state, Fact("custom", f"e{number}", "client"), 1_000 + number)
    back = again(state)
    assert back == state
    assert all(known(back, f"e{number}") == number + 1 for number in range(SEGMENT + 100))
    assert not known(back, "other")


@given(st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_names_are_a_dictionary(names: list[int]) -> None:
    """What the names say is what a dictionary says, whatever is in it."""
    plain: dict[int, int] = {}
    ours = Names()
    for position, name in enumerate(names, 1):
        plain.setdefault(name, position)
        ours.setdefault(name, position)
    assert dict(ours) == plain and len(ours) == len(plain)
    assert all(name in ChainMap({}, ours) for name in plain)


def test_a_damaged_snapshot_is_none() -> None:
    """A sum that does not fit is an error, not a state."""
    state = fold(WriteState(), Fact("custom", "e1", "client"), 1)
    told, _, fresh = encode(state).partition(b"\n")
    with pytest.raises(ValueError):
        decode(json.loads(told), [], b"\xff" + fresh[1:])


def cold_writer(service: Service, kept: Snapshots | None = None, log: Any = None) -> Writer:
    """Makes a writer that remembers nothing."""
    store = service.store
    return Writer(log or store.log, store.wire, Marks(store.registry), lambda: 1, snapshots=kept)


async def fill(service: Service) -> str:
    """Makes a session that is long enough for a snapshot, and waits for that."""
    session = await service.create()
    for number in range(EVERY // 16 + 1):
        events = [note(f"n{number}.{each}") for each in range(16)]
        await service.client.EmitEvents(pb.EmitEventsRequest(session_id=session, events=events))
    while await service.store.registry.get(BUCKET, f"{session}.state") is None:
        await service.client.GetSession(pb.GetSessionRequest(session_id=session))
    return session


async def test_a_cold_session_goes_on_from_its_snapshot(service: Service) -> None:
    """The state is what the whole log says, and what was read of the log is the end alone."""
    session = await fill(service)
    reads: list[int] = []

    class Watched:
        async def read(self, session_id: str, start: int, end: int, max_bytes: int) -> object:
            reads.append(start)
            return await service.store.log.read(session_id, start, end, max_bytes)

        async def head(self, session_id: str, hint: StoredBatch | None = None) -> object:
            return await service.store.log.head(session_id)

    cold = Writer(
        Watched(),
        service.store.wire,
        Marks(service.store.registry),
        lambda: 1,
        snapshots=Snapshots(service.store.registry),
    )
    assert await cold.current(session) == await Writer(
        service.store.log, service.store.wire, Marks(service.store.registry), lambda: 1
    ).current(session)
    assert min(reads) >= EVERY


async def test_a_snapshot_that_the_log_does_not_bear_out_is_not_used(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another digest at its position, or another version: the log is read from its beginning."""
    session = await fill(service)
    right = await cold_writer(service).current(session)
    kept = Snapshots(service.store.registry)
    state = await kept.load(session)
    assert state is not None
    state.digest, state.tenant = "0" * 64, "liar"
    await service.store.registry.put(BUCKET, f"{session}.state", encode(state))
    assert (
        await Writer(
            service.store.log, service.store.wire, Marks(service.store.registry), lambda: 1, snapshots=kept
        ).current(session)
        == right
    )
    monkeypatch.setattr(snapshots, "_VERSION", ["another"])
    assert await kept.load(session) is None
