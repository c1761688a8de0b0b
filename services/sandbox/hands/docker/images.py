"""Images: those that recipes name, and those that are built from them with a recipe's packages and setup commands.

A built image is named for the content that it was built from, and is built once: in a container that is named for it
too, so that services that share an engine find each other's. A service that dies leaves the container at its work;
whoever wants the image next takes it over. The build has a network and the engine's usual rights, and its commands
are the operator's; it is never a session's sandbox.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.kit.errors import Unavailable
from services.kit.logs import Log
from services.sandbox.hand import Recipe
from services.sandbox.hands.docker.engine import Engine, remove, state, unavailable

if TYPE_CHECKING:
    import docker

DEFAULT_IMAGE = "handmesh/base:latest"
REPOSITORY = "handmesh/env"
BUILD_PREFIX = "handmesh-build-"
BUILDER = "handmesh.builder"  # the label of a build's container, and so of its image, with the service's own mark
BUILD_SECONDS = 1800.0
FAILED_SECONDS = 60.0  # so long after a build has failed it is not tried again
_PROGRESS_SECONDS = 10.0
_POLL_SECONDS = 0.25
_LAST_LINES = 40
_LOG_BYTES = "4m"
_HOST_APT = Path("/etc/apt")
_MOUNTED_APT = "/run/handmesh-apt"
_SCRIPT = Path(__file__).with_name("build.sh")
_log = Log("services.sandbox.hands.docker.images")


@dataclass(frozen=True)
class Image:
    """What the sandboxes of a recipe are made from. `volumes` are the paths that the image wants to be able to write.

    `digest` names what was built from the recipe; it is empty for an image that is taken as it is.
    """

    base: str
    base_id: str  # stands for the base's content, under whatever name
    digest: str
    volumes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The image's name at the engine."""
        return f"{REPOSITORY}:{self.digest}" if self.digest else self.base

    @property
    def content(self) -> str:
        """What stands for all that is in it."""
        return self.digest or self.base_id

    @property
    def builder(self) -> str:
        """The name of the container that builds it."""
        return BUILD_PREFIX + self.digest


class Images:
    """The images of an engine, as recipes want them."""

    def __init__(self, engine: Engine, owner: str) -> None:
        """Takes the mark of this service, for the labels of what it builds."""
        self._engine = engine
        self._owner = owner
        self._building: dict[str, asyncio.Task[None]] = {}  # by name; whoever asks again waits with it
        self._failed: dict[str, tuple[float, Unavailable]] = {}  # by name, with the moment

    async def find(self, recipe: Recipe) -> Image:
        """Returns a recipe's image, built or not. Raises Unavailable: no base image, or its build has just failed."""
        base = recipe.image or DEFAULT_IMAGE
        found = await self._engine.ask(lambda client: _inspect(client, base), base)
        derived = recipe.packages or recipe.setup
        digest = content_digest(found["Id"], recipe) if derived else ""
        image = Image(base, found["Id"], digest, tuple(sorted(found["Config"].get("Volumes") or ())))
        moment, failure = self._failed.get(image.name, (0.0, None))
        if failure is not None and time.monotonic() < moment + FAILED_SECONDS:
            raise failure
        return image

    async def prepare(self, recipe: Recipe, image: Image) -> None:
        """Builds an image unless it is there. Raises Unavailable when that fails."""
        if not image.digest or await self._there(image):
            return
        building = self._building.get(image.name)
        if building is None:
            building = self._building[image.name] = asyncio.create_task(self._build(recipe, image))
            building.add_done_callback(lambda _: self._building.pop(image.name, None))
        await asyncio.shield(building)  # a caller that goes away leaves the others their image

    async def tidy(self) -> None:
        """Removes what builds of this service have left that nobody has taken over."""
        kept = {BUILD_PREFIX + name.removeprefix(f"{REPOSITORY}:") for name in self._building}

        def sweep(client: docker.APIClient) -> None:
            ended = {"label": f"{BUILDER}={self._owner}", "status": "exited"}
            for container in client.containers(all=True, filters=ended):
                name = container["Names"][0].lstrip("/")
                if name.startswith(BUILD_PREFIX) and name not in kept:
                    remove(client, name)

        await self._engine.ask(sweep)

    async def close(self) -> None:
        """Stops waiting for builds. Their containers go on."""
        building = list(self._building.values())
        for task in building:
            task.cancel()
        await asyncio.gather(*building, return_exceptions=True)

    async def _there(self, image: Image) -> bool:
        return await self._engine.ask(lambda client: bool(client.images(image.name, quiet=True)))

    async def _build(self, recipe: Recipe, image: Image) -> None:
        began = time.monotonic()
        _log.info("image building", environment=recipe.name, image=image.name)
        try:
            while not await self._there(image):
                await self._engine.ask(functools.partial(_begin, recipe, image, self._owner), image.base)
                await self._finish(recipe, image, began)
        except Unavailable as error:
            self._failed[image.name] = (time.monotonic(), error)
            raise
        self._failed.pop(image.name, None)
        _log.info("image built", environment=recipe.name, image=image.name, seconds=round(time.monotonic() - began, 1))

    async def _finish(self, recipe: Recipe, image: Image, began: float) -> None:
        """Waits for a build's container to end, and makes the image of it. Returns too when another service has."""
        told = began
        while True:
            found = await self._engine.ask(lambda client: state(client, image.builder))
            now = time.monotonic()
            if found is None:
                return
            if found["Status"] == "exited" or now > began + BUILD_SECONDS:
                break
            if now > told + _PROGRESS_SECONDS:
                told = now
                said = await self._engine.ask(lambda client: _last_lines(client, image.builder, 1))
                _log.info("image building", environment=recipe.name, seconds=round(now - began, 1), said=said)
            await asyncio.sleep(_POLL_SECONDS)
        if found["Status"] == "exited" and found["ExitCode"] == 0:
            await self._engine.ask(lambda client: _keep(client, image))
            return
        how = f"exit code {found['ExitCode']}" if found["Status"] == "exited" else f"the limit of {BUILD_SECONDS:.0f} s"
        said = await self._engine.ask(lambda client: _last_lines(client, image.builder, _LAST_LINES))
        await self._engine.ask(lambda client: remove(client, image.builder))
        _log.error("image not built", environment=recipe.name, image=image.name, ended=how, said=said)
        raise unavailable(
            f"the image of environment {recipe.name} cannot be built: its packages and setup commands ended with "
            f"{how}; the service's log has the last lines. It is tried again in {FAILED_SECONDS:.0f} s"
        )


def content_digest(base_id: str, recipe: Recipe) -> str:
    """Returns what names an image: it stands for the base image's content, the packages, the commands, and the way."""
    content = [base_id, list(recipe.packages), list(recipe.setup), _SCRIPT.read_text()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _inspect(client: docker.APIClient, image: str) -> dict[str, Any]:
    found: dict[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call] # its stubs have forgotten it
    return found


def _begin(recipe: Recipe, image: Image, owner: str, client: docker.APIClient) -> None:
    """Starts a build's container unless there is one."""
    from docker.errors import APIError

    mounts = []
    if _HOST_APT.is_dir():  # for an image without package sources of its own, as the base image is
        mounts.append({"Type": "bind", "Source": str(_HOST_APT), "Target": _MOUNTED_APT, "ReadOnly": True})
    config: dict[str, Any] = {
        "NetworkMode": _network(client),
        "Mounts": mounts,
        "LogConfig": {"Type": "json-file", "Config": {"max-size": _LOG_BYTES, "max-file": "1"}},
        "SecurityOpt": ["no-new-privileges:true"],
    }
    given = [str(len(recipe.packages)), *recipe.packages, *recipe.setup]
    try:
        client.create_container(
            image.base,
            entrypoint=["/bin/bash", "-c", _SCRIPT.read_text(), "build"],
            command=given,
            name=image.builder,
            user="0:0",
            working_dir="/",
            labels={BUILDER: owner},
            healthcheck={"Test": ["NONE"]},
            host_config=config,
        )
    except APIError as error:
        if error.status_code != 409:  # there is one
            raise
    found = state(client, image.builder)
    if found is not None and found["Status"] == "created":
        client.start(image.builder)


def _network(client: docker.APIClient) -> str:
    """Returns the engine's own network if it has one, else that of the machine."""
    bridges = [network for network in client.networks(names=["bridge"]) if network["Driver"] == "bridge"]
    return "bridge" if bridges else "host"


def _keep(client: docker.APIClient, image: Image) -> None:
    """Makes the image of a container that has ended well, and removes the container."""
    from docker.errors import NotFound

    try:
        client.commit(
            image.builder, repository=REPOSITORY, tag=image.digest, conf={"Entrypoint": [], "Cmd": ["/bin/bash"]}
        )
    except NotFound:
        return  # another service has made it
    remove(client, image.builder)


def _last_lines(client: docker.APIClient, name: str, count: int) -> Sequence[str]:
    from docker.errors import NotFound

    try:
        said: bytes = client.logs(name, tail=count)
    except NotFound:
        return ()
    return [line[:500] for line in said.decode("utf-8", "replace").splitlines()]
