"""One call of a tool, as the tool sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call. A tool that takes a parameter of this type is given it; to the model it is not there.

    `sandbox_id` is the same for all calls of one session, and another one for another session: a hand that keeps
    sessions apart keeps their things by it. `seconds` is how long the tool may take before it is ended.
    """

    name: str
    input: Mapping[str, Any]
    sandbox_id: str
    execution_id: str
    seconds: float
    write: Callable[[str | bytes], None] = field(repr=False, default=lambda output: None)
    """Says more output, at once, to whoever watches. The result is another thing: it is what the tool returns."""
