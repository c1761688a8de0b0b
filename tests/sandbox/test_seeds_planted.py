"""Repositories in sandboxes of each backend that can mount them: usable, writable, and of nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.kit.errors import Invalid, Unavailable
from services.kit.ids import mint
from services.sandbox.backends import Backends
from services.sandbox.environments import Environments
from services.sandbox.hand import Hand, HandSettings, Labels, Limits, Order, Recipe, Result
from services.sandbox.sandboxes import Call, Sandboxes, Wanted
from services.sandbox.seeds import Seeds
from services.sandbox.seeds_mount import Mounter
from services.sandbox.seeds_pins import Pin
from services.sandbox.seeds_planting import Planting
from services.sandbox.seeds_rules import Repository
from tests.support.git import Upstream, seeds

APP = "/workspace/app"
LIMITS = Limits(memory_bytes=256 << 20, disk_bytes=32 << 20)


def digest(tree: Path) -> str:
    """Returns another text when anything in a folder is another: names, kinds, modes, times, content."""
    found = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        state = path.lstat()
        found.update(f"{path} {state.st_mode} {state.st_mtime_ns} {state.st_uid}".encode())
        if path.is_file() and not path.is_symlink():
            found.update(path.read_bytes())
    return found.hexdigest()


class Stand:
    """A hand, and a seed for it."""

    def __init__(self, backend: str, root: Path) -> None:
        """Starts nothing."""
        self.recipe = Recipe("checked", backend, limits=LIMITS)
        self.hand: Hand = importlib.import_module(f"services.sandbox.hands.{backend}").make(
            HandSettings(root / "state" / backend, allow_unisolated=True)
        )
        self.upstream = Upstream(root / "upstream" / "app")
        self.upstream.commit("src/a.py", "print(1)\n")
        self.upstream.commit("src/big", os.urandom(1_200_000).hex())  # a pack, too, of more than a piece
        self.seeds: Seeds = seeds(root / "seeds", root / "upstream")
        self.made: list[str] = []

    async def sandbox(self) -> str:
        """Makes a sandbox."""
        made = await self.hand.provision(self.recipe, Labels(mint("sbx"), "checked", time.time()))
        self.made.append(made.labels.sandbox_id)
        return made.labels.sandbox_id

    async def tree(self) -> Path:
        """Makes the seed."""
        return (await self.seeds.seed(Repository(APP, self.upstream.url))).tree

    async def run(self, sandbox_id: str, command: str) -> str:
        """Runs a command in the repository."""
        order = Order(mint("exec"), "bash", {"command": f'cd "$HOME/app" || exit\n{command}'}, "", 60.0)
        await self.hand.start(sandbox_id, order)
        async for said in self.hand.follow(sandbox_id, order.execution_id):
            if isinstance(said, Result):
                return said.text
        raise AssertionError("no result")


@pytest.fixture(
    params=[
        pytest.param("bubblewrap", marks=pytest.mark.bwrap),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("bubblewrap, copied", marks=pytest.mark.bwrap),
        "process",
    ]
)
async def stand(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    """A stand whose sandboxes are released at the end; one is of a machine that cannot mount."""

    async def unable(_: Mounter, pid: int, path: str, tree: Path) -> bool:
        return False

    monkeypatch.setattr("services.sandbox.seeds_copy.PIECE_BYTES", 1 << 20)
    backend, _, copied = request.param.partition(", ")
    if copied:
        monkeypatch.setattr(Mounter, "mount", unable)
    it = Stand(backend, tmp_path)
    yield it
    for sandbox_id in it.made:
        await it.hand.release(sandbox_id)
    await it.hand.close()


async def test_git_works_in_a_planted_repository(stand: Stand) -> None:
    """It is the tools' own and clean; it can be changed, committed, branched, moved about in; `origin` is its URL."""
    sandbox = await stand.sandbox()
    await stand.hand.plant(sandbox, APP, await stand.tree())
    users = [await stand.run(sandbox, "id -u")] * 2
    said = await stand.run(sandbox, "git status --short --branch; git remote get-url origin; stat -c %u . src/a.py")
    assert said.split() == ["##", "main...origin/main", stand.upstream.url, *users]
    change = "echo 'print(2)' > src/a.py; git diff --stat | tail -1; git commit -qam two; git checkout -qb side"
    said = await stand.run(sandbox, f"git config user.name a; git config user.email a@a; {change}")
    assert said == " 1 file changed, 1 insertion(+), 1 deletion(-)"
    move = "mv" if os.geteuid() else "git mv"  # rootless no folder of the seed can be renamed; `mv` then copies
    said = await stand.run(
        sandbox, f"{move} src lib; rm README; git add -A; git commit -qam three; ls; git log --format=%s"
    )
    assert said.splitlines() == ["lib", "three", "two", "src/big", "src/a.py", "README"]
    back = "git checkout -q main; git reset -q --hard origin/main; git clean -qfdx; git fsck 2>&1"
    assert await stand.run(sandbox, f"{back}; git status --short; ls; cat src/a.py") == "README\nsrc\nprint(1)"


async def test_no_sandbox_sees_what_another_writes_and_the_seed_stays_as_it_is(stand: Stand) -> None:
    """Whatever is done to one, the other and the seed are as they were."""
    tree = await stand.tree()
    before = digest(tree)
    one, other = await stand.sandbox(), await stand.sandbox()
    for sandbox in (one, other):
        await stand.hand.plant(sandbox, APP, tree)
    harm = "rm -rf src .git/objects; chmod 700 . .git; touch -d 2001-01-01 README; git gc -q"
    await stand.run(one, f"echo mine > mine; echo changed > README; {harm}")
    assert await stand.run(other, "git status --short; git fsck 2>&1; cat README; ls") == "hello\nREADME\nsrc"
    await stand.hand.plant(await stand.sandbox(), APP, tree)
    assert await stand.run(stand.made[-1], "git status --short; ls") == "README\nsrc"
    assert await stand.run(one, "cat mine README; ls") == "mine\nchanged\nREADME\nmine"
    for sandbox in stand.made:
        await stand.hand.release(sandbox)
    assert digest(tree) == before


async def test_planting_is_idempotent_and_takes_nobodys_place(stand: Stand) -> None:
    """A second time changes nothing; where a file, a link or something of a folder is, nothing is put."""
    sandbox, tree = await stand.sandbox(), await stand.tree()
    await stand.hand.plant(sandbox, APP, tree)
    await stand.run(sandbox, "echo mine > README")
    await stand.hand.plant(sandbox, APP, tree)
    assert await stand.run(sandbox, "cat README") == "mine"
    await stand.run(
        sandbox, "cd ..; mkdir -p full/x empty/deep elsewhere; touch file; ln -s elsewhere link; ln -s /tmp away"
    )
    for path in ("full", "file", "link", "link/x", "away", "away/x", "file/x"):
        with pytest.raises(Invalid) as refused:
            await stand.hand.plant(sandbox, f"/workspace/{path}", tree)
        assert refused.value.reason == "RESOURCE_INVALID"
    await stand.hand.plant(sandbox, "/workspace/empty/deep/new", tree)
    listing = "find elsewhere -mindepth 1 -name README; ls full empty/deep/new"
    assert (await stand.run(sandbox, f"cd ..; {listing}")).split() == ["empty/deep/new:", "README", "src", "full:", "x"]


async def test_what_is_written_counts_for_the_workspace(stand: Stand) -> None:
    """A repository is no way around the disk's limit, where that is enforced; the seed itself costs nothing."""
    if stand.recipe.backend != "docker":
        pytest.skip("this backend limits each file, and says so")
    sandbox = await stand.sandbox()
    await stand.hand.plant(sandbox, APP, await stand.tree())
    assert int(await stand.run(sandbox, "df --output=used -k /workspace | tail -1")) < 1000
    said = await stand.run(
        sandbox, f"for i in 1 2 3; do head -c {LIMITS.disk_bytes // 2} /dev/zero > f$i || echo full; done"
    )
    assert "No space left" in said
    assert await stand.run(sandbox, "rm f*; echo ok > f; cat f") == "ok"


async def test_a_released_sandbox_leaves_nothing_of_its_repository(stand: Stand, tmp_path: Path) -> None:
    """Folders that an overlay works in go too, whatever their modes are."""
    sandbox = await stand.sandbox()
    await stand.hand.plant(sandbox, APP, await stand.tree())
    await stand.run(sandbox, "mkdir -m 0 locked; rm -rf src; echo x > README")
    await stand.hand.release(sandbox)
    assert [path for path in (tmp_path / "state").rglob("*") if sandbox in path.name] == []


class Service:
    """Sandboxes of the unisolated backend, and a repository."""

    def __init__(self, root: Path, upstream: Upstream, backend: str) -> None:
        """Goes on with what an earlier one over the same folder has made."""
        self.upstream = upstream
        self.seeds = seeds(root / "seeds", root / "upstream")
        self.backends = Backends(HandSettings(root / "state", allow_unisolated=True))
        known = Environments({"it": Recipe("it", backend, limits=LIMITS)}, "it")
        self.sandboxes = Sandboxes(self.backends, known, planting=Planting(self.seeds))

    async def provision(self, request_id: str = "", path: str = APP, ref: str = "", url: str = "") -> str:
        """Makes a sandbox with the repository in it."""
        wanted = Wanted(request_id=request_id, resources=(Repository(path, url or self.upstream.url, ref),))
        made = await self.sandboxes.provision(wanted)
        return made.labels.sandbox_id

    async def run(self, sandbox_id: str, command: str) -> str:
        """Runs a command in the repository."""
        call = Call(sandbox_id, "bash", '{"command": "cd ' + APP + "; " + command + '"}')
        return (await self.sandboxes.execute(call)).text


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """The service; its sandboxes are released at the end."""
    it = Service(tmp_path, Upstream(tmp_path / "upstream" / "app"), "bubblewrap")
    yield it
    for info in await it.sandboxes.living(""):
        await it.sandboxes.release(info.labels.sandbox_id)
    await it.backends.close()


@pytest.mark.bwrap
async def test_a_repository_that_cannot_be_had_makes_no_sandbox(service: Service) -> None:
    """Neither one that is refused at once nor one that turns out not to be there."""
    with pytest.raises(Invalid):
        await service.provision(url="ext::sh -c x")
    with pytest.raises(Invalid):
        await service.provision(ref="nowhere")
    with pytest.raises(Unavailable):
        await service.provision(url=service.upstream.url + "x")
    assert await service.sandboxes.living("") == []
    assert service.seeds.pins.sandboxes() == set()


@pytest.mark.bwrap
async def test_a_repeated_request_gets_the_same_repository(service: Service, tmp_path: Path) -> None:
    """Also when the branch has moved, when the remote is gone, after a restart, and side by side."""
    first, again = await asyncio.gather(service.provision("r1"), service.provision("r1"))
    await service.run(first, "echo mine > README")
    service.upstream.commit("new", "n\n")
    service.upstream.folder.rename(tmp_path / "away")
    later = await service.provision("r1")
    restarted = Service(tmp_path, service.upstream, "bubblewrap")
    assert [again, later, await restarted.provision("r1")] == [first, first, first]
    assert await restarted.run(first, "cat README; ls") == "mine\nREADME"
    with pytest.raises(Invalid, match="another repository"):
        await restarted.sandboxes.put(first, [Repository(APP, service.upstream.url, "v1")], 0)
    await restarted.backends.close()


@pytest.mark.bwrap
async def test_a_repository_comes_into_a_sandbox_that_runs_and_its_seed_is_free_in_the_end(service: Service) -> None:
    """A sandbox of a pool gets one too. A seed is held while a sandbox shows it, also one that has died."""
    sandbox = await service.provision(path="/workspace/first")
    await service.sandboxes.put(sandbox, [Repository(APP, service.upstream.url)], 0)
    assert await service.run(sandbox, "git log --format=%s; ls ../first") == "README\nREADME"
    await service.sandboxes.tidy()
    assert len(service.seeds.pins.held()) == 1
    await service.sandboxes.release(sandbox)
    assert service.seeds.pins.held() == set()
    service.seeds.pins.set("sbx_gone", APP, Pin(service.upstream.url, "", "a/b"))
    await service.sandboxes.tidy()
    assert service.seeds.pins.sandboxes() == set()
