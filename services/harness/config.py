"""What a session is, as far as a harness type cares: `adapters/configs.py` makes it of the configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from services.harness.usage import NO_BUDGETS, Budgets

MESH = "mesh"  # whose tools the mesh's own are: no hand and no server has this name
PolicyAction = Literal["ALLOW", "ASK", "DENY"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it. `schema` is JSON text.

    `timeout` is how many seconds a client has to answer, 0 for as long as it likes. A tool that the model's API defines
    has its `type`: then the API is told that, and neither description nor schema, nor is the log.
    """

    name: str
    description: str
    schema: str
    idempotent: bool = False
    read_only: bool = False
    timeout: float = 0.0
    type: str = ""

    def definition(self) -> dict[str, Any]:
        """Returns the tool as the model's API is told of it."""
        if self.type:
            return {"type": self.type, "name": self.name}
        return {"name": self.name, "description": self.description, "input_schema": json.loads(self.schema)}


@dataclass(frozen=True, slots=True)
class Policy:
    """What is done with calls of the tools that a pattern matches."""

    pattern: str
    action: PolicyAction


@dataclass(frozen=True, slots=True)
class MemoryStore:
    """A memory store, as a directory of its own under `/memories`."""

    store_id: str
    name: str
    read_only: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class LogView:
    """A file in a hand that has the session's log, from a position on."""

    hand: str
    path: str
    start: int


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What sessions a session may start. Zeros are as in the configuration."""

    max_depth: int = 0
    max_children: int = 0
    budgets: Budgets = NO_BUDGETS


@dataclass(frozen=True, slots=True)
class Config:
    """What a session is, as far as a harness type cares.

    `hand_specs` are the hands' specifications in the order of `hands`, for the adapter that provisions them.
    """

    harness: str = "messages"
    model: str = ""
    system: str = ""
    hands: tuple[str, ...] = ("main",)
    hand_specs: tuple[bytes, ...] = ()
    servers: tuple[str, ...] = ()
    custom_tools: tuple[ToolSpec, ...] = ()
    policies: tuple[Policy, ...] = ()
    max_output_tokens: int = 0
    budgets: Budgets = NO_BUDGETS
    context_policy: str = ""  # JSON text, for the harness type; empty is its default
    memory_stores: tuple[MemoryStore, ...] = ()
    mesh_tools: tuple[str, ...] = ()
    child_limits: ChildLimits | None = None
    log_views: tuple[LogView, ...] = ()

    @property
    def asks_mesh(self) -> bool:
        """Whether the session has tools of the mesh itself."""
        return bool(self.mesh_tools or self.memory_stores)

    @property
    def offering(self) -> tuple[str, ...]:
        """Who offers tools, one by one: the hands, and the mesh if it is asked to. Servers are asked together."""
        return (*self.hands, MESH) if self.asks_mesh else self.hands
