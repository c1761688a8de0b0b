"""A channel whose certificate is renewed: calls that begin after its files have changed go over a new connection.

Calls that run stay on the connection that they began on, however long; it is closed when the last of them has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from services.kit.certificates import Certificate
from services.kit.watched import Watched


class RenewedChannel(grpc.aio.Channel):
    """Stands for the channel that `open` makes with the certificate of the moment."""

    def __init__(self, files: Watched[Certificate], open: Callable[[Certificate], grpc.aio.Channel]) -> None:
        self._files = files
        self._open = open
        self._shown = files.get()
        self._channel = open(self._shown)
        self.generation = 0

    def current(self) -> grpc.aio.Channel:
        """Returns the channel for calls that begin now."""
        shown = self._files.get()
        if shown is not self._shown:
            # The one before is not closed here, which would cut its calls: each of them holds it.
            self._shown, self._channel = shown, self._open(shown)
            self.generation += 1
        return self._channel

    def unary_unary(self, *form: Any, **more: Any) -> Any:
        return _Method(self, "unary_unary", form, more)

    def unary_stream(self, *form: Any, **more: Any) -> Any:
        return _Method(self, "unary_stream", form, more)

    def stream_unary(self, *form: Any, **more: Any) -> Any:
        return _Method(self, "stream_unary", form, more)

    def stream_stream(self, *form: Any, **more: Any) -> Any:
        return _Method(self, "stream_stream", form, more)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.current().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Method:
    """One method: what a stub calls. Made anew, lazily, for each channel."""

    __slots__ = ("_call", "_channel", "_form", "_generation", "_kind", "_more")

    def __init__(self, channel: RenewedChannel, kind: str, form: tuple[Any, ...], more: dict[str, Any]) -> None:
        self._channel = channel
        self._kind = kind
        self._form = form
        self._more = more
        self._generation = -1
        self._call: Any = None

    def __call__(self, *request: Any, **options: Any) -> Any:
        channel = self._channel.current()
        if self._generation != self._channel.generation:
            self._call = getattr(channel, self._kind)(*self._form, **self._more)
            self._generation = self._channel.generation
        call = self._call(*request, **options)
        call.channel_held = channel  # grpc closes a channel that nobody holds, with the calls on it
        return call
