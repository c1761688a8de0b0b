"""What several of these tests start from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from handmesh.scripted_model import ScriptedModel

BASH = {
    "name": "bash",
    "description": "Runs a command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@pytest.fixture
def request_of() -> Callable[..., dict[str, Any]]:
    """Makes the body of a right request, with other fields put in or taken out (None)."""

    def make(**fields: Any) -> dict[str, Any]:
        body = {"model": "claude-opus-5-5", "max_tokens": 1024, "messages": [{"role": "user", "content": "hello"}]}
        return {name: value for name, value in {**body, **fields}.items() if value is not None}

    return make


@pytest.fixture
def bash() -> dict[str, Any]:
    """A tool as harnesses offer it."""
    return BASH


Serving = Callable[..., AbstractAsyncContextManager[tuple[ScriptedModel, AsyncAnthropic]]]


@pytest.fixture
def serving() -> Serving:
    """Starts a server for a script, with the real SDK's client at its side; the client does not retry."""

    @asynccontextmanager
    async def serve(script: Any, **options: Any) -> AsyncIterator[tuple[ScriptedModel, AsyncAnthropic]]:
        async with ScriptedModel(script, **options) as model:
            key = options.get("api_key") or "any key"
            async with AsyncAnthropic(base_url=model.base_url, api_key=key, max_retries=0) as client:
                yield model, client

    return serve
