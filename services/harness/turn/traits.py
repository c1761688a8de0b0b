"""What deciding has to know of a harness type. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.harness.turn.state import State


def _never(state: State) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Traits:
    """A type's name, as `SessionConfig.harness` has it, and how its turns go.

    `tools` tells whether it uses any: without, none are looked up. `goes_on` is asked of an answer that calls nothing
    and that a turn would end with, and tells whether another one is to follow; it reads the log's state and nothing
    else. It must say no at some time: nothing but the session's budgets would stop it.
    """

    name: str = "messages"
    tools: bool = True
    goes_on: Callable[[State], bool] = _never


USUAL = Traits()
