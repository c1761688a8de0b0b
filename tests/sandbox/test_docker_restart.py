"""An engine of our own, killed under a running command; and what only such an engine can show."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import Unavailable
from services.kit.ids import mint
from services.sandbox.core import digest
from services.sandbox.hand import Chunk, Hand, HandSettings, Labels, Order, Recipe, Result
from services.sandbox.hands.docker import make
from tests.support.requirements import BASE_IMAGE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Docker Engine"),
    pytest.mark.skipif(not shutil.which("dockerd"), reason="dockerd is not on the PATH"),
]
FLAGS = ("--live-restore", "--bridge=none", "--iptables=false", "--ip6tables=false", "--log-level=error")
START_SECONDS = 60


class Engine:
    """A dockerd with everything of its own, as an operator is told to run it."""

    def __init__(self, folder: Path) -> None:
        """Starts nothing."""
        self.folder = folder
        self.host = f"unix://{folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers. A second runtime has a name that no machine has.

        In a network of its own: an engine without a bridge removes the one that the machine's engine has.
        """
        own = [f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid"]
        runtime = f"--add-runtime=other={shutil.which('runc')}"
        with (self.folder / "log").open("ab") as log:
            command = ["unshare", "--net", "dockerd", *own, *FLAGS, runtime, "-H", self.host]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS
        while subprocess.run(["docker", "-H", self.host, "version"], capture_output=True, check=False).returncode:
            assert self._process.poll() is None and time.monotonic() < until, (self.folder / "log").read_text()

    def end(self, number: int) -> None:
        """Ends it by a signal. Containers go on."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()
        if number == signal.SIGKILL:
            self._forget_containerd()

    def _forget_containerd(self) -> None:
        """Waits until the engine's own containerd has died with it: another engine waits in vain for a dead one."""
        file = self.folder / "exec" / "containerd" / "containerd.pid"
        with contextlib.suppress(FileNotFoundError):
            status = Path("/proc") / file.read_text() / "status"
            while "State:\tZ" not in status.read_text():
                time.sleep(0.01)
        file.unlink(missing_ok=True)

    def clean(self) -> None:
        """Ends and removes what a test has left."""
        mark = str(self.folder).encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mounted in sorted((path for path in mounts if path.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", mounted], check=False, capture_output=True)
        shutil.rmtree(self.folder)

    def load(self, image: str) -> None:
        """Gives it an image of the machine's engine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            subprocess.run(
                ["docker", "-H", self.host, "load", "-q"], stdin=saving.stdout, check=True, capture_output=True
            )
        assert saving.returncode == 0

    @contextlib.contextmanager
    def api(self) -> Iterator[Any]:
        """Connects to it."""
        import docker

        with contextlib.closing(docker.APIClient(base_url=self.host, version="auto")) as client:
            yield client


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has the base image."""
    it = Engine(tmp_path_factory.mktemp("dockerd"))
    it.start()
    try:
        it.load(BASE_IMAGE)
        yield it
    finally:
        it.end(signal.SIGTERM)
        it.clean()


@pytest.fixture
async def hand(engine: Engine, tmp_path: Path) -> AsyncIterator[Hand]:
    """A hand of that engine; its sandboxes are released at the end."""
    it = hand_of(engine, tmp_path)
    yield it
    with contextlib.suppress(Unavailable):  # of a test that has failed; the engine's folder is cleaned
        for info in await it.list():
            await it.release(info.labels.sandbox_id)
    await it.close()
    with engine.api() as client:
        assert client.containers(all=True) == []


def hand_of(engine: Engine, state_dir: Path) -> Hand:
    """Makes a hand."""
    return make(HandSettings(state_dir, docker_host=engine.host))


def labels(request_id: str = "") -> Labels:
    """Makes the labels of a new sandbox."""
    return Labels(mint("sbx"), "e", time.time(), request_id=request_id)


async def started(hand: Hand, sandbox_id: str, command: str) -> str:
    """Starts a command, and returns the execution's id."""
    given = {"command": command}
    order = Order(mint("exec"), "bash", given, digest("bash", given), 60.0)
    assert await hand.start(sandbox_id, order)
    return order.execution_id


async def output(hand: Hand, sandbox_id: str, execution_id: str) -> str:
    """Returns an execution's output from its start to its end."""
    said = [each async for each in hand.follow(sandbox_id, execution_id, 0)]
    assert isinstance(said[-1], Result)
    return "".join(each.text for each in said if isinstance(each, Chunk))


async def test_a_command_outlives_the_engine(engine: Engine, hand: Hand, tmp_path: Path) -> None:
    """SIGKILL of dockerd in the middle: it runs exactly once, all its output is delivered, nothing is left."""
    recipe = Recipe("e", "docker")
    info = await hand.provision(recipe, labels("s/h/1"))
    doomed = await hand.provision(recipe, labels())
    sandbox = info.labels.sandbox_id
    going = "echo ran >> runs; for i in 1 2 3; do echo $i; until [ -e go$i ]; do sleep 0.01; done; done; cat runs"
    execution = await started(hand, sandbox, going)
    following = asyncio.create_task(output(hand, sandbox, execution))
    await output(hand, sandbox, await started(hand, sandbox, "until [ -e runs ]; do sleep 0.01; done; touch go1"))
    with engine.api() as client:
        pid = client.inspect_container(f"handmesh-{doomed.labels.sandbox_id}")["State"]["Pid"]
    engine.end(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    assert await output(hand, sandbox, await started(hand, sandbox, "touch go2; echo without it")) == "without it\n"
    with pytest.raises(Unavailable, match="BACKEND_UNAVAILABLE"):
        await hand.list()
    engine.start()
    await hand.tidy()
    assert await hand.list() == (info,)
    again = hand_of(engine, tmp_path)  # and a service that has started again meanwhile
    assert await again.provision(recipe, labels("s/h/1")) == info
    assert [it.outcome for it in await again.executions(sandbox) if it.execution_id == execution] == [None]
    await started(again, sandbox, "touch go3")
    assert await following == await output(again, sandbox, execution) == "1\n2\n3\nran\n"
    await again.close()


async def test_a_recipe_chooses_the_runtime(engine: Engine, hand: Hand) -> None:
    """It reaches the engine; one that the engine does not know is refused before anything is made."""
    info = await hand.provision(Recipe("e", "docker", runtime="other"), labels())
    with engine.api() as client:
        found = client.inspect_container(f"handmesh-{info.labels.sandbox_id}")
    assert found["HostConfig"]["Runtime"] == "other"
    execution = await started(hand, info.labels.sandbox_id, "echo here")
    assert await output(hand, info.labels.sandbox_id, execution) == "here\n"
    with pytest.raises(Unavailable, match=r"no runtime kata, but .*other, runc"):
        await hand.provision(Recipe("e", "docker", runtime="kata"), labels())
