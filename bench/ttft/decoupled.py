"""The decoupled arm: this mesh. A client makes a session with its first message, and watches what comes.

The clock starts before the session is made. A sandbox is made when the model first calls a tool, and only then.
"""

from __future__ import annotations

import time

from bench.ttft.mix import Task, check
from bench.ttft.samples import Sample
from handmesh.client.client import Client
from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from handmesh.session.v1.session_pb2 import Preview


class Decoupled:
    """Runs sessions. `urls` are the repositories by their size in MB; `unseen` gives each session a URL of its own."""

    def __init__(self, client: Client, environment: str, urls: dict[int, str], *, unseen: bool = False) -> None:
        self._client, self._environment, self._urls, self._unseen = client, environment, urls, unseen

    async def run(self, task: Task) -> Sample:
        """Runs a session; its sandbox is released after it was measured."""
        config = self._config(task)
        begun = time.perf_counter()
        session = await self._client.create_session(config, task.text)
        token = tool = 0.0
        async for said in session.watch(previews=True):
            now = time.perf_counter() - begun
            if isinstance(said, Preview):
                token = token or (now if said.text else 0.0)
                continue
            kind = said.WhichOneof("kind")
            if kind == "model_replied":  # its previews may have been shed
                token = token or now
            elif kind == "tool_finished":
                tool = now
                check(task, said.tool_finished.result.output)
            elif kind == "error_raised":
                raise RuntimeError(f"session {session.id}: {said.error_raised}")
            elif kind == "turn_ended":
                break
        if bool(tool) != task.tool:
            raise RuntimeError(f"session {session.id} called {'a' if tool else 'no'} tool")
        for sandbox in await self._client.sandboxes(session.id) if task.tool else ():
            await self._client.release(sandbox.sandbox_id)
        return Sample(task.number, task.repository, token, tool or None)

    def _config(self, task: Task) -> SessionConfig:
        hand = HandSpec(environment=self._environment)
        if task.repository:
            url = self._urls[task.repository] + (f"-{task.number}" if self._unseen else "")
            hand.resources.append(Resource(mount_path="/workspace/repository", git_repository=GitRepository(url=url)))
        return SessionConfig(hands={"main": hand})
