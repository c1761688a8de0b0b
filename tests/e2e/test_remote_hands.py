"""Hands that dial out, on a real mesh: the example programs as their owners start them, and what becomes of a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.sandbox.v1 import sandbox_pb2 as pb
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from tests.e2e.test_mesh import ends, only, outcomes, turn

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


@asynccontextmanager
async def serving(client: Client, name: str, token: str, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs a hand as a program of its own, until it is known to the mesh; ends it at the end."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HANDMESH_HAND_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "--connect", client.addresses.sandbox, "--name", name),
        env=environment,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            while not await known(client, name):
                assert process.returncode is None, (await process.communicate())[1]
                await asyncio.sleep(0.05)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            await process.communicate()


async def handmesh(mesh: Mesh, *arguments: str) -> str:
    """Runs `handmesh hand ...` on the mesh, and returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "handmesh.cli", "hand", *arguments, "--data-dir", str(mesh.files.data_directory)),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed
    return printed.decode()


async def known(client: Client, name: str) -> bool:
    """Says whether a worker of the hand is connected."""
    link = client.sandbox_link
    found = await link.call(client.sandbox_stub.ListEnvironments, pb.ListEnvironmentsRequest())
    return any(each.name == name and each.available for each in found.environments)


async def test_a_game_is_played_and_its_screens_lie_in_blobs(client: Client) -> None:
    """The console presses its buttons once each; the two pictures are fetched as files, and are not the same."""
    pytest.importorskip("PIL")
    if not os.environ.get("CI"):
        pytest.importorskip("pyboy")
    token = (await client.hand_tokens.create("gameboy")).token
    async with serving(client, "gameboy", token, "examples/hands/gameboy.py") as process:
        config = SessionConfig(hands={"console": HandSpec(environment="gameboy")})
        session = await client.create_session(config, "paint two squares")
        events = await turn(session)
        assert (ends(events), outcomes(events)) == (["DONE"], ["OK"] * 6)
        finished = only(events, "tool_finished")
        pictures = []
        for shot in (finished[0], finished[-1]):
            (blob,) = shot.blobs
            assert json.loads(shot.result.content_json)[-1]["blob_id"] == blob.blob_id
            pictures.append(b"".join([piece async for piece in session.download(blob.blob_id)]))
        assert [painted(picture) for picture in pictures] == [0, 2]
        offered = json.loads(only(events, "tools_offered")[0].tools_json)
        assert [tool["name"] for tool in offered] == ["press", "wait", "screenshot"]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(SECONDS):
            assert await process.wait() == 0


def painted(picture: bytes) -> int:
    """Counts the squares of eight by eight pixels that are painted, in a picture of twice the size."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("L")
    squares = [(x, y) for x in range(0, 320, 16) for y in range(0, 288, 16)]
    return sum(image.getpixel((x + 8, y + 8)) < 128 for x, y in squares)


async def test_a_directory_is_served_and_its_token_revoked(client: Client, mesh: Mesh, tmp_path: Path) -> None:
    """`handmesh hand token`, `serve`, `revoke`: the worker is gone at once, and never comes back.

    No part of the mesh has the token in its log, and no list tells it.
    """
    token = (await handmesh(mesh, "token", "laptop")).strip()
    (tmp_path / "here.txt").write_text("found\n")
    command = ("-m", "handmesh.cli", "hand", "serve", "--root", str(tmp_path))
    async with serving(client, "laptop", token, *command) as process:
        sandbox = await client.sandbox_link.call(
            client.sandbox_stub.Provision, pb.ProvisionRequest(environment="laptop")
        )
        request = pb.ExecuteRequest(
            sandbox_id=sandbox.sandbox.sandbox_id,
            name="bash",
            input=json.dumps({"command": "cat here.txt; env | grep -c HANDMESH_HAND_TOKEN"}),
        )
        said = (await client.sandbox_link.call(client.sandbox_stub.Execute, request)).result
        assert said.output == "found\n0\n[exit code: 1]"
        assert "revoked" in await handmesh(mesh, "revoke", "laptop")
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
        assert process.returncode == 1 and b"GRANT_INVALID" in errors and token.encode() not in errors
    assert not await known(client, "laptop")
    listed = [each for each in await client.hand_tokens.all() if each.name == "laptop"]
    assert [each.HasField("revoke_time") for each in listed] == [True]
    secret = token.partition(".")[2]
    assert "laptop" in (told := await handmesh(mesh, "tokens")) and secret not in told
    logs = [file.read_text(errors="replace") for file in (mesh.files.data_directory / "logs").iterdir()]
    assert logs and not any(secret in log for log in logs)


async def test_a_hands_token_is_no_key_anywhere(client: Client) -> None:
    """Shown to each service in place of an API key, it opens no method of any of them."""
    token = (await client.hand_tokens.create("nobody")).token
    from handmesh.client.client import Client as AnyClient

    async with AnyClient(client.addresses, token) as other:
        for call in (
            other.session_link.call(other.session_stub.ListHandTokens, hand_tokens_request()),
            other.sandbox_link.call(other.sandbox_stub.ListSandboxes, pb.ListSandboxesRequest()),
            other.vaults.create("x"),
        ):
            with pytest.raises(Exception, match="METHOD_DENIED"):
                await call


def hand_tokens_request() -> object:
    from handmesh.session.v1 import session_pb2

    return session_pb2.ListHandTokensRequest()
