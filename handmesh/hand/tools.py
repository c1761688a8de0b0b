"""Hands made of methods or functions that are marked as tools."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from handmesh.hand.answers import Answer, ToolError
from handmesh.hand.call import Call
from handmesh.hand.schemas import Signature, Tool

_MARK = "__handmesh_tool__"
F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F) -> F: ...


@overload
def tool(*, name: str = "", idempotent: bool = False, read_only: bool = False) -> Callable[[F], F]: ...


def tool(
    function: F | None = None, *, name: str = "", idempotent: bool = False, read_only: bool = False
) -> F | Callable[[F], F]:
    """Marks a function or a method as a tool: its docstring is the description, its annotations are the schema.

    Annotations are those of JSON: str, int, float, bool, list[...], dict, Literal[...], `X | None`, and
    `Annotated[X, "what it is"]`. It may be async; one that is not runs in a thread. `idempotent` says that to run it
    twice is to run it once, `read_only` that it changes nothing.
    """

    def mark(marked: F) -> F:
        made = Tool(
            name or marked.__name__,
            inspect.getdoc(marked) or "",
            Signature.of(marked).schema(),
            idempotent or read_only,
            read_only,
        )
        setattr(marked, _MARK, made)
        return marked

    return mark if function is None else mark(function)


class Hand:
    """A hand: subclass it and mark methods with `@tool`; or give `tools` and `execute` a body of your own.

    Its class's docstring describes it to models. Calls may come side by side, as many as `capacity`.
    """

    capacity: int = 1
    _functions: Sequence[Callable[..., Any]] = ()

    @property
    def description(self) -> str:
        """What the hand is, for people and models."""
        return "" if type(self) is Hand else inspect.getdoc(type(self)) or ""

    @functools.cached_property
    def _marked(self) -> dict[str, tuple[Callable[..., Any], Signature]]:
        """The functions of the tools, by name, each with its signature: to look them up takes longer than a call."""
        members = [getattr(self, name) for name in dir(type(self)) if hasattr(getattr(type(self), name, None), _MARK)]
        marked = [*members, *self._functions]
        marked.sort(key=lambda each: each.__code__.co_firstlineno)
        return {getattr(each, _MARK).name: (each, Signature.of(each)) for each in marked}

    def tools(self) -> Sequence[Tool]:
        """Lists the tools, in the order to offer them."""
        return [getattr(each, _MARK) for each, _ in self._marked.values()]

    async def execute(self, call: Call) -> Answer:
        """Runs a tool. What it raises is shown to the model as the tool's failure.

        A call that is interrupted, or takes too long, is cancelled.
        """
        if call.name not in self._marked:
            raise ToolError(f"there is no tool {call.name}")
        function, signature = self._marked[call.name]
        given = signature.checked(call.input)
        if signature.call is not None:
            given[signature.call] = call
        if inspect.iscoroutinefunction(function):
            answer: Answer = await function(**given)
        else:
            answer = await asyncio.to_thread(function, **given)
        return answer

    async def released(self, sandbox_id: str) -> None:
        """Is told that a session is done with this hand: what was kept for its `sandbox_id` may go. May be missed."""

    def run(self, arguments: Sequence[str] | None = None) -> None:
        """Serves the hand until SIGTERM or Ctrl-C, as the command line says: --connect, --name, --token, ..."""
        from handmesh.hand.command import run

        run(self, arguments)


def hand_of(*functions: Callable[..., Any], description: str = "", capacity: int = 1) -> Hand:
    """Makes a hand of functions that are marked with `@tool`."""

    class Functions(Hand):
        pass

    Functions.__doc__ = description
    made = Functions()
    made._functions, made.capacity = functions, capacity
    return made
