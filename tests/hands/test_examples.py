"""The example hands: each works as its docstring says, over the wire."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.hands_ground import Ground, ground

EXAMPLES = Path(__file__).parents[2] / "examples" / "hands"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Ground]:
    """A service that takes workers in."""
    async with ground(tmp_path) as made:
        yield made


async def test_a_phone_is_used(it: Ground) -> None:
    """A note is written by tapping and typing; each session has a phone of its own; the screen is told as text, too."""
    await it.worker(example("phone").PhoneHand(), "phone")
    one, two = await it.sandbox("phone"), await it.sandbox("phone")

    async def says(sandbox: str, tool: str, **given: object) -> str:
        return (await it.execute(sandbox, tool, **given)).output

    assert (await says(one, "ui")).splitlines() == [
        "title 'Home' [10,6,230,40]",
        "icon 'notes' [10,60,230,94] (can be tapped)",
        "icon 'settings' [10,100,230,134] (can be tapped)",
    ]
    assert await says(one, "type", text="x") == "no field has the focus: tap one first"
    assert await says(one, "tap", x=100, y=70) == "tapped the icon 'notes'"
    assert await says(one, "tap", x=100, y=60) == "tapped the field 'new note'"
    assert await says(one, "type", text="feed the cat") == "the field says 'feed the cat'"
    assert await says(one, "tap", x=200, y=60) == "tapped the button 'add'"
    assert "note 'feed the cat'" in await says(one, "ui")
    assert await says(one, "swipe", direction="up") == "swiped up"
    shown = json.loads((await it.execute(one, "screenshot")).content_json)
    assert [block["source"]["media_type"] for block in shown] == ["image/png"]
    assert "notes" in await says(two, "ui") and "cat" not in await says(two, "ui")


def test_the_cartridge_is_our_own() -> None:
    """It is the same each time, 32 KiB, with a header that adds up, and has nobody's logo."""
    rom = example("rom").rom
    made = rom()
    assert made == rom() and len(made) == 32 << 10
    assert made[0x104:0x134] == bytes(48)
    assert (sum(made[0x134:0x14D]) + 0x19 + made[0x14D]) & 0xFF == 0
    assert int.from_bytes(made[0x14E:0x150], "big") == (sum(made) - made[0x14E] - made[0x14F]) & 0xFFFF
