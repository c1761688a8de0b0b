"""Every folder under services/sandbox/hands/ runs the whole suite of the port."""

from __future__ import annotations

import contextlib
import importlib
import re
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from services.sandbox import backends, hands
from services.sandbox.hand import DOORS, FILES, Hand, HandSettings, Recipe
from tests.drills.size import FULL, size
from tests.support.remote_worker import NAME, TENANT, Worker

pytest.register_assert_rewrite(
    "services.sandbox.conformance",
    "services.sandbox.conformance_doors",
    "services.sandbox.conformance_files",
    "services.sandbox.conformance_owners",
    "services.sandbox.tools_conformance",
)  # a failed check then shows its values

from services.sandbox.conformance import CHECKS, LIMITS, NotAsked, Stand  # noqa: E402 (after the line above)
from services.sandbox.conformance_doors import CHECKS as DOOR_CHECKS  # noqa: E402
from services.sandbox.conformance_files import CHECKS as FILE_CHECKS  # noqa: E402
from services.sandbox.conformance_owners import CHECKS as OWNER_CHECKS  # noqa: E402
from services.sandbox.tools_conformance import CHECKS as TOOL_CHECKS  # noqa: E402

DOCUMENTED = "unshare"  # the example of docs/hands.md
MARKERS = {"bubblewrap": "bwrap", "docker": "docker", DOCUMENTED: "bwrap"}  # backend -> what the machine must have


def _name(check: Callable[[Stand], Awaitable[None]]) -> str:
    kinds = {"check": CHECKS, "door_check": DOOR_CHECKS, "file_check": FILE_CHECKS, "tool_check": TOOL_CHECKS}
    kinds["owner_check"] = OWNER_CHECKS
    kind = next(kind for kind, checks in kinds.items() if check in checks)
    return check.__name__.replace("check", kind, 1)


def _cases() -> list[object]:
    """Every check on every hand; of the page's example, which is our own runner in another place, each third.

    `make drill` tries all of it there, too.
    """
    checks = (*CHECKS, *DOOR_CHECKS, *FILE_CHECKS, *OWNER_CHECKS, *TOOL_CHECKS)
    pairs = [(name, check) for name in (*sorted(backends.names()), DOCUMENTED) for check in checks]
    return [
        pytest.param(
            name,
            check,
            marks=getattr(pytest.mark, MARKERS[name]) if name in MARKERS else (),
            id=f"{name}-{_name(check)}",
        )
        for name, check in pairs
        if FULL or name != DOCUMENTED or (check in CHECKS and CHECKS.index(check) % 3 == 0)
    ]


def _write_documented(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the backend of the page for operators among the hands: one folder is all that it needs."""
    page = (Path(__file__).parents[2] / "docs" / "hands.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    backend = folder / "hands" / DOCUMENTED / "__init__.py"
    backend.parent.mkdir(parents=True)
    backend.write_text(code)
    monkeypatch.setattr(hands, "__path__", [*hands.__path__, str(folder / "hands")])
    monkeypatch.delitem(sys.modules, f"{hands.__name__}.{DOCUMENTED}", raising=False)
    assert backends.keys()[DOCUMENTED] == frozenset()


def _processes(text: str) -> list[str]:
    """Lists this machine's processes with a text in their command line, those in sandboxes too."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(f"process {folder.name}")
    return found


def _containers(text: str) -> list[str]:
    import docker

    with contextlib.closing(docker.APIClient(version="auto")) as engine:
        names = [name for row in engine.containers(all=True) for name in row["Names"]]
    return [f"container {name}" for name in names if text in name]


@pytest.fixture
async def stand(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    """A hand of the backend in a state folder of its own; what the check has made is released at the end."""
    name: str = request.param
    monkeypatch.setenv("HANDMESH_CANARY", "CANARY")
    if name == DOCUMENTED:
        _write_documented(tmp_path, monkeypatch)
    module = importlib.import_module(f"services.sandbox.hands.{name}")

    def make() -> Hand:
        made: Hand = module.make(HandSettings(tmp_path / "state", allow_unisolated=True))
        return made

    async def reopen() -> Hand:
        await it.hand.close()
        hand = make()
        if worker is not None:
            await worker.link(hand)
        return hand

    async def left(text: str) -> Sequence[str]:
        folders = [f"folder {path}" for path in (tmp_path / "state").rglob("*") if text in path.name]
        return sorted(_processes(text) + folders + (_containers(text) if name == "docker" else []))

    recipe = Recipe("checked", name, env={"DECLARED": "yes"}, limits=LIMITS)
    worker = None
    if name == "remote":
        inner = importlib.import_module("services.sandbox.hands.process").make(
            HandSettings(tmp_path / "state" / "worker", allow_unisolated=True)
        )
        worker = Worker(inner, recipe)
        recipe = Recipe("checked", name, limits=LIMITS, worker=NAME, tenant=TENANT)
    it = Stand(make(), recipe, reopen, lambda: shutil.rmtree(tmp_path / "state"), left, size(160, 1000))
    if worker is not None:
        await worker.link(it.hand)
    yield it
    for sandbox_id in it.made:
        await it.hand.release(sandbox_id)
    if worker is not None:
        await worker.close()
    await it.hand.close()


@pytest.mark.parametrize(("stand", "check"), _cases(), indirect=["stand"])
async def test_hand(stand: Stand, check: Callable[[Stand], Awaitable[None]]) -> None:
    """The hand keeps what the port promises; each check states its rule in its docstring."""
    try:
        stand.needs(*([FILES] if check in FILE_CHECKS else []), *([DOORS] if check in DOOR_CHECKS else []))
        await check(stand)
    except NotAsked as reason:  # the hand said so itself: it promises nothing here
        assert "does not enforce" in str(reason) or "sandboxes have no" in str(reason)
