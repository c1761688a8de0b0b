"""docs/harness.md teaches to write a type: its code is a type that passes the suite, and its claims hold."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from handmesh.cli.upkeep import HARNESS_TYPES
from handmesh.session.v1.config_pb2 import SessionConfig
from services.harness import loops
from services.harness.conformance import CHECKS
from services.harness.settings import Settings
from tests.support.harness_ports import MemoryLog, ScriptedModel, Told, ports, said

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "harness.md").read_text()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the page's type is `mine.haiku`."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "haiku.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.delitem(sys.modules, "mine.haiku", raising=False)
    return tmp_path


def test_the_command_of_the_page_checks_the_type_of_the_page(package: Path) -> None:
    """`python -m services.harness.conformance mine.haiku` goes through all checks, and none fails."""
    assert "python -m services.harness.conformance mine.haiku" in PAGE
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{package}"}
    command = [sys.executable, "-m", "services.harness.conformance", "mine.haiku"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(CHECKS)
    shown = re.search(r"```\n(01_it.*?)```", PAGE, re.DOTALL)
    assert shown is not None
    assert [line for line in shown.group(1).splitlines() if line != "..." and line not in lines] == []


async def test_the_type_of_the_page_answers(package: Path) -> None:
    """It asks the model what the page says, and the answer is the turn's."""
    kind = importlib.import_module("mine.haiku").make(None)
    log, model = MemoryLog(SessionConfig(harness="haiku"), "the weather"), ScriptedModel(said("rain on the roof"))
    await kind.run(log, ports(model), "test", Told())
    assert log.kinds()[2:] == ["harness_woke", "model_replied", "turn_ended"]
    assert model.requests[0]["messages"] == [{"role": "user", "content": "the weather"}]


def test_every_type_has_its_row() -> None:
    """A folder under `loops/` is in the page's first table."""
    told = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert told == {module.name for module in pkgutil.iter_modules(loops.__path__)}


def test_the_setting_of_the_page_is_the_harnesss() -> None:
    """The variable is read by the harness, and handed on by `handmesh up`."""
    assert Settings.__dataclass_fields__["harness_types"].metadata["variable"] == HARNESS_TYPES
    assert f"{HARNESS_TYPES}=messages,echo,mine.haiku" in PAGE
