"""A worker of a remote hand without a wire: each sandbox of the hand is one of another backend."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from services.kit.errors import Gone, ServiceError
from services.kit.ids import mint
from services.sandbox.dialled import Accepted, Assigned, Cancelled, Held, Registration, Released, Report
from services.sandbox.hand import Chunk, Hand, Labels, Order, Recipe
from services.sandbox.tools import TOOLS

TENANT, NAME = "default", "checked"


@dataclass(eq=False)
class Running:
    """An execution that the worker has. `sent` is how much of its output was acknowledged."""

    held: Held
    order: Order
    task: asyncio.Task[None] | None = None


class Worker:
    """Runs what it is sent on another hand, and keeps what was not acknowledged while its link is down."""

    def __init__(self, inner: Hand, recipe: Recipe, **said: Any) -> None:
        self._inner, self._recipe = inner, recipe
        self._said = Registration(TENANT, NAME, "hand_" + "0" * 26, mint("wrk"), tools=TOOLS, capacity=64)
        self._said = replace(self._said, **said)
        self._sandboxes: dict[str, str] = {}
        self._running: dict[Held, Running] = {}
        self._outer: Any = None
        self._serving: asyncio.Task[None] | None = None

    async def link(self, outer: Any) -> None:
        """Connects to a remote hand; returns when it is registered."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        registered = asyncio.Event()
        self._outer = outer
        self._serving = asyncio.create_task(self._serve(outer, registered))
        await registered.wait()

    async def _serve(self, outer: Any, registered: asyncio.Event) -> None:
        works = outer.connect(replace(self._said, held=tuple(self._running)))
        with contextlib.suppress(ServiceError):
            async with aclosing(works):
                async for work in works:
                    match work:
                        case Accepted(_, wanted):
                            self._go_on({each.held: each.next_offset for each in wanted})
                            registered.set()
                        case Assigned(sandbox_id, order):
                            held = Held(sandbox_id, order.execution_id)
                            self._running[held] = it = Running(held, order)
                            it.task = asyncio.create_task(self._run(it, 0))
                        case Cancelled(held) if held in self._running:
                            await self._inner.cancel(await self._sandbox(held.sandbox_id), held.execution_id)
                        case Released(sandbox_id) if sandbox_id in self._sandboxes:
                            await self._inner.release(self._sandboxes.pop(sandbox_id))

    def _go_on(self, wanted: dict[Held, int]) -> None:
        for held, it in list(self._running.items()):
            if it.task is not None:
                it.task.cancel()
            if held in wanted:
                it.task = asyncio.create_task(self._run(it, wanted[held]))
            else:
                del self._running[held]

    async def _sandbox(self, sandbox_id: str) -> str:
        if sandbox_id not in self._sandboxes:
            labels = Labels(mint("sbx"), self._recipe.name, 0.0, request_id=sandbox_id)
            made = await self._inner.provision(self._recipe, labels)
            self._sandboxes[sandbox_id] = made.labels.sandbox_id
        return self._sandboxes[sandbox_id]

    async def _run(self, it: Running, known: int) -> None:
        inner = await self._sandbox(it.held.sandbox_id)
        await self._inner.start(inner, replace(it.order, epoch=0))
        offset = 0
        try:
            async for said in self._inner.follow(inner, it.held.execution_id, 0):
                if isinstance(said, Chunk):
                    data = said.text.encode()
                    if offset + len(data) > known:
                        self._report(it, offset=offset, chunk=data)
                    offset += len(data)
                else:
                    self._report(it, offset=offset, result=said)
                    self._running.pop(it.held, None)
        except Gone:  # nobody waits for it any more
            self._running.pop(it.held, None)

    def _report(self, it: Running, **what: Any) -> None:
        self._outer.report(Report(TENANT, self._said.name, self._said.worker, it.held, **what))

    async def close(self) -> None:
        """Goes away."""
        tasks = [it.task for it in self._running.values() if it.task is not None]
        for task in (*tasks, *([self._serving] if self._serving else [])):
            task.cancel()
        await asyncio.gather(*tasks, *([self._serving] if self._serving else []), return_exceptions=True)
        for sandbox in self._sandboxes.values():
            await self._inner.release(sandbox)
        await self._inner.close()
