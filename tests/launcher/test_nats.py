"""The NATS that the launcher configures: durable, closed to strangers, and safe from its own service."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from handmesh.launcher.errors import PartFailed
from handmesh.launcher.files import read_strings
from handmesh.launcher.nats import Nats
from handmesh.launcher.ports import free_ports
from tests.support.nats import Login, NatsServer

pytestmark = pytest.mark.nats


def monitor(server: NatsServer, page: str) -> dict[str, Any]:
    """Reads a page of the monitoring endpoint."""
    with urllib.request.urlopen(f"{server.monitor_url}/{page}", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


@asynccontextmanager
async def connected(
    server: NatsServer, login: Login, errors: "asyncio.Queue[Exception] | None" = None
) -> AsyncIterator[Client]:
    """A connection without retries. What the server complains about arrives in `errors`."""

    async def complain(error: Exception) -> None:
        if errors is not None:
            errors.put_nowait(error)

    client = Client()
    try:
        await client.connect(server.url, allow_reconnect=False, error_cb=complain, **login)
        yield client
    finally:
        await client.close()


async def test_every_write_is_synced_and_large_messages_fit(nats_server: NatsServer) -> None:
    """What the session service checks at its start: sync_interval always, and 8 MiB per message."""
    config = await asyncio.to_thread(monitor, nats_server, "jsz?config=1")
    assert config["config"]["sync_always"] is True
    assert (await asyncio.to_thread(monitor, nats_server, "varz"))["max_payload"] == 8 * 1024 * 1024


async def test_only_loopback_is_listened_on(nats_server: NatsServer) -> None:
    """Neither clients nor the monitoring endpoint are reachable from another machine."""
    server = await asyncio.to_thread(monitor, nats_server, "varz")
    assert (server["host"], server["http_host"]) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("login", [Login(user="", password=""), Login(user="session", password="guess")])
async def test_a_stranger_is_refused(nats_server: NatsServer, login: Login) -> None:
    """Without the password nobody gets in, from loopback either."""
    with pytest.raises((NatsError, OSError)):
        async with connected(nats_server, login):
            pass


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.EV",
        "$JS.API.STREAM.PURGE.EV",
        "$JS.API.STREAM.MSG.DELETE.EV",
        "$JS.API.STREAM.RESTORE.EV",
        "$JS.API.STREAM.SNAPSHOT.EV",
    ],
)
async def test_the_session_user_cannot_undo_what_is_written(nats_server: NatsServer, subject: str) -> None:
    """The server refuses its requests to delete, purge, edit, replace or carry away a stream."""
    complaints: asyncio.Queue[Exception] = asyncio.Queue()
    async with connected(nats_server, nats_server.session_login, complaints) as session:
        await session.publish(subject, b"{}")
        assert f'permissions violation for publish to "{subject.lower()}"' in str(await complaints.get()).lower()


async def test_the_session_user_makes_streams_and_the_migrate_user_deletes_them(own_nats_server: NatsServer) -> None:
    """The service sets itself up; taking away is the operator's."""
    async with connected(own_nats_server, own_nats_server.session_login) as session:
        await session.jetstream().add_stream(name="EV", subjects=["ev.*"])
        await session.jetstream().publish("ev.a", b"1")
        assert (await session.jetstream().get_msg("EV", 1)).data == b"1"
    async with connected(own_nats_server, own_nats_server.migrate_login) as operator:
        await operator.jetstream().delete_stream("EV")
        with pytest.raises(NotFoundError):
            await operator.jetstream().stream_info("EV")


async def test_what_was_acknowledged_survives_a_kill(own_nats_server: NatsServer) -> None:
    """State and credentials outlive the process: the same login finds the same message."""
    login = own_nats_server.session_login
    async with connected(own_nats_server, login) as before:
        await before.jetstream().add_stream(name="EV", subjects=["ev.*"])
        await before.jetstream().publish("ev.a", b"kept")
        await own_nats_server.kill()
    await own_nats_server.restart()
    async with connected(own_nats_server, login) as after:
        assert (await after.jetstream().get_msg("EV", 1)).data == b"kept"


def test_credentials_are_private(nats_server: NatsServer) -> None:
    """Passwords are readable by their owner alone, also in the configuration."""
    files = [nats_server.session_credentials, nats_server.migrate_credentials]
    files.append(nats_server.session_credentials.with_name("nats.conf"))
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert read_strings(files[0])["password"] != read_strings(files[1])["password"]


async def test_a_server_that_cannot_start_says_why(tmp_path: Path, nats_server: NatsServer) -> None:
    """A taken port ends the start with the server's own words, and leaves no process."""
    with pytest.raises(PartFailed, match="address already in use"):
        await Nats.start(tmp_path / "nats", tmp_path / "nats.log", nats_server.port, free_ports(1)[0])
