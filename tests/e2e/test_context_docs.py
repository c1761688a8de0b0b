"""docs/context.md: its programs run on a real mesh as they stand, and its table has every key of a policy."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from handmesh.client import Client
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import DATA_DIRECTORY_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "context.md").read_text("utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SECONDS = 60.0


async def run(mesh: Mesh, folder: Path, *arguments: str) -> str:
    """Runs this Python as a newcomer would; returns what it prints."""
    environment = {**os.environ, DATA_DIRECTORY_VARIABLE: str(mesh.files.data_directory), "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env=environment, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS):
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_the_programs_run(mesh: Mesh, client: Client, tmp_path: Path) -> None:
    """The first one sees a summary come; the second one shows what other policies make of that session's log."""
    first, second = PROGRAMS
    said = await run(mesh, tmp_path, "-c", first)
    assert re.match(r"positions 1 to \d+, compaction: \[", said)
    (newest,) = [session async for session in client.sessions()][:1]
    (tmp_path / "session.jsonl").write_text(
        await run(mesh, tmp_path, "-m", "handmesh.cli", "events", newest.session_id, "--json")
    )
    lines = (await run(mesh, tmp_path, "-c", second)).splitlines()
    sizes = [int(re.search(r"} (\d+) characters", line)[1]) for line in lines]  # type: ignore[index]
    assert sizes[0] == sizes[2] < sizes[1]  # two with the summary, one without
