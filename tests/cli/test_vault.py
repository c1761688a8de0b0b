"""`handmesh vault`: what is kept, what is never printed, and the way through a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from handmesh.cli.arguments import UsageError
from handmesh.cli.callback import Callback, Redirect, callback, redirect_of
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from tests.cli.peer import Peer
from tests.cli.vault_peer import CODE, STATE, VaultPeer

Command = Callable[..., Result]
CANARY = "canary-of-the-command"
ORIGIN = "https://mcp.example"


@pytest.fixture
def vaults(peer: Peer) -> VaultPeer:
    """The peer's vaults."""
    return peer.vaults


def made(handmesh: Command, name: str = "work") -> str:
    return handmesh("vault", "create", name).stdout.strip()


def test_vaults_are_made_and_listed(handmesh: Command, vaults: VaultPeer) -> None:
    """The id alone on standard output; over several pages; archived ones only when asked for."""
    assert "handmesh vault create" in handmesh("vault", "list").stderr
    ids = [made(handmesh, f"v{number}") for number in range(5)]
    assert handmesh("vault", "archive", ids[0], "--yes").exit_code == 0
    listed = [json.loads(line) for line in handmesh("vault", "list", "--json").stdout.splitlines()]
    assert [each["vaultId"] for each in listed] == ids[:0:-1]
    assert ids[0] in handmesh("vault", "list", "--archived").stdout
    table = handmesh("vault", "list").stdout
    assert "v4" in table and ids[0] not in table


@pytest.mark.parametrize("how", ["stdin", "dash", "file"])
def test_a_secret_is_read_and_not_shown(handmesh: Command, vaults: VaultPeer, tmp_path: Path, how: str) -> None:
    """From standard input or a file, without the line end behind it; nothing that is printed holds it."""
    made(handmesh)
    file = tmp_path / "token"
    file.write_text(f"{CANARY}\n")
    options = {"stdin": (), "dash": ("--from", "-"), "file": ("--from", str(file))}[how]
    result = handmesh("vault", "add", "work", ORIGIN, "--name", "mine", *options, text=f"{CANARY}\n")
    assert result.exit_code == 0, result.stderr
    [asked] = vaults.added
    assert asked.secret.static_bearer.value == CANARY
    assert (asked.origin, asked.name) == (ORIGIN, "mine")
    shown = result.stdout + result.stderr + handmesh("vault", "credentials", "work").stdout
    assert ORIGIN in shown and CANARY not in shown


def test_each_kind(handmesh: Command, vaults: VaultPeer) -> None:
    """A git host by value and by app, and a variable."""
    made(handmesh)
    handmesh("vault", "add", "work", "https://github.com", "--git", "--user", "me", text=CANARY)
    app = ("--app-id", "1", "--installation-id", "2")
    handmesh("vault", "add", "work", "https://ghe.example", "--git", *app, text="PEM\n")
    variable = ("--variable", "KEY", "--host", "a.example", "--host", "*.b.example", "--in-bodies")
    handmesh("vault", "add", "work", *variable, text=CANARY)
    assert [each.secret for each in vaults.added] == [
        pb.CredentialSecret(git=pb.GitAccess(user="me", value=CANARY)),
        pb.CredentialSecret(git=pb.GitAccess(app_id="1", installation_id="2", private_key="PEM\n")),
        pb.CredentialSecret(
            environment_variable=pb.EnvironmentVariable(
                variable="KEY",
                value=CANARY,
                allowed_hosts=["a.example", "*.b.example"],
                in_headers=True,
                in_bodies=True,
            )
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "expected an ORIGIN"),
        ((ORIGIN, "--variable", "KEY"), "expected an ORIGIN"),
        ((ORIGIN, "--host", "a.example"), "go with --variable"),
        ((ORIGIN, "--user", "me"), "go with --git"),
        ((ORIGIN, "--git", "--app-id", "1"), "go together"),
        ((ORIGIN, "--from", "/missing"), "No such file"),
    ],
)
def test_what_does_not_go_together(handmesh: Command, vaults: VaultPeer, arguments: tuple[str, ...], told: str) -> None:
    """A usage error that says what was expected, and nothing is sent."""
    made(handmesh)
    result = handmesh("vault", "add", "work", *arguments, text=CANARY)
    assert result.exit_code == 2 and told in result.stderr
    assert handmesh("vault", "add", "work", ORIGIN, text="").exit_code == 2
    assert vaults.added == []


def test_which_vault(handmesh: Command, vaults: VaultPeer) -> None:
    """By id or by a name that only one has; else it says what to do."""
    assert "no vault of the name 'work'" in handmesh("vault", "credentials", "work").stderr
    first, second = made(handmesh), made(handmesh)
    result = handmesh("vault", "credentials", "work")
    assert result.exit_code == 2 and "there are 2 vaults of the name" in result.stderr
    assert handmesh("vault", "add", second, ORIGIN, text="x").exit_code == 0
    assert vaults.added[0].vault_id == second
    assert "No credentials" in handmesh("vault", "credentials", first).stderr


def test_archiving_asks_first(handmesh: Command, vaults: VaultPeer) -> None:
    """A vault or a credential; without a yes nothing is destroyed."""
    made(handmesh)
    handmesh("vault", "add", "work", ORIGIN, text="x")
    [credential] = vaults.credentials
    assert handmesh("vault", "archive", credential.credential_id, text="n\n").exit_code == 1
    assert not credential.archived
    assert handmesh("vault", "archive", credential.credential_id, text="y\n").exit_code == 0
    assert credential.archived
    assert handmesh("vault", "archive", "work", "-y").exit_code == 0
    assert vaults.vaults[0].archived


def test_validating(handmesh: Command, vaults: VaultPeer, peer: Peer) -> None:
    """It brings a voucher for the credential's vault; the exit code says whether it works."""
    vault_id = made(handmesh)
    handmesh("vault", "add", "work", ORIGIN, text="x")
    credential_id = vaults.credentials[0].credential_id
    result = handmesh("vault", "validate", credential_id, "--url", f"{ORIGIN}/mcp")
    assert (result.exit_code, result.stdout) == (0, "valid: it works\n")
    assert vaults.tried == [
        pb.ValidateCredentialRequest(credential_id=credential_id, voucher=f"for {vault_id}", url=f"{ORIGIN}/mcp")
    ]
    vaults.verdict = pb.ValidateCredentialResponse(reason="CREDENTIAL_REVOKED", detail="the server\x1b refuses it")
    result = handmesh("vault", "validate", credential_id)
    assert (result.exit_code, result.stdout) == (1, "CREDENTIAL_REVOKED: the server\\x1b refuses it\n")
    assert "handmesh vault connect" in result.stderr
    missing = handmesh("vault", "validate", "cred_" + "9" * 26)
    assert missing.exit_code == 1 and "CREDENTIAL_NOT_FOUND" in missing.stderr


def test_connecting_by_hand(handmesh: Command, vaults: VaultPeer, tmp_path: Path) -> None:
    """A vault is made if there is none; what is pasted goes to the service; the code is not printed."""
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\n")
    options = ("--scope", "a b", "--client-id", "me", "--client-secret-file", str(file), "--name", "mine")
    back = f"http://127.0.0.1:1/callback?state={STATE}&code={CODE}&iss=https%3A%2F%2Fas.example"
    result = handmesh("vault", "connect", f"{ORIGIN}/mcp", "--paste", *options, text=f"{back}\n")
    assert result.exit_code == 0, result.stderr
    [asked] = vaults.started
    assert asked.redirect_uri.startswith("http://127.0.0.1:") and asked.redirect_uri.endswith("/callback")
    assert (asked.url, asked.scope, asked.client_id, asked.name) == (f"{ORIGIN}/mcp", "a b", "me", "mine")
    assert (asked.client_secret, asked.vault_id) == (CANARY, vaults.vaults[0].vault_id)
    assert vaults.finished == [pb.FinishConnectionRequest(state=STATE, code=CODE, issuer="https://as.example")]
    assert "https://as.example/page?x=1" in result.stderr and "handmesh vault validate" in result.stderr
    assert vaults.credentials[0].credential_id in result.stdout
    assert not any(secret in result.stdout + result.stderr for secret in (CANARY, CODE))
    wrong = handmesh("vault", "connect", ORIGIN, "--paste", text=f"{back.replace(STATE, 'another')}\n")
    assert wrong.exit_code == 2 and len(vaults.finished) == 1


async def get(url: str, target: str) -> bytes:
    """Asks a callback server for something."""
    port = int(url.split(":")[2].split("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_the_callback_waits_for_its_own_state() -> None:
    """Icons, other states and methods, nonsense, and what comes before a state is expected: 404. Then it comes."""
    async with callback() as waiting:
        assert isinstance(waiting, Callback)
        good = f"GET /callback?code={CODE}&state={STATE}&iss=i"
        assert b"404" in await get(waiting.url, good.replace(STATE, ""))
        assert b"404" in await get(waiting.url, good)
        waiting.expect(STATE)
        for other in ("GET /favicon.ico", "nonsense", good.replace(STATE, "x"), good.replace("GET", "POST"), "GET /"):
            assert b"404" in await get(waiting.url, other)
        assert b"404" in await get(waiting.url, f"GET /callback?state={STATE}")
        finding = asyncio.create_task(waiting.redirect())
        answer = await get(waiting.url, good)
        assert b"200 OK" in answer and b"no-store" in answer and CODE.encode() not in answer
        assert await finding == Redirect(STATE, CODE, "i")
        await get(waiting.url, good.replace(CODE, "second"))
        assert (await waiting.redirect()).code == CODE
    with pytest.raises(ConnectionRefusedError):
        await get(waiting.url, good)


async def test_a_port_that_is_taken() -> None:
    """Said as what it is."""
    async with callback() as first:
        port = int(first.url.split(":")[2].split("/")[0])
        with pytest.raises(UsageError, match=f"--port {port}"):
            async with callback(port):
                pass


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://x/?state=s&code=c", Redirect("s", "c")),
        ("http://x/?state=s&error=access_denied&iss=i", Redirect("s", "", "i", "access_denied")),
        ("http://x/?state=s&code=c&code=d", None),
        ("http://x/?state=s", None),
        ("http://x/?code=c", None),
        ("", None),
    ],
)
def test_what_a_redirect_brings(url: str, found: Redirect | None) -> None:
    """A state, and a code or an error, each once."""
    assert redirect_of(url) == found
