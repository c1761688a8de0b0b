"""Grants: good for one session's current epoch, and for nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from services.kit import ids
from services.session.vouching import Voucher
from tests.session.running import WOKE, Run, Service, message, refusal

CONFIG = SessionConfig(
    mcp_servers=[McpServer(name="tickets", url="https://mcp.example/mcp")], vault_ids=["vault_" + "0" * 26]
)


def check(service: Service, grant: str, stub: str = "sandbox") -> Any:
    return getattr(service, stub).CheckGrant(pb.CheckGrantRequest(), metadata=(("x-handmesh-grant", grant),))


async def refused(service: Service, grant: str) -> bool:
    error = await refusal(check(service, grant))
    return (error.code, error.reason, error.metadata) == ("UNAUTHENTICATED", "GRANT_INVALID", {})


class Revocations:
    """An open `WatchRevocations`."""

    def __init__(self, service: Service) -> None:
        self.call = service.sandbox.WatchRevocations(pb.WatchRevocationsRequest())

    async def alive(self) -> None:
        async with asyncio.timeout(10):
            assert await self.call.read() == pb.WatchRevocationsResponse()

    async def of(self, session: str) -> int:
        """Waits for a revocation of a session's grants; returns the epoch below which they are void."""
        async with asyncio.timeout(10):
            while True:
                answer = await self.call.read()
                if answer.session_id == session:
                    return int(answer.below_epoch)


async def test_only_a_vault_proxy_gets_the_services_word(service: Service) -> None:
    """Asked for and not otherwise; another each time; what it claims is the session's. A sandbox is refused."""
    key = Ed25519PrivateKey.generate()
    service.parts.grants._vouch = Voucher(key, time.time_ns).sign
    session = await service.create(message(), config=CONFIG)
    epoch, grant = await service.wake(session)
    metadata = (("x-handmesh-grant", grant),)
    asked = pb.CheckGrantRequest(vault_access=True)
    error = await refusal(service.sandbox.CheckGrant(asked, metadata=metadata))
    assert (error.code, error.reason) == ("PERMISSION_DENIED", "METHOD_DENIED")
    assert (await check(service, grant, "vault_proxy")).vault_jwt == ""
    words = [(await service.vault_proxy.CheckGrant(asked, metadata=metadata)).vault_jwt for _ in range(2)]
    assert words[0] != words[1]
    header, claims, signature = (base64.urlsafe_b64decode(part + "==") for part in words[0].split("."))
    key.public_key().verify(signature, words[0].rpartition(".")[0].encode())
    said = json.loads(claims)
    assert json.loads(header)["alg"] == "EdDSA"
    assert said["exp"] - said["iat"] == 60
    assert (said["session"], said["epoch"], said["tenant"]) == (session, str(epoch), "default")
    assert {name: said[name] for name in said if name.startswith("vault_")} == {"vault_0": CONFIG.vault_ids[0]}


async def test_a_grant_tells_whose_it_is(service: Service) -> None:
    """The grant of an epoch names session, tenant, epoch, and what the session may use."""
    session = await service.create(message(), config=CONFIG)
    epoch, grant = await service.wake(session)
    for stub in ("sandbox", "vault_proxy"):
        answer = await check(service, grant, stub)
        assert (answer.session_id, answer.tenant, answer.epoch) == (session, "default", epoch)
        assert (answer.mcp_servers, answer.vault_ids) == (CONFIG.mcp_servers, CONFIG.vault_ids)
        assert answer.cache_time.seconds == 5 and answer.expire_time.seconds > 0
    config = SessionConfig(vault_ids=["vault_" + "1" * 26])
    await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=config))
    assert list((await check(service, grant)).vault_ids) == ["vault_" + "1" * 26]


@pytest.mark.parametrize("grant", ["", "x", "*", ">", "a" * 5_000, "sess_" + "0" * 26])
async def test_what_is_no_grant(service: Service, grant: str) -> None:
    """Anything else is refused, and not told why."""
    assert await refused(service, grant)


async def test_no_grant_at_all(service: Service) -> None:
    """A call without the metadata is refused the same way."""
    error = await refusal(service.sandbox.CheckGrant(pb.CheckGrantRequest()))
    assert (error.code, error.reason) == ("UNAUTHENTICATED", "GRANT_INVALID")


async def test_a_grant_ends_with_its_epoch(service: Service) -> None:
    """When another harness wakes, the old grant is void at once, and those who kept it are told."""
    session = await service.create(message())
    revocations = Revocations(service)
    await revocations.alive()
    _, old = await service.wake(session)
    epoch, new = await service.wake(session)
    assert await refused(service, old)
    assert (await check(service, new)).epoch == epoch
    assert [await revocations.of(session), await revocations.of(session)] == [epoch - 1, epoch]
    revocations.call.cancel()


async def test_a_grant_ends_with_its_session(service: Service) -> None:
    """After EndSession no grant is good, and those who kept one are told within a second."""
    session = await service.create(message())
    _, grant = await service.wake(session)
    revocations = Revocations(service)
    await revocations.alive()
    async with asyncio.timeout(1):
        await service.client.EndSession(pb.EndSessionRequest(session_id=session))
        assert await revocations.of(session) == 0
        assert await refused(service, grant)
    revocations.call.cancel()


async def test_a_grant_is_sent_once_and_beside_the_answer(service: Service) -> None:
    """It comes with an accepted HarnessWoke only, in a batch of one too, and is in no message or event."""
    session = await service.create(message())
    request = pb.EmitEventsRequest(
        session_id=session, events=[ev.Event(event_id="w", harness_woke=WOKE)], expected_position=2
    )
    call = service.harness.EmitEvents(request)
    answer = await call
    grant = dict(await call.trailing_metadata())["x-handmesh-grant"]
    assert (await check(service, grant)).epoch == answer.first_position
    said = pb.EmitEventRequest(session_id=session, epoch=3, event=ev.Event(error_raised=ev.ErrorRaised()))
    call = service.harness.EmitEvent(said)
    await call
    assert "x-handmesh-grant" not in dict(await call.trailing_metadata())
    assert grant not in str(await service.log(session))
    stored = await service.store.registry.keys("grants", "")
    assert grant not in str(stored) and stored


async def test_every_grant_is_another(service: Service) -> None:
    """Grants are 256 random bits: none is like another, nor like an id."""
    session = await service.create(message())
    grants = {(await service.wake(session, 2, "w"))[1] for _ in range(5)}
    assert len(grants) == 5
    assert all(len(grant) >= 43 and not ids.MINTED.fullmatch(grant) for grant in grants)


@pytest.mark.nats
async def test_replicas_agree_at_once(run: Run) -> None:
    """What one replica grants or revokes, another says at once; its watchers hear of it."""
    async with run() as one, run() as two:
        session = await one.create(message())
        _, grant = await one.wake(session)
        assert (await check(two, grant)).session_id == session
        revocations = Revocations(two)
        await revocations.alive()
        await one.wake(session)
        assert await refused(two, grant)
        assert await revocations.of(session) == 4
        revocations.call.cancel()


async def test_a_vault_proxy_is_told_what_was_offered(service: Service) -> None:
    """The ToolsOffered at a position of the grant's own session, and nothing else; nobody else may ask."""
    session = await service.create(message())
    epoch, grant = await service.wake(session)
    offered = ev.ToolsOffered(hand="shop", tools_json="[]", digest="d")
    position = (await service.emit(session, ev.Event(tools_offered=offered), epoch)).position
    shown = (("x-handmesh-grant", grant),)

    async def at(position: int) -> pb.CheckGrantResponse:
        request = pb.CheckGrantRequest(offered_position=position)
        answer: pb.CheckGrantResponse = await service.vault_proxy.CheckGrant(request, metadata=shown)
        return answer

    assert (await at(position)).tools_offered == offered
    for other in (0, 1, position + 1, -1):
        assert not (await at(other)).HasField("tools_offered")
    error = await refusal(service.sandbox.CheckGrant(pb.CheckGrantRequest(offered_position=1), metadata=shown))
    assert error.reason == "METHOD_DENIED"
