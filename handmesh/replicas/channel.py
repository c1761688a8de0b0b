"""A channel to all replicas of a service: what the generated stubs take, as they take grpc's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from handmesh.replicas.calls import Call, Method, RequestsCall, StreamCall, UnaryCall, away
from handmesh.replicas.members import Members, Open, is_name

NAMELESS_SECONDS = 0.2  # between two looks at names that stand for nothing
_BEST = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.CONNECTING,
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
)


def split(addresses: str) -> list[str]:
    """Returns the single addresses of a list with commas."""
    return [address.strip() for address in addresses.split(",") if address.strip()]


def is_single(addresses: str) -> bool:
    """Says whether addresses are one replica and nothing else: then grpc's own channel does."""
    return "," not in addresses and not is_name(addresses)


class Replicas(grpc.aio.Channel):
    """Pins each call to a replica by what it is about, and goes on with the next when that one does not answer.

    `addresses` is `host:port`, or several with commas. Methods in `once`, pairs of service and method, are never made
    again after they may have begun. `pinned` False chooses by chance.
    """

    def __init__(
        self, addresses: str, open_: Open, once: Sequence[tuple[str, str]] = (), *, pinned: bool = True
    ) -> None:
        self._members = Members(split(addresses), open_, pinned=pinned)
        self._once = frozenset(f"/{service}/{method}" for service, method in once)

    async def __aenter__(self) -> Replicas:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Ends what is still running, after the grace in seconds, and closes."""
        await self._members.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns how the best of the connections is."""
        states = [member.channel.get_state(try_to_connect) for member in self._members.all]
        return min(states, key=_BEST.index, default=grpc.ChannelConnectivity.IDLE)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the best of the connections is otherwise than it was."""
        while self.get_state() is last_observed_state:
            if not self._members.all:
                await asyncio.sleep(NAMELESS_SECONDS)
                await self._members.found()
                continue
            channels = [member.channel for member in self._members.all]
            waits = [asyncio.create_task(it.wait_for_state_change(it.get_state())) for it in channels]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()

    async def channel_ready(self) -> None:
        """Waits until a replica is connected."""
        await self._members.found()
        while (state := self.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(state)

    def unary_unary(self, method: str, *given: Any, **named: Any) -> Any:
        """Makes a method of one request and one answer."""
        return self._made(UnaryCall, "unary_unary", method, *given, **named)

    def unary_stream(self, method: str, *given: Any, **named: Any) -> Any:
        """Makes a method of one request and many answers."""
        return self._made(StreamCall, "unary_stream", method, *given, **named)

    def stream_unary(self, method: str, *given: Any, **named: Any) -> Any:
        """Makes a method of many requests and one answer."""
        return self._made(RequestsCall, "stream_unary", method, *given, **named)

    def stream_stream(self, method: str, *given: Any, **named: Any) -> Any:
        """Makes a method of many requests and many answers, which goes to any replica that is up."""
        made = self._method("stream_stream", method, False, *given, **named)

        def call(*given: Any, **named: Any) -> Any:
            member = self._members.first("", "")
            if member is None:
                raise away()
            return made.at(member)(*given, **named)

        return call

    def _made(self, kind: type[Call], name: str, path: str, *given: Any, **named: Any) -> Any:
        method = self._method(name, path, kind is RequestsCall or path in self._once, *given, **named)

        def call(
            request: Any,
            *,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool | None = None,
            **_: Any,
        ) -> Call:
            return kind(method, request, timeout, metadata, bool(wait_for_ready))

        return call

    def _method(
        self,
        name: str,
        path: str,
        once: bool,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        _registered_method: bool | None = False,
    ) -> Method:
        arguments = {"request_serializer": request_serializer, "response_deserializer": response_deserializer}
        return Method(self._members, name, path, arguments, once)
