"""Power cuts, simulated: nats-server on a file system that drops what was not synced. Nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from handmesh.launcher.nats import NatsFiles, ensure_logins
from tests.drills.load import Load
from tests.drills.size import size
from tests.drills.test_damage import nats_at
from tests.session.running import make_settings, running

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

CUTS = size(5, 20)
APPENDS = size(40, 300)  # between two cuts
FORGETFUL = Path(__file__).with_name("forgetful.py")


def lack() -> str | None:
    """Says what this machine lacks for a file system of our own. It is no fault, in CI neither: containers lack it."""
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed. Get it with: pip install mfusepy"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is missing. Get it with: apt-get install fuse3"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be used here"
    return None


@pytest.fixture(autouse=True)
def _needs_fuse() -> None:
    if reason := lack():
        pytest.skip(reason)


@asynccontextmanager
async def mounted(backing: Path, mountpoint: Path) -> AsyncIterator[None]:
    """Mounts a folder through the forgetful file system; the end of the block is a power cut."""
    for folder in (backing, mountpoint):
        folder.mkdir(parents=True, exist_ok=True)
    process = await asyncio.create_subprocess_exec(sys.executable, str(FORGETFUL), str(backing), str(mountpoint))
    try:
        async with asyncio.timeout(20):
            while not os.path.ismount(mountpoint):  # noqa: ASYNC240 - looks at one folder
                assert process.returncode is None, "the file system did not start"
                await asyncio.sleep(0.01)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        leave = await asyncio.create_subprocess_exec("fusermount3", "-u", "-z", str(mountpoint))
        await leave.wait()


async def test_the_file_system_forgets(tmp_path: Path) -> None:
    """The drill can fail: what was not synced is gone after the cut, what was synced is there."""
    backing, mountpoint = tmp_path / "backing", tmp_path / "mounted"
    async with mounted(backing, mountpoint):
        await asyncio.to_thread(_write, mountpoint)
        assert (mountpoint / "half").read_bytes() == b"synced, not synced"
        assert (mountpoint / "renamed").read_bytes() == b"lost"
    assert (backing / "half").read_bytes() == b"synced"
    assert (backing / "direct").read_bytes() == b"direct"
    assert (backing / "renamed").read_bytes() == b""


def _write(folder: Path) -> None:
    with (folder / "half").open("wb", buffering=0) as file:
        file.write(b"synced")
        os.fsync(file.fileno())
        file.write(b", not synced")
    (folder / "lost").write_bytes(b"lost")
    (folder / "lost").rename(folder / "renamed")
    (folder / "direct").touch()
    handle = os.open(folder / "direct", os.O_WRONLY | os.O_SYNC)
    os.write(handle, b"direct")
    os.close(handle)


async def test_power_cuts_lose_nothing(tmp_path: Path, identities: Path) -> None:
    """After each cut every acknowledged event of all rounds so far is there, once, in place, and the chain is whole."""
    ensure_logins(NatsFiles(tmp_path / "nats"))
    backing, store = tmp_path / "backing", tmp_path / "nats" / "store"
    load: Load | None = None
    sessions: list[str] = []
    for cut in range(CUTS + 1):
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(mounted(backing, store))
            nats = await stack.enter_async_context(nats_at(tmp_path))
            service = await stack.enter_async_context(running(make_settings(identities, nats), identities))
            load = Load(service.client, *((load.acknowledged, load.requests) if load else ()))
            sessions = sessions or [await service.create() for _ in range(2)]
            await load.check(service.client)
            if cut < CUTS:
                async with asyncio.TaskGroup() as group:
                    for session in sessions:
                        for name in "ab":
                            group.create_task(load.write(session, f"{cut}{name}{session[-3:]}", until_refused=True))
                    await load.more(APPENDS)
                    await nats.kill()
                    load.stopped = True
    assert load is not None and len(load.requests) >= CUTS * APPENDS
