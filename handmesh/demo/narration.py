"""How the demo speaks: one numbered line for each step, and what is real in it."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from handmesh.demo.proof import Finding

STEPS = 9


class Narrator:
    """Prints the steps of the demo."""

    def __init__(self, out: Console) -> None:
        self.out = out
        self._step = 0
        self._began = time.monotonic()

    def step(self, text: str, real: str = "") -> None:
        """Begins the next step. `real` says which part of it is the real thing."""
        self._step += 1
        line = Text(f"\n{self._step}/{STEPS} ", style="bold blue").append(text, style="bold")
        if real:
            line.append(f"  [real: {real}]", style="not bold green")
        self.out.print(line, soft_wrap=True)

    def say(self, text: str, style: str = "dim") -> None:
        """Adds a line to the step."""
        self.out.print(Text(f"    {text}", style=style), soft_wrap=True)

    def finding(self, finding: Finding) -> None:
        """Says whether something holds that must."""
        mark, style = ("✓", "green") if finding.holds else ("✗", "bold red")
        self.out.print(Text(f"    {mark} {finding.text}", style=style), soft_wrap=True)

    @property
    def seconds(self) -> float:
        """How long the demo runs already."""
        return time.monotonic() - self._began
