"""Real git repositories for tests, and the seeds that are made of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from services.sandbox.seeds import Seeds, SeedSettings
from services.sandbox.seeds_git import Git
from services.sandbox.seeds_planting import Planting
from services.sandbox.seeds_rules import Sources

AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@a", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@a"}


def git(folder: Path, *arguments: str) -> str:
    """Runs git without anybody's configuration, and returns what it says."""
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **AUTHOR}
    command = ["git", "-C", str(folder), "-c", "init.defaultBranch=main", "-c", "commit.gpgSign=false", *arguments]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


class Upstream:
    """A repository that somebody else works on."""

    def __init__(self, folder: Path) -> None:
        """Makes it, with a first commit on `main`."""
        folder.mkdir(parents=True)
        self.folder = folder
        self.url = f"file://{folder}"
        git(folder, "init", "--quiet")
        self.first = self.commit("README", "hello\n")

    def commit(self, name: str, content: str) -> str:
        """Writes a file, commits it, and returns the commit."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(content)
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--message", name)
        return git(self.folder, "rev-parse", "HEAD")


def seeds(root: Path, allowed: Path, **settings: float) -> Seeds:
    """Makes seeds that take repositories of a folder, and ask anew each time unless told otherwise."""
    chosen = {"fresh_seconds": 0.0, **settings}
    return Seeds(root, Git(), SeedSettings(Sources(folders=(str(allowed),)), **chosen))  # type: ignore[arg-type]


def planting(root: Path) -> Planting:
    """Makes seeds that take the repositories of `<root>/upstream`."""
    return Planting(seeds(root / "seeds", root / "upstream"))
