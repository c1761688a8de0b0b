"""What deciding has to know of a harness type. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """A type's name, as `SessionConfig.harness` has it, and whether it uses tools: without, none are looked up."""

    name: str = "messages"
    tools: bool = True


USUAL = Traits()
