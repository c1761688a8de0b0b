"""G26: options, transports and names that reach git at provision: refused before any program is started.

git for seeds runs outside of every sandbox, over folders that only the service writes (see G27), so what it is given is
checked by one form before, and it is told again on its command line and in its environment what it may do.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from services.kit.errors import Invalid
from services.sandbox import seeds_rules as rules
from services.sandbox.seeds_rules import Repository, Sources
from tests.sandbox.test_seeds_rules import HOSTILE_REFS, HOSTILE_URLS
from tests.support.git import Upstream, seeds
from tests.support.heard import PROGRAMS, SOCKETS

MORE_URLS = [
    "ext::sh -c touch% trap",
    "ext::https://git.example/o/r",
    "fd::17",
    "file::/srv/git",
    "https://git.example/--upload-pack=touch",
    "https://git.example/-o/r/../../x",
    "ssh://-oProxyCommand=touch trap/o/r",
    "https://-oProxyCommand=x/o/r",
    "https://git.example/o/r\x00",
    "https://git.example/o/r\r\nHost: x",
    "https://git.example/o/r;touch trap",
    "https://git.example/o/$(touch trap)",
]
MORE_REFS = [
    "--force",
    "refs/heads/../..",
    "HEAD^{/x}",
    "HEAD:README",
    ":/x",
    "^main",
    "--output=trap",
    "main\0x",
]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository that may be fetched."""
    return Upstream(tmp_path / "upstream" / "app")


@pytest.mark.parametrize("url", [*HOSTILE_URLS, *MORE_URLS])
async def test_a_hostile_url_starts_no_program(tmp_path: Path, url: str) -> None:
    """Nor is anything connected to; and the refusal repeats nothing of it."""
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    with PROGRAMS.watched() as programs, SOCKETS.watched() as sockets, pytest.raises(Invalid) as refused:
        await made.seed(Repository("app", url))
    assert (programs, sockets, refused.value.reason) == ([], [], "RESOURCE_INVALID")
    assert "CANARY" not in str(refused.value) and "touch" not in str(refused.value)


@pytest.mark.parametrize("ref", [*HOSTILE_REFS, *(each for each in MORE_REFS if each not in HOSTILE_REFS)])
async def test_a_hostile_ref_starts_no_program(tmp_path: Path, upstream: Upstream, ref: str) -> None:
    """Whatever it would mean to git: an option, a range, a search, a path."""
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    with PROGRAMS.watched() as programs, pytest.raises(Invalid):
        await made.seed(Repository("app", upstream.url, ref))
    assert programs == []


@pytest.mark.parametrize("ref", ["+main", "$(touch trap)", "!main", "main;x", "'main'"])
async def test_a_ref_that_could_be_one_is_a_name_and_nothing_else(tmp_path: Path, upstream: Upstream, ref: str) -> None:
    """git allows such names: they are looked for as whole names, and are not there."""
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    with PROGRAMS.watched() as programs, pytest.raises(Invalid):
        await made.seed(Repository("app", upstream.url, ref))
    assert all(f"refs/heads/{ref}" in command for _, command in programs if "ls-remote" in command)
    assert not {"fetch", "checkout"} & {part for _, command in programs for part in command}


async def test_a_plain_one_starts_git_alone(tmp_path: Path, upstream: Upstream) -> None:
    """The control: programs are heard. Each is git by its full path, and what a user wrote comes after `--`."""
    made = seeds(tmp_path / "seeds", tmp_path / "upstream")
    with PROGRAMS.watched() as programs:
        await made.seed(Repository("app", upstream.url, "main"))
    commands = [command for _, command in programs]
    assert len(commands) > 3
    assert {Path(command[0]).name for command in commands} == {"git"}
    assert all(Path(command[0]).is_absolute() for command in commands)
    named = [command for command in commands if upstream.url in command and "set-url" not in command]
    assert named and all(command.index("--") < command.index(upstream.url) for command in named)


TRANSPORTS = [
    "ext::sh -c touch% {trap}",
    "file://{trap}",
    "ssh://git@127.0.0.1:9/o/r",
    "git://127.0.0.1:9/o/r",
    "fd::0",
]


@pytest.mark.parametrize("url", TRANSPORTS)
def test_git_itself_refuses_other_transports(tmp_path: Path, url: str) -> None:
    """The second layer, were the first one wrong: git as the service runs it for an https remote takes no other
    transport. The control: without the service's environment `ext::` runs a command."""
    trap = tmp_path / "trap"
    remote = rules.check_repository(Repository("app", "https://git.example/o/r"), Sources())
    command = ["git", *rules.options(remote, ["127.0.0.1"]), "ls-remote", "--", url.format(trap=trap)]
    environment = rules.environment(remote, "/usr/bin:/bin", "")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert re.search(r"transport '\w+' not allowed|not allowed|disallowed", done.stderr), done.stderr
    assert not trap.exists()
    if url.startswith("ext::"):
        loose = {
            "PATH": "/usr/bin:/bin",
            "GIT_ALLOW_PROTOCOL": "ext",
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(tmp_path),
        }
        subprocess.run(["git", "ls-remote", "--", url.format(trap=trap)], env=loose, capture_output=True, check=False)
        assert trap.exists(), "the control"


async def test_what_a_repository_says_of_other_places_is_not_followed(tmp_path: Path, upstream: Upstream) -> None:
    """`url.insteadOf`, large objects elsewhere, submodules: files of the checkout, and nobody is called for them."""
    upstream.commit(".gitconfig", '[url "ext::sh -c x"]\n\tinsteadOf = https://\n')
    upstream.commit(".lfsconfig", "[lfs]\n\turl = http://169.254.169.254/\n")
    upstream.commit(".gitmodules", '[submodule "x"]\n\tpath = x\n\turl = http://169.254.169.254/x\n')
    with SOCKETS.watched() as sockets, PROGRAMS.watched() as programs:
        seed = await seeds(tmp_path / "seeds", tmp_path / "upstream").seed(Repository("app", upstream.url))
    assert (seed.tree / ".lfsconfig").exists(), "the control: they are there"
    assert sockets == []
    assert not [command for _, command in programs if any("169.254" in part or "lfs" in part for part in command)]
