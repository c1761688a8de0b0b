"""The egress door: an HTTP proxy for a sandbox without a network, to the hosts that its environment allows.

    CONNECT host:port          a tunnel; what is in it is not looked into, but the host that TLS names must be this one
    CONNECT, with placeholder  TLS ends here and begins anew to the host, and placeholders are replaced between
    GET http://host/path       sent on, one request a connection, never with a credential

Names are resolved here, every address is checked, and the checked one is dialled (`outbound.dial`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import h11

from services.kit.logs import Log
from services.kit.origin import UrlRefused, origin_of
from services.vault_proxy.core.egress import Network, Rule, Target, absolute_target, connect_target, rule_of
from services.vault_proxy.doors import tunnel
from services.vault_proxy.doors.authority import Authority
from services.vault_proxy.doors.exchange import Caller, Host, Mender, passed_on, relay, value_of
from services.vault_proxy.doors.interception import Interception, swaps_for
from services.vault_proxy.doors.purse import Purse
from services.vault_proxy.doors.refusal import Refusal, malformed, unreachable
from services.vault_proxy.doors.refusals import Refusals
from services.vault_proxy.doors.uses import Uses
from services.vault_proxy.doors.visit import Visit
from services.vault_proxy.doors.wires import Limits, Meter, StreamWire, TlsWire, TooMuch, Wire, WireBroken
from services.vault_proxy.grants import Access

if TYPE_CHECKING:
    from services.vault_proxy.outbound.dial import Dialler

DOOR = "egress"
HEAD_SECONDS = 10.0  # for the first request, and for the first bytes of TLS

_log = Log("services.vault_proxy.doors")


class EgressDoor:
    """Implements `visit.Door`. `dialler` is called once, in a thread; without an authority nothing is replaced."""

    def __init__(
        self,
        dialler: Callable[[], Dialler],
        purse: Purse,
        authority: Authority | None,
        uses: Uses,
        refusals: Refusals,
        package_hosts: tuple[str, ...],
        limits: Limits,
        connections: int,
    ) -> None:
        self._make_dialler = dialler
        self._dialler: Dialler | None = None
        self._purse = purse
        self._authority = authority
        self._interception = Interception(purse, uses)
        self._refusals = refusals
        self._package_hosts = tuple(map(rule_of, package_hosts))
        self._limits = limits
        self._most = connections
        self._seats: Counter[str] = Counter()

    @property
    def ca_certificate(self) -> str:
        """What sandboxes must trust, PEM; empty without an authority."""
        return self._authority.certificate if self._authority else ""

    async def placeholders(self, access: Access) -> list[tuple[str, str]]:
        """Returns the variables of a session's sandboxes and what they hold; none without an authority.

        Raises Unavailable (`VAULT_UNAVAILABLE`).
        """
        return await self._purse.placeholders(access) if self._authority else []

    async def serve(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(None) as timeout:
                meter = Meter(self._limits, timeout)
                caller = Caller(StreamWire(reader, writer, meter))
                try:
                    with self._seat(visit):
                        await self._serve(visit, caller, meter)
                except Refusal as refusal:
                    self._tell(visit, refusal)
                    await caller.refuse(refusal)
                except TooMuch as limit:
                    self._tell(visit, Refusal(413, "DOOR_REQUEST_INVALID", str(limit), "one connection"))
        except TimeoutError:
            _log.info("a connection stood still, or took too long", session_id=visit.access.session_id)

    @contextmanager
    def _seat(self, visit: Visit) -> Iterator[None]:
        session_id = visit.access.session_id
        if self._seats[session_id] >= self._most:
            raise Refusal(429, "FULL", f"a session has at most {self._most} connections at once", "one more connection")
        self._seats[session_id] += 1
        try:
            yield
        finally:
            self._seats[session_id] -= 1
            if not self._seats[session_id]:
                del self._seats[session_id]

    def _tell(self, visit: Visit, refusal: Refusal) -> None:
        if refusal.told:
            target = refusal.target or "a request that cannot be read"
            self._refusals.tell(visit, DOOR, target, refusal.reason, refusal.message)

    async def _serve(self, visit: Visit, caller: Caller, meter: Meter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                request = await caller.head()
        except TimeoutError:
            raise Refusal(408, "DOOR_REQUEST_INVALID", "no request came in time", told=False) from None
        if request is None:
            return
        text = request.target.decode("ascii", "replace")
        try:
            if request.method == b"CONNECT":
                if value_of(request.headers, b"content-length") or value_of(request.headers, b"transfer-encoding"):
                    raise malformed("CONNECT has no body")
                await self._connect(visit, caller, connect_target(text), meter)
            else:
                await self._plain(visit, caller, request, *absolute_target(text), meter)
        except UrlRefused as refused:
            raise Refusal(400, "DOOR_REQUEST_INVALID", str(refused), text) from None

    async def _plain(
        self, visit: Visit, caller: Caller, request: h11.Request, target: Target, path: str, meter: Meter
    ) -> None:
        """Sends one plain request on: without any credential, and to no second host on the same connection."""
        self._check(visit, target)
        async with self._dialled(target, meter) as server:
            host = str(target).removesuffix(":80")
            headers = [(b"host", host.encode()), (b"connection", b"close")]
            headers += [each for each in passed_on(request.headers) if each[0] != b"host"]
            if value_of(request.headers, b"transfer-encoding"):
                headers.append((b"transfer-encoding", b"chunked"))
            outgoing = h11.Request(method=request.method, target=path.encode(), headers=headers)
            try:
                await relay(caller, Host(server), outgoing, caller.body(), Mender(), close=True)
            except WireBroken:
                raise unreachable(target, "broke the connection off") from None

    async def _connect(self, visit: Visit, caller: Caller, target: Target, meter: Meter) -> None:
        """Makes a tunnel: one that is looked into where a placeholder may be replaced, else one that is not."""
        self._check(visit, target)
        swaps = await swaps_for(self._purse, visit.access, target.host) if self._authority else []
        async with self._dialled(target, meter) as server:
            client, first = caller.wire, await caller.connected()
            if not swaps:

                async def named() -> bytes:
                    return (await tunnel.begun(client, first, target)).data

                await tunnel.splice(client, server, named)
                return
            async with asyncio.timeout(HEAD_SECONDS):
                begun = await tunnel.begun(client, first, target)
            if begun.hello.tls:
                await self._intercept(visit, target, client, begun.data, server)
            else:  # no credential goes without TLS
                await tunnel.splice(client, server, lambda: _said(begun.data))

    async def _intercept(self, visit: Visit, target: Target, client: Wire, first: bytes, server: Wire) -> None:
        assert self._authority is not None and self._dialler is not None
        inside = TlsWire(client, self._authority.context(target.host), first)
        outside = TlsWire(server, self._dialler.tls, name=target.host)
        await inside.handshake()

        async def connect() -> Wire:
            await outside.handshake()
            return outside

        def tell(refusal: Refusal) -> None:
            refusal.target = refusal.target or str(target)
            self._tell(visit, refusal)

        await self._interception.serve(visit, target, inside, connect, tell)

    def _check(self, visit: Visit, target: Target) -> None:
        network = self._network(visit)
        if not network.allows(target):
            message = f"this sandbox may not reach {target}; {network.described()}"
            raise Refusal(403, "HOST_DENIED", message, str(target))

    def _network(self, visit: Visit) -> Network:
        policy = visit.policy
        return Network(
            allow=tuple(_rules(policy.allow)),
            packages=self._package_hosts if policy.package_managers else None,
            servers=tuple(_server_rules(visit.access)) if policy.mcp_servers else None,
        )

    @asynccontextmanager
    async def _dialled(self, target: Target, meter: Meter) -> AsyncIterator[Wire]:
        """Connects to a target as long as the context lasts. Raises Refusal."""
        if self._dialler is None:
            self._dialler = await asyncio.to_thread(self._make_dialler)
        try:
            reader, writer = await self._dialler.connect(target.host, target.port)
        except UrlRefused as refused:
            raise Refusal(403, "HOST_DENIED", f"{target} is not called: {refused}", str(target)) from None
        except ConnectionError:
            raise unreachable(target, "does not answer") from None
        try:
            yield StreamWire(reader, writer, meter)
        except BaseException:
            writer.transport.abort()  # it was cut: nothing of what waits goes out any more
            raise
        finally:
            writer.close()


async def _said(data: bytes) -> bytes:
    return data


def _rules(texts: Iterable[str]) -> Iterator[Rule]:
    """Reads an environment's rules. One that cannot be read allows nothing, and the log says so."""
    for text in texts:
        try:
            yield rule_of(text.lower())
        except ValueError:
            _log.warning("a rule of an environment's network cannot be read", rule=text[:100])


def _server_rules(access: Access) -> Iterator[Rule]:
    for server in access.servers:
        try:
            origin = origin_of(server.url)
        except UrlRefused:
            continue
        yield Rule(origin.host, port=origin.port)
