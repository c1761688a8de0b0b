"""Whatever comes in, something orderly goes out: an answer or an error of the API, never an exception."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handmesh.scripted_model import ScriptError, load_script
from handmesh.scripted_model.errors import ApiError
from handmesh.scripted_model.playback import Outcome, Playback, Reply
from handmesh.scripted_model.signatures import sign
from handmesh.scripted_model.stream import events, message

MARKER = {"type": "ephemeral", "ttl": "5m"}
SOURCE = {"type": "base64", "media_type": "image/gif", "data": "R0lGODlhAQABAA=="}
REQUEST: dict[str, Any] = {
    "model": "claude-opus-4-6",
    "max_tokens": 4096,
    "stream": True,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": MARKER}],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tool_choice": {"type": "auto"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {}}},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["END"],
    "tools": [
        {"name": "bash", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        {"type": "memory_20250818", "name": "memory", "cache_control": None},
    ],
    "messages": [
        {"role": "user", "content": "list the files"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": sign("Hm.", b"0" * 16)},
                {"type": "text", "text": "Look."},
                {"type": "tool_use", "id": "a", "name": "bash", "input": {"a": "b"}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": SOURCE}]},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                {"type": "search_result", "content": [{"type": "text", "text": "x"}], "source": "s", "title": "t"},
            ],
        },
    ],
}
SCRIPT: dict[str, Any] = {
    "defaults": {"chunk": 3},
    "conversations": [
        {
            "when": {"user": "files", "tool_result": {"tool": "bash"}},
            "steps": [
                {"say": [{"thinking": "x"}, {"tool_use": {"tool": "bash", "input": {"a": ["{last_user_text}"]}}}]},
                {"cases": [{"times": 1, "error": {"status": 529}}, {"say": [{"block": {"type": "x"}}]}]},
            ],
        }
    ],
    "turns": [{"when": {"user_matches": "x"}, "say": [{"text": "a"}], "usage": {"output_tokens": 1}}],
    "default": {
        "steps": [{"say": [{"text": "{last_tool_result}"}], "error_frame": {"after_events": 1}}],
        "repeat": True,
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of everything in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def replaced(document: dict[str, Any], path: tuple[Any, ...], junk: Any) -> Any:
    """Returns a copy of a document in which one thing is another."""
    if not path:
        return junk
    changed = copy.deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = junk
    return changed


SCALARS = st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.sampled_from(["", " ", "text", "image", "tool_result", "tool_use", "user", "system", "a", "5m", "x" * 300])
JUNK = st.recursive(
    SCALARS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "source", "role", "cache_control"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
PLACES = places(REQUEST)


def answered(outcome: Outcome) -> bool:
    """Returns whether an outcome can be written to the wire."""
    if isinstance(outcome.result, ApiError):
        json.dumps(outcome.result.body("req"))
    elif isinstance(outcome.result, Reply):
        json.dumps(message(outcome.result.answer))
        list(events(outcome.result.answer, 3))
    return True


@pytest.mark.parametrize("beta", ["", "something-2027-01-01"])
@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PLACES), junk=JUNK, version=st.sampled_from(["2026-10-21", "2023-06-01"]))
def test_no_request_can_break_the_model(beta: str, path: tuple[Any, ...], junk: Any, version: str) -> None:
    """A right request with anything in the place of anything gets an answer or an error of the API."""
    playback = Playback(load_script({"default": {"steps": [{"say": [{"text": "a"}]}], "repeat": True}}))
    body = json.dumps(replaced(REQUEST, path, junk)).encode()
    headers = {"anthropic-version": version, "anthropic-beta": beta}
    assert answered(playback.create(headers, body, 0))
    assert isinstance(playback.count(headers, body), int | ApiError)


def test_the_request_of_this_test_is_right() -> None:
    """The request that is damaged above is a right one, so every rule is within reach."""
    playback = Playback(load_script("turns: [{say: [{text: a}]}]"))
    outcome = playback.create({"anthropic-version": "2023-06-01"}, json.dumps(REQUEST).encode(), 0)
    assert isinstance(outcome.result, Reply)


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(places(SCRIPT)), junk=JUNK)
def test_a_script_is_right_or_told_what_is_wrong(path: tuple[Any, ...], junk: Any) -> None:
    """A script with anything in the place of anything is played or refused with a ScriptError."""
    try:
        script = load_script({"script": junk} if not path else replaced(SCRIPT, path, junk))
    except ScriptError as error:
        assert error.problems
        return
    body = {name: value for name, value in REQUEST.items() if name != "thinking"}
    outcome = Playback(script).create({"anthropic-version": "2023-06-01"}, json.dumps(body).encode(), 0)
    assert answered(outcome)
