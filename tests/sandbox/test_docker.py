"""What is docker's own: which engines it takes, its labels, and what it removes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import Unavailable
from services.kit.ids import mint
from services.sandbox.hand import Hand, HandSettings, Labels, Recipe, SandboxInfo
from services.sandbox.hands.docker import make
from services.sandbox.hands.docker.images import DEFAULT_IMAGE

RECIPE = Recipe("e", "docker")


@pytest.fixture
def engine() -> Iterator[Any]:
    """The engine's API."""
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as client:
        yield client


def labels() -> Labels:
    """Makes the labels of a new sandbox."""
    return Labels(mint("sbx"), "e", time.time(), "sess_1", "build", "sess_1/build/1")


def names(engine: Any) -> set[str]:
    """Names all containers."""
    return {name.lstrip("/") for row in engine.containers(all=True) for name in row["Names"]}


def name(info: SandboxInfo) -> str:
    """Returns the name of a sandbox's container."""
    return "handmesh-" + info.labels.sandbox_id


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "ssh://root@host", "http://127.0.0.1:1"])
async def test_an_engine_elsewhere_is_refused(tmp_path: Path, host: str) -> None:
    """The sandboxes' sockets are files of this machine; nothing is sent to another one."""
    hand = make(HandSettings(tmp_path, docker_host=host))
    with pytest.raises(Unavailable, match=r"no unix:// socket.*\[BACKEND_UNAVAILABLE\]"):
        await hand.check(RECIPE)


async def test_no_engine_is_told(tmp_path: Path) -> None:
    """The error says where it was looked for and what to do."""
    hand = make(HandSettings(tmp_path, docker_host=f"unix://{tmp_path}/nobody"))
    with pytest.raises(Unavailable, match=r"Start the engine or set DOCKER_HOST"):
        await hand.check(RECIPE)


@pytest.mark.docker
async def test_no_image_is_told(tmp_path: Path) -> None:
    """Before anything is made, with how to get the base image."""
    hand = make(HandSettings(tmp_path))
    with pytest.raises(Unavailable, match="no image no/such:1: build the base image by `make image`"):
        await hand.provision(Recipe("e", "docker", image="no/such:1"), labels())
    assert await hand.list() == ()
    await hand.close()


@pytest.mark.docker
async def test_containers_tell_whose_they_are(tmp_path: Path, engine: Any) -> None:
    """An operator finds a session's containers by label."""
    hand = make(HandSettings(tmp_path))
    info = await hand.provision(RECIPE, labels())
    told = engine.inspect_container(name(info))["Config"]["Labels"]
    await hand.release(info.labels.sandbox_id)
    await hand.close()
    assert len(told.pop("handmesh.owner")) == 16
    assert {key: value for key, value in told.items() if key != "handmesh.base"} == {
        "handmesh.sandbox_id": info.labels.sandbox_id,
        "handmesh.session_id": "sess_1",
        "handmesh.request_id": "sess_1/build/1",
        "handmesh.environment": "e",
        "handmesh.hand": "build",
    }


@pytest.mark.docker
async def test_tidying_removes_what_nobody_knows_and_what_has_ended(tmp_path: Path, engine: Any) -> None:
    """Its own containers without a record, and ended ones of any service; no other service's that runs."""
    mine, other = make(HandSettings(tmp_path / "a")), make(HandSettings(tmp_path / "b"))
    kept, lost = await mine.provision(RECIPE, labels()), await _made(mine, engine)
    theirs, ended = await other.provision(RECIPE, labels()), await _made(other, engine)
    foreign = engine.create_container(DEFAULT_IMAGE, command=["true"])["Id"]  # nobody's of ours
    engine.start(foreign)
    engine.wait(foreign)
    (tmp_path / "a" / "sandboxes" / lost.labels.sandbox_id / "sandbox.json").unlink()
    engine.kill(name(ended))
    engine.wait(name(ended))
    await mine.tidy()
    left = names(engine)
    assert {name(kept), name(theirs)} <= left and not {name(lost), name(ended)} & left
    assert engine.inspect_container(foreign)["State"]["Status"] == "exited"
    assert await mine.list() == (kept,) and await other.list() == (theirs,)
    engine.remove_container(foreign)
    for hand, info in ((mine, kept), (other, theirs), (other, ended)):
        await hand.release(info.labels.sandbox_id)
        await hand.close()


async def _made(hand: Hand, engine: Any) -> SandboxInfo:
    wanted = Labels(mint("sbx"), "e", time.time())
    info = await hand.provision(RECIPE, wanted)
    assert name(info) in names(engine)
    return info
