"""With a key the harness talks to the API at the base URL: nothing else differs from the scripted model's way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handmesh.client import connect
from handmesh.launcher.mesh import Mesh
from handmesh.launcher.ports import Ports
from handmesh.launcher.settings import Claude, MeshSettings
from handmesh.scripted_model import ScriptedModel
from handmesh.session.v1.event_pb2 import Event

pytestmark = [pytest.mark.e2e, pytest.mark.nats]

KEY = "sk-ant-canary-of-this-run"
HELLO = {"default": {"steps": [{"say": [{"text": "Hello."}]}], "repeat": True}}


@pytest.mark.parametrize(("key", "kind"), [(KEY, "model_replied"), ("sk-ant-wrong", "error_raised")])
async def test_a_key_and_a_base_url_are_all_that_differs(tmp_path: Path, key: str, kind: str) -> None:
    """The key is shown to that endpoint, is enough there, and is in no event; a wrong one is told from a right one."""
    async with ScriptedModel(HELLO, api_key=KEY) as api:
        model = Claude(key, api.base_url)
        settings = MeshSettings(tmp_path / "mesh", model, os.environ, Ports.free())
        async with await Mesh.start(settings) as mesh, connect(data_directory=mesh.files.data_directory) as client:
            assert "model" not in mesh.pids
            session = await client.create_session(content="hello")
            events: list[Event] = []
            async for event in session.watch():
                events.append(event)
                if event.HasField("turn_ended"):
                    break
    assert kind in {event.WhichOneof("kind") for event in events}
    assert all(key.encode() not in event.SerializeToString() for event in events)
    assert [request.status for request in api.requests] == [200 if key == KEY else 401]
