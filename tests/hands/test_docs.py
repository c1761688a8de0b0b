"""docs/remote-hands.md teaches with code that works, and says the limits that there are."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from handmesh.hand import execution
from handmesh.sandbox.v1 import tool_pb2
from services.sandbox import environments
from services.sandbox.backends import keys
from services.sandbox.dialled import CHUNK_BYTES, TOOLS_BYTES
from services.sandbox.hand import Bounds
from services.sandbox.hands.remote import core, jobs, switchboard
from tests.support.hands_ground import ground

PAGE = (Path(__file__).parents[2] / "docs" / "remote-hands.md").read_text()


async def test_the_hand_of_the_page_works(tmp_path: Path) -> None:
    """As it stands, as a file of its own: each tool says what its docstring promises."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "kitchen.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("documented_kitchen", file)
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    async with ground(tmp_path / "data") as it:
        await it.worker(module.Kitchen(), "kitchen")
        sandbox = await it.sandbox("kitchen")
        said = await it.execute(sandbox, "light", which="sink", on=True)
        assert said.output == "the light over the sink is on"
        assert (await it.execute(sandbox, "lights_on")).output == "sink"
        rung = await it.execute(sandbox, "timer", "call-1", seconds=0.01)
        assert await it.watched(sandbox, "call-1") == ("started\n", rung)
        late = await it.execute(sandbox, "timer", seconds=601)
        assert late.outcome == tool_pb2.TOOL_OUTCOME_TOOL_ERROR and "from 0 to 600 seconds" in late.output


def test_the_environment_of_the_page_is_one() -> None:
    """The operator's file is read as it stands."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    recipe = environments.parse(text, "page", keys()).recipe("lab")
    assert (recipe.worker, recipe.tools, recipe.labels) == ("bench", ("measure",), {"room": "4"})
    assert recipe.limits.seconds == 60


def test_the_limits_of_the_page_are_those_of_the_code() -> None:
    """A number that is changed is changed in both."""
    bounds = Bounds()
    for said in (
        f"| {bounds.lease:.0f} s, then the link counts as cut",
        f"| {core.MOST_TOOLS}, {TOOLS_BYTES >> 10} KiB in all; schemas of type object, 32 levels deep |",
        f"| calls of one worker at once | {core.MOST_CAPACITY} |",
        f"| {switchboard.MOST_WORKERS:,} linked; {switchboard.MOST_STATIONS:,} |",
        f"| output in one report | {CHUNK_BYTES >> 10} KiB;",
        f"| {core.MOST_BLOCKS}, {core.CONTENT_BYTES >> 20} MiB; texts",
        f"| {execution.OUTPUT_BYTES >> 20} MiB of each execution |",
        f"At most {jobs.MOST_WAITING:,} calls wait for one hand",
        f"`HANDMESH_HAND_OFFLINE_SECONDS` ({bounds.offline:.0f})",
        f"`HANDMESH_HAND_QUEUE_SECONDS` ({bounds.queue:.0f})",
        f"`HANDMESH_HAND_REATTACH_SECONDS` ({bounds.reattach:.0f})",
        f"within its limit and {bounds.late:.0f} s",
    ):
        assert said in PAGE.replace("\n", " "), said
