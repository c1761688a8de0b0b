"""The replicas that addresses stand for, with a channel to each.

An address with a number, or with a name that stands for one number, is one replica. A name that stands for several, as
that of a compose service does, is a replica for each; it is looked up again now and then, when there are calls.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from handmesh.replicas.ranking import ranked, sign

LOOK_UP_SECONDS = 5.0  # for which what names stand for is believed
LEAVE_SECONDS = 60.0  # that calls to a replica have which its name does not stand for any more
CONNECT_SECONDS = 1.5  # that a replica has to be reached, by a call that may be made only once

Open = Callable[[str, str], grpc.aio.Channel]
"""Opens a channel: (target, the name that its certificate shows, or "" for the target's)."""

_UP = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE)
_DOWN = grpc.ChannelConnectivity.TRANSIENT_FAILURE


@dataclass(eq=False)
class Member:
    """One replica. `methods` are what was made of its channel, by method."""

    name: str
    channel: grpc.aio.Channel
    sign: str = ""
    methods: dict[str, Any] = field(default_factory=dict)

    def state(self) -> grpc.ChannelConnectivity:
        """Says how its connection is, and has it made if there is none."""
        return self.channel.get_state(try_to_connect=True)


class Members:
    """The replicas of a service. Connects to none before the first call."""

    def __init__(self, addresses: Sequence[str], open_: Open, *, pinned: bool = True) -> None:
        """`pinned` False chooses by chance: any replica is right, and the drills show it."""
        self._open = open_
        self._pinned = pinned
        self._by_address: dict[str, list[Member]] = {
            address: [self._member(address, address, "")] for address in addresses if not is_name(address)
        }
        self._addresses = tuple(addresses)
        self._names = [address for address in addresses if is_name(address)]
        self._looked_up = -LOOK_UP_SECONDS
        self._looking: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.all: list[Member] = []
        self._gather()

    @property
    def known(self) -> bool:
        """Whether there is a replica to call without looking up names first."""
        if self._names and self.all and time.monotonic() - self._looked_up >= LOOK_UP_SECONDS:
            self._start_looking()
        return bool(self.all)

    async def found(self) -> None:
        """Waits until names were looked up, unless replicas are known. There may be none."""
        if not self.known:
            await asyncio.shield(self._start_looking())

    def first(self, sandbox_id: str, pin: str, tried: Container[Member] = ()) -> Member | None:
        """Returns the replica to ask: of those that were not tried the first that is up, or else the first one."""
        if not self.all:
            return None
        best = None
        for at in self._order(sandbox_id, pin):
            member = self.all[at]
            if member in tried:
                continue
            state = member.state()
            if state in _UP:
                return member
            if best is None or (state is not _DOWN and best.state() is _DOWN):
                best = member
        return best

    async def reached(self, sandbox_id: str, pin: str) -> Member | None:
        """Returns the first replica that is connected; the first of all when none is to be had."""
        for at in self._order(sandbox_id, pin):
            member = self.all[at]
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    while (state := member.state()) not in (grpc.ChannelConnectivity.READY, _DOWN):
                        await member.channel.wait_for_state_change(state)
            except TimeoutError:
                continue
            if state is not _DOWN:
                return member
        return self.first(sandbox_id, pin)

    async def close(self, grace: float | None) -> None:
        """Ends all connections."""
        tasks = [*self._leaving, *([self._looking] if self._looking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(member.channel.close(grace) for member in self.all), return_exceptions=True)

    def _order(self, sandbox_id: str, pin: str) -> list[int]:
        if not (pin and self._pinned):
            return random.sample(range(len(self.all)), len(self.all))
        order = ranked(pin, [member.name for member in self.all])
        if sandbox_id:
            order.sort(key=lambda at: not sandbox_id.endswith(self.all[at].sign))
        return order

    def _member(self, name: str, target: str, authority: str) -> Member:
        return Member(name, self._open(target, authority), sign(name))

    def _gather(self) -> None:
        self.all = [member for address in self._addresses for member in self._by_address.get(address, ())]

    def _start_looking(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_up(), name="replicas")
        return self._looking

    async def _look_up(self) -> None:
        for address in self._names:
            targets = await _targets(address)
            if not targets:
                continue  # what it stood for before is kept: a name that is not known for a moment ends nothing
            wanted = [(address, address, "")] if len(targets) == 1 else [(it, it, address) for it in targets]
            have = {member.name: member for member in self._by_address.get(address, ())}
            self._by_address[address] = [
                have.pop(each[0]) if each[0] in have else self._member(*each) for each in wanted
            ]
            for gone in have.values():
                task = asyncio.create_task(gone.channel.close(LEAVE_SECONDS))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        self._looked_up = time.monotonic()
        self._gather()


def is_name(address: str) -> bool:
    """Says whether an address has a name that is to be looked up, and may stand for several replicas."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host != "localhost"  # which stands for one place, in two ways
    return False


async def _targets(address: str) -> list[str]:
    """Returns what a name stands for now, as `host:port`: of one kind of numbers, or a machine with two would be two
    replicas."""
    host, _, port = address.rpartition(":")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError:
        return []
    family = socket.AF_INET if any(it[0] is socket.AF_INET for it in found) else socket.AF_INET6
    hosts = sorted({str(it[4][0]) for it in found if it[0] is family})
    return [f"[{host}]:{port}" if family is socket.AF_INET6 else f"{host}:{port}" for host in hosts]
