"""Seeds over real repositories: what is fetched, when, how much of it is kept, and what no remote can bring about."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from services.kit.errors import Full, Invalid, ServiceError, Unavailable
from services.kit.origin import parse_allowed
from services.sandbox.seeds import Seeds, SeedSettings
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_rules import Repository, Sources, Target
from tests.support.git import GitServer, Upstream, git, seeds


def asked(url: str, ref: str = "", path: str = "/workspace/x") -> Repository:
    """Makes a request for a repository."""
    return Repository(path, url, ref)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository in a folder that the seeds may read."""
    return Upstream(tmp_path / "upstream" / "app")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """A web server for the same folder."""
    with contextlib.closing(GitServer(tmp_path / "upstream")) as it:
        yield it


@pytest.fixture
def known(tmp_path: Path) -> Seeds:
    """Seeds that ask the remote each time."""
    return seeds(tmp_path / "seeds", tmp_path / "upstream")


def over_http(tmp_path: Path, server: GitServer, **settings: float) -> Seeds:
    """Makes seeds that may fetch from the web server."""
    sources = Sources(parse_allowed(f"127.0.0.1:{server.port}"))
    return Seeds(tmp_path / "seeds", Git(answer_seconds=5.0), SeedSettings(sources, **settings))  # type: ignore[arg-type]


def left(root: Path) -> list[str]:
    """Lists what is neither a whole repository nor a pin."""
    return sorted(path.name for path in root.glob("*") if path.name.startswith(("new-", "old-")))


async def test_each_kind_of_ref_is_checked_out_as_git_clone_would(upstream: Upstream, known: Seeds) -> None:
    """A branch is tracked, a tag or a commit is detached, nothing is the default branch; all of it is clean."""
    git(upstream.folder, "tag", "--annotate", "v1", "--message", "one")
    git(upstream.folder, "checkout", "--quiet", "-b", "feat/x")
    second = upstream.commit("src/a.py", "a\n")
    git(upstream.folder, "checkout", "--quiet", "main")
    for ref, target, shown in (
        ("", Target(upstream.first, "main"), "## main...origin/main"),
        ("feat/x", Target(second, "feat/x"), "## feat/x...origin/feat/x"),
        ("v1", Target(upstream.first), "## HEAD (no branch)"),
        (second, Target(second), "## HEAD (no branch)"),
    ):
        seed = await known.seed(asked(upstream.url, ref))
        assert seed.target == target
        assert git(seed.tree, "status", "--short", "--branch") == shown
        assert git(seed.tree, "rev-parse", "HEAD") == target.commit
        assert git(seed.tree, "remote", "get-url", "origin") == upstream.url
        assert (seed.tree / "README").read_text() == "hello\n"


async def test_a_commit_that_no_branch_has_is_asked_for_by_its_name(upstream: Upstream, server: GitServer) -> None:
    """A commit that the remote gives out is had even when it has been moved away from; others are refused."""
    gone = upstream.commit("a", "a\n")
    git(upstream.folder, "reset", "--quiet", "--hard", "HEAD~1")
    git(upstream.folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    known = over_http(upstream.folder.parents[1], server)
    assert (await known.seed(asked(server.url(upstream), gone))).target == Target(gone)
    with pytest.raises(Invalid, match="no such commit"):
        await known.seed(asked(server.url(upstream), "c" * 40))


async def test_a_moved_branch_is_seen_once_the_last_answer_is_old(upstream: Upstream, tmp_path: Path) -> None:
    """Within `fresh_seconds` the remote is not asked again; after it the new commit is there. The old seed stays."""
    eager, patient = (seeds(tmp_path / "seeds", tmp_path / "upstream", fresh_seconds=it) for it in (0.0, 3600.0))
    before = [await it.seed(asked(upstream.url)) for it in (eager, patient)]
    moved = upstream.commit("b", "b\n")
    after = [await it.seed(asked(upstream.url)) for it in (eager, patient)]
    assert [it.target.commit for it in (*before, *after)] == [upstream.first, upstream.first, moved, upstream.first]
    assert not (before[0].tree / "b").exists()
    assert (after[0].tree / "b").exists()


async def test_a_rewritten_branch_is_seen_too(upstream: Upstream, known: Seeds) -> None:
    """A branch that was forced elsewhere, and one that is gone, are what the remote says now."""
    upstream.commit("a", "a\n")
    git(upstream.folder, "branch", "side")
    await known.seed(asked(upstream.url, "side"))
    git(upstream.folder, "branch", "--delete", "--force", "side")
    git(upstream.folder, "branch", "side/deeper")
    git(upstream.folder, "reset", "--quiet", "--hard", upstream.first)
    forced = upstream.commit("other", "o\n")
    assert (await known.seed(asked(upstream.url))).target.commit == forced
    with pytest.raises(Invalid, match="no such branch"):
        await known.seed(asked(upstream.url, "side"))


async def test_many_who_want_an_unseen_repository_fetch_it_once(
    upstream: Upstream, server: GitServer, tmp_path: Path
) -> None:
    """Whoever asks while it is cloned gets that clone."""
    known = over_http(tmp_path, server)
    found = await asyncio.gather(*(known.seed(asked(server.url(upstream))) for _ in range(8)))
    assert {it.key for it in found} == {found[0].key}
    assert server.fetches == 1


_CRASH = """
import asyncio, sys
from pathlib import Path
from services.kit.origin import parse_allowed
from services.sandbox.seeds import Seeds, SeedSettings
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_rules import Repository, Sources
root, url, host = sys.argv[1:]
seeds = Seeds(Path(root), Git(), SeedSettings(Sources(parse_allowed(host))))
asyncio.run(seeds.seed(Repository("/workspace/x", url)))
"""


async def test_a_service_that_dies_in_mid_clone_leaves_nothing_half(
    upstream: Upstream, server: GitServer, tmp_path: Path
) -> None:
    """The next one removes what there was, and clones."""
    server.hold.clear()
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "seeds"), server.url(upstream), f"127.0.0.1:{server.port}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    dying = await asyncio.create_subprocess_exec(*command, env=env)
    await asyncio.to_thread(server.held.wait, 30)
    dying.kill()
    await dying.wait()
    server.hold.set()
    assert left(tmp_path / "seeds") != []
    known = over_http(tmp_path, server)
    await known.tidy()
    assert left(tmp_path / "seeds") == []
    assert git((await known.seed(asked(server.url(upstream)))).tree, "status", "--short") == ""


async def test_a_caller_that_goes_away_in_mid_clone_leaves_nothing_half(
    upstream: Upstream, server: GitServer, tmp_path: Path
) -> None:
    """git is ended with it, and who asks next clones."""
    server.hold.clear()
    known = over_http(tmp_path, server)
    asking = asyncio.create_task(known.seed(asked(server.url(upstream))))
    await asyncio.to_thread(server.held.wait, 30)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert left(tmp_path / "seeds") == []
    server.hold.set()
    assert (await known.seed(asked(server.url(upstream)))).target.commit == upstream.first


async def test_the_longest_unused_seed_goes_and_a_shown_one_stays(tmp_path: Path) -> None:
    """The cache has a bound in bytes; what a sandbox shows stays, also after a restart, until it is forgotten."""
    ups = [Upstream(tmp_path / "upstream" / name) for name in ("a", "b", "c")]
    for up in ups:
        up.commit("big", os.urandom(200_000).hex())
    room = 2_200_000  # for the three: 400 kB of checkout and 230 kB of history each
    known = seeds(tmp_path / "seeds", tmp_path / "upstream", cache_bytes=room)
    trees = [
        (await known.seed(asked(up.url), sandbox_id)).tree
        for up, sandbox_id in zip(ups, ("sbx_a", "", ""), strict=True)
    ]
    assert [tree.exists() for tree in trees] == [True, True, True]
    tight = seeds(tmp_path / "seeds", tmp_path / "upstream", cache_bytes=1_500_000)
    fourth = Upstream(tmp_path / "upstream" / "d")
    shown = await tight.seed(asked(fourth.url), "sbx_d")
    assert [tree.exists() for tree in (*trees, shown.tree)] == [True, False, True, True]
    full = seeds(tmp_path / "seeds", tmp_path / "upstream", cache_bytes=1000)
    with pytest.raises(Full):
        await full.seed(asked(ups[1].url), "sbx_b")
    assert [tree.exists() for tree in (*trees, shown.tree)] == [True, False, False, True]
    full.pins.forget(["sbx_a", "sbx_d"])
    with pytest.raises(Full):
        await full.seed(asked(ups[1].url), "sbx_b")
    assert [path.name for path in (tmp_path / "seeds").glob("*/trees/*")] == []
    assert left(tmp_path / "seeds") == []


@pytest.mark.parametrize("content", [os.urandom(3 << 20).hex(), "0" * (6 << 20)], ids=["history", "checkout"])
async def test_what_is_too_large_is_refused_and_not_kept(tmp_path: Path, upstream: Upstream, content: str) -> None:
    """The limit holds for what is fetched, and for what a few bytes would become when they are checked out."""
    upstream.commit("big", content)
    known = seeds(tmp_path / "seeds", tmp_path / "upstream", repository_bytes=2 << 20)
    with pytest.raises(Invalid, match="larger than 2 MiB"):
        await known.seed(asked(upstream.url))
    assert left(tmp_path / "seeds") == []
    assert list((tmp_path / "seeds").glob("*/trees/*")) == []


async def test_a_remote_that_is_not_there_is_told_in_bounded_time(upstream: Upstream, tmp_path: Path) -> None:
    """Nobody listens; nobody ever answers; no repository is there: each is Unavailable, and nothing is left."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        sources = Sources(parse_allowed("127.0.0.1"), (str(tmp_path),))
        known = Seeds(tmp_path / "seeds", Git(answer_seconds=1.0), SeedSettings(sources))
        for url in (f"http://127.0.0.1:{port}/o/r", "http://127.0.0.1:1/o/r", f"file://{tmp_path}/nothing"):
            with pytest.raises(Unavailable) as told:
                await known.seed(asked(url))
            assert told.value.reason == "BACKEND_UNAVAILABLE"
    assert left(tmp_path / "seeds") == []


async def test_no_redirect_and_no_challenge_is_answered(upstream: Upstream, server: GitServer, tmp_path: Path) -> None:
    """A redirect leads nowhere, and a remote that asks for a password gets none: both are Unavailable."""
    with contextlib.closing(GitServer(tmp_path / "upstream")) as other:
        known = over_http(tmp_path, server)
        server.move_to = f"http://127.0.0.1:{other.port}"
        with pytest.raises(Unavailable):
            await known.seed(asked(server.url(upstream)))
        assert (len(server.requests), other.requests) == (1, [])
    server.move_to, server.refuse_with = "", 401
    with pytest.raises(Unavailable):
        await known.seed(asked(server.url(upstream)))


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.0.0.1"], ["192.0.2.1", "169.254.169.254"], ["::1"], ["::ffff:10.0.0.1"]]
)
async def test_a_name_that_means_an_address_inside_is_never_called(tmp_path: Path, addresses: Sequence[str]) -> None:
    """What counts is what the name resolves to, and one bad address is enough: no way into the operator's network."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    known = Seeds(tmp_path / "seeds", Git(resolve=resolve), SeedSettings())
    with pytest.raises(Invalid) as refused:
        await known.seed(asked("https://git.example/o/r"))
    assert refused.value.reason == "RESOURCE_INVALID"


async def test_git_connects_to_the_address_that_was_checked(
    upstream: Upstream, server: GitServer, tmp_path: Path
) -> None:
    """A name is looked up once, by the service: git takes the address that was checked and looks nothing up."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    sources = Sources(parse_allowed(f"git.invalid:{server.port}"))
    known = Seeds(tmp_path / "seeds", Git(resolve=resolve), SeedSettings(sources))
    url = server.url(upstream).replace("127.0.0.1", "git.invalid")
    assert (await known.seed(asked(url))).target.commit == upstream.first


async def test_nobodys_configuration_counts(
    upstream: Upstream, known: Seeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git reads no configuration of the service's user and none of its variables."""
    trap = tmp_path / "trap"
    (tmp_path / ".gitconfig").write_text(
        f'[url "{trap}"]\n\tinsteadOf = file://\n[core]\n\tfsmonitor = "touch {trap}"\n'
    )
    for name, value in {"HOME": tmp_path, "GIT_CONFIG_GLOBAL": tmp_path / ".gitconfig", "GIT_DIR": trap}.items():
        monkeypatch.setenv(name, str(value))
    assert (await known.seed(asked(upstream.url))).target.commit == upstream.first
    assert not trap.exists()


async def test_nothing_in_a_repository_runs_when_it_is_fetched(
    upstream: Upstream, known: Seeds, tmp_path: Path
) -> None:
    """No hook, no filter, no submodule; a link is checked out as a link and leads the service nowhere."""
    trap = tmp_path / "trap"
    (upstream.folder / "link").symlink_to("/etc/passwd")
    (upstream.folder / "away").symlink_to(tmp_path)
    hook = upstream.folder / ".githooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    hook.chmod(0o755)
    upstream.commit(".gitattributes", "* filter=evil\n*.bin filter=lfs\n")
    upstream.commit("a.bin", "version https://git-lfs.github.com/spec/v1\n")
    upstream.commit(
        ".gitmodules", f'[submodule "x"]\n\tpath = x\n\turl = ext::touch {trap}\n\tupdate = !touch {trap}\n'
    )
    seed = await known.seed(asked(upstream.url))
    assert not trap.exists()
    assert (seed.tree / "link").is_symlink()
    assert not list((seed.tree / ".git").glob("hooks/*"))
    assert (seed.tree / "a.bin").read_text().startswith("version")
    times = {os.lstat(path).st_mtime for path in ("/etc/passwd", tmp_path)}
    assert (seed.tree / "README").stat().st_mtime not in times


async def test_an_empty_repository_is_told(tmp_path: Path, known: Seeds) -> None:
    """There is nothing to check out, and no other answer will come."""
    (tmp_path / "upstream" / "empty").mkdir(parents=True)
    git(tmp_path / "upstream" / "empty", "init", "--quiet")
    with pytest.raises(ServiceError) as refused:
        await known.seed(asked(f"file://{tmp_path}/upstream/empty"))
    assert refused.value.reason == "RESOURCE_INVALID"
