"""What goes wrong when a script says so, seen through the real SDK's asynchronous client."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2
import pytest

from handmesh.scripted_model import ScriptedModel

HEADERS = {"anthropic-version": "2026-10-21"}


async def test_an_error_is_played_so_often_as_the_script_says(serving: Any, request_of: Any) -> None:
    """A 529 that is scripted twice is overcome by a client that retries twice, after the time the server asks for."""
    script = "turns: [{times: 2, error: {status: 529, retry_after: 0.001}}, {say: [{text: There.}]}]"
    async with serving(script) as (model, client):
        said = await client.with_options(max_retries=2).messages.create(**request_of())
        assert said.content[0].text == "There."
        assert [(request.status, request.error) for request in model.requests] == [
            (529, "Overloaded"),
            (529, "Overloaded"),
            (200, None),
        ]


ERRORS = {
    401: anthropic.AuthenticationError,
    429: anthropic.RateLimitError,
    500: anthropic.InternalServerError,
    529: anthropic.OverloadedError,
}


@pytest.mark.parametrize("status", ERRORS)
async def test_scripted_errors_are_the_sdk_s_errors(serving: Any, request_of: Any, status: int) -> None:
    """Each status that the API answers with can be scripted, and its retry-after is sent."""
    async with serving(f"turns: [{{error: {{status: {status}, retry_after: 7}}}}]") as (_, client):
        with pytest.raises(ERRORS[status]) as caught:
            await client.messages.create(**request_of(), stream=True)
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (status, "7")


async def collect(client: anthropic.AsyncAnthropic, ask: dict[str, Any], seen: list[str]) -> None:
    async for event in await client.messages.create(**ask, stream=True):
        seen.append(event.type)


async def test_a_stream_can_be_cut_after_events(serving: Any, request_of: Any) -> None:
    """The connection is dropped behind the third event (a ping, which the SDK hides), without a proper end."""
    async with serving("turns: [{say: [{text: hello}], chunk: 1, cut_after_events: 4}]") as (_, client):
        seen: list[str] = []
        with pytest.raises((httpx2.RemoteProtocolError, anthropic.APIConnectionError)):
            await collect(client, request_of(), seen)
        assert seen == ["message_start", "content_block_start", "content_block_delta"]


async def test_a_stream_can_be_cut_after_bytes(serving: Any, request_of: Any) -> None:
    """The connection is dropped in the middle of an event; every byte before is there."""
    async with serving("turns: [{say: [{text: hello}], cut_after_bytes: 100}]") as (model, client):
        received = b""
        with pytest.raises(httpx2.RemoteProtocolError):
            async with httpx2.AsyncClient(base_url=model.base_url) as http:
                headers = {**HEADERS, "x-api-key": "k"}
                async with http.stream("POST", "/v1/messages", headers=headers, json=request_of(stream=True)) as reply:
                    async for piece in reply.aiter_raw():
                        received += piece
        assert len(received) == 100
        assert received.startswith(b"event: message_start\n")
        seen: list[str] = []
        with pytest.raises((httpx2.RemoteProtocolError, anthropic.APIConnectionError)):
            await collect(client, request_of(), seen)
        assert seen == []


async def test_a_stream_can_end_in_an_error_frame(serving: Any, request_of: Any) -> None:
    """An `error` event behind the second event is the SDK's error; the connection itself is fine."""
    script = "turns: [{say: [{text: hello}], error_frame: {after_events: 2, type: overloaded_error}}]"
    async with serving(script) as (_, client):
        seen: list[str] = []
        with pytest.raises(anthropic.APIStatusError) as caught:
            await collect(client, request_of(), seen)
        assert seen == ["message_start", "content_block_start"]
        assert caught.value.body == {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


async def test_a_stream_can_fall_silent_until_the_server_ends(request_of: Any) -> None:
    """Behind the scripted events nothing comes; leaving the server's block ends the silence and the connection."""
    async with (
        ScriptedModel("turns: [{say: [{text: hello}], silence_after_events: 2}]") as model,
        anthropic.AsyncAnthropic(base_url=model.base_url, api_key="k", max_retries=0) as client,
    ):
        events = aiter(await client.messages.create(**request_of(), stream=True))
        assert [(await anext(events)).type for _ in range(2)] == ["message_start", "content_block_start"]
        await model.__aexit__(None, None, None)
        with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError, anthropic.APIConnectionError)):
            await anext(events)


@pytest.mark.parametrize(
    "fault", ["cut_after_events: 1", "cut_after_bytes: 50", "silence_after_events: 1", "delay_ms: 600000"]
)
async def test_faults_hit_a_whole_message_too(serving: Any, request_of: Any, fault: str) -> None:
    """Without `stream` a cut, a silence and a long delay are a connection error."""
    async with serving(f"turns: [{{say: [{{text: hello}}], {fault}}}]") as (_, client):
        with pytest.raises(anthropic.APIConnectionError):
            await client.with_options(timeout=httpx2.Timeout(5, read=0.2)).messages.create(**request_of())


async def test_an_error_frame_is_an_http_error_for_a_whole_message(serving: Any, request_of: Any) -> None:
    """Without `stream` there is no place for a frame, so the error is the reply."""
    script = "turns: [{say: [{text: hello}], error_frame: {after_events: 2, type: overloaded_error}}]"
    async with serving(script) as (_, client):
        with pytest.raises(anthropic.OverloadedError):
            await client.messages.create(**request_of())
