"""The OpenBao that the launcher sets up: what vault_proxy may read, what it may not, and a start without a person."""

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.errors import PartFailed, VaultRefused
from handmesh.launcher.files import read_strings
from handmesh.launcher.openbao import OpenBao, operator_of
from handmesh.launcher.ports import free_ports
from handmesh.launcher.vault_operator import ACTIVE, VaultOperator
from tests.support.openbao import OpenBaoServer

pytestmark = pytest.mark.vault


def call(bao: OpenBaoServer, method: str, path: str, token: str = "", body: object = None) -> tuple[int, Any]:
    """Sends a request as any client of the vault would."""
    connection = http.client.HTTPConnection("127.0.0.1", bao.port, timeout=20)
    connection.request(method, f"/v1/{path}", json.dumps(body), {"X-Vault-Token": token})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content) if content else None


def login(bao: OpenBaoServer) -> str:
    """Logs in as vault_proxy does and returns the token."""
    status, answer = call(bao, "POST", "auth/approle/login", body=read_strings(bao.approle_file))
    assert status == 200
    token: str = answer["auth"]["client_token"]
    return token


def test_vault_proxy_reads_a_tenants_secret(openbao: OpenBaoServer) -> None:
    """What the operator puts, the AppRole reads and lists."""
    assert openbao.operator.put_secret("tenants/default/secrets/reads", {"token": "s3cret"}) == 1
    token = login(openbao)
    _, answer = call(openbao, "GET", "handmesh/data/tenants/default/secrets/reads", token)
    assert answer["data"]["data"] == {"token": "s3cret"}
    _, listed = call(openbao, "LIST", "handmesh/metadata/tenants/default/secrets", token)
    assert "reads" in listed["data"]["keys"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "handmesh/data/other/written"),
        ("DELETE", "handmesh/metadata/other/written"),
        ("POST", "sys/policies/acl/vault-proxy"),
        ("GET", "handmesh/data/other/secret"),
        ("LIST", "handmesh/metadata"),
        ("GET", "sys/mounts"),
        ("GET", "sys/policies/acl/vault-proxy"),
        ("POST", "auth/token/create"),
        ("POST", "auth/approle/role/vault-proxy/secret-id"),
    ],
)
def test_vault_proxy_may_do_nothing_else(openbao: OpenBaoServer, method: str, path: str) -> None:
    """Its token neither writes nor reads outside the tenants, nor makes itself another token or policy."""
    status, _ = call(openbao, method, path, login(openbao), body={"data": {"a": "b"}})
    assert status == 403


def test_the_audit_log_is_private_and_shows_no_value(openbao: OpenBaoServer) -> None:
    """Each request is recorded, with keyed hashes in place of secrets."""
    openbao.operator.put_secret("tenants/default/audited", {"token": "canary-9Q2"})
    call(openbao, "GET", "handmesh/data/tenants/default/audited", login(openbao))
    log = openbao.directory / "openbao" / "audit.log"
    assert log.stat().st_mode & 0o777 == 0o600
    recorded = log.read_text()
    assert "handmesh/data/tenants/default/audited" in recorded
    assert "canary-9Q2" not in recorded
    assert openbao.root_token not in recorded


def test_keys_are_private_and_in_no_repr(openbao: OpenBaoServer) -> None:
    """The unseal key, the root token and the AppRole are readable by their owner alone, and are not printed."""
    files = [openbao.directory / "openbao" / "keys.json", openbao.approle_file]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert openbao.root_token not in repr(openbao.operator)


def test_an_operator_is_found_by_the_data_directory(openbao: OpenBaoServer) -> None:
    """Another process, such as the command line, puts a secret knowing only directory and port."""
    operator = operator_of(openbao.directory / "openbao", openbao.port)
    assert operator.put_secret("tenants/default/found", {"a": "b"}) == 1


def test_a_refusal_has_its_status(openbao: OpenBaoServer) -> None:
    """What OpenBao refuses is a typed error, and the secret is not in it."""
    stranger = VaultOperator("127.0.0.1", openbao.port, "no-token-of-this-vault")
    with pytest.raises(VaultRefused) as refusal:
        stranger.put_secret("tenants/default/refused", {"token": "canary-7B1"})
    assert refusal.value.status == 403
    assert "canary-7B1" not in str(refusal.value)


async def test_it_comes_back_from_a_kill_by_itself(own_openbao: OpenBaoServer) -> None:
    """After SIGKILL a start unseals it with the kept key: secrets and the AppRole are the same."""
    own_openbao.operator.put_secret("tenants/default/secrets/kept", {"token": "t"})
    approle = own_openbao.approle_file.read_bytes()
    await own_openbao.kill()
    await own_openbao.restart()
    assert own_openbao.operator.health() == ACTIVE
    assert own_openbao.approle_file.read_bytes() == approle
    token = await asyncio.to_thread(login, own_openbao)
    _, answer = await asyncio.to_thread(call, own_openbao, "GET", "handmesh/data/tenants/default/secrets/kept", token)
    assert answer["data"]["data"] == {"token": "t"}


async def test_a_first_start_that_was_cut_short_is_finished_by_the_next(own_openbao: OpenBaoServer) -> None:
    """Initialised but without its AppRole file, it lays out what is missing and keeps what is there."""
    own_openbao.operator.put_secret("tenants/default/secrets/kept", {"token": "t"})
    own_openbao.approle_file.unlink()
    await own_openbao.restart()
    token = await asyncio.to_thread(login, own_openbao)
    status, _ = await asyncio.to_thread(call, own_openbao, "GET", "handmesh/data/tenants/default/secrets/kept", token)
    assert status == 200


async def test_an_initialisation_that_was_cut_short_starts_afresh(own_openbao: OpenBaoServer) -> None:
    """When the keys of a new store were never kept, nobody can have used it, and it is made anew."""
    state = own_openbao.directory / "openbao"
    before = (state / "keys.json").read_bytes()
    for file in ("keys.json", "approle.json"):
        (state / file).unlink()
    (state / "initialising").touch()
    await own_openbao.restart()
    assert (state / "keys.json").read_bytes() != before
    assert not (state / "initialising").exists()
    await asyncio.to_thread(login, own_openbao)


async def test_lost_keys_are_told_plainly(own_openbao: OpenBaoServer) -> None:
    """An initialised vault without its key file is not initialised again: the error says what to do."""
    (own_openbao.directory / "openbao" / "keys.json").unlink()
    with pytest.raises(VaultRefused, match="its keys are not in"):
        await own_openbao.restart()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path, openbao: OpenBaoServer) -> None:
    """A taken port ends the start with the server's own words, and leaves no process."""
    with pytest.raises(PartFailed, match="address already in use"):
        await OpenBao.start(tmp_path / "openbao", tmp_path / "openbao.log", openbao.port, free_ports(1)[0])
