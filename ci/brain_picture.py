"""Draws the picture of docs/brain.md from the brain's transition table; `--check` compares instead."""

from __future__ import annotations

import sys
from pathlib import Path

from services.harness.turn.transitions import CALLS, TRANSITIONS

PAGE = Path(__file__).parent.parent / "docs" / "brain.md"
BEGIN, END = "<!-- picture: made by ci/brain_picture.py -->\n", "<!-- end of picture -->\n"
GROUP = "Calls"


def picture() -> str:
    """Returns the picture as Mermaid text: a state for each action, an arrow for each pair, named by its events."""
    calls = {action.__name__ for action in CALLS}
    arrows: dict[tuple[str, str], list[str]] = {}
    for action, events in TRANSITIONS.items():
        start = GROUP if action.__name__ in calls else action.__name__
        for event, targets in events.items():
            for target in dict.fromkeys(GROUP if each.__name__ in calls else each.__name__ for each in targets):
                named = arrows.setdefault((start, target), [])
                if event not in named:
                    named.append(event)
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> Rest"]
    lines += [f"    state {GROUP} {{", *(f"        {name}" for name in sorted(calls)), "    }"]
    lines += [f"    {start} --> {target}: {'<br/>'.join(events)}" for (start, target), events in arrows.items()]
    return "\n".join([*lines, "```", ""])


def page() -> str:
    """Returns the page with the picture as it is to be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + picture() + END + after


def main() -> int:
    """Writes the picture, or tells whether it is as the table says."""
    if "--check" in sys.argv:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
