"""What a request at the git door asks for: read off its method and target, which have one spelling each.

/host[:port]/owner/name[.git]/info/refs?service=git-upload-pack    the references, to fetch
/host[:port]/owner/name[.git]/info/refs?service=git-receive-pack   the references, to push
/host[:port]/owner/name[.git]/git-upload-pack                      objects
/host[:port]/owner/name[.git]/git-receive-pack                     a push
/host[:port]/owner/name[.git]/info/lfs/objects/batch               where large objects are
/.lfs/<id>                                                         one large object
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from services.kit.origin import Origin
from services.vault_proxy.core.git_rules import PATH, Repository, Rule

FETCH, PUSH = "git-upload-pack", "git-receive-pack"

_TARGET = re.compile(r"/([a-z0-9][a-z0-9_.-]{0,252}(?::[0-9]{1,5})?)/([A-Za-z0-9._~+/-]+)(?:\?([A-Za-z0-9=_-]*))?")
_LFS = re.compile(r"/\.lfs/([A-Za-z0-9_-]{43})")
_ENDPOINTS = (f"/{FETCH}", f"/{PUSH}", "/info/refs", "/info/lfs/objects/batch")
_DUMB = re.compile(r".+/(HEAD|objects/.*|info/(alternates|http-alternates|packs)|git-upload-archive)")
_SMART = "only git's smart HTTP protocol is spoken here: fetch and push"


class Asked(enum.Enum):
    """What for."""

    REFERENCES = "references"
    OBJECTS = "objects"
    PUSH = "push"
    LFS_BATCH = "lfs batch"
    LFS_OBJECT = "lfs object"


class RouteRefused(ValueError):
    """A request that the door has no way for. Its text says what it has."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Route:
    """What is asked for, of which repository. `ending` is `.git` or nothing, as the client spelled it.

    `service` is FETCH or PUSH, for references. Of one large object only `lfs_id` is set.
    """

    asked: Asked
    authority: str = ""
    path: str = ""
    ending: str = ""
    service: str = FETCH
    lfs_id: str = ""


def route(method: str, target: str) -> Route:
    """Reads what is asked for. Raises RouteRefused (400, 403, 404, 405)."""
    if method not in {"GET", "POST", "PUT"}:
        raise RouteRefused(405, "expected GET, POST or PUT")
    if found := _LFS.fullmatch(target):
        return Route(Asked.LFS_OBJECT, lfs_id=found[1])
    matched = _TARGET.fullmatch(target)
    if matched is None:
        raise RouteRefused(400, "expected /host/owner/name and what git asks for, in plain characters")
    authority, rest, query = matched.groups()
    endpoint = next((each for each in _ENDPOINTS if f"/{rest}".endswith(each)), None)
    if endpoint is None:
        if _DUMB.fullmatch(rest):
            raise RouteRefused(403, _SMART)
        raise RouteRefused(404, f"nothing is here; {_SMART}")
    name = rest[: -len(endpoint)]
    path, ending = (name[:-4], ".git") if name.endswith(".git") else (name, "")
    if not PATH.fullmatch(path):
        raise RouteRefused(400, "expected /host/owner/name, with no part that is empty, . or ..")
    return _asked(method, endpoint, query, Route(Asked.OBJECTS, authority, path, ending))


def _asked(method: str, endpoint: str, query: str | None, to: Route) -> Route:
    if method != ("GET" if endpoint == "/info/refs" else "POST"):
        raise RouteRefused(405, "expected GET for references, and POST for the rest")
    if endpoint == "/info/refs":
        service = (query or "").removeprefix("service=") if (query or "").startswith("service=") else ""
        if service not in (FETCH, PUSH):
            raise RouteRefused(403, _SMART)
        return Route(Asked.REFERENCES, to.authority, to.path, to.ending, service)
    if query is not None:
        raise RouteRefused(400, "only /info/refs has a query")
    asked = {f"/{PUSH}": Asked.PUSH, f"/{FETCH}": Asked.OBJECTS}.get(endpoint, Asked.LFS_BATCH)
    return Route(asked, to.authority, to.path, to.ending, PUSH if asked is Asked.PUSH else FETCH)


def repository(to: Route, rules: Iterable[Rule]) -> tuple[Repository | None, tuple[Rule, ...]]:
    """Returns the repository that a route leads to, and the rules for it: none when no rule knows it."""
    rules = tuple(rules)
    for rule in rules:
        origin = rule.repository.origin
        if to.authority in _authorities(origin):
            found = Repository(origin, to.path)
            covering = tuple(each for each in rules if each.covers(found))
            if covering:
                return found, covering
    return None, ()


def _authorities(origin: Origin) -> tuple[str, str]:
    return str(origin).partition("://")[2], f"{origin.host}:{origin.port}"
