"""The transport that MCP had before streamable HTTP: one stream for all answers, and an endpoint to post to.

Servers from before 2025 have nothing else. The library's own client for it lets a request whose post was refused wait
for ever; this one answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import mcp_types as types
from mcp.shared._context_streams import create_context_streams
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from services.kit.origin import UrlRefused, origin_of
from services.vault_proxy.outbound import BODY_BYTES, BodyRefused, Client

ACCEPTED = range(200, 300)


class NoStream(Exception):
    """The server has no such stream either."""


@asynccontextmanager
async def sse_transport(url: str, http: Client, ended: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """Opens the stream and yields where to read and where to write. Calls `ended` when the server ends the stream.

    Raises NoStream, or UrlRefused when the server names an endpoint of another origin.
    """
    async with http.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer:
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if answer.status_code != 200 or kind != "text/event-stream":
            raise NoStream
        events = _events(answer.aiter_bytes())
        endpoint = await _endpoint(url, events)
        heard, read = create_context_streams[SessionMessage | Exception](0)
        write, said = create_context_streams[SessionMessage](0)

        async def listen() -> None:
            try:
                async for name, data in events:
                    if name == "message" and (message := _message(data)) is not None:
                        await heard.send(SessionMessage(message))
            except BodyRefused:
                pass  # it broke off: the same as its end
            finally:
                heard.close()
                ended()

        async with heard, read, write, said, asyncio.TaskGroup() as tasks:
            both = [tasks.create_task(listen()), tasks.create_task(_post_all(http, endpoint, said, heard, tasks))]
            try:
                yield read, write
            finally:
                for task in both:
                    task.cancel()


async def _post_all(http: Client, endpoint: str, said: Any, heard: Any, tasks: asyncio.TaskGroup) -> None:
    """Posts what is said: requests side by side, notifications in their order."""
    async for each in said:
        message = each.message
        posting = _post(http, endpoint, message, heard)
        task = tasks.create_task(posting, context=said.last_context)  # the caller's: its Exchange is there
        if not isinstance(message, types.JSONRPCRequest):
            await asyncio.wait([task])


async def _post(http: Client, endpoint: str, message: Any, heard: Any) -> None:
    """Posts a message. A request that is not taken gets an error: no answer will come for it."""
    body = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
    try:
        taken = (await http.post(endpoint, json=body)).status_code in ACCEPTED
    except BodyRefused:
        taken = False
    if taken or not isinstance(message, types.JSONRPCRequest):
        return
    lost = types.ErrorData(code=types.CONNECTION_CLOSED, message="not taken")
    await heard.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=message.id, error=lost)))


def _message(data: str) -> Any:
    """Reads a JSON-RPC message; None for what is none."""
    try:
        return types.jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValidationError:
        return None


async def _endpoint(url: str, events: AsyncIterator[tuple[str, str]]) -> str:
    """Returns where to post to: the first event says so."""
    try:
        async for name, data in events:
            if name != "endpoint":
                break
            endpoint = urljoin(url, data)
            if origin_of(endpoint) != origin_of(url):
                raise UrlRefused("the endpoint is of another origin")
            return endpoint
    except BodyRefused:
        pass
    raise NoStream


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, str]]:
    """Yields an event stream's events, name and data. Raises BodyRefused for one of more than BODY_BYTES."""
    rest, name, size = b"", "message", 0
    data: list[str] = []
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        size += len(part)
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if not line:
                if data:
                    yield name, "\n".join(data)
                name, data, size = "message", [], len(rest)
                continue
            key, _, value = line.partition(":")
            if key == "event":
                name = value.removeprefix(" ")
            elif key == "data":
                data.append(value.removeprefix(" "))
        if size > BODY_BYTES:
            raise BodyRefused("an event is too large")
