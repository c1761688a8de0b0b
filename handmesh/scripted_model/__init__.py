"""The scripted model: a local server that speaks the Messages API, plays scripts and refuses what the API refuses.

It stands in for Claude where there is no key: in the demo, in our tests, in yours.

    async with ScriptedModel(Path("script.yaml")) as model:
        client = AsyncAnthropic(base_url=model.base_url, api_key="any")
        ...
        assert model.requests[-1].turn == "conversations[0].steps[1]"

As a process: `python -m handmesh.scripted_model --script script.yaml`. See docs/scripted-model.md.
"""

from handmesh.scripted_model.reading import load_script
from handmesh.scripted_model.script import Script, ScriptError
from handmesh.scripted_model.server import RecordedRequest, ScriptedModel

__all__ = ["RecordedRequest", "Script", "ScriptError", "ScriptedModel", "load_script"]
