"""What is bubblewrap's own: views of other roots, the runner's Python, users, control groups."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from services.kit.errors import Full, Unavailable
from services.kit.ids import mint
from services.sandbox.hand import HandSettings, Labels, Limits, Order, Recipe, Result
from services.sandbox.hands.bubblewrap import make, view
from services.sandbox.hands.bubblewrap.cgroups import ControlGroup
from services.sandbox.hands.bubblewrap.users import Users
from services.sandbox.records import Records


def _bare_root(root: Path) -> None:
    """Makes a root with bash, and without Python: the program and the libraries that it and a Python need."""
    for name in ("bin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    shutil.copy("/bin/bash", root / "usr/bin")
    modules = Path(sysconfig.get_config_var("DESTSHARED"))
    programs = ["/bin/bash", os.path.realpath(sys.executable), *map(str, modules.glob("*.so"))]
    loaded = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for library in set(re.findall(r"\s(/(?:usr/)?lib\S+\.so[\w.]*)", loaded)):
        place = root / "usr" / library.removeprefix("/usr").lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)


@pytest.mark.bwrap
async def test_a_root_without_python_gets_the_services_own(tmp_path: Path) -> None:
    """The runner works in any root that has bash, and a tool sees that root and no other."""
    _bare_root(tmp_path / "root")
    hand = make(HandSettings(tmp_path / "state"))
    recipe = Recipe("bare", "bubblewrap", rootfs=str(tmp_path / "root"))
    made = await hand.provision(recipe, Labels(mint("sbx"), "bare", time.time()))
    text = "echo /usr/bin/*; echo /*; type python3 git 2>/dev/null || echo neither"
    order = Order("toolu_1", "bash", {"command": text}, "", 30.0)
    await hand.start(made.labels.sandbox_id, order)
    said = await anext(hand.follow(made.labels.sandbox_id, order.execution_id))
    await hand.release(made.labels.sandbox_id)
    assert isinstance(said, Result)
    assert said.text.splitlines() == [
        "/usr/bin/bash",
        "/bin /dev /etc /lib /lib64 /opt /proc /run /tmp /usr /workspace",
        "neither",
    ]


async def test_a_root_that_is_none_is_refused(tmp_path: Path) -> None:
    """The recipe's mistake is told before anything is made."""
    with pytest.raises(Unavailable, match="has no usr/"):
        await make(HandSettings(tmp_path)).check(Recipe("x", "bubblewrap", rootfs=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (["usr/bin/python3.11", "usr/bin/python3.9", "usr/bin/python3.11-config"], "/usr/bin/python3.11"),
        (["usr/bin/python3.7", "usr/local/bin/python3.13"], "/usr/local/bin/python3.13"),
        (["usr/bin/python3.7", "usr/bin/python2.7", "usr/bin/python3"], None),
    ],
)
def test_the_newest_python_of_the_view_runs_the_runner(
    tmp_path: Path, programs: list[str], expected: str | None
) -> None:
    """3.8 is the oldest that will do; without one the service's own is shown."""
    for program in programs:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch()
    path, shown = view.python(tmp_path)
    assert (path if shown is None else None) == expected


def test_each_sandbox_has_a_user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims survive a restart, are given back, and end at a limit that is said."""
    monkeypatch.setattr(Users, "COUNT", 3)
    users = Users(tmp_path / "users")
    one, two = users.claim("a"), users.claim("b")
    assert (one, two) == (Users.FIRST + 1, Users.FIRST + 2)
    with pytest.raises(Full):
        Users(tmp_path / "users").claim("c")
    users.give_back("a")
    users.give_back("a")
    assert users.claim("c") == one
    users.keep_only({"b"})
    assert sorted(path.read_text() for path in (tmp_path / "users").iterdir()) == ["b"]


def test_control_groups_of_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder with all limits, under a parent that has the controllers."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "cgroup.controllers").touch()
    group = ControlGroup("sbx", tmp_path)
    assert group.make(Limits(memory_bytes=1 << 20, cpus=0.5, processes=9))
    folder = tmp_path / "handmesh" / "sbx"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "pids.max": "9",
        "cpu.max": "50000 100000",
    }
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert group.joins == [str(folder / "cgroup.procs")] and group.oom_file == folder / "memory.events"


@pytest.mark.bwrap
async def test_process_1_has_nothing_of_the_services_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the runner nor the bubblewrap around it was started with it, wherever a tool might look."""
    monkeypatch.setenv("HANDMESH_CANARY", "CANARY")
    hand = make(HandSettings(tmp_path / "state"))
    made = await hand.provision(Recipe("x", "bubblewrap"), Labels(mint("sbx"), "x", time.time()))
    record = Records(tmp_path / "state" / "sandboxes").get(made.labels.sandbox_id)
    assert record is not None
    first = Path(f"/proc/{record.facts['pid']}")
    around = Path(f"/proc/{first.joinpath('stat').read_text().rpartition(')')[2].split()[1]}")
    assert b"bwrap" in (around / "cmdline").read_bytes()
    for process in (first, around):
        try:
            assert b"CANARY" not in (process / "environ").read_bytes()
        except PermissionError:
            continue  # closed even to the user who started it
    await hand.release(made.labels.sandbox_id)
