"""Model over the `anthropic` package: one client for the process, made at the first question.

The package is imported late: it costs more than the rest of the harness together. Retries are ours, not its own, so
that they are seen in the log. It keeps the connections, the key and the headers; the request's bytes are the ones
whose hash the log has, and the stream's are read by `sse` and `answer`.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handmesh.session.v1.event_pb2 import TokenUsage
from services.harness.adapters.sse import Events, Oversized
from services.harness.answer import Answering, Malformed
from services.harness.ports import Answer, ModelFailure
from services.kit import failpoints
from services.kit.serving import read_secret

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic, AsyncStream
    from httpx2 import Response

SILENCE_SECONDS = 90.0  # between two chunks of a stream; the API sends a ping every few seconds
CONNECT_SECONDS = 10.0
MESSAGE_CHARACTERS = 300  # of what the API says about a request that it refuses
KEPT_CONNECTIONS = 100  # that wait for the next question
KEPT_SECONDS = 60.0
END_SECONDS = 1.0  # that a stream has to end after its answer

_RETRYABLE = {
    "rate_limit_error": "MODEL_RATE_LIMITED",
    "overloaded_error": "MODEL_OVERLOADED",
    "api_error": "MODEL_UNAVAILABLE",
    "timeout_error": "MODEL_UNAVAILABLE",
}
_FINAL = {"authentication_error": "MODEL_KEY_REFUSED", "permission_error": "MODEL_KEY_REFUSED"}
_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    409: "api_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicModel:
    """The Messages API (see `Model`). `key_file` holds the API key; `base_url` is set for another endpoint."""

    def __init__(
        self, key_file: Path | None, base_url: str | None, now: Callable[[], float], silence: float = SILENCE_SECONDS
    ) -> None:
        self._key_file = key_file
        self._base_url = base_url
        self._now = now
        self._silence = silence
        self._client: AsyncAnthropic | None = None
        self._newest = ""
        self._leaving: set[asyncio.Task[None]] = set()
        self._making = asyncio.Lock()  # so that there is one client, however many ask at first

    async def newest(self) -> str:
        """Names the first model of the installed package's list, which is the newest. Loads the package."""
        if not self._newest:
            self._newest = await asyncio.to_thread(_newest)
        return self._newest

    async def ask(self, body: bytes, show: Callable[[int, str, str], None], betas: Sequence[str] = ()) -> Answer:
        """Sends a request and streams the answer (see `Model.ask`)."""
        client = await self._connected()
        import anthropic
        import httpx2

        answering = Answering(show)
        try:
            async with asyncio.timeout(CONNECT_SECONDS + self._silence):
                stream: AsyncStream[Any] = await client.post(
                    "/v1/messages",
                    content=body,
                    cast_to=object,
                    stream=True,
                    stream_cls=anthropic.AsyncStream[Any],
                    options={"headers": {"anthropic-beta": ",".join(betas)}} if betas else {},
                )
            chunks = aiter(stream.response.aiter_bytes())
            try:
                failpoints.hit("harness.model_asked", _broken)
                await self._read(chunks, answering)
            except BaseException:
                await stream.response.aclose()
                raise
            self._leave(stream.response, chunks)
        except (Malformed, Oversized):
            raise ModelFailure("MODEL_STREAM_BROKEN", "the model's answer cannot be read", retryable=True) from None
        except (TimeoutError, anthropic.APITimeoutError, httpx2.TimeoutException):
            said = f"the model said nothing for {self._silence:.0f} s"
            raise ModelFailure("MODEL_SILENT", said, retryable=True) from None
        except anthropic.APIStatusError as error:
            raise self._refusal(error) from None
        except anthropic.APIConnectionError:
            said = "the model's API cannot be reached"
            raise ModelFailure("MODEL_UNAVAILABLE", said, retryable=True, http_status=0) from None
        except httpx2.HTTPError:
            raise _broken() from None
        failpoints.hit("harness.model_answered", _broken)
        return Answer(
            answering.content(),
            answering.stop_reason or "end_turn",
            TokenUsage(**answering.usage),
            answering.message_id,
            answering.model,
            answering.stop_sequence,
            answering.stop_details,
            answering.edits,
        )

    async def _read(self, chunks: AsyncIterator[bytes], answering: Answering) -> None:
        """Reads a stream until the answer is whole. Raises ModelFailure when it ends before, or is an error."""
        events = Events()
        while not answering.whole:
            async with asyncio.timeout(self._silence):
                chunk = await anext(chunks, None)
            if chunk is None:
                raise _broken()
            for data in events.take(chunk):
                answering.take(data)
                failpoints.hit("harness.model_streaming", _broken)
                if answering.failure is not None:
                    raise _failure(200, *answering.failure, None)

    def _leave(self, response: Response, chunks: AsyncIterator[bytes]) -> None:
        """Reads a stream whose answer is whole to its end, so that its connection serves the next question."""
        task = asyncio.create_task(_to_its_end(response, chunks), name="end of an answer")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Closes the connections."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> AsyncAnthropic:
        async with self._making:
            if self._client is None:
                self._client = await self._make()
        return self._client

    async def _make(self) -> AsyncAnthropic:
        key = read_secret(self._key_file) if self._key_file and self._key_file.exists() else ""
        if not key:
            raise ModelFailure(
                "MODEL_KEY_MISSING",
                "this harness has no key for the model's API: set ANTHROPIC_API_KEY for `handmesh up`, or "
                "HANDMESH_MODEL_KEY_FILE for the harness",
                retryable=False,
            )
        return await asyncio.to_thread(_made, key, self._base_url, self._silence)

    def _refusal(self, error: APIStatusError) -> ModelFailure:
        body = error.body if isinstance(error.body, dict) else {}
        told = body.get("error") if isinstance(body.get("error"), dict) else {}
        status = error.status_code
        kind = (told or {}).get("type") or _BY_STATUS.get(status) or ("api_error" if status >= 500 else "unknown")
        wait = retry_after(error.response.headers, self._now())
        return _failure(status, str(kind), str((told or {}).get("message", "")), wait)


def retry_after(headers: typing.Mapping[str, str], now: float) -> float | None:
    """Reads how many seconds an answer asks to wait: a number, or a date that is compared with `now` (Unix time)."""
    from email.utils import parsedate_to_datetime

    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        if said.replace(".", "", 1).isascii() and said.replace(".", "", 1).isdigit():
            return float(said) * unit
        if said:
            try:
                return max(0.0, parsedate_to_datetime(said).timestamp() - now)
            except (ValueError, OverflowError):
                continue
    return None


async def _to_its_end(response: Response, chunks: AsyncIterator[bytes]) -> None:
    import httpx2

    try:
        async with asyncio.timeout(END_SECONDS):
            async for _ in chunks:
                continue
    except (TimeoutError, httpx2.HTTPError):
        pass  # the answer is there; the connection is not used again
    finally:
        await response.aclose()


def _broken() -> ModelFailure:
    return ModelFailure("MODEL_STREAM_BROKEN", "the model's answer broke off", retryable=True)


def _newest() -> str:
    from anthropic.types.model_param import ModelParam

    names = typing.get_args(typing.get_args(ModelParam)[0])
    return str(names[0])


def _made(key: str, base_url: str | None, silence: float) -> AsyncAnthropic:
    import anthropic
    import httpx2

    wait = httpx2.Timeout(silence, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=KEPT_CONNECTIONS, keepalive_expiry=KEPT_SECONDS
    )
    http = anthropic.DefaultAsyncHttpxClient(timeout=wait, limits=limits)
    return anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0, timeout=wait, http_client=http)


def _failure(status: int, kind: str, said: str, wait: float | None) -> ModelFailure:
    """Says what an error of the API means. Its kind counts, since an error within a stream has the status 200."""
    if kind in _RETRYABLE:
        return ModelFailure(_RETRYABLE[kind], f"the model's API answered {status} {kind}", True, wait, status)
    if kind in _FINAL:
        return ModelFailure(_FINAL[kind], f"the model's API refuses the key ({status} {kind})", False, None, status)
    said = said[:MESSAGE_CHARACTERS]
    if kind == "request_too_large" or "prompt is too long" in said:
        return ModelFailure("CONTEXT_FULL", said or "the request is too big", False, None, status)
    refused = f"the model's API answered {status} {kind}: {said}"
    return ModelFailure("MODEL_REQUEST_REFUSED", refused, False, None, status)
