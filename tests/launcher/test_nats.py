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
        "$JS.API.STREAM.CREATE.EV",
        "$JS.API.STREAM.UPDATE.LOG-0",
        "$JS.API.STREAM.DELETE.LOG-0",
        "$JS.API.STREAM.PURGE.LOG-0",
        "$JS.API.STREAM.PURGE.KV_audit",
        "$JS.API.STREAM.MSG.DELETE.LOG-0",
        "$JS.API.STREAM.RESTORE.LOG-0",
        "$JS.API.STREAM.SNAPSHOT.LOG-0",
        "$JS.API.CONSUMER.CREATE.LOG-0.x",
        "$JS.API.ACCOUNT.PURGE.$G",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_the_session_user_cannot_undo_what_is_written(nats_server: NatsServer, subject: str) -> None:
    """The server refuses its requests to make, change, delete, purge, edit, replace or carry away a stream."""
    await is_refused(nats_server, nats_server.session_login, subject)


@pytest.mark.parametrize(
    "subject",
    [
        "log.0.sess.1",
        "$KV.tombstones.x",
        "$JS.API.STREAM.PURGE.KV_tombstones",
        "$JS.API.STREAM.PURGE.KV_audit",
        "$JS.API.STREAM.DELETE.LOG-0",
        "$JS.API.STREAM.UPDATE.LOG-0",
        "$JS.API.STREAM.MSG.DELETE.LOG-0",
        "$JS.API.STREAM.MSG.GET.LOG-0",
        "$JS.API.DIRECT.GET.LOG-0",
        "$JS.API.CONSUMER.CREATE.LOG-0.x",
    ],
)
async def test_the_janitor_purges_and_nothing_else(nats_server: NatsServer, subject: str) -> None:
    """It can neither write nor read what is in a log, and takes no tombstone away."""
    kept = read_strings(nats_server.session_credentials.with_name("janitor.json"))
    await is_refused(nats_server, Login(user=kept["user"], password=kept["password"]), subject)


async def is_refused(server: NatsServer, login: Login, subject: str) -> None:
    """Publishes, and waits for the server's complaint."""
    complaints: asyncio.Queue[Exception] = asyncio.Queue()
    async with connected(server, login, complaints) as client:
        await client.publish(subject, b"{}")
        async with asyncio.timeout(10):
            assert f'permissions violation for publish to "{subject.lower()}"' in str(await complaints.get()).lower()


async def test_the_migrate_user_makes_and_deletes_streams(own_nats_server: NatsServer) -> None:
    """Making and taking away are the operator's."""
    async with connected(own_nats_server, own_nats_server.migrate_login) as operator:
        await operator.jetstream().add_stream(name="EV", subjects=["ev.*"])
        await operator.jetstream().publish("ev.a", b"1")
        await operator.jetstream().delete_stream("EV")
        with pytest.raises(NotFoundError):
            await operator.jetstream().stream_info("EV")


async def test_what_was_acknowledged_survives_a_kill(own_nats_server: NatsServer) -> None:
    """State and credentials outlive the process: the same login finds the same message."""
    login = own_nats_server.session_login
    async with connected(own_nats_server, login) as before:
        await before.jetstream().publish("log.0.kept.1", b"kept")
        await own_nats_server.kill()
    await own_nats_server.restart()
    async with connected(own_nats_server, login) as after:
        kept = await after.jetstream().get_last_msg("LOG-0", "log.0.kept.1", direct=True)
        assert kept.data == b"kept"


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
