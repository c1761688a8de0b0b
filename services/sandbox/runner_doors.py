"""Doors of a sandbox by its runner (see `runner/doors.py`)."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from services.kit.errors import Gone, Refused, Unavailable
from services.sandbox.hand import Doors, Trust, Visit
from services.sandbox.place import SOCKET, Place
from services.sandbox.records import Record
from services.sandbox.runner_client import Unreachable, said
from services.sandbox.runner_files import connect

CONNECT_SECONDS = 10.0
BUFFER_BYTES = 128 << 10  # held of what a tool says and nobody takes


class RunnerDoors:
    """The part of a `Hand` (see there) that is about doors, over records whose runners live."""

    _place: Place

    def _check_network(self, wanted: object) -> None:
        """Raises Refused where something is wanted that only a network namespace can give."""
        if wanted and not self._place.own_network:
            raise Refused(
                "ISOLATION_UNAVAILABLE",
                f"a sandbox of the backend {self._place.name} has the machine's own network: nothing of it can be "
                "kept back, and no door leads out of it; use the backend docker or bubblewrap",
                backend=self._place.name,
            )

    async def open_doors(self, sandbox_id: str, names: Sequence[str]) -> Doors:
        """See `Hand.open_doors`."""
        self._check_network(names)
        if not self._place.own_network:
            return Doors({}, "")
        record = await self._record(sandbox_id)
        answer = await self._ask(record, {"op": "doors", "names": list(names)})
        try:
            ports = {str(name): int(port) for name, port in answer["ports"].items()}
            return Doors(ports, str(answer["folder"]), bool(answer.get("outfitted", True)))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise await self._lost(record) from None

    async def outfit(
        self, sandbox_id: str, env: Mapping[str, str], trust: Trust | None = None, generation: int = 0
    ) -> None:
        """See `Hand.outfit`."""
        given = None if trust is None else {"system": trust.system, "own": trust.own}
        asked = {"op": "outfit", "env": dict(env), "trust": given, "generation": generation}
        await self._ask(await self._record(sandbox_id), asked)

    async def visit(self, sandbox_id: str, door: str) -> Visit:
        """See `Hand.visit`."""
        record = await self._record(sandbox_id)
        until = asyncio.get_running_loop().time() + CONNECT_SECONDS
        try:
            reader, writer = await connect(record.door / SOCKET, until, BUFFER_BYTES)
        except Unreachable:
            raise await self._lost(record) from None
        try:
            writer.write(json.dumps({"op": "visit", "door": door}).encode("ascii") + b"\n")
            if "visit" not in said(await reader.readline()):
                raise ValueError("no visit")
        except (OSError, ValueError):
            writer.close()
            raise await self._lost(record) from None
        except BaseException:
            writer.close()
            raise
        return Visit(reader, writer)

    @abstractmethod
    async def _record(self, sandbox_id: str) -> Record:
        """Returns the record of a sandbox that can execute. Raises Gone."""

    @abstractmethod
    async def _ask(self, record: Record, request: Mapping[str, Any]) -> dict[str, Any]:
        """Asks the runner. Raises what it refuses with, and Gone or Unavailable."""

    @abstractmethod
    async def _lost(self, record: Record) -> Gone | Unavailable:
        """Returns what to raise when a runner has not answered."""
