"""What the tests of doors share: a git host, and a sandbox's git in front of a door that knows a credential for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.vault_proxy.doors import http
from tests.support.git_host import GitHost
from tests.vault_proxy.conftest import Proxy, Start
from tests.vault_proxy.doors.git_world import Sandbox, add_login, rule, sandbox

VALUE = "canary+G1t/value=for~tests"
NAME = "acme/app"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    """A git host that wants VALUE, with the repository NAME."""
    made = GitHost(tmp_path / "host", VALUE)
    made.make(NAME)
    yield made
    made.close()


@dataclass
class World:
    """A sandbox, its session's credential, and the host."""

    proxy: Proxy
    host: GitHost
    box: Sandbox
    vault_id: str
    credential_id: str

    async def cloned(self) -> str:
        """Clones the repository into `app`."""
        await self.box.ok("clone", "--quiet", self.host.url(NAME), "app")
        await self.box.ok("checkout", "--quiet", "-b", "work", cwd="app")
        return "app"

    async def results(self, count: int) -> list[str]:
        """Waits for so many uses of the credential, and returns how each ended."""
        session = self.proxy.peer.session_of(self.box.grant)
        while True:
            events = [event for its, event in self.proxy.peer.events if its == session]
            uses = [event.credential_used for event in events if event.WhichOneof("kind") == "credential_used"]
            if len(uses) >= count:
                assert {(use.credential_id, use.server) for use in uses} == {(self.credential_id, "127.0.0.1")}
                return [use.result for use in uses]
            self.proxy.peer.emitted.clear()
            await self.proxy.peer.emitted.wait()


@asynccontextmanager
async def _world(proxy: Proxy, host: GitHost, folder: Path) -> AsyncIterator[World]:
    vault_id, credential_id = await add_login(proxy, host.origin, VALUE)
    grant = proxy.peer.grant(vault_ids=(vault_id,), git_rules=(rule(host.url(NAME)),))
    async with sandbox(proxy, grant, folder, host) as box:
        yield World(proxy, host, box, vault_id, credential_id)


@pytest.fixture
async def world(proxy: Proxy, host: GitHost, tmp_path: Path) -> AsyncIterator[World]:
    """The world, with its credential in OpenBao."""
    async with _world(proxy, host, tmp_path / "box") as made:
        yield made


@pytest.fixture
async def small_world(
    start: Start, host: GitHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """The world, with its credential in memory: for what does not depend on where it is."""
    monkeypatch.setattr(http, "REST_SECONDS", 0.05)  # clients here wait for the door to close
    async with start() as proxy, _world(proxy, host, tmp_path / "box") as made:
        yield made
