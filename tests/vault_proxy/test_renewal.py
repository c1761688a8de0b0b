"""Renewing accesses: once, whoever asks; the failures have names; a crash in between is defined."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from handmesh.session.v1.config_pb2 import McpServer
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.channels import raised
from services.kit.errors import Refused, ServiceError, Unauthenticated, Unavailable
from services.kit.origin import Allowed, parse_allowed
from services.vault_proxy.assembly import now as moment
from services.vault_proxy.audit import Audit
from services.vault_proxy.core import renewal as core
from services.vault_proxy.credentials import Credential, Credentials
from services.vault_proxy.grants import Access
from services.vault_proxy.ports import Document
from services.vault_proxy.renewal import Renewal
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.hashicorp.store import HashicorpStore
from services.vault_proxy.vaults import Vaults
from tests.support.oauth import Grant, OAuthServer, oauth_server
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy import bao as operator
from tests.vault_proxy.conftest import Proxy, Start, vault_settings
from tests.vault_proxy.strange_server import Reply, StrangeServer, strange_server

pytestmark = pytest.mark.vault

LOOPBACK: Allowed = parse_allowed("127.0.0.1")


@pytest.fixture
def oauth() -> Iterator[OAuthServer]:
    """An authorization server that rotates and detects reuse."""
    with oauth_server() as server:
        yield server


@pytest.fixture
async def strange(oauth: OAuthServer) -> AsyncIterator[StrangeServer]:
    """An MCP server that takes the authorization server's accesses only."""

    def gate(request: Any) -> Reply | None:
        return None if oauth.accepts(request.headers.get("authorization")) else Reply(401, b"no")

    async with strange_server(answer=gate) as server:
        yield server


@pytest.fixture
async def proxy(start: Start, openbao: OpenBaoServer, tmp_path: Path) -> AsyncIterator[Proxy]:
    """A vault_proxy on the run's OpenBao."""
    async with start(**vault_settings(openbao)) as started:
        yield started


def secret_of(oauth: OAuthServer, grant: Grant, expire_time: str = "") -> pb.CredentialSecret:
    message = pb.McpOauth(
        access=grant.access,
        refresh=grant.refresh,
        renewal_endpoint=oauth.url,
        client_id=oauth.client_id,
        client_auth=oauth.client_auth,
        client_secret="" if oauth.client_auth == "none" else oauth.client_secret,
        resource="https://mcp.example/mcp",
        scope="read write",
    )
    if expire_time:
        message.expire_time.FromJsonString(expire_time)
    return pb.CredentialSecret(mcp_oauth=message)


async def connect(proxy: Proxy, strange: StrangeServer, secret: pb.CredentialSecret) -> pb.Credential:
    """Puts an account's grant into a new vault."""
    vault = (await proxy.client.CreateVault(pb.CreateVaultRequest())).vault
    origin = strange.url.removesuffix("/mcp")
    request = pb.AddCredentialRequest(vault_id=vault.vault_id, origin=origin, secret=secret)
    return (await proxy.client.AddCredential(request)).credential


def grant_for(proxy: Proxy, strange: StrangeServer, credential: pb.Credential) -> str:
    return proxy.peer.grant(McpServer(name="strange", url=strange.url), vault_ids=(credential.vault_id,))


async def told(proxy: Proxy, credential: pb.Credential) -> pb.Credential:
    listed = await proxy.client.ListCredentials(pb.ListCredentialsRequest(vault_id=credential.vault_id))
    return listed.credentials[0]


async def says(proxy: Proxy, grant: str, text: str = "x") -> str:
    return (await proxy.execute(grant, "strange__echo", {"text": text})).output


async def failure(call: Any) -> ServiceError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return raised(caught.value)


async def test_twenty_sessions_on_two_replicas_refresh_once(
    start: Start, openbao: OpenBaoServer, tmp_path: Path, oauth: OAuthServer, strange: StrangeServer
) -> None:
    """An expired access, a server that rotates and detects reuse, all at once: one request, and everybody is served."""
    given = oauth.grant()
    async with start(**vault_settings(openbao)) as one, start(**vault_settings(openbao)) as two:
        credential = await connect(one, strange, secret_of(oauth, given, "2026-01-01T00:00:00Z"))
        grants = [(proxy, grant_for(proxy, strange, credential)) for proxy in (one, two) for _ in range(20)]
        answers = await asyncio.gather(*(says(proxy, grant, f"n{at}") for at, (proxy, grant) in enumerate(grants)))
        assert answers == [f"you said n{at}" for at in range(40)]
        assert (oauth.requests, oauth.refreshed, oauth.complaints) == (1, 1, [])
        assert given.ended is False
        assert (await told(two, credential)).expire_time.seconds > time.time() + 3000
        events = [event.credential_used for _, event in one.peer.events if event.credential_used.result == "refreshed"]
        assert [(event.credential_id, event.server) for event in events] == [(credential.credential_id, "127.0.0.1")]


@pytest.mark.parametrize("client_auth", ["none", "client_secret_basic", "client_secret_post"])
async def test_clients_show_themselves_in_each_way(
    proxy: Proxy, oauth: OAuthServer, strange: StrangeServer, client_auth: str
) -> None:
    """None, basic with form-encoded id and secret, and post: a strict server has no complaint."""
    oauth.client_auth = client_auth
    credential = await connect(proxy, strange, secret_of(oauth, oauth.grant(), "2026-01-01T00:00:00Z"))
    assert await says(proxy, grant_for(proxy, strange, credential)) == "you said x"
    assert oauth.complaints == []
    assert oauth.forms[0]["resource"] == "https://mcp.example/mcp"
    assert oauth.forms[0]["scope"] == "read write"


async def test_a_refused_access_is_renewed(proxy: Proxy, oauth: OAuthServer, strange: StrangeServer) -> None:
    """The server says 401 although the access has not ended: one refresh, and the call is made again."""
    given = oauth.grant()
    credential = await connect(proxy, strange, secret_of(oauth, given, "2031-01-01T00:00:00Z"))
    grant = grant_for(proxy, strange, credential)
    assert await says(proxy, grant) == "you said x"
    given.access = "withdrawn"
    assert await says(proxy, grant) == "you said x"
    assert (oauth.refreshed, oauth.complaints) == (1, [])
    given.access = "withdrawn-again"  # a moment after a refresh: another one would not help
    problem = await failure(says(proxy, grant))
    assert (type(problem), problem.reason) == (Refused, "CREDENTIAL_REVOKED")
    assert oauth.refreshed == 1


async def test_the_old_refresh_token_stays_when_no_new_one_comes(
    proxy: Proxy, oauth: OAuthServer, strange: StrangeServer, openbao: OpenBaoServer
) -> None:
    """A server that does not rotate: the same token refreshes again and again."""
    oauth.rotates, oauth.expires_in = False, None
    given = oauth.grant()
    credential = await connect(proxy, strange, secret_of(oauth, given, "2026-01-01T00:00:00Z"))
    assert await says(proxy, grant_for(proxy, strange, credential)) == "you said x"
    path = f"handmesh/data/tenants/default/secrets/{credential.vault_id}/{credential.credential_id}"
    kept = operator.call(openbao, "GET", path)["data"]["data"]
    assert (kept["refresh"], kept["access"]) == (given.refresh, given.access)
    assert "expire_time" not in kept
    assert not (await told(proxy, credential)).HasField("expire_time")
    again = secret_of(oauth, given, "2026-01-01T00:00:00Z")
    request = pb.UpdateCredentialRequest(credential_id=credential.credential_id, secret=again)
    await proxy.client.UpdateCredential(request)
    assert await says(proxy, grant_for(proxy, strange, credential)) == "you said x"
    assert (oauth.refreshed, oauth.complaints) == (2, [])


async def test_a_grant_that_the_server_ended_is_revoked(
    proxy: Proxy, oauth: OAuthServer, strange: StrangeServer
) -> None:
    """Typed, told as an event, shown in lists, asked of the server once and never again; a new grant mends it."""
    given = oauth.grant()
    given.ended = True
    credential = await connect(proxy, strange, secret_of(oauth, given, "2026-01-01T00:00:00Z"))
    grant = grant_for(proxy, strange, credential)
    for _ in range(3):
        problem = await failure(says(proxy, grant))
        assert (type(problem), problem.reason, problem.metadata) == (
            Refused,
            "CREDENTIAL_REVOKED",
            {"server": "127.0.0.1"},
        )
        assert given.refresh not in str(problem)
    assert oauth.requests == 1
    assert (await told(proxy, credential)).revoked
    [event] = await proxy.peer.uses(proxy.peer.session_of(grant), 1)
    assert (event.credential_used.result, event.credential_used.server) == ("CREDENTIAL_REVOKED", "127.0.0.1")
    request = pb.UpdateCredentialRequest(
        credential_id=credential.credential_id, secret=secret_of(oauth, oauth.grant(), "2031-01-01T00:00:00Z")
    )
    assert not (await proxy.client.UpdateCredential(request)).credential.revoked
    assert await says(proxy, grant) == "you said x"
    assert not (await told(proxy, credential)).revoked


async def test_a_server_that_is_down_is_not_asked_in_a_loop(
    proxy: Proxy, oauth: OAuthServer, strange: StrangeServer
) -> None:
    """Typed, with a time to come back; not revoked; and an access that has not ended is used meanwhile."""
    oauth.fails = 503
    credential = await connect(proxy, strange, secret_of(oauth, oauth.grant(), "2026-01-01T00:00:00Z"))
    grant = grant_for(proxy, strange, credential)
    for _ in range(5):
        problem = await failure(says(proxy, grant))
        assert (type(problem), problem.reason) == (Unavailable, "CREDENTIAL_REFRESH_FAILED")
        assert problem.retry_after == core.BACKOFF_SECONDS
    assert oauth.requests == 1
    assert not (await told(proxy, credential)).revoked
    [event] = await proxy.peer.uses(proxy.peer.session_of(grant), 1)
    assert event.credential_used.result == "CREDENTIAL_REFRESH_FAILED"
    soon = core.moment(time.time() + 50)  # within the margin: to be renewed, and still good
    other = await connect(proxy, strange, secret_of(oauth, oauth.grant(), soon))
    assert await says(proxy, grant_for(proxy, strange, other)) == "you said x"


@dataclass
class Replica:
    """One process's renewal, with a clock of the test's own."""

    renewal: Renewal
    access: Access
    credential: Credential

    async def fresh(self, refused: Secret[str] | None = None) -> Document | None:
        return await self.renewal.fresh(self.access, self.credential, refused)

    async def value(self) -> str:
        document = await self.fresh()
        assert document is not None
        return document.fields.reveal()["access"]


@dataclass
class World:
    """Two replicas on one OpenBao, and one credential whose access has ended."""

    store: HashicorpStore
    vaults: Vaults
    replica: Callable[[float], Replica]


@pytest.fixture
async def world(openbao: OpenBaoServer, tmp_path: Path, oauth: OAuthServer, proxy: Proxy) -> AsyncIterator[World]:
    """See World. `replica(n)` makes one whose clock is n seconds ahead."""
    from services.vault_proxy.messages import draft_of

    store = HashicorpStore(openbao.url, "handmesh", openbao.approle_file())
    vaults = Vaults(store, moment)
    vault = await vaults.create_vault("default", "", "")
    draft = draft_of(secret_of(oauth, oauth.grant(), "2026-01-01T00:00:00Z"))
    credential = await vaults.add("default", vault.vault_id, "", "https://mcp.example", draft)
    holder = operator.SessionPass(openbao.issuer_key_file, "default", (vault.vault_id,))
    access = Access(holder.session_id, "default", 1, vault_ids=holder.vault_ids, secrets=holder)
    replicas: list[Renewal] = []

    def replica(ahead: float = 0.0) -> Replica:
        audit = Audit(None)  # type: ignore[arg-type]  # nothing is told here: nobody runs `tell`
        clock = lambda: time.time() + ahead  # noqa: E731
        renewal = Renewal(store, Credentials(store, moment), audit, clock, LOOPBACK, None)
        replicas.append(renewal)
        return Replica(renewal, access, credential)

    yield World(store, vaults, replica)
    oauth.answers.set()
    for each in replicas:
        await each.close()
    await store.close()


async def test_who_comes_second_waits(world: World, oauth: OAuthServer) -> None:
    """While one replica has asked, another neither asks nor gives up; it gets what the first one stored."""
    oauth.answers.clear()
    first = asyncio.create_task(world.replica(0).value())
    await asyncio.to_thread(oauth.asked.wait)
    second = asyncio.create_task(world.replica(0).value())
    await asyncio.wait([second], timeout=0.5)  # it looks several times meanwhile
    assert not second.done()
    oauth.answers.set()
    assert await first == await second == oauth.grants[0].access
    assert (oauth.requests, oauth.complaints) == (1, [])


async def test_a_caller_that_goes_does_not_lose_the_new_pair(world: World, oauth: OAuthServer) -> None:
    """The call is cancelled while the server answers: what comes is stored all the same."""
    oauth.answers.clear()
    replica = world.replica(0)
    asked = asyncio.create_task(replica.fresh())
    await asyncio.to_thread(oauth.asked.wait)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    oauth.answers.set()
    assert await replica.value() == oauth.grants[0].access
    assert (oauth.requests, oauth.complaints) == (1, [])


async def test_the_end_of_one_session_is_not_another_ones(world: World, oauth: OAuthServer) -> None:
    """Who waits for another session's renewal, which ends with its session, goes on with its own right to read."""
    replica = world.replica(0)
    path = f"tenants/default/secrets/{replica.credential.vault_id}/{replica.credential.credential_id}"
    version = await world.store.patch(path, core.lease("dead", time.time()), 1)
    first = replica.access.secrets
    assert isinstance(first, operator.SessionPass)
    other = operator.SessionPass(first.issuer_key_file, "default", first.vault_ids)
    access = dataclasses.replace(replica.access, session_id=other.session_id, secrets=other)
    their = Replica(replica.renewal, access, replica.credential)
    ending = asyncio.create_task(replica.value())
    while not replica.renewal._running:
        await asyncio.sleep(0)  # it is the first session that renews
    going_on = asyncio.create_task(their.value())
    while other.asked == 0:
        await asyncio.sleep(0)
    first.over = True
    world.store.forget(first.session_id, 0)
    with pytest.raises(Unauthenticated):
        await ending
    await world.store.patch(path, core.CLEARED, version)
    assert await going_on == oauth.grants[0].access
    assert (oauth.requests, oauth.complaints) == (1, [])


async def test_a_crash_before_the_server_was_asked_costs_a_lease(world: World, oauth: OAuthServer) -> None:
    """The note is there and nobody behind it: it is waited for, and then taken over."""
    replica, later = world.replica(0), world.replica(core.LEASE_SECONDS + 1)
    path = f"tenants/default/secrets/{replica.credential.vault_id}/{replica.credential.credential_id}"
    await world.store.patch(path, core.lease("dead", time.time()), 1)
    waiting = asyncio.create_task(replica.value())
    await asyncio.wait([waiting], timeout=0.3)
    assert (waiting.done(), oauth.requests) == (False, 0)
    assert await later.value() == await waiting == oauth.grants[0].access
    assert (oauth.requests, oauth.complaints) == (1, [])


async def test_a_crash_after_the_server_has_answered_is_a_revocation(world: World, oauth: OAuthServer) -> None:
    """The new pair is lost with its process. The next one is told `invalid_grant`: typed, and no loop."""
    oauth.answers.clear()
    dying = world.replica(0)
    asked = asyncio.create_task(dying.fresh())
    await asyncio.to_thread(oauth.asked.wait)
    await dying.renewal.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
    oauth.answers.set()
    later = world.replica(core.LEASE_SECONDS + 1)
    for _ in range(3):
        with pytest.raises(Refused) as caught:
            await later.fresh()
        assert caught.value.reason == "CREDENTIAL_REVOKED"
    assert (oauth.requests, oauth.complaints) == (2, ["a refresh token was used twice"])


async def test_what_a_client_stores_meanwhile_counts(world: World, oauth: OAuthServer) -> None:
    """A new grant that came while the old one was renewed stays; the renewed one of the old is dropped."""
    from services.vault_proxy.messages import draft_of

    oauth.answers.clear()
    replica = world.replica(0)
    asked = asyncio.create_task(replica.fresh())
    await asyncio.to_thread(oauth.asked.wait)
    newer = oauth.grant()
    draft = draft_of(secret_of(oauth, newer, "2031-01-01T00:00:00Z"))
    await world.vaults.update("default", replica.credential.credential_id, draft, 0)
    oauth.answers.set()
    document = await asked
    assert document is not None
    fields = document.fields.reveal()
    assert (fields["access"], fields["refresh"]) == (newer.access, newer.refresh)


async def test_an_archived_credential_is_not_brought_back(world: World, oauth: OAuthServer) -> None:
    """Archived while it was renewed: the new pair is dropped, and nothing is written in its place."""
    oauth.answers.clear()
    replica = world.replica(0)
    asked = asyncio.create_task(replica.fresh())
    await asyncio.to_thread(oauth.asked.wait)
    await world.vaults.archive("default", replica.credential.credential_id)
    oauth.answers.set()
    assert await asked is None
    listed = await world.vaults.list_credentials("default", replica.credential.vault_id, archived=True)
    assert [(each.archived, each.version) for each in listed] == [(True, 0)]
