"""Images that are built from a recipe: once, by whoever comes first, and never half."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import Unavailable
from services.kit.ids import mint
from services.sandbox.core import digest
from services.sandbox.hand import Hand, HandSettings, Labels, Order, Recipe, Result
from services.sandbox.hands.docker import images, make

pytestmark = pytest.mark.docker


@pytest.fixture
def engine() -> Iterator[Any]:
    """The engine's API; images and containers that were made meanwhile are removed at the end."""
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as client:
        before = {image["Id"] for image in client.images()}
        yield client
        for container in client.containers(all=True, filters={"label": images.BUILDER}):
            client.remove_container(container["Id"], force=True)
        for image in client.images(filters={"label": images.BUILDER}):
            if image["Id"] not in before:
                client.remove_image(image["Id"], force=True)


@pytest.fixture
async def hand(tmp_path: Path, engine: Any) -> AsyncIterator[Hand]:
    """A hand in a state folder of its own; its sandboxes are released at the end."""
    it = make(HandSettings(tmp_path / "a"))
    yield it
    for info in await it.list():
        await it.release(info.labels.sandbox_id)
    await it.close()


def recipe(*setup: str, **given: Any) -> Recipe:
    """Makes a recipe that no other test has."""
    return Recipe("built", "docker", setup=(f": {time.time_ns()}", *setup), **given)


def name_of_new_image(engine: Any) -> str:
    """Returns the name of the image that was built last."""
    found = engine.images(filters={"label": images.BUILDER})
    return str(max(found, key=lambda image: image["Created"])["RepoTags"][0])


def labels() -> Labels:
    """Makes the labels of a new sandbox."""
    return Labels(mint("sbx"), "built", time.time())


async def bash(hand: Hand, sandbox_id: str, command: str) -> str:
    """Runs a command to its end, and returns what it said."""
    given = {"command": command}
    order = Order(mint("exec"), "bash", given, digest("bash", given), 30.0)
    await hand.start(sandbox_id, order)
    (said,) = [said async for said in hand.follow(sandbox_id, order.execution_id)]
    assert isinstance(said, Result)
    return said.text


async def test_setup_commands_are_in_every_sandbox(hand: Hand, engine: Any) -> None:
    """They ran once, as root, before any sandbox was there; what is in the image is not to be changed."""
    wanted = recipe("date +%s%N > /opt/built; id -un > /opt/by", "mkdir /opt/x && cd /opt/x && echo $PWD > here")
    made = await asyncio.gather(hand.provision(wanted, labels()), hand.provision(wanted, labels()))
    command = "cat /opt/built /opt/by /opt/x/here; touch /opt/new"
    said = [await bash(hand, info.labels.sandbox_id, command) for info in made]
    assert said[0] == said[1] and said[0].split()[1:3] == ["root", "/opt/x"] and "Read-only file system" in said[0]
    assert name_of_new_image(engine).startswith("handmesh/env:")
    assert engine.containers(all=True, filters={"name": images.BUILD_PREFIX}) == []


async def test_services_that_share_an_engine_build_once(hand: Hand, engine: Any, tmp_path: Path) -> None:
    """Four calls of two hands at once: one container has built it."""
    other = make(HandSettings(tmp_path / "b"))
    wanted = recipe("sleep 0.5; cat /proc/sys/kernel/random/uuid > /opt/built")
    began = int(time.time())
    await asyncio.gather(*(each.prepare(wanted) for each in (hand, other, hand, other)))
    await other.close()
    events = engine.events(since=began, until=int(time.time()) + 1, filters={"type": "container", "event": "create"})
    names = [name for event in events if images.BUILD_PREFIX in (name := str(event))]
    assert len(names) == 1
    await hand.prepare(wanted)  # it is there


async def test_a_build_outlives_its_service(hand: Hand, engine: Any, tmp_path: Path) -> None:
    """A service that ends in the middle leaves its build at work; the next one takes it over."""
    first = make(HandSettings(tmp_path / "b"))
    wanted = recipe("until [ -e /go ]; do sleep 0.01; done; echo built > /opt/built")
    building = asyncio.create_task(first.prepare(wanted))
    while not (found := engine.containers(filters={"name": images.BUILD_PREFIX})):
        await asyncio.sleep(0.01)
    await first.close()
    with pytest.raises(asyncio.CancelledError):
        await building
    (container,) = found
    taking = asyncio.create_task(hand.prepare(wanted))
    await hand.tidy()  # what works is not tidied away
    engine.exec_start(engine.exec_create(container["Id"], ["touch", "/go"])["Id"])
    await taking
    info = await hand.provision(wanted, labels())
    assert await bash(hand, info.labels.sandbox_id, "cat /opt/built") == "built"


async def test_a_failed_build_is_told_and_tried_again(
    hand: Hand, engine: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is short and has a reason, the log has the last lines, nothing stays; later it is tried again."""
    wanted = recipe("echo the last words; exit 3", "touch /never")
    with pytest.raises(Unavailable, match="exit code 3") as failed:
        await hand.provision(wanted, labels())
    assert failed.value.reason == "BACKEND_UNAVAILABLE" and "last words" not in failed.value.message
    (line,) = [record for record in caplog.records if record.getMessage() == "image not built"]
    assert line.keys["said"] == ["the last words"]  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="exit code 3"):
        await hand.check(wanted)
    assert engine.containers(all=True, filters={"label": images.BUILDER}) == [] == list(await hand.list())
    monkeypatch.setattr(images, "FAILED_SECONDS", 0.0)
    await hand.check(wanted)
    monkeypatch.setattr(images, "BUILD_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="the limit of"):
        await hand.prepare(replace(wanted, setup=("sleep 60",)))
    assert engine.containers(all=True, filters={"label": images.BUILDER}) == []


async def test_no_package_manager_is_a_failed_build(hand: Hand, engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Packages are for images that can install them; others say so in the log."""
    base = engine.create_container(
        images.DEFAULT_IMAGE, command=["rm", "/usr/bin/apt-get"], labels={images.BUILDER: "x"}
    )
    engine.start(base)
    assert engine.wait(base)["StatusCode"] == 0
    image = engine.commit(base)["Id"]
    with pytest.raises(Unavailable, match="exit code 1"):
        await hand.prepare(recipe(image=image, packages=("jq",)))
    (line,) = [record for record in caplog.records if record.getMessage() == "image not built"]
    assert line.keys["said"] == ["packages need apt-get, apk or dnf in the image"]  # type: ignore[attr-defined]


async def test_packages_are_installed_from_the_images_sources(hand: Hand, engine: Any) -> None:
    """Or from those of this machine when the image has none. Here the source is a folder with one package."""
    lines = (
        "mkdir -p /repo/DEBIAN /etc/apt/sources.list.d && cd /repo",
        "printf '%s: x\\n' Maintainer Description > DEBIAN/control",
        "printf 'Package: hello-hands\\nVersion: 1\\nArchitecture: all\\n' >> DEBIAN/control",
        "mkdir -p opt && echo hello > opt/hello && dpkg-deb -b . /repo/hello.deb >/dev/null",
        "(dpkg-deb -f hello.deb; echo Filename: ./hello.deb; stat -c 'Size: %s' hello.deb;"
        " echo SHA256: $(sha256sum < hello.deb | cut -d' ' -f1)) > Packages",
        "echo 'deb [trusted=yes] file:/repo ./' > /etc/apt/sources.list",
    )
    base = recipe("; ".join(lines))
    await hand.prepare(base)
    info = await hand.provision(recipe(image=name_of_new_image(engine), packages=("hello-hands",)), labels())
    assert await bash(hand, info.labels.sandbox_id, "cat /opt/hello; ls /var/lib/apt/lists") == "hello"


def test_the_name_of_an_image_is_its_content() -> None:
    """The same content has the same name in every service; what is not built into it changes nothing."""
    base = Recipe("a", "docker", packages=("x", "y"), setup=("1", "2"))
    name = images.content_digest("sha256:1", base)
    assert name == images.content_digest("sha256:1", replace(base, name="b", env={"A": "1"}, tools=("bash",)))
    others = [
        images.content_digest("sha256:2", base),
        images.content_digest("sha256:1", replace(base, packages=("y", "x"))),
        images.content_digest("sha256:1", replace(base, packages=("x", "y", "1"), setup=("2",))),
        images.content_digest("sha256:1", replace(base, setup=("1 2",))),
    ]
    assert len({name, *others}) == 5
