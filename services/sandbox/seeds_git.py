"""Runs git for the seeds, outside every sandbox: for a bounded time, on bounded disk, with nobody's configuration."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.kit.origin import check_addresses
from services.sandbox import programs
from services.sandbox import seeds_rules as rules
from services.sandbox.programs import Ended, Look, SaidTooMuch, Take
from services.sandbox.seeds_rules import Remote

RESOLVE_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for what a remote is asked, other than to send its objects
_PATH = "/usr/local/bin:/usr/bin:/bin"
_log = Log("services.sandbox.seeds_git")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class TooLarge(Exception):
    """The folder that is watched has become larger than it may."""


@dataclass(frozen=True)
class Watched:
    """A folder that git writes to, and how many bytes it may have."""

    folder: Path
    most: int


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Looks a name up as the system does."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Git:
    """git, with an environment of its own for each remote."""

    def __init__(
        self,
        ca_file: Path | None = None,
        resolve: Resolve = system_resolve,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Takes the authorities that sign servers' certificates, if not those of the system."""
        self._answer_seconds = answer_seconds
        self._ca_file = str(ca_file or "")
        self._resolve = resolve

    async def local(self, folder: Path, *arguments: str, seconds: float = ANSWER_SECONDS) -> bytes:
        """Runs a command in a repository of ours. Raises Unavailable when it fails."""
        code, said = await self._run(None, (), ["-C", str(folder), *arguments], seconds)
        if code:
            raise Unavailable("BACKEND_UNAVAILABLE", f"git {arguments[0]} failed or took too long; see the log")
        return said

    async def has(self, folder: Path, commit: str) -> bool:
        """Says whether a repository of ours has a commit."""
        code, _ = await self._run(None, (), ["-C", str(folder), "cat-file", "-e", f"{commit}^{{commit}}"])
        return code == 0

    async def ask(self, remote: Remote, *arguments: str) -> bytes:
        """Asks a remote. Raises Unavailable when it does not answer, UrlRefused when it may not be asked."""
        code, said = await self._run(remote, await self._addresses(remote), arguments, self._answer_seconds)
        if code:
            raise unreachable()
        return said

    async def fetch(self, remote: Remote, into: Watched, refs: Sequence[str], seconds: float) -> bool:
        """Fetches into a bare repository. False when the remote has not sent it. Raises UrlRefused, TooLarge."""
        fetch = [
            "-C",
            str(into.folder),
            "fetch",
            "--quiet",
            "--force",
            "--prune",
            "--no-auto-gc",
            "--no-write-fetch-head",
        ]
        command = [*fetch, "--", remote.asked, *refs]
        code, _ = await self._run(remote, await self._addresses(remote), command, seconds, into)
        return code == 0

    async def sizes(self, folder: Path, commit: str, most_bytes: int, most_files: int) -> None:
        """Raises TooLarge when a commit's tree is larger than it may be: a small pack can hold a huge tree."""
        total = files = 0
        rest = b""

        def count(part: bytes) -> None:
            nonlocal total, files, rest
            *rows, rest = (rest + part).split(b"\0")
            for row in rows:
                size = row.split(b"\t", 1)[0].split()[-1]
                total, files = total + (int(size) if size.isdigit() else 0), files + 1
            if total > most_bytes or files > most_files:
                raise TooLarge

        listing = ["-C", str(folder), "ls-tree", "-r", "-z", "--long", "--full-tree", commit]
        if (await self._end(None, (), listing, ANSWER_SECONDS, take=count)).code is None:
            raise TooLarge

    async def _addresses(self, remote: Remote) -> Sequence[str]:
        if remote.origin is None or remote.through:
            return ()
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                found = await self._resolve(remote.origin.host, remote.origin.port)
        except (OSError, TimeoutError):
            raise unreachable() from None
        return check_addresses(found, remote.private_ok)

    async def _run(
        self,
        remote: Remote | None,
        addresses: Sequence[str],
        arguments: Sequence[str],
        seconds: float = ANSWER_SECONDS,
        watched: Watched | None = None,
    ) -> tuple[int, bytes]:
        """Runs git; what takes too long or says too much has failed. Raises TooLarge."""
        look = None if watched is None else functools.partial(_look, watched)
        try:
            ended = await self._end(remote, addresses, arguments, seconds, look=look)
        except SaidTooMuch:
            ended = Ended(None, b"", b"it said too much")
        if watched is not None:
            await _look(watched)
        if ended.code:
            _log.warning("git failed", command=_command(arguments), code=ended.code, said=_shown(ended))
        elif ended.code is None:
            _log.warning("git was killed", command=_command(arguments), seconds=seconds, said=_shown(ended))
        return 1 if ended.code is None else ended.code, ended.said

    async def _end(
        self,
        remote: Remote | None,
        addresses: Sequence[str],
        arguments: Sequence[str],
        seconds: float,
        take: Take | None = None,
        look: Look | None = None,
    ) -> Ended:
        program = shutil.which("git", path=_PATH)
        if program is None:
            raise Unavailable("BACKEND_UNAVAILABLE", "git is not installed on the machine of the sandbox service")
        command = [program, *rules.options(remote, addresses), *arguments]
        return await programs.run(command, rules.environment(remote, _PATH, self._ca_file), seconds, take, look)


def unreachable() -> Unavailable:
    """Returns what to raise for a remote that does not answer as it should."""
    return Unavailable(
        "BACKEND_UNAVAILABLE",
        "the git remote does not answer as a public repository: it cannot be reached, is not there, is private, or "
        "redirects; for a private one its session needs a credential of the kind git in one of its vaults",
    )


async def _look(watched: Watched) -> None:
    """Raises TooLarge."""
    if await asyncio.to_thread(disk, watched.folder) > watched.most:
        raise TooLarge


def _shown(ended: Ended) -> str:
    return ended.complaint[-500:].decode("utf-8", "replace")


def _command(arguments: Sequence[str]) -> str:
    return arguments[2] if arguments[0] == "-C" else arguments[0]


def disk(folder: Path) -> int:
    """Returns the bytes of the files below a folder. Each of several links to a file counts."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # git has removed it meanwhile
                total += Path(parent, name).lstat().st_size
    return total
