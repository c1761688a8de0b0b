"""Workers of hands, and what each has: kept in memory while the worker, or something that it was sent, is there."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.kit.errors import ServiceError
from services.sandbox.dialled import Registration, Work
from services.sandbox.hand import Order
from services.sandbox.hands.remote import core
from services.sandbox.hands.remote.execution import Execution
from services.sandbox.hands.remote.executions import Executions
from services.sandbox.tools import Tool

Key = tuple[str, str]  # tenant and name of a hand


class Link:
    """A worker's stream, while it is up."""

    def __init__(self) -> None:
        self._works: asyncio.Queue[Work | ServiceError] = asyncio.Queue()  # as long as what one worker takes at once

    @property
    def backlog(self) -> int:
        """How much the worker has not read yet."""
        return self._works.qsize()

    def send(self, work: Work) -> None:
        """Sends something, in order."""
        self._works.put_nowait(work)

    def end(self, why: ServiceError) -> None:
        """Ends the stream after what was sent before."""
        self._works.put_nowait(why)

    async def next(self, seconds: float) -> Work:
        """Returns what comes next; a sign of life when nothing comes for so long. Raises why the stream ends."""
        try:
            async with asyncio.timeout(seconds):
                work = await self._works.get()
        except TimeoutError:
            return None
        if isinstance(work, ServiceError):
            raise work
        return work


@dataclass(eq=False)
class Job:
    """An execution on its way, with what is not kept of it. `until` is when it is given up while it waits."""

    execution: Execution
    book: Executions
    key: Key
    selector: Mapping[str, str]
    text_bytes: int  # most of its result
    total_bytes: int  # most of its output
    until: float = 0.0
    alone_until: float = 0.0  # likewise, while no worker is there
    timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> tuple[str, str]:
        """Names it among all."""
        return self.execution.sandbox_id, self.execution.execution_id

    @property
    def order(self) -> Order | None:
        """What to run."""
        return self.execution.order

    def again(self, timer: asyncio.TimerHandle | None) -> None:
        """Replaces its timer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer


@dataclass(eq=False)
class Worker:
    """A worker, linked or not. `jobs` are those that it was sent and whose results are not here."""

    id: str
    key: Key
    said: Registration | None = None  # None of one that this service has only read of
    link: Link | None = None
    draining: bool = False
    tools: frozenset[str] = frozenset()
    heard: float = 0.0  # when something was heard of it last, loop time
    timer: asyncio.TimerHandle | None = None  # looks whether it is silent, or has been away for too long
    jobs: dict[tuple[str, str], Job] = field(default_factory=dict)

    def takes(self, job: Job) -> bool:
        """Says whether a job is one for it, room or not."""
        if self.link is None or self.said is None or self.draining or job.order is None:
            return False
        return job.order.name in self.tools and core.matches(self.said.labels, job.selector)

    def has_room(self) -> bool:
        """Says whether it takes another job now."""
        return self.link is not None and self.said is not None and len(self.jobs) < self.said.capacity


@dataclass(eq=False)
class Station:
    """A hand: its workers, and the jobs that wait for one. `tools` are those of the worker that connected last."""

    key: Key
    tools: tuple[Tool, ...] = ()
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    waiting: deque[Job] = field(default_factory=deque)

    def linked(self) -> list[Worker]:
        """Lists the workers whose links are up."""
        return [worker for worker in self.workers.values() if worker.link is not None]

    def has_room(self) -> bool:
        """Says whether any worker takes another job now."""
        return any(worker.has_room() for worker in self.workers.values())

    def next_for(self, job: Job) -> Worker | None:
        """Returns the worker that a job is to be sent to, if one has room."""
        able = {worker.id: worker for worker in self.workers.values() if worker.has_room() and worker.takes(job)}
        loads = [(id, len(each.jobs), each.said.capacity) for id, each in able.items() if each.said is not None]
        chosen = core.emptiest(loads)
        return able[chosen] if chosen is not None else None


class Stations:
    """All hands that have ever had a worker, in a folder with a file for each: their tools are known while none is."""

    def __init__(self, folder: Path) -> None:
        """Reads them."""
        self._folder = folder
        self._known: dict[Key, Station] = {}
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
            kept: dict[str, Any] = json.loads(file.read_text())
            key = (kept["tenant"], kept["name"])
            tools = tuple(Tool(**tool) for tool in kept["tools"])
            self._known[key] = Station(key, tools, kept["description"], kept["labels"])

    def get(self, key: Key) -> Station | None:
        """Returns a hand, if it is known."""
        return self._known.get(key)

    def known(self) -> list[Station]:
        """Lists all, by name."""
        return [station for _, station in sorted(self._known.items())]

    def of(self, tenant: str) -> list[Station]:
        """Lists a tenant's, by name."""
        return [station for key, station in sorted(self._known.items()) if key[0] == tenant]

    def at(self, key: Key) -> Station:
        """Returns a hand, and makes it in memory."""
        return self._known.setdefault(key, Station(key))

    def keep(self, key: Key, said: Registration) -> Station:
        """Notes what a hand's newest worker says of it."""
        station = self.at(key)
        changed = (station.tools, station.description, station.labels) != (said.tools, said.description, said.labels)
        station.tools, station.description, station.labels = said.tools, said.description, dict(said.labels)
        if changed:
            self._write(station)
        return station

    def _write(self, station: Station) -> None:
        tenant, name = station.key
        kept = {
            "tenant": tenant,
            "name": name,
            "tools": [vars(tool) for tool in station.tools],
            "description": station.description,
            "labels": dict(station.labels),
        }
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / f"{core.file_name(station.key)}.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.replace(file)
