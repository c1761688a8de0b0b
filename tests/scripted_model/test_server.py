"""The server from the outside, through the real SDK's asynchronous client."""

from __future__ import annotations

import asyncio
from typing import Any, get_args, get_type_hints

import anthropic
import pytest
from anthropic.types import ContentBlockParam, Model, StopReason, ToolUnionParam
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming, MessageCreateParamsStreaming

from handmesh.scripted_model import ScriptedModel
from handmesh.scripted_model.content import IMAGE_TYPES, SERVER_RESULTS
from handmesh.scripted_model.models import MODELS
from handmesh.scripted_model.script_shape import STOP_REASONS
from handmesh.scripted_model.tools import TYPED_TOOLS
from handmesh.scripted_model.validation import check_message_request

HEADERS = {"anthropic-version": "2026-10-21"}
THINK_AND_CALL = """
conversations:
  - when: {user: list the files}
    steps:
      - say:
          - thinking: They want a listing.
          - text: I'll look.
          - tool_use: {tool: bash, input: {command: ls -la}}
        chunk: 4
      - say: [{text: "Those are the files:\\n{last_tool_result}"}]
  - when: {user: thanks}
    steps: [{say: [{text: You are welcome.}]}]
"""


async def test_a_tool_loop_runs_to_its_end_with_the_sdk(serving: Any, request_of: Any, bash: Any) -> None:
    """Streamed blocks go back byte for byte, thinking included, and the conversation goes on over several questions."""
    async with serving(THINK_AND_CALL) as (model, client):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Please list the files."}]
        ask = request_of(messages=messages, tools=[bash])
        async with client.messages.stream(**ask) as stream:
            first = await stream.get_final_message()
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        call = first.content[2]
        assert (call.name, call.input, first.stop_reason) == ("bash", {"command": "ls -la"}, "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "a.txt"}
        messages += [
            {"role": "assistant", "content": [block.to_dict() for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        second = await client.messages.create(**ask)
        assert (second.content[0].text, second.stop_reason) == ("Those are the files:\na.txt", "end_turn")
        messages += [second.to_param(), {"role": "user", "content": "thanks"}]
        third = await client.messages.create(**ask)
        assert third.content[0].text == "You are welcome."
        assert [(request.status, request.turn) for request in model.requests] == [
            (200, "conversations[0].steps[0]"),
            (200, "conversations[0].steps[1]"),
            (200, "conversations[1].steps[0]"),
        ]


async def test_raw_events_and_the_whole_message_say_the_same(serving: Any, request_of: Any, bash: Any) -> None:
    """`stream=True` yields the API's events, which add up to what a request without `stream` gets."""
    async with serving(THINK_AND_CALL) as (_, client):
        ask = request_of(messages=[{"role": "user", "content": "list the files"}], tools=[bash])
        events = [event async for event in await client.messages.create(**ask, stream=True)]
        whole = await client.messages.create(**ask)
        text = ""
        for event in events:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                text += event.delta.text
        assert text == whole.content[1].text
        assert events[0].message.id == whole.id
        assert events[-2].delta.stop_reason == whole.stop_reason
        assert events[-2].usage.output_tokens == whole.usage.output_tokens
        assert [event.type for event in events if event.type != "content_block_delta"] == [
            "message_start",
            *["content_block_start", "content_block_stop"] * 3,
            "message_delta",
            "message_stop",
        ]


async def test_a_killed_server_is_replaced_by_one_that_goes_on(serving: Any, request_of: Any, bash: Any) -> None:
    """A second server continues a conversation begun with the first: same ids, and the first's signatures hold."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "list the files"}]
    ask = request_of(messages=messages, tools=[bash])
    answers = []
    for _ in range(2):
        async with serving(THINK_AND_CALL) as (_, client):
            answers.append(await client.messages.create(**ask))
    assert answers[0].to_dict() == answers[1].to_dict()
    call = answers[0].content[2]
    messages += [
        answers[0].to_param(),
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "x"}]},
    ]
    async with serving(THINK_AND_CALL) as (_, client):
        assert (await client.messages.create(**ask)).content[0].text == "Those are the files:\nx"


async def test_a_wrong_request_is_the_sdk_s_bad_request(serving: Any, request_of: Any) -> None:
    """The SDK raises its own error with the API's sentence, and the request is recorded with it, without the key."""
    async with serving(None) as (model, client):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**request_of(messages=[{"role": "user", "content": ""}]))
        sentence = "messages.0: user messages must have non-empty content"
        assert caught.value.body["error"] == {"type": "invalid_request_error", "message": sentence}
        assert caught.value.body["request_id"] == caught.value.request_id
        recorded = model.requests[-1]
        assert (recorded.status, recorded.error, recorded.turn) == (400, sentence, None)
        assert "any key" not in repr(recorded)
        assert "authorization" not in recorded.headers


async def test_a_hole_in_the_script_is_a_bad_request(serving: Any, request_of: Any) -> None:
    """What the script has no answer to is refused with a sentence that says so; clients do not retry it."""
    async with serving(THINK_AND_CALL) as (_, client):
        with pytest.raises(
            anthropic.BadRequestError, match='scripted model: no conversation fits the user text "hello"'
        ):
            await client.messages.create(**request_of())


async def test_keys_are_told_apart(serving: Any, request_of: Any) -> None:
    """With a key of its own the server refuses others with 401."""
    async with serving(None, api_key="right") as (model, client):
        assert (await client.messages.create(**request_of())).stop_reason == "end_turn"
        other = client.with_options(api_key="wrong")
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(**request_of())
        with pytest.raises(anthropic.AuthenticationError):
            await other.models.list()
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x"}])
        assert model.requests[-1].status == 401


async def test_tokens_are_counted(serving: Any) -> None:
    """count_tokens says as many tokens as the same prompt costs, and refuses what the API refuses."""
    async with serving(None) as (_, client):
        prompt = {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "hello" * 100}]}
        counted = await client.messages.count_tokens(**prompt)
        said = await client.messages.create(**prompt, max_tokens=9)
        assert counted.input_tokens == said.usage.input_tokens
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(model="m", messages=[])


async def test_models_are_listed(serving: Any) -> None:
    """The list has every model that the SDK names; one can be asked for; an unknown one is a 404."""
    async with serving(None) as (_, client):
        names = [model.id async for model in await client.models.list()]
        assert names == [*MODELS]
        assert (await client.models.retrieve(names[0])).id == names[0]
        with pytest.raises(anthropic.NotFoundError, match="model: nobody"):
            await client.models.retrieve("nobody")


async def test_the_cache_is_told_in_usage(serving: Any, request_of: Any) -> None:
    """A prefix behind a marker is written by the first request and read by the second."""
    async with serving(None, min_cached_tokens=10) as (_, client):
        system = [{"type": "text", "text": "x" * 400, "cache_control": {"type": "ephemeral"}}]
        usages = [(await client.messages.create(**request_of(system=system))).usage for _ in range(2)]
        assert [(usage.cache_creation_input_tokens, usage.cache_read_input_tokens) for usage in usages] == [
            (103, 0),
            (0, 103),
        ]


async def test_many_conversations_run_at_once(serving: Any, request_of: Any) -> None:
    """Requests are answered side by side: no state belongs to a conversation."""
    async with serving("turns: [{say: [{text: '{last_user_text}'}], chunk: 1, chunk_delay_ms: 1}]") as (_, client):

        async def ask(text: str) -> str:
            async with client.messages.stream(**request_of(messages=[{"role": "user", "content": text}])) as stream:
                return await stream.get_final_text()

        texts = [f"question {number}" for number in range(50)]
        assert await asyncio.gather(*map(ask, texts)) == texts


async def test_every_stop_reason_reaches_the_sdk(serving: Any, request_of: Any) -> None:
    """The SDK sees each stop reason that a script names."""
    for reason in get_args(StopReason):
        async with (
            serving(f"turns: [{{say: [{{text: a}}], stop_reason: {reason}}}]") as (_, client),
            client.messages.stream(**request_of()) as stream,
        ):
            assert (await stream.get_final_message()).stop_reason == reason


async def test_a_paused_turn_goes_on(serving: Any, request_of: Any) -> None:
    """A pause_turn reply is sent back as it is, as the last message, and the next step is played."""
    script = """
    default:
      steps:
        - say:
            - text: Searching.
            - block: {type: server_tool_use, id: "srvtoolu_{unique_id}", name: web_search, input: {query: x}}
          stop_reason: pause_turn
        - say: [{text: Found it.}]
    """
    async with serving(script) as (_, client):
        ask = request_of()
        paused = await client.messages.create(**ask)
        ask["messages"].append({"role": "assistant", "content": [block.to_dict() for block in paused.content]})
        assert (await client.messages.create(**ask)).content[0].text == "Found it."


async def test_a_server_is_used_once_it_runs() -> None:
    """The address is known only while the server runs."""
    with pytest.raises(RuntimeError, match="not running"):
        _ = ScriptedModel().base_url
    async with ScriptedModel() as model:
        assert model.base_url.startswith("http://127.0.0.1:")


def literals(part: Any) -> set[str]:
    """Returns the values that the `type` field of one of the SDK's TypedDicts may have."""
    hint = get_type_hints(part)["type"]
    return {value for option in (hint, *get_args(hint)) for value in get_args(option) if isinstance(value, str)}


def test_what_the_sdk_knows_is_known_here() -> None:
    """Models, stop reasons, block types, tool types and request fields are those of the installed SDK, none less."""
    models = {name for part in get_args(Model) for name in get_args(part)}
    assert models == set(MODELS)
    assert set(get_args(StopReason)) == set(STOP_REASONS)
    kinds = {kind for part in get_args(ToolUnionParam) for kind in literals(part)}
    assert kinds == {"custom", *TYPED_TOOLS}
    blocks = {kind for part in get_args(ContentBlockParam) for kind in literals(part)}
    assert {block for block in blocks if block.endswith("_tool_result")} == set(SERVER_RESULTS)
    for block in blocks:
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": block}]}]}
        error = check_message_request(body, HEADERS)
        assert error is not None and "expected tags" not in error.message
    fields = set(MessageCreateParamsNonStreaming.__annotations__) | set(MessageCreateParamsStreaming.__annotations__)
    headers = {"user_profile_id", "workspace_id"}  # parameters of the SDK that it sends as headers
    for field in fields - headers:
        body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], field: object()}
        error = check_message_request(body, HEADERS)
        assert error is not None and "Extra inputs" not in error.message, field
    assert len(IMAGE_TYPES) == 4
