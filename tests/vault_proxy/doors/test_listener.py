"""Who gets in at the door listener, and for how long."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES
from services.kit.errors import Full, Invalid
from services.vault_proxy.doors import listener as listeners
from services.vault_proxy.doors import reception as receptions
from services.vault_proxy.doors import tickets as issuing
from services.vault_proxy.doors.listener import Listener
from services.vault_proxy.doors.reception import Reception
from services.vault_proxy.doors.tickets import CHARACTERS, Tickets
from services.vault_proxy.doors.visit import Policy, Visit
from services.vault_proxy.grants import Access
from tests.vault_proxy.doors.dialling import dial

SESSION, OTHER = "sess_00000000000000000000000001", "sess_00000000000000000000000002"


@dataclass
class Echo:
    """A door that says back what it hears, and remembers who came."""

    visits: list[Visit] = field(default_factory=list)

    async def serve(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits.append(visit)
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()


@dataclass
class Doors:
    """A running listener."""

    reception: Reception
    listener: Listener
    echo: Echo
    tls: Path
    clock: list[float]

    def ticket(self, session_id: str = SESSION) -> str:
        return self.reception.open("git", visit(session_id))[0]

    async def come(self, ticket: str, service: str = "sandbox") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await dial(self.listener.address, self.tls / service, ticket)

    async def says(self, ticket: str, service: str = "sandbox") -> bytes:
        """Returns what the door says to one line, b"" if the connection ends without a word."""
        reader, writer = await self.come(ticket, service)
        writer.write(b"hello\n")
        try:
            return await reader.readline()
        except (ConnectionError, OSError):
            return b""
        finally:
            writer.close()


def visit(session_id: str = SESSION) -> Visit:
    return Visit(Access(session_id, "default", 2), "sbx_00000000000000000000000001", Policy(("example.com",)))


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    ensure_certificates(tmp_path, SERVICES, datetime.datetime.now(datetime.UTC))
    echo, clock = Echo(), [0.0]
    tickets = Tickets(lambda: clock[0])
    listener = Listener({"git": echo}, tickets)
    reception = Reception({"git": echo}, tickets, listener)
    await listener.start("127.0.0.1:0", tmp_path / "vault_proxy")
    yield Doors(reception, listener, echo, tmp_path, clock)
    await listener.stop()


async def test_a_ticket_leads_to_its_door_as_its_visit(doors: Doors) -> None:
    """The door hears the sandbox's first byte next, and knows session, sandbox and policy from the ticket alone."""
    assert await doors.says(doors.ticket()) == b"hello\n"
    assert doors.echo.visits == [visit()]


async def test_a_ticket_works_once(doors: Doors) -> None:
    """Whoever reads it on the way cannot use it after."""
    ticket = doors.ticket()
    assert await doors.says(ticket) == b"hello\n"
    assert await doors.says(ticket) == b""


async def test_a_ticket_is_dead_after_ten_seconds(doors: Doors) -> None:
    """A moment before, it works."""
    young, old = doors.ticket(), doors.ticket()
    doors.clock[0] = issuing.LIFE_SECONDS - 0.1
    assert await doors.says(young) == b"hello\n"
    doors.clock[0] = issuing.LIFE_SECONDS
    assert await doors.says(old) == b""


@pytest.mark.parametrize("ticket", ["", "x" * CHARACTERS, "x" * 5_000, "GET / HTTP/1.1\r", "\0" * CHARACTERS])
async def test_what_is_no_ticket_gets_no_answer(doors: Doors, ticket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends, and no door hears of it."""
    monkeypatch.setattr(listeners, "PREFACE_SECONDS", 0.5)  # the empty one waits for more
    assert await doors.says(ticket) == b""
    assert doors.echo.visits == []


@pytest.mark.parametrize("service", ["harness", "session", "vault_proxy"])
async def test_only_the_sandbox_service_may_come(doors: Doors, service: str) -> None:
    """Also with a good ticket, another service of the mesh is let down; the ticket is still good then."""
    ticket = doors.ticket()
    assert await doors.says(ticket, service) == b""
    assert await doors.says(ticket) == b"hello\n"


async def test_nobody_comes_without_a_certificate(doors: Doors, tmp_path: Path) -> None:
    """Another authority's certificate, and plain text, end the connection."""
    other = tmp_path / "other"
    ensure_certificates(other, SERVICES, datetime.datetime.now(datetime.UTC))
    (other / "sandbox" / "ca.pem").write_bytes((doors.tls / "sandbox" / "ca.pem").read_bytes())
    ticket = doors.ticket()
    doors.tls = other
    assert await doors.says(ticket) == b""
    host, _, port = doors.listener.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{ticket}\nhello\n".encode())
    assert b"hello" not in await reader.read()
    writer.close()
    assert doors.echo.visits == []


async def test_the_end_of_a_session_cuts_its_visits_and_voids_its_tickets(doors: Doors) -> None:
    """Another session's visit goes on."""
    reader, writer = await doors.come(doors.ticket())
    other_reader, other_writer = await doors.come(doors.ticket(OTHER))
    for its_reader, its_writer in ((reader, writer), (other_reader, other_writer)):
        its_writer.write(b"1\n")
        assert await its_reader.readline() == b"1\n"
    waiting = doors.ticket()
    doors.reception.end_session(SESSION)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    assert await doors.says(waiting) == b""
    other_writer.write(b"2\n")
    assert await other_reader.readline() == b"2\n"
    for its in (writer, other_writer):
        its.close()


async def test_a_session_has_so_many_connections(doors: Doors) -> None:
    """One more is refused at OpenDoor, in words; another session has its own, and an ended one makes room."""
    reader, writer = await doors.come(doors.ticket())
    writer.write(b"1\n")
    await reader.readline()
    for _ in range(receptions.MOST_AT_ONCE - 1):
        doors.ticket()
    with pytest.raises(Full) as full:
        doors.ticket()
    assert (full.value.reason, full.value.metadata) == ("FULL", {"limit": str(receptions.MOST_AT_ONCE)})
    assert await doors.says(doors.ticket(OTHER)) == b"hello\n"
    writer.close()
    while doors.listener.open(SESSION):
        await asyncio.sleep(0)
    doors.ticket()


async def test_there_are_so_many_tickets_in_all(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past that none is made, until old ones have died."""
    monkeypatch.setattr(issuing, "MOST_TICKETS", 2)
    doors.ticket()
    doors.ticket(OTHER)
    with pytest.raises(Full):
        doors.ticket("sess_00000000000000000000000003")
    doors.clock[0] = issuing.LIFE_SECONDS
    doors.ticket()


async def test_there_is_no_other_door(doors: Doors) -> None:
    """A door that is not there is the caller's mistake."""
    with pytest.raises(Invalid):
        doors.reception.open("egress", visit())


async def test_a_visit_ends_after_its_time(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is still said."""
    monkeypatch.setattr(listeners, "VISIT_SECONDS", 0.05)
    reader, writer = await doors.come(doors.ticket())
    assert await reader.read() == b""
    writer.close()
