"""What goes into a tool, and what the model is told of what comes out."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from services.kit.errors import Invalid
from services.vault_proxy.core.answer import (
    CONTENT_BYTES,
    INPUT_BYTES,
    OUTPUT_CHARACTERS,
    Answer,
    Outcome,
    cut,
    parse_input,
    read_answer,
)
from services.vault_proxy.core.scrub import NoScrubber

PNG = base64.b64encode(b"\x89PNG" * 10).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def read(**raw: Any) -> Answer:
    return read_answer(raw, NoScrubber())


@pytest.mark.parametrize(
    ("given", "value"), [("", {}), ("{}", {}), ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}})]
)
def test_an_object_is_an_input(given: str, value: dict[str, Any]) -> None:
    """JSON objects are taken; nothing means an empty one."""
    assert parse_input("s__t", given) == value


@pytest.mark.parametrize(
    "given",
    [
        "[]",
        '"x"',
        "1",
        "null",
        "{",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": "\\ud800"}',
        "{} {}",
        '{"a":' * 100_000,
        '{"a": 1' + "0" * 5000 + "}",
        '{"a": "' + "x" * INPUT_BYTES + '"}',
        "\ud800",
    ],
    ids=range(14),
)
def test_anything_else_is_refused(given: str) -> None:
    """No JSON, no object, numbers that JSON has not, text that cannot be sent, or too much."""
    with pytest.raises(Invalid) as refused:
        parse_input("s__t", given)
    assert (refused.value.reason, refused.value.metadata) == ("TOOL_INPUT_INVALID", {"name": "s__t"})


def test_text_is_joined() -> None:
    """Texts are lines; empty ones are nothing; resources show their text or where they are."""
    resource = {"type": "resource", "resource": {"uri": "a://b", "text": "inside"}}
    link = {"type": "resource_link", "name": "doc", "uri": "a://c"}
    assert read(content=[text("one"), text(""), resource, link]) == Answer("one\ninside\n[resource doc: a://c]")


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"content": []},
        {"content": [text("")]},
        {"content": None},
        {"content": ["x", 1]},
        {"content": 7},
        {"content": "abc"},
    ],
)
def test_a_tool_that_says_nothing_said_so(raw: dict[str, Any]) -> None:
    """Never an empty text: the model's API refuses it."""
    assert read(**raw) == Answer("(no output)")


def test_a_failing_tool_is_a_value() -> None:
    """The server's error is the tool's outcome, with its text."""
    assert read(isError=True, content=[text("no")]) == Answer("no", Outcome.TOOL_ERROR)
    assert read(isError="yes", content=[text("no")]).outcome is Outcome.OK


def test_an_image_is_a_block() -> None:
    """Images become blocks of the Messages API, in their place among the texts."""
    answer = read(content=[text("before"), {"type": "image", "data": PNG, "mimeType": "IMAGE/PNG"}, text("after")])
    assert answer.output == "before\nafter"
    assert json.loads(answer.content_json) == [text("before"), IMAGE, text("after")]


def test_a_document_is_a_block() -> None:
    """A PDF among the resources is a document."""
    answer = read(content=[{"type": "resource", "resource": {"blob": PNG, "mimeType": "application/pdf"}}])
    source = {"type": "base64", "media_type": "application/pdf", "data": PNG}
    assert json.loads(answer.content_json) == [{"type": "document", "source": source}]
    assert answer.output == "(no output)"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "audio", "data": PNG, "mimeType": "audio/wav"},
        {"type": "image", "data": PNG, "mimeType": "image/svg+xml"},
        {"type": "image", "data": "no base64!", "mimeType": "image/png"},
        {"type": "image", "data": "äöü", "mimeType": "image/png"},
        {"type": "image", "data": "", "mimeType": "image/png"},
        {"type": "resource", "resource": {"blob": PNG, "mimeType": "application/zip"}},
        {"type": "hologram"},
        {},
    ],
)
def test_what_the_model_cannot_take_is_told_as_text(block: dict[str, Any]) -> None:
    """One such block must not make every later request fail."""
    answer = read(content=[block, text("rest")])
    assert "left out" in answer.output
    assert answer.output.endswith("\nrest")
    assert answer.content_json == ""


def test_structured_content_is_said_once() -> None:
    """As JSON when no text says it already, and not again when one does."""
    alone = read(structuredContent={"a": 1})
    assert alone.output == '{"a": 1}'
    assert json.loads(alone.content_json) == [text('{"a": 1}')]
    both = read(content=[text("said")], structuredContent={"a": "ü"})
    assert json.loads(both.content_json) == [text("said"), text('{"a": "ü"}')]
    assert read(content=[text('{ "a":1 }')], structuredContent={"a": 1}) == Answer('{ "a":1 }')
    assert read(content=[text("x")], structuredContent={"result": "x"}) == Answer("x")


def test_a_long_output_keeps_head_and_tail() -> None:
    """The middle is cut out, and marked, in the text and in the blocks."""
    long = "a" * OUTPUT_CHARACTERS + "b" * OUTPUT_CHARACTERS
    answer = read(content=[text(long), {"type": "image", "data": PNG, "mimeType": "image/png"}])
    assert answer.truncated
    assert answer.output.startswith("aaa")
    assert answer.output.endswith("bbb")
    assert f"\n[... {OUTPUT_CHARACTERS} characters cut out ...]\n" in answer.output
    assert json.loads(answer.content_json) == [text(answer.output), IMAGE]
    assert cut("x" * OUTPUT_CHARACTERS) == ("x" * OUTPUT_CHARACTERS, False)


def test_images_that_do_not_fit_are_said() -> None:
    """What goes past the limit is left out with a word, the rest stays."""
    large = base64.b64encode(bytes(CONTENT_BYTES)).decode()
    images = [{"type": "image", "data": data, "mimeType": "image/png"} for data in (PNG, large, PNG)]
    blocks = json.loads(read(content=images).content_json)
    assert [block["type"] for block in blocks] == ["image", "text", "image"]
    assert "do not fit" in blocks[1]["text"]
