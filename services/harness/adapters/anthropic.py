"""Model over the `anthropic` package: one client for the process, made at the first question.

The package is imported late: it costs more than the rest of the harness together. Retries are ours, not its own, so
that they are seen in the log.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.answer import Answering
from services.harness.ports import Answer, ModelFailure
from services.kit import failpoints
from services.kit.serving import read_secret

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic

SILENCE_SECONDS = 90.0  # between two events of a stream; the API sends a ping every few seconds
CONNECT_SECONDS = 10.0
MESSAGE_CHARACTERS = 300  # of what the API says about a request that it refuses

_RETRYABLE = {
    "rate_limit_error": "MODEL_RATE_LIMITED",
    "overloaded_error": "MODEL_OVERLOADED",
    "api_error": "MODEL_UNAVAILABLE",
    "timeout_error": "MODEL_UNAVAILABLE",
}
_FINAL = {"authentication_error": "MODEL_KEY_REFUSED", "permission_error": "MODEL_KEY_REFUSED"}
_BY_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error", 529: "overloaded_error"}


class AnthropicModel:
    """The Messages API (see `Model`). `key_file` holds the API key; `base_url` is set for another endpoint."""

    def __init__(self, key_file: Path | None, base_url: str | None) -> None:
        self._key_file = key_file
        self._base_url = base_url
        self._client: AsyncAnthropic | None = None

    async def newest(self) -> str:
        """Names the first model of the installed package's list, which is the newest. Loads the package."""
        return await asyncio.to_thread(_newest)

    async def ask(self, request: Mapping[str, Any], show: Callable[[int, str, str], None]) -> Answer:
        """Sends a request and streams the answer (see `Model.ask`)."""
        client = await self._connected()
        import anthropic
        import httpx2

        answering = Answering(show)
        try:
            stream = await client.messages.create(**request, stream=True)
            async with stream:
                failpoints.hit("harness.model_asked", _broken)
                events = aiter(stream)
                while not answering.whole:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        event = await anext(events)
                    answering.take(event.to_dict())
                    failpoints.hit("harness.model_streaming", _broken)
        except StopAsyncIteration:
            raise ModelFailure("MODEL_STREAM_BROKEN", "the model's answer broke off", retryable=True) from None
        except TimeoutError:
            raise ModelFailure("MODEL_SILENT", f"nothing came for {SILENCE_SECONDS:.0f} s", retryable=True) from None
        except anthropic.APIStatusError as error:
            raise _failure(error) from None
        except anthropic.APIConnectionError:
            raise ModelFailure("MODEL_UNAVAILABLE", "the model's API cannot be reached", retryable=True) from None
        except httpx2.HTTPError:
            raise ModelFailure("MODEL_STREAM_BROKEN", "the model's answer broke off", retryable=True) from None
        failpoints.hit("harness.model_answered", _broken)
        return Answer(
            answering.content(),
            answering.stop_reason or "end_turn",
            TokenUsage(**answering.usage),
            answering.message_id,
            answering.model,
        )

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> AsyncAnthropic:
        if self._client is None:
            key = read_secret(self._key_file) if self._key_file and self._key_file.exists() else ""
            if not key:
                raise ModelFailure(
                    "MODEL_KEY_MISSING",
                    "this harness has no key for the model's API: set ANTHROPIC_API_KEY for `handmesh up`, or "
                    "HANDMESH_MODEL_KEY_FILE for the harness",
                    retryable=False,
                )
            self._client = await asyncio.to_thread(_made, key, self._base_url)
        return self._client


def _broken() -> ModelFailure:
    return ModelFailure("MODEL_STREAM_BROKEN", "the model's answer broke off", retryable=True)


def _newest() -> str:
    from anthropic.types.model_param import ModelParam

    names = typing.get_args(typing.get_args(ModelParam)[0])
    return str(names[0])


def _made(key: str, base_url: str | None) -> AsyncAnthropic:
    import anthropic
    import httpx2

    limits = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    return anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=limits)


def _failure(error: APIStatusError) -> ModelFailure:
    """Says what an error of the API means. Its kind counts, since an error within a stream has the status 200."""
    body = error.body if isinstance(error.body, dict) else {}
    told = body.get("error") if isinstance(body.get("error"), dict) else {}
    status = error.status_code
    kind = (told or {}).get("type") or _BY_STATUS.get(status) or ("api_error" if status >= 500 else "unknown")
    if kind in _RETRYABLE:
        wait = error.response.headers.get("retry-after", "")
        seconds = float(wait) if wait.replace(".", "", 1).isdigit() else None
        return ModelFailure(_RETRYABLE[kind], f"the model's API answered {status} {kind}", True, seconds)
    if kind in _FINAL:
        return ModelFailure(_FINAL[kind], f"the model's API refuses the key ({status} {kind})", retryable=False)
    said = str((told or {}).get("message", ""))[:MESSAGE_CHARACTERS]
    if "prompt is too long" in said:
        return ModelFailure("CONTEXT_FULL", said, retryable=False)
    return ModelFailure("MODEL_REQUEST_REFUSED", f"the model's API answered {status} {kind}: {said}", retryable=False)
