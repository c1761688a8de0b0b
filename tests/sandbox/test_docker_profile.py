"""The strict profile: what the engine was told, and that the usual tool chains work under it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.sandbox.hand import WORKSPACE, Limits, Recipe
from services.sandbox.hands.docker import profile
from services.sandbox.hands.docker.engine import Engine
from services.sandbox.hands.docker.images import DEFAULT_IMAGE, Images

pytestmark = pytest.mark.docker
PROGRAMS = Path(__file__).with_name("programs")
GO = (
    "export PATH=$PATH:$GOROOT/bin HOME=/workspace CGO_ENABLED=0; "
    "cp /programs/main.go.txt main.go && go run -gcflags='all=-N -l' main.go"
)


@pytest.fixture
def engine() -> Iterator[Any]:
    """The engine's API."""
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as client:
        yield client


def run(engine: Any, tmp_path: Path, command: list[str], shown: dict[str, str], **config: Any) -> tuple[int, str]:
    """Runs a command as a tool's user in a container of the profile; returns its exit code and what it said."""
    told = profile.host_config(Recipe("e", "docker"), tmp_path) | {"LogConfig": {"Type": "json-file"}} | config
    more = [{"Type": "bind", "Source": source, "Target": target, "ReadOnly": True} for target, source in shown.items()]
    told["Mounts"] = [*told["Mounts"], *more]
    user = f"{profile.TOOL_UID}:{profile.TOOL_UID}"
    made = engine.create_container(
        DEFAULT_IMAGE, entrypoint=command, command=[], user=user, working_dir=WORKSPACE, host_config=told
    )
    try:
        engine.start(made)
        code = engine.wait(made, timeout=60)["StatusCode"]
        return code, engine.logs(made).decode()
    finally:
        engine.remove_container(made, force=True)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("bash /programs/bash.sh", ""),
        ("bash /programs/git.sh", ""),
        ("python3 /programs/python.txt", ""),
        ("node /programs/node.js", "node"),
        (GO, "go"),
    ],
    ids=["bash", "git", "python", "node", "go"],
)
def test_tool_chains_work(engine: Any, tmp_path: Path, command: str, program: str) -> None:
    """Processes, threads, signals, sockets, files, shared memory: each in the language's own way of asking for it."""
    shown = {"/programs": str(PROGRAMS)}
    environment = ""
    if program:
        found = shutil.which(program) or shutil.which(program, path="/usr/local/go/bin:/usr/lib/go/bin")
        if found is None:
            pytest.skip(f"{program} is not on this machine")
        real = Path(found).resolve()
        if program == "go":
            root = str(real.parent.parent)
            shown["/opt/go"], environment = root, "export GOROOT=/opt/go; "
        else:
            shown[f"/usr/local/bin/{program}"] = str(real)
    assert run(engine, tmp_path, ["bash", "-c", f"{environment}({command}) && echo done"], shown) == (0, "done\n")


async def test_what_an_image_wants_to_write_is_an_empty_folder(engine: Any, tmp_path: Path) -> None:
    """The engine would make a volume of it on its disk, without a limit."""
    base = engine.create_container(DEFAULT_IMAGE, command=["true"])
    image = engine.commit(base, changes="VOLUME /data\nHEALTHCHECK CMD touch /tmp/checked")["Id"]
    engine.remove_container(base)
    try:
        found = await Images(Engine("unix:///var/run/docker.sock"), "x").find(Recipe("e", "docker", image=image))
        assert found.volumes == ("/data",)
        config = profile.host_config(Recipe("e", "docker"), tmp_path, found.volumes) | {
            "LogConfig": {"Type": "json-file"}
        }
        command = ["bash", "-c", "touch /data/x; ls /data; grep -c ' /data tmpfs ro' /proc/mounts"]
        made = engine.create_container(image, entrypoint=command, command=[], host_config=config)
        engine.start(made)
        engine.wait(made, timeout=60)
        said = engine.logs(made, stderr=False).decode()
        mounts = engine.inspect_container(made)["Mounts"]
        engine.remove_container(made, force=True, v=True)
    finally:
        engine.remove_image(image, force=True)
    assert said == "1\n" and [mount["Type"] for mount in mounts] == ["bind"]


def test_the_profile_is_the_strict_one(tmp_path: Path) -> None:
    """Each line of the profile, so that whoever weakens it has to say so here too."""
    limits = Limits(memory_bytes=100 << 20, cpus=0.5, processes=50, disk_bytes=10 << 20, open_files=500)
    told = profile.host_config(Recipe("e", "docker", runtime="runsc", limits=limits), tmp_path)
    assert told["NetworkMode"] == "none" and told["Dns"] == ["127.0.0.1"]
    assert told["CapDrop"] == ["ALL"] and told["CapAdd"] == ["KILL", "SETGID", "SETPCAP", "SETUID"]
    assert told["SecurityOpt"][0] == "no-new-privileges:true" and told["SecurityOpt"][1].startswith("seccomp={")
    assert told["ReadonlyRootfs"] and not told["Privileged"] and not told["AutoRemove"]
    assert told["IpcMode"] == told["CgroupnsMode"] == "private" and told["Runtime"] == "runsc"
    assert (told["PidsLimit"], told["NanoCpus"]) == (50, 500_000_000) and told["Memory"] == told["MemorySwap"]
    assert told["Tmpfs"][WORKSPACE].startswith(f"rw,nosuid,nodev,size={10 << 20},")
    assert {limit["Name"]: limit["Hard"] for limit in told["Ulimits"]} == {
        "nofile": 500,
        "core": 0,
        "memlock": 0,
        "msgqueue": 0,
    }
    assert {"/proc/cmdline", "/proc/kcore", "/proc/keys", "/sys/firmware", "/sys/kernel"} <= set(told["MaskedPaths"])
    assert "/proc/sys" in told["ReadonlyPaths"] and told["LogConfig"] == {"Type": "none"}
    assert [mount["Target"] for mount in told["Mounts"]] == ["/run/handmesh-door/io"]
