"""The canary sweep: after whole turns on a whole mesh, no secret is anywhere but where it has to be.

A fresh core is in every credential that the vault gives out, in every one that is renewed meanwhile, and another is in
the model's key, which the harness alone may hold. Then everything that is left is searched, in every spelling: logs of
sessions, NATS's files, OpenBao's, the services' logs at their loudest and their traces, what the services said to each
other, every process's environment, the memory of every service but the vault proxy, workspaces, containers.

What is inside a sandbox, seen from inside, is `tests/sandbox/attacks/test_reach.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from handmesh.client import Session
from handmesh.sandbox.v1 import sandbox_pb2
from tests.drills.size import FULL
from tests.security.ground import Ground
from tests.support.canary import Sweep, core, mint
from tests.support.requirements import in_ci, lack_of

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

MODEL_ONLY = frozenset({"model"})
HOLDERS = {"harness": MODEL_ONLY}  # whose memory may hold what; the vault proxy's is not looked into
CLEAR_OF_ALL = ("session", "sandbox", "nats")


def hands() -> tuple[str, ...]:
    """Returns the environments that take part: docker's too where there is one, and always in CI."""
    return ("default", "docker") if in_ci() or lack_of("docker") is None else ("default",)


def kinds() -> dict[str, int]:
    """Returns the kinds of sinks that must be looked into here, and how many bytes of each at least."""
    files = ("files of nats", "files of openbao", "files of logs")
    least = {"exports": 10_000, "captures": 10_000, "workspaces": 10, "environments": 1_000}
    least |= dict.fromkeys(files, 10_000)
    least |= {"files of traces": 10_000} if lack_of("traces") is None else {}
    least |= {"memories": 100_000_000} if os.geteuid() == 0 else {}
    return least | ({"containers": 1_000} if "docker" in hands() else {})


def containers(ground: Ground) -> Iterator[Any]:
    """Yields the containers of the ground's sessions."""
    if "docker" not in hands():
        return
    import docker

    engine = docker.from_env()
    try:
        for session in ground.sessions:
            yield from engine.containers.list(filters={"label": f"handmesh.session_id={session.id}"})
    finally:
        engine.close()


def runners(ground: Ground) -> list[int]:
    """Returns the processes that live in sandboxes of the ground: bubblewrap's, by what is mounted in them."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(ground.data) in (entry / "mountinfo").read_text():
                found.append(int(entry.name))
    return found


async def workspaces(ground: Ground, sweep: Sweep) -> None:
    """Looks into the workspaces as their owners see them."""
    for session in ground.sessions:
        for sandbox in await ground.me.client.sandboxes(session.id):
            listed = await ground.me.client.files(sandbox.sandbox_id)
            for file in listed.files:
                content = b"".join([it async for it in ground.me.client.read_file(sandbox.sandbox_id, file.path)])
                sweep.look("workspaces", f"{sandbox.environment}: {file.path}", content)


async def look_everywhere(ground: Ground, sweep: Sweep) -> None:
    """Looks into every sink there is."""
    for session in ground.sessions:
        exported = "\n".join([line async for line in session.export()])
        sweep.look("exports", session.id, exported)
    await workspaces(ground, sweep)
    for folder in sorted(each for each in ground.data.iterdir() if each.is_dir()):
        # The model's key lies there for the harness alone.
        sweep.files(f"files of {folder.name}", folder, MODEL_ONLY if folder.name == "model" else frozenset())
    for tap in ground.taps:
        sweep.look("captures", tap.name, bytes(tap.said))
        sweep.look("captures", f"answers of {tap.name}", bytes(tap.answered))
    sweep.environments()
    if os.geteuid() == 0:  # as somebody who gets a core dump would
        pids = ground.mesh.pids
        for part in (*CLEAR_OF_ALL, *HOLDERS):
            await asyncio.to_thread(sweep.memory, pids[part], HOLDERS.get(part, frozenset()))
        for pid in runners(ground):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(sweep.memory, pid)
    for container in containers(ground):
        sweep.look("containers", "inspect", str(container.attrs))
        for change in container.diff() or []:
            sweep.look("containers", "diff", change["Path"])
        inside = Path(f"/proc/{container.attrs['State']['Pid']}/root")
        for name in ("workspace", "tmp", "run", "dev/shm", "etc"):
            with contextlib.suppress(PermissionError):
                sweep.files("containers", inside / name)
        if FULL:
            await asyncio.to_thread(_export, sweep, container)


def _export(sweep: Sweep, container: Any) -> None:
    rest = b""
    for part in container.export(chunk_size=16 * 1024 * 1024):
        sweep.look("containers", "export", rest + part)
        rest = part[-4096:]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def story(ground: Ground) -> Session:
    """Turns with all kinds of calls in all kinds of hands: both servers said what they were sent. Returns the first."""
    first = await ground.work("everything")
    if len(hands()) > 1:
        await ground.work("both hands", hands=hands())
    return first


async def test_the_secrets_were_in_play(ground: Ground, story: Session) -> None:
    """The control of the story: both servers got their credentials, one of them was renewed, and a server's reflection
    of it came back without it."""
    assert ground.oauth.refreshed == 1
    assert ground.strange.heard(ground.cores["credentials"])
    assert len(ground.shop.calls("who_am_i")) >= 1
    exported = "\n".join([line async for line in story.export()])
    assert exported.count("[credential removed]") >= 2


async def test_no_secret_is_anywhere(ground: Ground, story: Session) -> None:
    """Nothing is found, and everything was looked at."""
    sweep = Sweep(ground.cores)
    await look_everywhere(ground, sweep)
    assert sweep.found == []
    assert [kind for kind, least in kinds().items() if sweep.seen.get(kind, 0) < least] == []


async def test_the_captures_were_in_clear(ground: Ground, story: Session) -> None:
    """What services say to each other was read, metadata and messages: the grant is in it, and the model's words."""
    said = {tap.name: bytes(tap.said) for tap in ground.taps}
    grant = ground.grant_of(story.id).encode()
    assert grant in said["harness to vault_proxy"]
    assert grant in said["harness to sandbox"]
    assert b"First I look at where I am." in said["harness to session"]
    assert re.search(rb"cred_[a-z0-9]{26}", said["vault_proxy to session"])
    assert all(len(tap.answered) > 100 for tap in ground.taps)


async def test_what_is_planted_is_found(ground: Ground, story: Session) -> None:
    """The negative control: a canary in a message, a workspace, a process's environment, a service's log and traces,
    and OpenBao's folder is found in every kind of sink."""
    planted = {"planted": core()}
    canary = mint("planted", planted["planted"])
    session = await ground.work(f"hello, I am {canary}", hands=hands())
    files = [ground.data / "logs" / "session.log", ground.data / "openbao" / "planted"]
    files += [ground.data / "traces" / "session.jsonl"] if lack_of("traces") is None else []
    for sandbox_id in await _sandboxes(ground):
        call = sandbox_pb2.ExecuteRequest(sandbox_id=sandbox_id, name="write")
        call.input = f'{{"file_path": "planted.txt", "content": "{canary}"}}'
        await ground.me.client.sandbox_link.call(ground.me.client.sandbox_stub.Execute, call)
    child = await asyncio.create_subprocess_exec("sleep", "60", env={"PLANTED": canary})
    try:
        for file in files:
            with file.open("a") as log:
                log.write(f"{canary}\n")
        sweep = Sweep(planted)
        await look_everywhere(ground, sweep)
    finally:
        child.kill()
        await child.wait()
        ground.sessions.remove(session)
    found = {kind for _, kind, _ in sweep.found}
    assert kinds().keys() - found == set()
    sinks = {sink for _, kind, sink in sweep.found if kind == "memories"}
    expected = {f"memory of {ground.mesh.pids[part]}" for part in ("harness", "session")}
    assert os.geteuid() != 0 or expected <= sinks


async def _sandboxes(ground: Ground) -> Sequence[str]:
    found = [each for session in ground.sessions for each in await ground.me.client.sandboxes(session.id)]
    return [each.sandbox_id for each in found]
