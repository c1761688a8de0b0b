"""The sessions, the same in every arm: their repositories, which of them call a tool, how long the model takes.

Twenty sessions are a block with the mix in it, shuffled; so any number of blocks has the mix.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import yaml

SEED = 17
MEAN_MS, JITTER_MS, LEAST_MS = 300.0, 60.0, 100.0  # the model's delay: normal, with this deviation
SMALL_MB, BIG_MB = 5, 50
FILES = {SMALL_MB: 300, BIG_MB: 3_000}
BLOCK = [(0, 3, 7), (SMALL_MB, 4, 10), (BIG_MB, 1, 3)]  # MB of the repository, sessions that call a tool, sessions
WARM_UP = 10_000  # the numbers of sessions that are not measured begin here
FOLDERS = 50  # in each repository
COMMAND = "ls repository 2>/dev/null | wc -l"


@dataclass(frozen=True)
class Task:
    """A session to run. `repository` is its size in MB, or 0; `delays_ms` are the model's, of its answers."""

    number: int
    repository: int
    tool: bool
    delays_ms: tuple[float, float]

    @property
    def text(self) -> str:
        """What the user says."""
        return f"session {self.number:05}: what is in the workspace?"


def tasks(count: int, first: int = 0) -> list[Task]:
    """Returns so many sessions (whole blocks), the same ones each time."""
    dice = random.Random(SEED + first)
    made: list[Task] = []
    while len(made) < count:
        block = [(size, at < tools) for size, tools, sessions in BLOCK for at in range(sessions)]
        dice.shuffle(block)
        for size, tool in block:
            delays = [max(LEAST_MS, round(dice.gauss(MEAN_MS, JITTER_MS), 1)) for _ in range(2)]
            made.append(Task(first + len(made), size, tool, (delays[0], delays[1])))
    return made[:count]


def script(of: list[Task]) -> str:
    """Returns the scripted model's script for these sessions."""
    return yaml.safe_dump({"conversations": [_conversation(task) for task in of]})


def _conversation(task: Task) -> dict[str, Any]:
    first: list[dict[str, Any]] = [{"text": "I will look at what there is, and tell you then."}]
    steps: list[dict[str, Any]] = [{"delay_ms": task.delays_ms[0], "say": first}]
    if task.tool:
        first.append({"tool_use": {"tool": "bash", "input": {"command": COMMAND}}})
        steps.append({"delay_ms": task.delays_ms[1], "say": [{"text": "That is what there is."}]})
    return {"when": {"user": f"session {task.number:05}:"}, "steps": steps}


def check(task: Task, said: str) -> None:
    """Raises RuntimeError unless the command found the task's repository."""
    expected = FOLDERS if task.repository else 0
    if said.split("\n")[0].strip() != str(expected):
        raise RuntimeError(f"session {task.number} with a repository of {task.repository} MB found {said!r}")
