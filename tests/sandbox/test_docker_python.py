"""Images without Python: sandboxes of them run the service's own, and behave the same."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import Unavailable
from services.sandbox.hand import HandSettings, Outcome, Recipe

pytest.register_assert_rewrite("services.sandbox.conformance", "services.sandbox.tools_conformance")

from services.sandbox.conformance import CHECKS, LIMITS, Stand  # noqa: E402 (after the line above)
from services.sandbox.hands.docker import contents, interpreter, make  # noqa: E402
from services.sandbox.hands.docker.images import DEFAULT_IMAGE  # noqa: E402
from services.sandbox.tools_conformance import CHECKS as TOOL_CHECKS  # noqa: E402

pytestmark = pytest.mark.docker

WITHOUT, EMPTY = "handmesh/test-without-python:latest", "handmesh/test-empty:latest"
_WANTED = ("04", "07", "09", "13", "15", "17", "20", "21", "24", "30", "38")
_WANTED_TOOLS = ("04", "09", "11")  # pictures, a full disk, grep
SELECTED = [check for check in CHECKS if check.__name__.split("_")[1] in _WANTED]
SELECTED += [check for check in TOOL_CHECKS if check.__name__.split("_")[1] in _WANTED_TOOLS]


@pytest.fixture(scope="module")
def engine(docker_engine: None) -> Iterator[Any]:
    """The engine's API, with an image that has all of the base image but Python, and one that has nothing at all."""
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as client:
        removing = ["/bin/bash", "-c", "rm -rf /usr/{,local/}bin/python* /usr/{,local/}lib/python*"]
        made = client.create_container(DEFAULT_IMAGE, entrypoint=removing, command=[], user="0:0")["Id"]
        client.start(made)
        assert client.wait(made)["StatusCode"] == 0
        client.import_image_from_stream(_exported(client, made), *WITHOUT.split(":"))
        client.remove_container(made)
        nothing = io.BytesIO()
        with tarfile.open(fileobj=nothing, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("nothing"))
        client.import_image_from_data(nothing.getvalue(), *EMPTY.split(":"))
        yield client
        for image in (WITHOUT, EMPTY):
            client.remove_image(image, force=True)


def _exported(client: Any, container: str) -> Iterator[bytes]:
    yield from client.export(container)


def _processes(text: str) -> list[str]:
    """Lists this machine's processes with a text in their command line, those in sandboxes too."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(f"process {folder.name}")
    return found


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder for all tests, so that the interpreter is copied once."""
    return tmp_path_factory.mktemp("hands")


@pytest.fixture
async def stand(engine: Any, state: Path) -> AsyncIterator[Stand]:
    """A hand whose recipe names the image without Python; what the check has made is released at the end."""

    async def reopen() -> Any:
        await it.hand.close()
        return make(HandSettings(state))

    async def left(text: str) -> Sequence[str]:
        return _processes(text)

    recipe = Recipe("checked", "docker", image=WITHOUT, env={"DECLARED": "yes"}, limits=LIMITS)
    it = Stand(make(HandSettings(state)), recipe, reopen, lambda: shutil.rmtree(state), left)
    yield it
    for sandbox_id in it.made:
        await it.hand.release(sandbox_id)
    await it.hand.close()


@pytest.mark.parametrize("check", SELECTED, ids=lambda check: check.__name__)
async def test_the_results_are_the_same(stand: Stand, check: Callable[[Stand], Awaitable[None]]) -> None:
    """What a hand promises holds without a Python in the image too; each check states its rule in its docstring."""
    await check(stand)


async def test_out_of_memory_is_said(stand: Stand) -> None:
    """The suite's own check needs a Python for its bomb."""
    sandbox = await stand.id()
    result = await stand.bash(sandbox, "tail /dev/zero")
    assert result.outcome is Outcome.OUT_OF_MEMORY and "256 MiB" in result.text
    assert (await stand.bash(sandbox, "echo on")).text == "on"


async def test_tools_have_no_python_by_it(stand: Stand) -> None:
    """It is in no PATH, cannot be changed, and no tool inherits its libraries."""
    sandbox = await stand.id()
    assert (await stand.bash(sandbox, "python3 -V")).exit_code == 127
    told = await stand.bash(sandbox, f"env; touch {interpreter.SHOWN}/x; cat /proc/self/maps")
    assert "Read-only file system" in told.text and "LD_LIBRARY_PATH" not in told.text
    assert f" {interpreter.SHOWN}" not in told.text  # no library of it is in a program of the image


async def test_nothing_of_the_image_is_in_the_runner(stand: Stand, engine: Any) -> None:
    """So it works whatever C library the image has: all that the runner has loaded comes from the shown folder."""
    if os.geteuid() != 0:
        pytest.skip("another user's process: its maps are for root to read")
    sandbox = await stand.id()
    pid = engine.inspect_container(f"handmesh-{sandbox}")["State"]["Pid"]
    maps = await asyncio.to_thread(Path(f"/proc/{pid}/maps").read_text)
    code = {line.split()[-1] for line in maps.splitlines() if " r-xp " in line and "/" in line}
    assert code and {path for path in code if not path.startswith(interpreter.SHOWN)} == set()


async def test_an_image_with_nothing_in_it_has_file_tools(stand: Stand, engine: Any) -> None:
    """No C library, no shell: `bash` cannot be had, and that is said before anything is made; the rest works."""
    stand.recipe = Recipe("bare", "docker", image=EMPTY, limits=LIMITS)
    with pytest.raises(Unavailable, match="has no /bin/bash") as refused:
        await stand.id()
    assert refused.value.reason == "BACKEND_UNAVAILABLE" and await stand.hand.list() == ()
    stand.recipe = Recipe("bare", "docker", image=EMPTY, limits=LIMITS, tools=("read", "write", "edit", "grep"))
    sandbox = await stand.id()
    assert (await stand.run(sandbox, "write", file_path="a/b.txt", content="one\ntwo\n")).outcome is Outcome.OK
    assert (
        await stand.run(sandbox, "edit", file_path="a/b.txt", old_string="two", new_string="2")
    ).outcome is Outcome.OK
    assert "a/b.txt:2:2" in (await stand.run(sandbox, "grep", pattern="^2")).text


async def test_an_image_is_looked_at_once(stand: Stand, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sandboxes want it at once; the container of the look is gone afterwards."""
    looks: list[str] = []
    before = engine.containers(all=True, filters={"name": "handmesh-look-"})  # of services that were killed
    real = contents._look

    def counted(client: Any, image: str, name: str) -> contents.Contents:
        looks.append(image)
        return real(client, image, name)

    monkeypatch.setattr(contents, "_look", counted)
    await asyncio.gather(*(stand.hand.prepare(stand.recipe) for _ in range(4)))
    await stand.id()
    assert looks == [WITHOUT]
    assert engine.containers(all=True, filters={"name": "handmesh-look-"}) == before


async def test_the_copy_is_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for what it is made of; what a service that died has left half is removed, and a failure leaves nothing."""
    parent = tmp_path / "python"
    (parent / ".half-1" / "lib").mkdir(parents=True)
    made = await interpreter.Interpreter(parent).folder()
    assert list(parent.iterdir()) == [made]
    before = made.stat().st_ctime_ns
    assert await interpreter.Interpreter(parent).folder() == made and made.stat().st_ctime_ns == before
    monkeypatch.setattr(interpreter, "SHOWN", "/elsewhere")  # another digest
    monkeypatch.setattr(shutil, "copy2", _full)
    with pytest.raises(Unavailable, match="cannot be copied"):
        await interpreter.Interpreter(parent).folder()
    assert list(parent.iterdir()) == [made]


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")
