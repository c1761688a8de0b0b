"""G27: a repository that means harm, upstream's or the sandbox's own: no git ever runs outside of a sandbox over a
directory that a sandbox wrote, and nothing in what is fetched runs when it is made a seed.
"""

from __future__ import annotations

import ast
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.kit.errors import Invalid, Unavailable
from services.sandbox.seeds_rules import Repository
from tests.drills.size import size
from tests.sandbox.test_seeds_planted import Stand
from tests.support.git import AUTHOR, Upstream, git, seeds
from tests.support.heard import PROGRAMS

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services"
REFS = size(2_000, 100_000)


def test_only_seeds_run_git() -> None:
    """Every place of the services where a program named git is found, started or imported as a library: one module."""
    found = set()
    for path in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                arguments = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
                program = ast.unparse(node.func).rpartition(".")[2]
                if program in {"which", "Popen", "run", "create_subprocess_exec", "check_output"} and any(
                    each.value == "git" for each in arguments
                ):
                    found.add(path.relative_to(SERVICES).as_posix())
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [each.name for each in node.names] + [getattr(node, "module", "") or ""]
                assert not {name.partition(".")[0] for name in names} & {"git", "pygit2", "dulwich"}, path
    assert found == {"sandbox/seeds_git.py"}


def test_git_of_seeds_works_in_folders_of_seeds_only() -> None:
    """Who uses that module, and that nothing of a workspace is ever given to it."""
    users = {
        path.relative_to(SERVICES).as_posix()
        for path in SERVICES.rglob("*.py")
        if "seeds_git import" in path.read_text() and path.name != "seeds_git.py"
    }
    assert users <= {"sandbox/seeds.py", "sandbox/__main__.py", "sandbox/seeds_trees.py", "sandbox/seeds_planting.py"}
    source = (SERVICES / "sandbox" / "seeds.py").read_text()
    assert "workspace" not in source.lower()


TRAPS = {
    "core.fsmonitor": "touch {trap}",
    "core.sshCommand": "touch {trap}",
    "core.hooksPath": "{hooks}",
    "core.pager": "touch {trap}",
    "core.editor": "touch {trap}",
    "diff.external": "touch {trap}",
    "filter.evil.smudge": "touch {trap}",
    "filter.evil.clean": "touch {trap}",
    "credential.helper": "!touch {trap}",
    "gpg.program": "touch {trap}",
    "uploadpack.packObjectsHook": "touch {trap}",
}


@pytest.fixture
async def stand(tmp_path: Path, bubblewrap: None) -> AsyncIterator[Stand]:
    """A sandbox service's hand with a planted repository."""
    it = Stand("bubblewrap", tmp_path)
    yield it
    for sandbox_id in it.made:
        await it.hand.release(sandbox_id)
    await it.hand.close()


@pytest.mark.bwrap
async def test_the_services_never_run_what_a_sandbox_configured(stand: Stand, tmp_path: Path) -> None:
    """A sandbox turns its repository into a trap for whoever runs git in it. The service then lists and reads its
    files, plants it again, runs a tool, seeds the same repository anew and releases it: no program named git is started
    over it, and nothing of the trap runs outside. The control: git, run by hand over the same folder, walks into it."""
    trap, folder = tmp_path / "trap", tmp_path / "by-hand"
    sandbox = await stand.sandbox()
    seed = await stand.seeds.seed(Repository("/workspace/app", stand.upstream.url))
    await stand.hand.plant(sandbox, "/workspace/app", seed.tree)
    hooks = "/workspace/app/hooks"
    values = {name: value.format(trap=trap, hooks=hooks) for name, value in TRAPS.items()}
    lines = "\n".join(f"git config {name} '{value}'" for name, value in values.items())
    told = await stand.run(sandbox, f"{lines}\necho '* filter=evil' > .gitattributes; git config --list | wc -l")
    assert int(told.split()[-1]) > len(TRAPS), told
    with PROGRAMS.watched() as programs:
        assert await stand.run(sandbox, "ls")
        await stand.hand.plant(sandbox, "/workspace/app", seed.tree)
        await stand.seeds.seed(Repository("/workspace/app", stand.upstream.url))
        async for _ in stand.hand.read_file(sandbox, "/workspace/app/.git/config"):
            pass
        await stand.hand.files(sandbox, "/workspace/app")
        await stand.hand.release(sandbox)
    over = [command for _, command in programs if Path(command[0]).name == "git"]
    assert not [command for command in over if any(str(tmp_path / "state") in part for part in command)]
    assert not trap.exists()
    Upstream(folder)
    for name, value in values.items():
        git(folder, "config", name, value)
    by_hand(folder, "status")
    assert trap.exists(), "the control"


def by_hand(folder: Path, command: str) -> None:
    """Runs git as somebody does who trusts the folder."""
    subprocess.run(["git", "-C", str(folder), command], env={"PATH": "/usr/bin:/bin", **AUTHOR}, check=False)


def outside(folder: Path) -> set[Path]:
    """Returns everything below a folder but what is of seeds."""
    return {path for path in folder.rglob("*") if "seeds" not in path.parts}


def odd_tree(upstream: Upstream, entries: list[tuple[str, str, bytes]]) -> None:
    """Commits entries of a tree that git itself would not add: (mode, name, content)."""
    folder = upstream.folder

    def plumb(*arguments: str, data: bytes = b"") -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout.decode().strip()

    rows = b""
    for mode, name, content in sorted(entries, key=lambda entry: entry[1]):
        made = plumb("hash-object", "-w", "--stdin", data=content) if mode != "160000" else content.decode()
        rows += f"{mode} ".encode() + name.encode() + b"\0" + bytes.fromhex(made)
    tree = plumb("hash-object", "-w", "-t", "tree", "--literally", "--stdin", data=rows)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **AUTHOR}
    command = ["git", "-C", str(folder), "commit-tree", tree, "-p", "HEAD", "-m", "odd"]
    commit = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()
    git(folder, "update-ref", "refs/heads/main", commit)


SCRIPT = b"#!/bin/sh\ntouch TRAP\n"
ODD: dict[str, list[tuple[str, str, bytes]]] = {
    ".git in the tree": [("100755", ".git", SCRIPT)],
    ".GIT in the tree": [("100755", ".GIT", SCRIPT)],
    "git~1 in the tree": [("100755", "git~1", SCRIPT)],
    ".git behind a zero width space": [("100755", ".g\u200cit", SCRIPT)],
    "..": [("100644", "..", b"x")],
    "a path in a name": [("100644", "a/../../x", b"x")],
    "a link to the service": [("120000", "link", b"/proc/self/root"), ("100644", "a", b"x")],
    ".gitmodules as a link": [("120000", ".gitmodules", b"/etc/passwd")],
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_tree_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    """Entries that git would not add: the repository is refused, or the entry is what it says, below the seed's folder;
    nothing outside of it is written, and nothing in it runs."""
    upstream = Upstream(tmp_path / "upstream" / "odd")
    trap = tmp_path / "trap"
    entries = [(mode, path, content.replace(b"TRAP", bytes(trap))) for mode, path, content in ODD[name]]
    odd_tree(upstream, entries)
    before = outside(tmp_path)
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    try:
        seed = await made.seed(Repository("app", upstream.url))
    except (Invalid, Unavailable):
        pass
    else:
        assert (seed.tree / ".git").is_dir(), "it is still a repository of ours"
        assert not list((seed.tree / ".git" / "hooks").glob("*"))
        for path in seed.tree.rglob("*"):
            assert path.is_symlink() or path.resolve().is_relative_to(seed.tree.resolve())
            assert not stat.S_ISBLK(path.lstat().st_mode) and not stat.S_ISFIFO(path.lstat().st_mode)
    assert not trap.exists()
    assert outside(tmp_path) == before


async def test_a_submodule_path_with_a_carriage_return_runs_nothing(tmp_path: Path) -> None:
    """CVE-2025-48384 and CVE-2024-32002: a submodule's hook by way of a link. Submodules are not fetched."""
    upstream = Upstream(tmp_path / "upstream" / "cr")
    trap = tmp_path / "trap"
    inner = Upstream(tmp_path / "upstream" / "inner")
    hook = f"#!/bin/sh\ntouch {trap}\n".encode()
    modules = f'[submodule "x"]\n\tpath = "x\r"\n\turl = file://{inner.folder}\n'.encode()
    odd_tree(
        upstream,
        [
            ("100644", ".gitmodules", modules),
            ("120000", "x", b".git/modules/x/hooks"),
            ("160000", "x\r", inner.first.encode()),
            ("100755", "post-checkout", hook),
        ],
    )
    seed = await seeds(tmp_path / "seeds", tmp_path / "upstream").seed(Repository("app", upstream.url))
    assert not trap.exists()
    assert not (seed.tree / ".git" / "modules").exists()
    assert (seed.tree / "post-checkout").exists(), "the control: the rest was checked out"


async def test_many_references_cost_little(tmp_path: Path) -> None:
    """A hundred thousand branches and tags (a few thousand in `make test`): the one that was asked for is there."""
    upstream = Upstream(tmp_path / "upstream" / "many")
    rows = "".join(f"{upstream.first} refs/tags/t{at}\n{upstream.first} refs/heads/b{at}\n" for at in range(REFS // 2))
    (upstream.folder / ".git" / "packed-refs").write_text("# pack-refs with: peeled fully-peeled\n" + rows)
    assert len(git(upstream.folder, "for-each-ref").splitlines()) > REFS // 2, "the control"
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    seed = await made.seed(Repository("app", upstream.url, "b7"))
    assert seed.target.branch == "b7"
    assert git(seed.tree, "rev-parse", "HEAD") == upstream.first
