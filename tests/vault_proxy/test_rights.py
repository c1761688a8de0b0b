"""Nobody has a standing right to read: a session's secrets are read with the session service's word, for a minute."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from handmesh.launcher.files import read_strings
from handmesh.session.v1.config_pb2 import McpServer, SessionConfig
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit import ids
from services.kit.channels import raised
from services.kit.errors import Unavailable
from services.session.grants import Granted
from services.session.vouching import Voucher
from services.vault_proxy.ports import Document
from services.vault_proxy.secret import Secret
from services.vault_proxy.stores.hashicorp.store import HashicorpStore
from services.vault_proxy.stores.hashicorp.tokens import Tokens
from tests.support.openbao import OpenBaoServer
from tests.vault_proxy.bao import SessionPass, call
from tests.vault_proxy.conftest import Shop, Start, put_credential, vault_settings

pytestmark = pytest.mark.vault

FIELDS = {"kind": "static_bearer", "origin": "https://mcp.example", "value": "canary-of-rights"}


def status(bao: OpenBaoServer, method: str, path: str, token: str, body: object = None) -> int:
    """Returns the status of a request with a token."""
    connection = http.client.HTTPConnection("127.0.0.1", bao.port, timeout=20)
    connection.request(method, f"/v1/{path}", json.dumps(body), {"X-Vault-Token": token})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def path_of(tenant: str, vault_id: str) -> str:
    return f"tenants/{tenant}/secrets/{vault_id}/{'cred_' + '0' * 26}"


def put(bao: OpenBaoServer, tenant: str, vault_id: str) -> None:
    bao.operator.put_secret(path_of(tenant, vault_id), FIELDS)


@pytest.fixture
async def store(openbao: OpenBaoServer) -> Any:
    """A store with a login of its own."""
    made = HashicorpStore(openbao.url, "handmesh", openbao.approle_file())
    yield made
    await made.close()


async def test_the_services_own_login_reads_no_secret(openbao: OpenBaoServer, store: HashicorpStore) -> None:
    """It writes one and is refused to read it: the data, the keys, an old version; nor can it give itself a right."""
    vault_id = ids.mint("vault")
    path = path_of("default", vault_id)
    await store.write(path, FIELDS, 0)
    with pytest.raises(Unavailable):
        await store.read(path)
    token = store._made()[0]._client.token
    assert status(openbao, "GET", f"handmesh/metadata/{path}", token) == 200, "the control: the token is good"
    for method, refused in (
        ("GET", f"handmesh/data/{path}"),
        ("GET", f"handmesh/data/{path}?version=1"),
        ("GET", f"handmesh/subkeys/{path}"),
        ("POST", "handmesh/undelete/" + path),
        ("POST", "sys/policies/acl/handmesh-session"),
        ("POST", "auth/handmesh/role/session"),
        ("POST", "auth/handmesh/config"),
        ("POST", "auth/token/create"),
        ("POST", "auth/approle/role/vault-proxy/secret-id"),
        ("POST", "identity/entity"),
        ("PUT", "handmesh/config"),
    ):
        assert status(openbao, method, refused, token, {}) == 403, refused


async def test_a_session_reads_its_own_vaults_of_its_own_tenant(openbao: OpenBaoServer, store: HashicorpStore) -> None:
    """Another vault of its tenant, another tenant's vault of the same id, and lists are refused by the vault itself."""
    mine, second, other = (ids.mint("vault") for _ in range(3))
    for tenant, vault_id in (("a", mine), ("a", second), ("a", other), ("b", mine)):
        put(openbao, tenant, vault_id)
    holder = SessionPass(openbao.issuer_key_file, "a", (mine, second))
    for vault_id in (mine, second):
        assert await store.read_secret(path_of("a", vault_id), holder) == Document(Secret(FIELDS), 1)
    for tenant, vault_id in (("a", other), ("b", mine)):
        with pytest.raises(Unavailable) as caught:
            await store.read_secret(path_of(tenant, vault_id), holder)
        assert FIELDS["value"] not in str(caught.value)
    token = (await store._tokens.token(holder)).reveal()
    assert token.startswith("b.")
    path = path_of("a", mine)
    assert status(openbao, "GET", f"handmesh/data/{path}", token) == 200
    for method, refused in (
        ("POST", f"handmesh/data/{path}"),
        ("LIST", "handmesh/metadata/tenants/a/secrets"),
        ("LIST", "handmesh/metadata/tenants/a/connections"),
        ("GET", "handmesh/data/tenants/a/connections/x"),
        ("GET", f"handmesh/metadata/{path}"),
        ("DELETE", f"handmesh/metadata/{path}"),
        ("POST", "auth/token/create"),
        ("GET", "auth/token/lookup-self"),
    ):
        assert status(openbao, method, refused, token, {}) == 403, refused


async def test_sessions_of_one_tenant_do_not_mix(openbao: OpenBaoServer, store: HashicorpStore) -> None:
    """What the vault fills its policy with belongs to a set of vaults, not to who logged in last."""
    vaults = [ids.mint("vault") for _ in range(6)]
    for vault_id in vaults:
        put(openbao, "a", vault_id)
    holders = [SessionPass(openbao.issuer_key_file, "a", (vault_id,)) for vault_id in vaults]

    async def may(holder: SessionPass, vault_id: str) -> bool:
        try:
            return await store.read_secret(path_of("a", vault_id), holder) is not None
        except Unavailable:
            return False

    for _ in range(2):
        found = [[await may(holder, vault_id) for vault_id in vaults] for holder in holders]
        assert found == [[holder.vault_ids == (vault_id,) for vault_id in vaults] for holder in holders]


async def test_a_word_is_good_for_one_session_service_and_one_minute(
    openbao: OpenBaoServer, store: HashicorpStore
) -> None:
    """Another key, another time, no signature, another audience: the vault lets nobody in, and says so typed."""
    vault_id = ids.mint("vault")
    granted = Granted(ids.mint("sess"), "a", 1, 0, SessionConfig(vault_ids=[vault_id]))
    now = time.time_ns
    good = Voucher.of_file(openbao.issuer_key_file, now)
    minute = 60_000_000_000

    def word(voucher: Voucher) -> str:
        return voucher.sign(granted)

    header, claims, signature = word(good).split(".")
    words = {
        "another key": word(Voucher(Ed25519PrivateKey.generate(), now)),
        "over": word(Voucher.of_file(openbao.issuer_key_file, lambda: now() - 2 * minute)),
        "not yet": word(Voucher.of_file(openbao.issuer_key_file, lambda: now() + 2 * minute)),
        "unsigned": "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0." + claims + ".",
        "cut": f"{header}.{claims}.{signature[:-4]}",
        "swapped": f"{header}.{word(good).split('.')[1]}.{signature}",
        "nothing": "",
    }
    for name, text in words.items():
        with pytest.raises(Unavailable) as caught:
            await store.mint(Secret(text))
        assert caught.value.reason == "VAULT_UNAVAILABLE", name
    token, seconds = await store.mint(Secret(word(good)))
    assert (token.reveal()[:2], seconds) == ("b.", 60.0)


async def test_each_login_has_a_word_of_its_own() -> None:
    """One word for one login; a token is kept until shortly before its end, and dropped with its session or epoch."""
    minted: list[Secret[str]] = []
    life = 60.0

    async def mint(voucher: Secret[str]) -> tuple[Secret[str], float]:
        minted.append(voucher)
        return Secret(f"token {len(minted)}"), life

    class Holder:
        session_id, epoch, asked = "s", 2, 0

        async def voucher(self) -> Secret[str]:
            self.asked += 1
            return Secret(f"word {self.asked}")

    tokens, holder = Tokens(mint), Holder()
    got = await asyncio.gather(*(tokens.token(holder) for _ in range(10)))
    assert {each.reveal() for each in got} == {"token 1"}
    assert (await tokens.token(holder, unless=got[0])).reveal() == "token 2"
    tokens.forget("s", 2)  # the epoch is the newest
    assert (await tokens.token(holder)).reveal() == "token 2"
    tokens.forget("s", 3)
    assert (await tokens.token(holder)).reveal() == "token 3"
    tokens.forget("s", 0)
    life = 5.0  # as good as over
    assert (await tokens.token(holder)).reveal() == "token 4"
    assert (await tokens.token(holder)).reveal() == "token 5"
    assert [each.reveal() for each in minted] == [f"word {at}" for at in range(1, 6)]


async def test_a_token_that_the_vault_does_not_take_is_replaced(openbao: OpenBaoServer, store: HashicorpStore) -> None:
    """Run out, or made before the vault was restored: one more login, and no error."""
    vault_id = ids.mint("vault")
    put(openbao, "a", vault_id)
    holder = SessionPass(openbao.issuer_key_file, "a", (vault_id,))
    await store.read_secret(path_of("a", vault_id), holder)
    [kept] = store._tokens._kept.values()
    kept.token = Secret("b.AAAA")
    assert await store.read_secret(path_of("a", vault_id), holder) is not None
    assert holder.asked == 2


async def test_the_login_opens_once(openbao: OpenBaoServer) -> None:
    """A second process with the same file is not let in; with a new file it is, without a restart."""
    file = openbao.approle_file()
    first, second = (HashicorpStore(openbao.url, "handmesh", file) for _ in range(2))
    path = f"tenants/once/vaults/{ids.mint('vault')}/about"
    await first.write(path, {"name": "a"}, 0)
    with pytest.raises(Unavailable):
        await second.read(path)
    file.write_bytes(openbao.approle_file().read_bytes())
    assert await second.read(path) == Document(Secret({"name": "a"}), 1)
    await first.close()
    await second.close()


async def test_a_login_that_somebody_opened_before_is_noticed(openbao: OpenBaoServer) -> None:
    """Whoever read the file on its way has used it up: the service is not let in, and its log says what to do."""
    file = openbao.approle_file()
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    logging.getLogger("services").addHandler(handler)
    wrapped = read_strings(file)["wrapped_secret_id"]
    assert await asyncio.to_thread(status, openbao, "POST", "sys/wrapping/unwrap", wrapped) == 200
    store = HashicorpStore(openbao.url, "handmesh", file)
    with pytest.raises(Unavailable) as caught:
        await store.list("tenants")
    logging.getLogger("services").removeHandler(handler)
    assert "put a new wrapped secret id into its file" in lines.getvalue()
    assert wrapped not in lines.getvalue() + str(caught.value)
    await store.close()


async def test_a_wrapped_token_of_something_else_is_not_opened(openbao: OpenBaoServer, tmp_path: Path) -> None:
    """Only a secret id of an AppRole is unwrapped: somebody could have wrapped something of their own."""
    connection = http.client.HTTPConnection("127.0.0.1", openbao.port, timeout=20)
    headers = {"X-Vault-Token": openbao.root_token, "X-Vault-Wrap-TTL": "60s"}
    connection.request("POST", "/v1/sys/wrapping/wrap", json.dumps({"secret_id": "planted"}), headers)
    wrapped = json.loads(connection.getresponse().read())["wrap_info"]["token"]
    connection.close()
    file = tmp_path / "approle.json"
    file.write_text(json.dumps({"role_id": "x", "wrapped_secret_id": wrapped}))
    store = HashicorpStore(openbao.url, "handmesh", file)
    with pytest.raises(Unavailable):
        await store.list("tenants")
    still = await asyncio.to_thread(status, openbao, "POST", "sys/wrapping/unwrap", wrapped)
    assert still == 200, "it was not opened"
    await store.close()


async def test_a_lost_login_needs_a_new_file(openbao: OpenBaoServer) -> None:
    """The vault forgets our token: typed until an operator puts a new file, then it works, without a restart."""
    file = openbao.approle_file()
    store = HashicorpStore(openbao.url, "handmesh", file)
    await store.list("tenants/lost/vaults")
    token = store._made()[0]._client.token
    call(openbao, "POST", "auth/token/revoke", {"token": token})
    with pytest.raises(Unavailable):
        await store.list("tenants/lost/vaults")
    file.write_bytes(openbao.approle_file().read_bytes())
    assert await store.list("tenants/lost/vaults") == []
    await store.close()


async def test_a_login_is_renewed(openbao: OpenBaoServer, store: HashicorpStore) -> None:
    """In the second half of its life; the token stays the same."""
    await store.list("tenants/renewed/vaults")
    login = store._made()[0]
    token, login._renews = login._client.token, 0.0
    before = login._ends
    await asyncio.to_thread(login.keep)
    assert login._client.token == token
    assert login._ends > before


def logged_in(bao: OpenBaoServer) -> int:
    """Counts the sessions' logins that the vault has answered."""
    lines = (bao.directory / "openbao" / "audit.log").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return sum(each["type"] == "response" and each["request"].get("path") == "auth/handmesh/login" for each in told)


async def test_a_session_costs_one_question(start: Start, openbao: OpenBaoServer, shop: Shop) -> None:
    """The word comes with the answer about the grant: many calls cost one question and one login; the end of the
    session drops its token; the next has a word of its own."""
    async with start(**vault_settings(openbao)) as proxy:
        vault_id = put_credential(openbao, shop.origin, shop.token)
        server = McpServer(name="shop", url=shop.url)
        for _ in range(2):
            before, logins = proxy.peer.checks, logged_in(openbao)
            grant = proxy.peer.grant(server, vault_ids=(vault_id,))
            for city in ("Rome", "Oslo", "Bern"):
                assert city in (await proxy.execute(grant, "shop__weather", {"city": city})).output
            assert (proxy.peer.checks, logged_in(openbao)) == (before + 1, logins + 1)
            proxy.peer.revoke(grant)


async def test_without_a_key_nobody_reads(start: Start, openbao: OpenBaoServer, shop: Shop) -> None:
    """A session service that vouches for nobody: typed, and clients still keep vaults."""
    async with start(**vault_settings(openbao)) as proxy:
        proxy.peer.issuer_key_file = None
        vault_id = put_credential(openbao, shop.origin, shop.token)
        grant = proxy.peer.grant(McpServer(name="shop", url=shop.url), vault_ids=(vault_id,))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await proxy.execute(grant, "shop__weather", {"city": "Rome"})
        assert raised(caught.value).reason == "VAULT_UNAVAILABLE"
        await proxy.client.CreateVault(pb.CreateVaultRequest())
