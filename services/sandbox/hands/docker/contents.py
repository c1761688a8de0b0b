"""What an image has of what a sandbox needs. It is looked at once, in a container that is made and never started."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from services.sandbox.hands.docker.engine import Engine, remove
from services.sandbox.hands.docker.images import Image

if TYPE_CHECKING:
    import docker

BASH = "/bin/bash"
OLDEST_MINOR = 8  # of Python 3: the runner's own
_PREFIX = "handmesh-look-"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the engine's, for an image without


@dataclass(frozen=True)
class Contents:
    """What was found."""

    python: bool  # a python3 in the image's PATH, and not known to be too old
    bash: bool


class Looks:
    """What is known of the images of an engine."""

    def __init__(self, engine: Engine, owner: str) -> None:
        """Takes the mark of this service, for the names of its containers."""
        self._engine = engine
        self._owner = owner
        self._known: dict[str, Contents] = {}  # by what names the image's content
        self._looking = asyncio.Lock()  # a look's container has the image's name, so there is one at a time

    async def of(self, image: Image) -> Contents:
        """Returns what an image has. Raises Unavailable: there is no such image."""
        known = self._known.get(image.content)
        if known is not None:
            return known
        async with self._looking:
            if image.content not in self._known:
                name = f"{_PREFIX}{self._owner}-{image.content.removeprefix('sha256:')[:32]}"
                found = await self._engine.ask(lambda client: _look(client, image.name, name), image.name)
                self._known[image.content] = found
            return self._known[image.content]


def _look(client: docker.APIClient, image: str, name: str) -> Contents:
    remove(client, name)  # of a service that died
    client.create_container(image, entrypoint=[BASH], command=[], name=name, network_disabled=True)
    try:
        declared = client.inspect_container(name)["Config"].get("Env") or ()
        path = dict(line.split("=", 1) for line in declared if "=" in line).get("PATH") or _DEFAULT_PATH
        found = [_stat(client, name, f"{folder}/python3") for folder in path.split(":") if folder.startswith("/")]
        python = next((stat for stat in found if stat is not None), None)
        return Contents(python=python is not None and not _old(python), bash=_stat(client, name, BASH) is not None)
    finally:
        remove(client, name)


def _stat(client: docker.APIClient, container: str, path: str) -> Mapping[str, Any] | None:
    """Returns what the engine says of a path in a container: None when there is nothing."""
    from docker.errors import NotFound

    try:
        stream, stat = client.get_archive(container, path)
    except NotFound:
        return None
    for _ in stream:  # the file itself; left unread, it would keep the connection
        pass
    found: Mapping[str, Any] = stat
    return found


def _old(stat: Mapping[str, Any]) -> bool:
    """Says whether a python3 is a link to one that is too old."""
    match = re.fullmatch(r"python3\.(\d+)", PurePosixPath(stat.get("linkTarget") or "").name)
    return match is not None and int(match.group(1)) < OLDEST_MINOR
