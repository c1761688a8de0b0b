"""What a hand's tools are called and described as towards the model. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from services.harness.core import ToolSpec
from services.harness.ports import Toolbox
from services.harness.turn.policies import SEPARATOR

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")  # what the model's API takes


def offered(hand: str, several: bool, toolbox: Toolbox) -> tuple[list[ToolSpec], list[str]]:
    """Returns the tools to offer, and the names of those that cannot be: the model's API would refuse them all.

    In a session with several hands each tool says whose it is: by its name, and for the model to choose by, by its
    description.
    """
    prefix = f"{hand}{SEPARATOR}" if several else ""
    about = _about(hand, toolbox) if several else ""
    specs: dict[str, ToolSpec] = {}
    left_out: list[str] = []
    for tool in toolbox.tools:
        name = prefix + tool.name
        if tool.name and _NAME.fullmatch(name) and name not in specs:
            specs[name] = replace(tool, name=name, description=about + tool.description)
        else:
            left_out.append(tool.name)
    return list(specs.values()), left_out


def reading(toolbox: Toolbox) -> Toolbox:
    """Returns a hand's tools without those that may change something."""
    return replace(toolbox, tools=[tool for tool in toolbox.tools if tool.read_only])


def _about(hand: str, toolbox: Toolbox) -> str:
    what = ": ".join(part for part in (toolbox.environment, toolbox.description.strip()) if part)
    return f"On the hand `{hand}`{f' ({what})' if what else ''}, which shares nothing with other hands. "
