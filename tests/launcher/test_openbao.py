"""The OpenBao that the launcher sets up: what vault_proxy may read, what it may not, and a start without a person."""

import asyncio
import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from handmesh.launcher.errors import PartFailed, VaultRefused
from handmesh.launcher.files import read_strings
from handmesh.launcher.openbao import AUDIT_LOGS, OpenBao, operator_of
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
    """Logs in as vault_proxy does, with a file of its own, and returns the token."""
    file = read_strings(bao.approle_file())
    status, answer = call(bao, "POST", "sys/wrapping/unwrap", file["wrapped_secret_id"])
    assert status == 200
    secret_id = answer["data"]["secret_id"]
    status, answer = call(bao, "POST", "auth/approle/login", body={"role_id": file["role_id"], "secret_id": secret_id})
    assert status == 200
    token: str = answer["auth"]["client_token"]
    again, _ = call(bao, "POST", "auth/approle/login", body={"role_id": file["role_id"], "secret_id": secret_id})
    assert again == 400, "a secret id works once"
    return token


def test_vault_proxy_reads_what_may_be_told(openbao: OpenBaoServer) -> None:
    """What the operator puts beside the secrets, the AppRole reads; of secrets it sees only that they are there."""
    assert openbao.operator.put_secret("tenants/default/vaults/reads", {"name": "n"}) == 1
    assert openbao.operator.put_secret("tenants/default/secrets/reads", {"token": "s3cret"}) == 1
    token = login(openbao)
    _, answer = call(openbao, "GET", "handmesh/data/tenants/default/vaults/reads", token)
    assert answer["data"]["data"] == {"name": "n"}
    _, listed = call(openbao, "LIST", "handmesh/metadata/tenants/default/secrets", token)
    assert "reads" in listed["data"]["keys"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "handmesh/data/tenants/default/secrets/reads"),
        ("GET", "handmesh/subkeys/tenants/default/secrets/reads"),
        ("POST", "auth/handmesh/config"),
        ("GET", "auth/handmesh/role/session"),
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


def recorded(bao: OpenBaoServer, path: str) -> dict[str, int]:
    """Counts the answers to requests of a path in each audit log."""
    found = {}
    for name in AUDIT_LOGS.values():
        lines = (bao.directory / "openbao" / name).read_text().splitlines()
        told = [json.loads(line) for line in lines]
        found[name] = sum(each["type"] == "response" and each["request"].get("path") == path for each in told)
    return found


def test_the_audit_logs_are_private_and_show_no_value(openbao: OpenBaoServer) -> None:
    """Each read is one line in each of the two logs, with keyed hashes in place of secrets."""
    openbao.operator.put_secret("tenants/default/vaults/audited", {"token": "canary-9Q2"})
    token, path = login(openbao), "handmesh/data/tenants/default/vaults/audited"
    before = recorded(openbao, path)
    for _ in range(3):
        status, answer = call(openbao, "GET", path, token)
        assert (status, answer["data"]["data"]["token"]) == (200, "canary-9Q2")
    assert recorded(openbao, path) == {name: count + 3 for name, count in before.items()}
    for name in AUDIT_LOGS.values():
        log = openbao.directory / "openbao" / name
        assert log.stat().st_mode & 0o777 == 0o600
        for secret in ("canary-9Q2", openbao.root_token, token):
            assert secret not in log.read_text()


def test_one_audit_device_that_cannot_write_stops_nobody(own_openbao: OpenBaoServer) -> None:
    """OpenBao answers while one of the two can write, refuses everybody when none can, and mends itself after that."""
    own_openbao.operator.put_secret("tenants/default/vaults/audited", {"name": "n"})
    token, path = login(own_openbao), "handmesh/data/tenants/default/vaults/audited"
    first, second = (own_openbao.directory / "openbao" / name for name in AUDIT_LOGS.values())

    def status() -> int:
        return call(own_openbao, "GET", path, token)[0]

    def settles(wanted: int) -> None:
        """Opens the logs anew, which is not done when the signal is sent, and waits for an answer."""
        os.kill(own_openbao.process.pid, signal.SIGHUP)
        while status() != wanted:
            pass

    def block(log: Path) -> None:
        log.rename(log.with_suffix(".kept"))
        log.mkdir()

    def free(log: Path) -> None:
        log.rmdir()
        log.with_suffix(".kept").rename(log)

    def grows(log: Path) -> bool:
        said = log.stat().st_size
        assert status() == 200
        return log.stat().st_size > said

    block(second)
    os.kill(own_openbao.process.pid, signal.SIGHUP)
    while grows(second.with_suffix(".kept")):
        pass
    assert all(grows(first) for _ in range(20))
    block(first)
    settles(500)
    free(second)
    settles(200)
    free(first)
    settles(200)


def test_keys_are_private_and_in_no_repr(openbao: OpenBaoServer) -> None:
    """The unseal key, the root token and the AppRole are readable by their owner alone, and are not printed."""
    state = openbao.directory / "openbao"
    files = [state / "keys.json", state / "issuer.pem", openbao.approle_file()]
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
    """After SIGKILL a start unseals it with the kept key: what was there, and who is trusted, are the same."""
    own_openbao.operator.put_secret("tenants/default/vaults/kept", {"name": "n"})
    token = await asyncio.to_thread(login, own_openbao)
    issuer = own_openbao.issuer_key_file.read_bytes()
    await own_openbao.kill()
    await own_openbao.restart()
    assert own_openbao.operator.health() == ACTIVE
    assert own_openbao.issuer_key_file.read_bytes() == issuer
    _, answer = await asyncio.to_thread(call, own_openbao, "GET", "handmesh/data/tenants/default/vaults/kept", token)
    assert answer["data"]["data"] == {"name": "n"}


async def test_a_new_key_of_the_session_service_is_trusted_from_the_next_start_on(own_openbao: OpenBaoServer) -> None:
    """Each start lays out what is missing or other than now, and keeps what is there."""
    own_openbao.operator.put_secret("tenants/default/vaults/kept", {"name": "n"})
    _, before = call(own_openbao, "GET", "auth/handmesh/config", own_openbao.root_token)
    own_openbao.issuer_key_file.unlink()
    await own_openbao.restart()
    _, after = await asyncio.to_thread(call, own_openbao, "GET", "auth/handmesh/config", own_openbao.root_token)
    assert before["data"]["jwt_validation_pubkeys"] != after["data"]["jwt_validation_pubkeys"]
    token = await asyncio.to_thread(login, own_openbao)
    status, _ = await asyncio.to_thread(call, own_openbao, "GET", "handmesh/data/tenants/default/vaults/kept", token)
    assert status == 200


async def test_an_initialisation_that_was_cut_short_starts_afresh(own_openbao: OpenBaoServer) -> None:
    """When the keys of a new store were never kept, nobody can have used it, and it is made anew."""
    state = own_openbao.directory / "openbao"
    before = (state / "keys.json").read_bytes()
    (state / "keys.json").unlink()
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
