"""What doors refuse reaches the session's log: soon, few times, as one plain line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from handmesh.session.v1.event_pb2 import DoorRefused
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit import ids
from services.kit.channels import connect
from services.vault_proxy.audit import Audit
from services.vault_proxy.doors.refusals import (
    AGAIN_SECONDS,
    MESSAGE_CHARACTERS,
    MORE,
    MOST_OF_A_SESSION,
    MOST_SESSIONS,
    TARGET_CHARACTERS,
    Refusals,
)
from services.vault_proxy.doors.visit import Visit
from services.vault_proxy.grants import Access
from tests.support.mesh_server import Served
from tests.vault_proxy.session_peer import SessionPeer

SESSION = ids.mint("sess")


class Clock:
    """A clock that a test moves."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def visit(session_id: str = SESSION, sandbox_id: str = "sbx_a") -> Visit:
    return Visit(Access(session_id, "default", 2), sandbox_id)


class Said(Audit):
    """Keeps what would be told."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # nobody runs `tell` here
        self.said: list[tuple[str, DoorRefused]] = []

    def refused(self, session_id: str, refusal: DoorRefused) -> None:
        self.said.append((session_id, refusal))


@asynccontextmanager
async def telling(peer: SessionPeer, mesh: Served) -> AsyncIterator[Refusals]:
    """A teller on the wire to the session service's place."""
    async with connect(mesh.address, mesh.tls / "vault_proxy") as channel:
        refusals = Refusals(Audit(SessionServiceStub(channel)))  # type: ignore[arg-type]
        task = asyncio.create_task(refusals.tell_on())
        try:
            yield refusals
        finally:
            task.cancel()


async def test_a_refusal_becomes_an_event_of_its_session(session_peer: tuple[SessionPeer, Served]) -> None:
    """Whole: sandbox, door, target, reason and message, ignorable, under an id of its own."""
    peer, mesh = session_peer
    async with telling(peer, mesh) as refusals:
        refusals.tell(visit(), "egress", "evil.example:443", "HOST_DENIED", "allowed: good.example")
        await refusals.flush()
    [(session_id, event)] = peer.events
    assert session_id == SESSION and event.ignorable and event.event_id.startswith("door_")
    assert event.door_refused == DoorRefused(
        sandbox_id="sbx_a",
        door="egress",
        target="evil.example:443",
        reason="HOST_DENIED",
        message="allowed: good.example",
    )


async def test_a_refusal_waits_for_a_session_service_that_is_away(session_peer: tuple[SessionPeer, Served]) -> None:
    """It is told again until it is taken."""
    peer, mesh = session_peer
    peer.refuse_events = 1
    async with telling(peer, mesh) as refusals:
        refusals.tell(visit(), "git", "https://git.example/a/b", "REPOSITORY_DENIED", "allowed: none")
        while not peer.events:
            peer.emitted.clear()
            await peer.emitted.wait()
    assert [event.door_refused.target for _, event in peer.events] == ["https://git.example/a/b"]


def test_the_same_refusal_is_said_once_in_a_while() -> None:
    """Again after AGAIN_SECONDS; another target, reason, door, sandbox or session is another refusal."""
    said, clock = Said(), Clock()
    refusals = Refusals(said, clock)
    for _ in range(3):
        refusals.tell(visit(), "egress", "a:443", "HOST_DENIED", "x")
    refusals.tell(visit(), "egress", "b:443", "HOST_DENIED", "x")
    refusals.tell(visit(), "git", "a:443", "HOST_DENIED", "x")
    refusals.tell(visit(), "egress", "a:443", "FULL", "x")
    refusals.tell(visit(sandbox_id="sbx_b"), "egress", "a:443", "HOST_DENIED", "x")
    refusals.tell(visit("sess_b"), "egress", "a:443", "HOST_DENIED", "x")
    assert len(said.said) == 6
    clock.seconds += AGAIN_SECONDS
    refusals.tell(visit(), "egress", "a:443", "HOST_DENIED", "x")
    assert len(said.said) == 7


def test_a_session_is_told_so_many_refusals_in_a_while() -> None:
    """The last of them says that more are not said; another session is told its own."""
    said, clock = Said(), Clock()
    refusals = Refusals(said, clock)
    for number in range(3 * MOST_OF_A_SESSION):
        refusals.tell(visit(), "egress", f"h{number}.example:443", "HOST_DENIED", "not allowed")
    messages = [refusal.message for _, refusal in said.said]
    assert messages == ["not allowed"] * (MOST_OF_A_SESSION - 1) + [MORE]
    refusals.tell(visit("sess_b"), "egress", "h.example:443", "HOST_DENIED", "not allowed")
    assert said.said[-1][0] == "sess_b"
    clock.seconds += AGAIN_SECONDS
    refusals.tell(visit(), "egress", "later.example:443", "HOST_DENIED", "not allowed")
    assert said.said[-1][1].target == "later.example:443"


def test_what_is_remembered_has_a_bound() -> None:
    """Of sessions without number only the newest are remembered, and an ended one is forgotten."""
    refusals = Refusals(Said(), Clock())
    for number in range(MOST_SESSIONS + 50):
        refusals.tell(visit(f"sess_{number}"), "egress", "a:443", "HOST_DENIED", "x")
    assert len(refusals._said) == MOST_SESSIONS
    refusals.forget(f"sess_{MOST_SESSIONS}")
    assert len(refusals._said) == MOST_SESSIONS - 1


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\u202eb", "a\x00b"])
def test_what_a_stranger_wrote_is_one_plain_line(text: str) -> None:
    """No control character, no direction mark, nothing endless gets into the log."""
    said = Said()
    Refusals(said, Clock()).tell(visit(), "egress", text + "x" * 9999, "HOST_DENIED", text + "y" * 9999)
    [(_, refusal)] = said.said
    assert refusal.target.startswith("a?") and len(refusal.target) == TARGET_CHARACTERS
    assert refusal.message.startswith("a?") and len(refusal.message) == MESSAGE_CHARACTERS
    assert all(" " <= each <= "~" for each in refusal.target + refusal.message)
