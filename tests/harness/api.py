"""A harness's loop in memory against the scripted model's strict API over real HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from handmesh.scripted_model import ScriptedModel as Server
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.event_pb2 import Event, MessageReceived, TurnEndReason
from services.harness.adapters.anthropic import AnthropicModel
from services.harness.loops.messages import make
from services.harness.ports import Model
from tests.support.harness_ports import MemoryHands, MemoryLog, ScriptedModel, Told, message, ports

KEY = "sk-canary-key"


@asynccontextmanager
async def client(directory: Path, url: str, silence: float = 5.0) -> AsyncIterator[AnthropicModel]:
    """Makes the harness's own client of an API, and closes it."""
    (directory / "key").write_text(KEY + "\n")
    model = AnthropicModel(directory / "key", url, time.time, silence)
    try:
        yield model
    finally:
        await model.close()


class Session:
    """One session in memory, at work with a model. Retries come at once."""

    def __init__(self, model: Model, config: SessionConfig | None = None, first: str = "hello") -> None:
        self.log = MemoryLog(config, first)
        self.hands = MemoryHands()
        self.pictures: Any = None
        self._model = model
        self._names = itertools.count(2)

    async def run(self) -> None:
        """Lets one harness work until there is nothing to do."""
        base = ports(ScriptedModel(), self.hands)
        async with asyncio.timeout(60):
            await make().run(self.log, replace(base, model=self._model, pictures=self.pictures), "test", Told())

    async def say(self, text: str | list[dict[str, Any]]) -> None:
        """Adds a client's message and lets a harness work."""
        name = f"m{next(self._names)}"
        if isinstance(text, str):
            await self.log.add(message(text, name))
        else:
            content = MessageReceived(content_json=json.dumps(text))
            await self.log.add(Event(event_id=name, message_received=content))
        await self.run()

    def ends(self) -> list[str]:
        """Names how the turns ended."""
        names = [TurnEndReason.Name(it.reason) for it in self.log.only("turn_ended")]
        return [name.removeprefix("TURN_END_REASON_") for name in names]

    def errors(self) -> list[tuple[str, bool]]:
        """Returns the errors' reasons, and whether each may pass."""
        return [(it.reason, it.retryable) for it in self.log.only("error_raised")]

    def retries(self) -> list[str]:
        """Returns why the model was asked again."""
        return [it.reason for it in self.log.only("retry_scheduled")]


@asynccontextmanager
async def talking(
    directory: Path, script: dict[str, Any], first: str = "hello", config: SessionConfig | None = None
) -> AsyncIterator[tuple[Server, Session]]:
    """Makes a session that talks with a scripted model."""
    async with Server(script) as server, client(directory, server.base_url) as model:
        yield server, Session(model, config, first)
