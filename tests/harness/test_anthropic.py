"""The model's adapter and the requests of the `messages` type, against the scripted model's strict API."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from handmesh.scripted_model import ScriptedModel as ScriptedServer
from handmesh.session.v1.config_pb2 import SessionConfig
from services.harness.adapters.anthropic import AnthropicModel
from services.harness.loops.messages import make
from services.harness.ports import Answer, ModelFailure, Ports
from tests.support.harness_ports import MemoryHands, MemoryLog, MemoryServers, Told, message, ports
from tests.support.harness_ports import ScriptedModel as NoModel

ASK: dict[str, Any] = {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
ASK["stream"] = True
KEY = "sk-canary-key"


def script(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"default": {"steps": list(steps), "repeat": True}}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"say": [{"text": said}], **more}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


async def asked(url: str, key_file: Path | None, shown: list[Any] | None = None) -> Answer:
    async with closed(AnthropicModel(key_file, url, time.time)) as model:
        return await model.ask(
            json.dumps(ASK).encode(), lambda *piece: (shown if shown is not None else []).append(piece)
        )


class closed:
    """Closes a model at the end."""

    def __init__(self, model: AnthropicModel) -> None:
        self.model = model

    async def __aenter__(self) -> AnthropicModel:
        return self.model

    async def __aexit__(self, *_: object) -> None:
        await self.model.close()


async def test_an_answer_is_streamed_and_whole(key_file: Path) -> None:
    """Text, stop reason, usage and ids arrive; the pieces shown join to the text."""
    shown: list[Any] = []
    async with ScriptedServer(script(text("hello there, friend"))) as server:
        answer = await asked(server.base_url, key_file, shown)
    assert json.loads(answer.content) == [{"type": "text", "text": "hello there, friend"}]
    assert "".join(piece for _, kind, piece in shown if kind == "text") == "hello there, friend"
    assert answer.stop_reason == "end_turn"
    assert answer.message_id.startswith("msg_")
    assert answer.usage.output_tokens > 0


ERRORS = [
    (401, "authentication_error", "MODEL_KEY_REFUSED", False),
    (403, "permission_error", "MODEL_KEY_REFUSED", False),
    (400, "invalid_request_error", "MODEL_REQUEST_REFUSED", False),
    (429, "rate_limit_error", "MODEL_RATE_LIMITED", True),
    (500, "api_error", "MODEL_UNAVAILABLE", True),
    (529, "overloaded_error", "MODEL_OVERLOADED", True),
]


@pytest.mark.parametrize(("status", "kind", "reason", "retryable"), ERRORS)
async def test_what_the_api_says_is_told_apart(
    key_file: Path, status: int, kind: str, reason: str, retryable: bool
) -> None:
    """Each status becomes its reason, and says whether asking again may help; the key is in no message."""
    error = {"error": {"status": status, "type": kind, "message": "no", "retry_after": 3}}
    async with ScriptedServer(script(error)) as server:
        with pytest.raises(ModelFailure) as failure:
            await asked(server.base_url, key_file)
    assert (failure.value.reason, failure.value.retryable) == (reason, retryable)
    assert failure.value.retry_after == (3 if retryable else None)
    assert KEY not in str(failure.value)


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        ({"cut_after_events": 3}, {"MODEL_STREAM_BROKEN"}),
        ({"cut_after_bytes": 40}, {"MODEL_STREAM_BROKEN", "MODEL_UNAVAILABLE"}),
        ({"error_frame": {"after_events": 3, "type": "overloaded_error", "message": "busy"}}, {"MODEL_OVERLOADED"}),
    ],
)
async def test_a_broken_stream_is_never_an_answer(key_file: Path, fault: dict[str, Any], reasons: set[str]) -> None:
    """A cut or an error frame after some text: nothing partial comes back, and it may be asked again."""
    async with ScriptedServer(script(text("a long enough answer to be cut", **fault))) as server:
        with pytest.raises(ModelFailure) as failure:
            await asked(server.base_url, key_file)
    assert failure.value.reason in reasons
    assert failure.value.retryable


async def test_without_a_key_nothing_is_asked(tmp_path: Path) -> None:
    """The failure names what to do."""
    async with ScriptedServer(script(text("x"))) as server:
        with pytest.raises(ModelFailure) as failure:
            await asked(server.base_url, tmp_path / "missing")
    assert failure.value.reason == "MODEL_KEY_MISSING"
    assert "ANTHROPIC_API_KEY" in failure.value.message
    assert list(server.requests) == []


async def test_a_model_that_cannot_be_reached_may_come_back(key_file: Path) -> None:
    """A refused connection is retryable."""
    with pytest.raises(ModelFailure) as failure:
        await asked("http://127.0.0.1:9", key_file)
    assert (failure.value.reason, failure.value.retryable) == ("MODEL_UNAVAILABLE", True)


async def test_the_newest_model_is_the_installed_packages() -> None:
    """The default comes from the package's own list."""
    assert (await AnthropicModel(None, None, time.time).newest()).startswith("claude-")


TURN = {
    "default": {
        "steps": [
            {
                "say": [
                    {"thinking": "hm"},
                    {"text": "two at once"},
                    {"tool_use": {"name": "bash", "input": {"command": "ls"}}},
                    {"tool_use": {"name": "bash", "input": {"command": "pwd"}}},
                ]
            },
            text("then {last_tool_result}"),
        ]
    }
}


async def test_the_requests_of_a_conversation_pass_the_strict_api(key_file: Path) -> None:
    """Parallel calls, thinking with its signature, a silent tool and a second turn: every request is accepted."""
    log = MemoryLog(SessionConfig(system="be good"))
    async with ScriptedServer(TURN) as server:
        base = ports(NoModel(), MemoryHands())
        async with closed(AnthropicModel(key_file, server.base_url, time.time)) as model:
            world = Ports(model, base.hands, MemoryServers(), base.now, base.jitter)
            await make().run(log, world, "test", Told())
            await log.add(message("once more", "m2"))
            await make().run(log, world, "test", Told())
    assert [request.status for request in server.requests] == [200] * 4
    assert log.kinds().count("tool_finished") == 4
    assert "error_raised" not in log.kinds()
