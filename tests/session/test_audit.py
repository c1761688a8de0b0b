"""The audit stream: what credentials were used for, kept apart from the logs."""

from __future__ import annotations

import pytest

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from services.session.logs.jetstream.streams import AUDIT, AUDIT_DAYS, DAY
from services.session.migrate import migrate
from services.session.operator import Operator
from tests.session.running import Run, Service, message, refusal
from tests.session.test_integrity_operators import operator
from tests.support.nats import NatsServer


def used(event_id: str, result: str = "ok") -> ev.Event:
    """Makes a use of a credential."""
    use = ev.CredentialUsed(credential_id="cred_a", vault_id="vault_a", server="shop", result=result)
    return ev.Event(event_id=event_id, ignorable=True, credential_used=use)


def refused(event_id: str) -> ev.Event:
    """Makes a refusal of a door."""
    return ev.Event(event_id=event_id, ignorable=True, door_refused=ev.DoorRefused(door="git", target="x"))


async def tell(service: Service, session_id: str, *events: ev.Event) -> None:
    """Emits as the vault proxy."""
    for event in events:
        await service.vault_proxy.EmitEvent(pb.EmitEventRequest(session_id=session_id, event=event))


async def entries(service: Service, session_id: str = "", size: int = 0, stub: object = None) -> list[pb.AuditEntry]:
    """Reads the stream page by page."""
    found: list[pb.AuditEntry] = []
    request = pb.ListAuditEntriesRequest(session_id=session_id or None, page_size=size)
    while True:
        answer = await (stub or service.client).ListAuditEntries(request)  # type: ignore[attr-defined]
        assert len(answer.entries) <= (size or 100)
        found += answer.entries
        if not answer.next_page_token:
            return found
        request.page_token = answer.next_page_token


async def ids_of(service: Service, session_id: str = "", size: int = 0) -> list[str]:
    """Returns the entries' event ids."""
    return [entry.event.event_id for entry in await entries(service, session_id, size)]


async def test_what_is_acknowledged_is_in_the_stream(service: Service) -> None:
    """Uses and refusals are kept as they were told, in order, by session; a change of tools is not audited."""
    one, other = await service.create(), await service.create()
    changed = ev.Event(event_id="t1", ignorable=True, tools_changed=ev.ToolsChanged(server="shop", added=["a"]))
    await tell(service, one, used("u1"), changed, refused("d1"))
    await tell(service, other, used("u2"))
    await service.vault_proxy.EmitEvents(pb.EmitEventsRequest(session_id=one, events=[used("u3"), used("u4")]))
    found = await entries(service, one)
    assert [entry.event.event_id for entry in found] == ["u1", "d1", "u3", "u4"]
    assert {entry.session_id for entry in found} == {one}
    event = found[0].event
    assert (event.credential_used, event.emitter, event.position) == (used("u1").credential_used, "vault_proxy", 0)
    assert event.emit_time.seconds > 0
    assert [entry.event.event_id for entry in await entries(service, "", 2) if entry.session_id in (one, other)] == [
        "u1",
        "d1",
        "u2",
        "u3",
        "u4",
    ]


async def test_an_event_that_is_told_again_is_there_once(service: Service) -> None:
    """Telling is repeated after a lost answer: the stream has one entry for an event id, the first one."""
    session = await service.create()
    await tell(service, session, used("u1"), used("u1"), used("u2"))
    assert await ids_of(service, session, 1) == ["u1", "u2"]


async def test_it_outlives_the_session(service: Service) -> None:
    """The entries of a session that is deleted can still be read, and a use that is told only then comes to them."""
    session = await service.create(message())
    await tell(service, session, used("u1"))
    await service.client.EndSession(pb.EndSessionRequest(session_id=session))
    late = service.vault_proxy.EmitEvent(pb.EmitEventRequest(session_id=session, event=used("u2")))
    assert (await refusal(late)).reason == "SESSION_ENDED"
    await service.client.DeleteSession(pb.DeleteSessionRequest(session_id=session))
    late = service.vault_proxy.EmitEvent(pb.EmitEventRequest(session_id=session, event=used("u3")))
    assert (await refusal(late)).reason == "SESSION_NOT_FOUND"
    assert await ids_of(service, session) == ["u1", "u2", "u3"]


async def test_only_the_tenants_clients_read_it(service: Service) -> None:
    """Another tenant sees nothing, of a session that it names neither; services may not ask."""
    session = await service.create()
    await tell(service, session, used("u1"))
    assert await entries(service, session, stub=service.other) == []
    assert session not in {entry.session_id for entry in await entries(service, stub=service.other)}
    for stub in (service.harness, service.sandbox, service.vault_proxy):
        error = await refusal(stub.ListAuditEntries(pb.ListAuditEntriesRequest(session_id=session)))
        assert error.reason == "METHOD_DENIED"


async def test_nobody_else_writes_it(service: Service) -> None:
    """What the log's rules refuse a harness and a client is not in the stream either."""
    session = await service.create()
    for stub in (service.harness, service.client):
        error = await refusal(stub.EmitEvent(pb.EmitEventRequest(session_id=session, event=used("u1"))))
        assert error.reason == "EMITTER_DENIED"
    assert await entries(service, session) == []


@pytest.mark.parametrize(
    "request_",
    [
        pb.ListAuditEntriesRequest(page_size=-1),
        pb.ListAuditEntriesRequest(page_size=1_001),
        pb.ListAuditEntriesRequest(page_token="-1"),
        pb.ListAuditEntriesRequest(page_token="x"),
        pb.ListAuditEntriesRequest(page_token="9" * 30),
    ],
)
async def test_pages_that_cannot_be(service: Service, request_: pb.ListAuditEntriesRequest) -> None:
    """Sizes and tokens that were never given out are refused by name."""
    assert (await refusal(service.client.ListAuditEntries(request_))).reason == "ARGUMENT_INVALID"


@pytest.mark.nats
async def test_the_service_cannot_take_back_an_entry(run: Run, own_nats_server: NatsServer) -> None:
    """With the session service's own login an entry can be neither replaced nor removed: the stream refuses both."""
    async with run() as service:
        session = await service.create()
        await tell(service, session, used("u1"))
        [(key, _)], _ = await service.store.registry.changes("audit", 0)
        with pytest.raises(Exception, match="refuses"):
            await service.store.registry.put("audit", key, b"other")
        assert await ids_of(service, session) == ["u1"]


@pytest.mark.nats
async def test_how_long_it_is_kept_is_the_operators(own_nats_server: NatsServer) -> None:
    """`migrate` sets the days; without a word of the operator they stay, a year at first."""

    async def age(migrator: Operator) -> int:
        return int((await migrator.ask(f"STREAM.INFO.{AUDIT}"))["config"]["max_age"]) // DAY

    async with operator(own_nats_server, "migrate") as migrator:
        await migrate(migrator)
        assert await age(migrator) == AUDIT_DAYS
        assert await migrate(migrator, audit_days=30) == [f"changed {AUDIT}"]
        assert await age(migrator) == 30
        assert await migrate(migrator) == []
        assert await age(migrator) == 30
