"""S1 to S5 of the list of attacks: what hostile code can see, reach and ask for. Each probe is a program that runs in
the sandbox; run where there is no sandbox, or in one without its profile, the same program must succeed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.sandbox.hands.bubblewrap.program import find
from tests.sandbox.attacks.ground import Column, Ground, planted
from tests.support.requirements import BASE_IMAGE

PROBES = Path(__file__).parent / "probes"
REFUSED = {"EPERM", "ENOSYS", "signal 31"}  # Docker's filter ends a program of another instruction set
HARMLESS = {
    "setuid(0)": "EINVAL",  # that user is not known in the namespace
    "setgid(0)": "EINVAL",
    "kill(process 1)": "ok",  # process 1 ignores what comes from inside
    "ioctl(TIOCSTI)": "ok",  # Docker: no terminal in a container is anybody's
}


def script(name: str) -> str:
    """Reads a probe."""
    return (PROBES / f"{name}.py").read_text()


def outside(name: str, *arguments: str, environment: dict[str, str] | None = None) -> Any:
    """Runs a probe on this machine, as whoever runs the tests."""
    command = [sys.executable, str(PROBES / f"{name}.py"), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    return json.loads(run.stdout)


def weakened(column: Column, name: str) -> Any:
    """Runs a probe in a sandbox of the same kind without our profile: the engine's own, or bubblewrap's."""
    if column.backend == "docker":
        return _in_plain_container(script(name))
    names = [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
    ]
    command = [str(find()[0]), *names, "--tmpfs", "/tmp", "--", "/usr/bin/python3", "-"]
    run = subprocess.run(command, input=script(name), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(run.stdout)


def _in_plain_container(program: str) -> Any:
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as engine:
        config = engine.create_host_config(network_mode="none")
        made = engine.create_container(BASE_IMAGE, ["python3", "-c", program], host_config=config)
        try:
            engine.start(made)
            engine.wait(made, timeout=30)
            return json.loads(engine.logs(made, stderr=False))
        finally:
            engine.remove_container(made, force=True)


def _command_lines() -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def around(ground: Ground) -> Iterator[dict[str, Any]]:
    """What lies on the machine for an attacker to find."""
    with planted(ground.canary) as it:
        yield it


async def test_s01_no_secret_is_inside(ground: Ground, around: dict[str, Any]) -> None:
    """Nothing of the service's environment, descriptors, state, or of the machine's /tmp, in any file or process."""
    async with ground.sandbox() as box:
        seen = await box.probe(script("secrets"), ground.canary, "/")
        assert seen["found"] == [] and seen["read"] > 20, seen
        names = await box.bash("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | cut -d= -f1 | sort -u")
        assert not {"VAULT_TOKEN", "BAO_TOKEN", "NATS_URL", "ANTHROPIC_API_KEY"} & set(names.output.split())
        assert not any(name.startswith("HANDMESH_") and name != "HANDMESH_MARK" for name in names.output.split())
        await box.bash(f"export X={ground.canary}; echo {ground.canary} > kept")
        control = await box.probe(script("secrets"), ground.canary, "/")
        assert "/workspace/kept" in control["found"], "the sweep does not see what is there"
        assert any(path.endswith("/environ") for path in control["found"]), control


def test_s01_control_the_secrets_are_outside(ground: Ground, around: dict[str, Any]) -> None:
    """Outside, the same sweep finds each of them: environment, descriptor, state, and the file in /tmp."""
    found = outside("secrets", ground.canary, str(ground.folder), str(Path(around["file"]).parent))["found"]
    descriptors = [path for path in found if path.startswith(f"/proc/{ground.pid}/fd/")]
    assert f"/proc/{ground.pid}/environ" in found and descriptors, found
    assert {str(ground.state / "secret"), around["file"]} <= set(found)


async def test_s01_the_engine_knows_no_secret(ground: Ground) -> None:
    """What can be asked about a sandbox from outside, its arguments and its configuration, has none either."""
    async with ground.sandbox() as box:
        if ground.column.backend == "docker":
            import docker

            with contextlib.closing(docker.APIClient(version="auto")) as engine:
                told = json.dumps(engine.inspect_container(f"handmesh-{box.id}"))
        else:
            told = await asyncio.to_thread(_command_lines)
        assert "runner.pyz" in told and ground.canary not in told


async def test_s02_no_socket_of_the_host_answers(ground: Ground, around: dict[str, Any]) -> None:
    """Neither the engine's, nor the runner's own, nor one with a path, nor one without."""
    async with ground.sandbox() as box:
        assert await box.probe(script("sockets"), "/", around["abstract"], around["socket"]) == []
    answered = outside("sockets", str(ground.folder), around["abstract"], around["socket"])
    assert {f"@{around['abstract']}", around["socket"]} <= set(answered)


async def test_s03_nothing_can_be_reached(ground: Ground, around: dict[str, Any]) -> None:
    """No address answers, there is no interface but the loopback, no route and no resolver of the host's."""
    ports = str(around["tcp"]), str(around["udp"])
    async with ground.sandbox() as box:
        seen = await box.probe(script("reach"), *ports)
    assert (seen["reached"], seen["interfaces"], seen["routes"]) == ([], ["lo"], 0)
    assert set(seen["resolvers"]) <= {"127.0.0.1"}
    control = outside("reach", *ports, "only-loopback")["reached"]
    assert [["127.0.0.1", around["tcp"]], ["127.0.0.1", "udp"]] == [it for it in control if it[0] == "127.0.0.1"]


async def test_s04_only_three_families_of_sockets(ground: Ground) -> None:
    """Unix and internet sockets, none of them raw. Without our filter the kernel answers for more."""
    async with ground.sandbox() as box:
        seen = await box.probe(script("families"))
    assert seen["reached"] == ["AF_INET", "AF_INET6", "AF_UNIX"]
    assert set(seen["raw"]) <= {1}  # a unix socket is called raw as well
    assert len(weakened(ground.column, "families")["reached"]) > 3


async def test_s05_the_kernels_doors_are_closed(ground: Ground) -> None:
    """Every call is refused before the kernel looks at it; without our filter some are not."""
    async with ground.sandbox() as box:
        seen = await box.probe(script("calls"))
        assert (await box.bash("echo next")).output == "next"
    let_through = {name: said for name, said in seen.items() if said not in REFUSED}
    assert {name: said for name, said in let_through.items() if HARMLESS.get(name) != said} == {}
    control = weakened(ground.column, "calls")
    assert len([name for name, said in control.items() if said not in REFUSED and name not in HARMLESS]) > 5, control


async def test_s05_no_way_to_more_rights(ground: Ground) -> None:
    """No capability, no new privileges, no set-user-id program that works, nothing of the system that is writable."""
    async with ground.sandbox() as box:
        seen = await box.probe(script("rights"))
    assert seen["opened"] == seen["raised"] == []
    assert seen["capabilities"] == ["0" * 16] * 5
    assert (seen["no_new_privileges"], seen["filter"]) == ("1", "2")
    assert set(seen["users"]) == {"10001"}
    kept = {folder for folder in seen["folders"] if not folder.startswith("/run/handmesh")}
    assert kept == {"/workspace", "/workspace/outputs", "/tmp", "/dev/shm"}
    assert ground.column.backend == "bubblewrap" or len(seen["folders"]) == 4
    assert set(seen["devices"]) <= {
        *("core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty"),
        *("urandom", "zero"),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has what a sandbox must not have")
def test_s05_control_rights_are_seen(tmp_path: Path) -> None:
    """Outside, as root, the same probe sees capabilities and no filter."""
    seen = outside("rights")
    assert seen["capabilities"][2] != "0" * 16 and seen["opened"] and seen["folders"]
