"""What a script can see of a request."""

from __future__ import annotations

from typing import Any

import pytest

from handmesh.scripted_model.view import ToolResult, view

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("laptop__read", "laptop__bash", "box__bash")]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def call(identity: str, name: str = "laptop__bash") -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": {}}


def result(identity: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def request(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 100, "messages": [*messages], "tools": TOOLS, **fields}


FIRST = [user("Please LIST the files")]
SECOND = [*FIRST, assistant(call("a")), user(result("a", "x.txt"))]


LATEST_USER_TEXT = {
    "a message that is only results is no user text": (SECOND, "Please LIST the files", 1),
    "text behind results is one": (
        [*SECOND[:2], user(result("a", "x"), {"type": "text", "text": "hurry"})],
        "hurry",
        0,
    ),
    "consecutive messages are one turn": ([user("one"), user("two")], "one\ntwo", 0),
    "a system message is none": ([user("one"), {"role": "system", "content": "two"}], "one", 0),
    "a reminder is none": (
        [*SECOND[:2], user(result("a", "x"), {"type": "text", "text": "<system-reminder>"})],
        "Please LIST the files",
        1,
    ),
    "replies are counted one by one": ([user("one"), assistant("a"), assistant("b")], "one", 2),
    "an image alone is no text": (
        [user({"type": "image", "source": {"type": "url", "url": "u"}})],
        "",
        0,
    ),
}


@pytest.mark.parametrize("case", LATEST_USER_TEXT)
def test_the_latest_user_text_is_what_somebody_typed(case: str) -> None:
    """Results, system messages and reminders are not user text; consecutive messages are one turn."""
    messages, text, step = LATEST_USER_TEXT[case]
    seen = view(request(*messages))
    assert (seen.user_text, seen.step) == (text, step)


def test_results_are_those_since_the_last_reply() -> None:
    """A tool result has its tool's name and its text; older results are forgotten."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = request(
        *SECOND,
        assistant(call("b"), call("c", "laptop__read")),
        user(result("b", parts), result("c", "no", is_error=True)),
    )
    assert view(body).results == (ToolResult("laptop__bash", "a\nb", False), ToolResult("laptop__read", "no", True))
