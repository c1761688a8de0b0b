"""The rules of seeds: which repositories may be fetched, what a ref stands for, which seeds have to go. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from services.kit.errors import Invalid
from services.kit.origin import Allowed, Origin, UrlRefused, check_origin, origin_of, parse_allowed

REF_BYTES = 255
URL_CHARACTERS = 2048

_PATH = re.compile(r"(/[A-Za-z0-9._~%+-]+)+/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What git refuses in a name (git help check-ref-format), and what it would read as a pattern or an option.
_NO_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|(^|/)\.|\.lock(/|$)|^[-/]|[./]$|^@$")


@dataclass(frozen=True)
class Repository:
    """A repository that somebody wants in a sandbox. `path` is where; an empty `ref` is the default branch."""

    path: str
    url: str
    ref: str = ""


@dataclass(frozen=True)
class Sources:
    """What may be fetched besides https from public addresses.

    `hosts` may be plain http, loopback or private; below `folders` lie repositories for `file://`.
    """

    hosts: Allowed = field(default_factory=Allowed)
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [*([] if str(self.hosts) == "none" else [str(self.hosts)]), *(f"file://{it}" for it in self.folders)]
        return ",".join(parts) or "none"


@dataclass(frozen=True)
class Remote:
    """A checked URL. `origin` is None for a folder of this machine.

    `through` is where a session's door has it; what came by that is given to nobody who has not shown that his has it.
    """

    url: str
    origin: Origin | None
    private_ok: bool
    through: str = ""

    @property
    def asked(self) -> str:
        """The URL that git is given."""
        return self.through or self.url

    @property
    def key(self) -> str:
        """What names its seeds: others for what came through a door."""
        return f"door {self.url}" if self.through else self.url

    @property
    def scheme(self) -> str:
        """The protocol, as git names it."""
        if self.through:
            return "http"
        return "file" if self.origin is None else self.origin.scheme


@dataclass(frozen=True)
class Target:
    """What to check out: a commit, and the branch that it is the head of. Without a branch: a detached HEAD."""

    commit: str
    branch: str = ""


@dataclass(frozen=True)
class Kept:
    """Something in the cache. `held` while a sandbox shows it."""

    key: str
    size: int  # bytes
    used_at: float  # Unix seconds
    held: bool


def parse_sources(value: str) -> Sources:
    """Reads `host[:port], file:///folder, ...`. Raises ValueError with what was expected."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    folders = [part.removeprefix("file://") for part in parts if part.startswith("file://")]
    if not all(it.startswith("/") and it.isascii() and "/.." not in it for it in folders):
        raise ValueError("host[:port] or file:///folder, separated by commas")
    hosts = parse_allowed(",".join(part for part in parts if not part.startswith("file://")))
    return Sources(hosts, tuple(it.rstrip("/") for it in folders))


def check_repository(repository: Repository, sources: Sources) -> Remote:
    """Reads the URL and looks at the ref. Raises Invalid (`RESOURCE_INVALID`), which never repeats the URL: whatever
    was wrong with it, it may hold somebody's password."""
    problem = _ref_problem(repository.ref)
    if problem:
        raise refused(repository, problem)
    try:
        return _remote(repository.url, sources)
    except UrlRefused as why:
        raise refused(repository, f"url: {why}") from None


def _remote(url: str, sources: Sources) -> Remote:
    if len(url) > URL_CHARACTERS:
        raise UrlRefused(f"the URL has more than {URL_CHARACTERS} characters")
    if url.startswith("file://"):
        return _folder(url, sources)
    origin = origin_of(url)
    check_origin(origin, sources.hosts)
    path = url.split("//", 1)[1].partition("/")[2]
    if not _PATH.fullmatch("/" + path) or ".." in path.split("/"):
        raise UrlRefused("expected https://host/owner/name, without user, query or fragment")
    return Remote(url, origin, sources.hosts.covers(origin))


def _folder(url: str, sources: Sources) -> Remote:
    path = url.removeprefix("file://")
    plain = _PATH.fullmatch(path) is not None and "%" not in path and not {".", ".."} & set(path.split("/"))
    if not plain or not any(PurePosixPath(path).is_relative_to(folder) for folder in sources.folders):
        raise UrlRefused("this folder is not one of those that the operator allows")
    return Remote(url, None, True)


def _ref_problem(ref: str) -> str:
    if len(ref.encode("utf-8", "replace")) > REF_BYTES:
        return f"ref: it has more than {REF_BYTES} bytes"
    if ref and (_NO_REF.search(ref) or not ref.isprintable()):
        return "ref: it is no name of a branch, a tag or a commit"
    return ""


def refused(repository: Repository, why: str) -> Invalid:
    """Returns what to raise for a repository that cannot be had."""
    return Invalid("RESOURCE_INVALID", f"git repository at {repository.path}: {why}", mount_path=repository.path)


def is_commit(ref: str) -> bool:
    """Says whether a ref is a whole commit id, which git looks for before any name."""
    return _COMMIT.fullmatch(ref) is not None


def patterns(ref: str) -> list[str]:
    """Returns the names to ask a remote for, to learn what a ref stands for."""
    if not ref or ref == "HEAD":
        return ["HEAD"]
    if ref.startswith("refs/"):
        return [ref, ref + "^{}"]
    return [f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}"]


def target(said: str, ref: str) -> Target | None:
    """Reads what `git ls-remote --symref` said of `patterns(ref)`. A branch comes before a tag, as for `git clone`.

    None when there is no such ref, or nothing that git could check out.
    """
    refs: dict[str, str] = {}
    default = ""
    for line in said.splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            default = value.removeprefix("ref: ")
        elif _COMMIT.fullmatch(value):
            refs[name] = value
    for name in _candidates(ref):
        if name in refs:
            full = default if name == "HEAD" else name
            branch = full.removeprefix("refs/heads/") if full.startswith("refs/heads/") else ""
            return Target(refs[name], branch)
    return None


def _candidates(ref: str) -> Sequence[str]:
    if not ref or ref == "HEAD":
        return ("HEAD",)
    if ref.startswith("refs/"):
        return (f"{ref}^{{}}", ref) if ref.startswith(("refs/heads/", "refs/tags/")) else ()
    return (f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}")


def to_evict(kept: Iterable[Kept], limit: int) -> list[str]:
    """Returns the keys of what has to go for the rest to fit: the longest unused first, never what is held."""
    known = sorted(kept, key=lambda it: it.used_at)
    over = sum(it.size for it in known) - limit
    going = []
    for it in known:
        if over <= 0:
            break
        if not it.held:
            going.append(it.key)
            over -= it.size
    return going


def environment(remote: Remote | None, path: str, ca_file: str) -> Mapping[str, str]:
    """Returns git's whole environment: nobody's configuration, no prompt, no protocol but the remote's."""
    return {
        "PATH": path,
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": remote.scheme if remote else "file",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        **({"GIT_SSL_CAINFO": ca_file} if ca_file else {}),
    }


def options(remote: Remote | None, addresses: Sequence[str] = ()) -> list[str]:
    """Returns git's options before the command. `addresses` are the only ones that the remote's name may mean."""
    values = {
        "core.hooksPath": "/dev/null",
        "core.fsmonitor": "false",
        "core.askPass": "",
        "core.bigFileThreshold": "16m",  # what is larger is streamed, not held in memory
        "core.protectHFS": "true",
        "core.protectNTFS": "true",
        "credential.helper": "",
        "submodule.recurse": "false",
        "fetch.recurseSubmodules": "false",
        "fetch.unpackLimit": "1",
        "gc.autoDetach": "false",
        "maintenance.auto": "false",
        "http.followRedirects": "false",  # a redirect could lead to an address that nobody has checked
        "http.lowSpeedLimit": "1000",
        "http.lowSpeedTime": "30",
        "advice.detachedHead": "false",
    }
    if remote is not None and remote.origin is not None and not remote.through:
        shown = ",".join(f"[{it}]" if ":" in it else it for it in addresses)
        values["http.curloptResolve"] = f"{remote.origin.host}:{remote.origin.port}:{shown}"
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]
