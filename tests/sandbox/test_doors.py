"""Doors of sandboxes, from a tool in a real sandbox to the vault proxy's listener over gRPC and TLS."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.kit.errors import Refused, Unavailable
from services.kit.ids import mint
from services.sandbox.backends import Backends
from services.sandbox.doorman import Doorman
from services.sandbox.environments import Environments
from services.sandbox.hand import HandSettings, Limits, Network, Recipe
from services.sandbox.owners_core import Goal
from services.sandbox.passes import Passes
from services.sandbox.pool import Pools
from services.sandbox.runner.doors import MAX_VISITS
from services.sandbox.sandboxes import Call, Sandboxes, Wanted
from services.sandbox.seeds import Seeds, SeedSettings
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_planting import Planting
from services.sandbox.seeds_rules import Repository, parse_sources
from services.sandbox.vault_proxy import VaultProxyClient
from tests.support.doors import FakeVaultProxy, answering, fake_vault_proxy, git_door
from tests.support.git import GitServer, Upstream, git
from tests.support.mesh_server import Served
from tests.support.owners import MemoryLogs, owners

GRANT = "grant-of-the-session"
NETWORK = Network(("example.test", "*.example.org:8443"), allow_package_managers=True)
APP = "/workspace/app"
LIMITS = Limits(memory_bytes=256 << 20, disk_bytes=32 << 20)
TOKEN = "token-that-no-sandbox-sees"
GET = (
    "python3 -c \"import urllib.request as it; print(it.urlopen('http://example.test/a', timeout=30).read().decode())\""
)


@dataclass
class World:
    """A sandbox service's inside, a vault proxy and a git server."""

    fake: FakeVaultProxy
    served: Served
    root: Path
    backend: str
    git: GitServer
    upstream: Upstream
    made: list[str] = field(default_factory=list)
    limits: Limits = LIMITS

    def __post_init__(self) -> None:
        self.session_id = mint("sess")
        self.open()

    def open(self) -> None:
        """Makes the service, as at its start: it has the grants of nobody."""
        recipes = [
            Recipe("open", self.backend, network=NETWORK, limits=self.limits),
            Recipe("shut", self.backend, limits=self.limits),
            Recipe("pooled", self.backend, network=NETWORK, limits=self.limits, pool=1),
            Recipe("machine", "process", network=NETWORK),
        ]
        environments = Environments({recipe.name: recipe for recipe in recipes}, "shut")
        self.hands = Backends(HandSettings(self.root / "state", allow_unisolated=True))
        self.passes = Passes()
        self.channel = self.served.as_service("sandbox")
        vault = VaultProxyClient(self.channel, self.served.tls / "sandbox")
        self.pools = Pools(self.hands, environments)
        self.seeds = Seeds(
            self.root / "seeds",
            Git(),
            SeedSettings(parse_sources(f"127.0.0.1:{self.git.port}"), fresh_seconds=0.0),
        )
        self.doorman = Doorman(environments, vault, self.passes)
        self.sandboxes = Sandboxes(
            self.hands, environments, self.pools, planting=Planting(self.seeds), doorman=self.doorman
        )

    async def close(self) -> None:
        """Ends the service; sandboxes stay."""
        await self.sandboxes.close()
        await self.hands.close()
        await self.channel.close()

    def note(self, grant: str = GRANT) -> None:
        """Does what a call of the session's harness does."""
        self.passes.note(self.session_id, 1, grant)

    async def provision(self, environment: str, *repositories: Repository, session_id: str | None = None) -> str:
        """Makes a sandbox of the session."""
        owner = self.session_id if session_id is None else session_id
        info = await self.sandboxes.provision(Wanted(environment, owner, resources=repositories))
        self.made.append(info.labels.sandbox_id)
        return info.labels.sandbox_id

    async def bash(self, sandbox_id: str, command: str) -> str:
        """Runs a command as the session's harness."""
        call = Call(sandbox_id, "bash", json.dumps({"command": command}))
        return (await self.sandboxes.execute(call)).text

    def url(self) -> str:
        """The URL of the repository."""
        return self.git.url(self.upstream)


@pytest.fixture(
    params=[pytest.param("bubblewrap", marks=pytest.mark.bwrap), pytest.param("docker", marks=pytest.mark.docker)]
)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """A world with one session, whose grant the vault proxy knows."""
    upstream = Upstream(tmp_path / "upstream" / "team" / "app")
    git = GitServer(tmp_path / "upstream")
    async with fake_vault_proxy(tmp_path) as (fake, served):
        it = World(fake, served, tmp_path, request.param, git, upstream)
        fake.grants = {GRANT: (), "of-git": (it.url(),)}
        fake.doors[pb.DOOR_KIND_GIT] = git_door(git, TOKEN)
        try:
            yield it
            for sandbox_id in it.made:
                await it.sandboxes.release(sandbox_id)
            await it.close()
        finally:
            git.close()


async def test_a_tool_reaches_what_the_vault_proxy_answers(world: World) -> None:
    """An ordinary client finds the door by its variables; the policy is the operator's, the grant is the session's."""
    seen: list[bytes] = []
    world.fake.doors[pb.DOOR_KIND_EGRESS] = answering("come in", seen)
    world.fake.placeholders = {"API_KEY": "placeholder_1"}
    world.note()
    sandbox = await world.provision("open")
    assert (await world.bash(sandbox, GET + "; echo $API_KEY $no_proxy")).split("\n") == [
        "come in",
        "placeholder_1 localhost,127.0.0.1,::1",
    ]
    assert seen[0].startswith(b"GET http://example.test/a HTTP/1.1\r\n")
    policy = pb.NetworkPolicy(allow=NETWORK.allow, allow_package_managers=True)
    assert world.fake.prepared == [pb.PrepareDoorsRequest(sandbox_id=sandbox, network=policy)]
    assert world.fake.opened == [pb.OpenDoorRequest(sandbox_id=sandbox, kind=pb.DOOR_KIND_EGRESS, network=policy)]


async def test_a_free_sandbox_gets_doors_when_it_is_claimed(world: World) -> None:
    """It was made before anybody knew for whom; what it is told is its session's."""
    seen: list[bytes] = []
    world.fake.doors[pb.DOOR_KIND_EGRESS] = answering("come in", seen)
    world.fake.placeholders = {"API_KEY": "placeholder_2"}
    filling = asyncio.create_task(world.pools.run())
    async with asyncio.timeout(60):
        while not world.pools.free("pooled"):
            await asyncio.sleep(0.02)
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)
    assert not world.fake.prepared
    world.note()
    sandbox = await world.provision("pooled")
    assert world.pools.free("pooled") == 0
    assert (await world.bash(sandbox, GET + "; echo $API_KEY")).split() == ["come", "in", "placeholder_2"]


@pytest.mark.parametrize(
    ("break_it", "status", "reason"),
    [
        (lambda world: setattr(world.fake, "sealed", True), 503, "VAULT_UNAVAILABLE: the vault is sealed"),
        (lambda world: setattr(world.fake, "address", "127.0.0.1:1"), 503, "VAULT_UNAVAILABLE: the doors of the vault"),
        (lambda world: world.fake.grants.clear(), 502, "GRANT_INVALID: the grant is not valid"),
        (lambda world: world.passes.void(world.session_id, 0), 503, "GRANT_INVALID: the session's harness has not"),
    ],
    ids=["sealed", "unreachable", "grant", "no grant"],
)
async def test_a_tool_is_told_why_nothing_comes(
    world: World, break_it: Callable[[World], None], status: int, reason: str
) -> None:
    """The client gets an HTTP answer with the reason in it, and no reset; nothing of it tells of secrets."""
    world.note()
    sandbox = await world.provision("open")
    break_it(world)
    script = "import http.client as h; it = h.HTTPConnection('127.0.0.1', 8418, timeout=30); "
    script += "it.request('POST', 'http://example.test/', b'x' * 300_000); said = it.getresponse(); "
    said = await world.bash(sandbox, f'python3 -c "{script}print(said.status, said.read().decode())"')
    assert said.startswith(f"{status} {reason}") and GRANT not in said


async def test_a_tool_that_went_away_holds_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends on both sides, though TLS cannot say that only one of them has ended."""
    monkeypatch.setattr("services.sandbox.doors_relay.LINGER_SECONDS", 0.05)
    ended = asyncio.Event()

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering("come in", [])(reader, writer)
        await reader.read()  # as one that waits for the next request
        ended.set()

    world.fake.doors[pb.DOOR_KIND_EGRESS] = door
    world.note()
    assert await world.bash(await world.provision("open"), GET) == "come in"
    async with asyncio.timeout(20):
        await ended.wait()


async def test_idle_connections_of_one_sandbox_are_bounded_and_nobody_elses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds that say nothing leave the others' doors, and this sandbox's tools, as they were."""
    monkeypatch.setattr("services.sandbox.doors_relay.LINGER_SECONDS", 0.05)
    world.fake.doors[pb.DOOR_KIND_EGRESS] = answering("come in", [])
    world.note()
    busy, other = await world.provision("open"), await world.provision("open")
    script = "import socket, time; its = [socket.socket() for _ in range(500)]; [it.setblocking(False) for it in its]; "
    script += "[it.connect_ex(('127.0.0.1', 8418)) for it in its]; open('on', 'w'); time.sleep(60)"
    flood = asyncio.create_task(world.bash(busy, f'python3 -c "{script}"'))
    assert await world.bash(busy, "until [ -e on ]; do sleep 0.01; done; echo on") == "on"
    async with asyncio.timeout(20):
        while len(world.fake.opened) < MAX_VISITS:
            await asyncio.sleep(0.02)
    assert await world.bash(other, GET) == "come in"
    opened = [request for request in world.fake.opened if request.sandbox_id == busy]
    assert len(opened) == MAX_VISITS
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    assert await world.bash(busy, GET) == "come in"


async def test_doors_work_again_after_a_restart(world: World) -> None:
    """A tool that comes while the service is away waits; the session's next call opens the door to it."""
    world.fake.doors[pb.DOOR_KIND_EGRESS] = answering("come in", [])
    world.note()
    sandbox = await world.provision("open")
    await world.bash(sandbox, "true")
    await world.close()
    world.open()
    hand, _ = await world.hands.find(sandbox)
    waiting = asyncio.create_task(world.bash(sandbox, GET))  # a client's call, say: it brings no grant
    world.note()
    assert await world.bash(sandbox, "echo next") == "next"
    assert await waiting == "come in" and len(world.fake.prepared) == 1
    assert (await hand.open_doors(sandbox, ())).ports.keys() == {"egress"}


async def test_a_sandbox_that_needs_none_has_no_doors(world: World) -> None:
    """Nobody is asked, and nothing listens in it."""
    world.note()
    sandbox = await world.provision("shut")
    hand, _ = await world.hands.find(sandbox)
    await world.bash(sandbox, "true")
    assert not world.fake.prepared and not (await hand.open_doors(sandbox, ())).ports
    assert "proxy" not in (await world.bash(sandbox, "env")).lower()


async def test_nothing_is_made_that_would_have_no_network(world: World) -> None:
    """An environment with a policy gives no sandbox without its door: without a vault, or without isolation."""
    world.note()
    world.fake.sealed = True
    with pytest.raises(Unavailable) as unavailable:
        await world.provision("open")
    assert unavailable.value.reason == "VAULT_UNAVAILABLE" and not await world.sandboxes.living("")
    with pytest.raises(Refused) as refused:
        await world.provision("machine")
    assert refused.value.reason == "ISOLATION_UNAVAILABLE" and not await world.sandboxes.living("")


async def test_a_sandbox_of_no_session_has_no_doors(world: World) -> None:
    """Nobody's grant could open them."""
    sandbox = await world.provision("open", session_id="")
    assert "proxy" not in (await world.bash(sandbox, "env")).lower() and not world.fake.prepared


async def test_a_private_repository_comes_through_the_git_door(world: World) -> None:
    """It is cloned, fetched and pushed to by the URL that it has everywhere; the token is in no part of the sandbox."""
    world.git.password = TOKEN
    world.note("of-git")
    sandbox = await world.provision("shut", Repository(APP, world.url()))
    later = world.upstream.commit("later", "more\n")
    said = await world.bash(
        sandbox,
        "cd app && git config remote.origin.url && git pull --quiet && cat later && git checkout --quiet -b agent/x"
        " && echo mine > mine && git add mine && git -c user.name=a -c user.email=a@a commit --quiet -m mine"
        " && git push --quiet origin agent/x 2>&1 && git rev-parse HEAD~1",
    )
    assert said.split() == [world.url(), "more", later], said
    assert "agent/x" in git(world.upstream.folder, "branch", "--list")
    sought = f"'{TOKEN[:-1]}[{TOKEN[-1]}]'"  # which does not find itself
    found = await world.bash(
        sandbox,
        f"cd /; (env; cat /proc/*/environ /proc/*/cmdline) 2>/dev/null | tr '\\0' '\\n' | grep -c {sought};"
        f" grep -rlI {sought} /workspace /tmp /run /etc 2>/dev/null;"
        " GIT_TRACE_CURL=1 git -C /workspace/app fetch 2>&1 | grep -ci authorization; true",
    )
    assert found.split() == ["0", "0"], found


async def test_no_clone_is_given_past_a_credential(world: World) -> None:
    """What one session's credential has fetched, another gets only through its own door, also by a commit's id."""
    world.git.password = TOKEN
    world.note("of-git")
    await world.provision("shut", Repository(APP, world.url()))
    before, world.git.refused = len(world.git.requests), 0
    await world.provision("shut", Repository(APP, world.url(), world.upstream.first))
    assert len(world.git.requests) > before  # asked again, through this session's door,
    assert world.git.refused == 0  # and not in public
    world.fake.doors[pb.DOOR_KIND_GIT] = git_door(world.git, "another token")
    for ref in ("", world.upstream.first):
        with pytest.raises(Unavailable) as error:
            await world.provision("shut", Repository(APP, world.url(), ref))
        assert error.value.reason == "BACKEND_UNAVAILABLE" and TOKEN not in str(error.value)
    world.passes.void(world.session_id, 0)
    with pytest.raises(Unavailable):
        await world.provision("shut", Repository(APP, world.url(), world.upstream.first))
    assert len(await world.sandboxes.living("")) == 2


async def test_a_public_repository_needs_no_door(world: World) -> None:
    """It is there though the vault is sealed, and its sandbox gets the git door when the vault is there again."""
    world.note("of-git")
    world.fake.sealed = True
    sandbox = await world.provision("shut", Repository(APP, world.url()))
    assert "hello" in await world.bash(sandbox, "cat app/README")
    world.fake.sealed = False
    doorman = world.sandboxes._doorman
    doorman._again.clear()  # what time does
    assert await world.bash(sandbox, "cd app && git fetch --quiet 2>&1 && echo fetched") == "fetched"


async def test_what_may_be_reached_by_git_is_said(world: World) -> None:
    """Every way to write the repository leads to the door, and so does another of its host: the door says why not."""
    world.note("of-git")
    sandbox = await world.provision("shut", Repository(APP, world.url()))
    host = f"127.0.0.1:{world.git.port}"
    forms = [world.url(), "git@127.0.0.1:team/app", "ssh://git@127.0.0.1/team/app.git", f"http://{host}/team/other"]
    said = await world.bash(sandbox, "; ".join(f"git ls-remote --get-url {form}" for form in forms))
    door = f"http://127.0.0.1:8417/{host}/team"
    assert said.split() == [f"{door}/app", f"{door}/app", f"{door}/app.git", f"{door}/other"]
    refused = await world.bash(sandbox, f"git clone --quiet {forms[3]} x 2>&1; git clone ext::id y 2>&1")
    assert f"'{door}/other/' not found" in refused and "'ext' not allowed" in refused


async def test_no_other_user_of_the_machine_uses_the_git_door(world: World) -> None:
    """The port that the service's own git connects to while it fetches answers nobody else."""
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    world.note("of-git")
    sandbox = await world.provision("shut", Repository(APP, world.url()))
    _, info = await world.hands.find(sandbox)
    gate = world.sandboxes._doorman.gate(info)
    assert gate is not None

    async def asked(address: str, user: int) -> str:
        url = f"{address}/127.0.0.1:{world.git.port}/team/app/info/refs?service=git-upload-pack"
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            url,
            user=user,
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode()

    async with gate() as address:
        assert (await asked(address, 65534), await asked(address, 0)) == ("000", "200")


async def test_the_doors_of_a_hand_that_changed_its_owner_speak_for_the_new_one(world: World) -> None:
    """Variables of the old session are gone, connections go out with the new session's grant, and with no other."""
    seen: list[bytes] = []
    world.fake.doors[pb.DOOR_KIND_EGRESS] = answering("hello", seen)
    world.fake.placeholders = {"KEY": "of-one"}
    world.note()
    sandbox_id = await world.provision("open")
    assert await world.bash(sandbox_id, f"echo $KEY; {GET}") == "of-one\nhello"
    world.fake.placeholders = {"KEY": "of-two"}
    world.fake.grants = {"grant-two": ()}  # the old session's is void
    two = mint("sess")
    await owners(world.hands, MemoryLogs(), world.doorman).transfer(sandbox_id, Goal(two, "box"), 1, 0.0)
    assert await world.bash(sandbox_id, "echo ${KEY:-none}") == "none"
    world.passes.note(two, 1, "grant-two")
    assert await world.bash(sandbox_id, f"echo $KEY; {GET}") == "of-two\nhello"
    assert (len(seen), len(world.fake.prepared)) == (2, 2)
