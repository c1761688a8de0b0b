"""Hands as resources: hands that stand outside of sessions, and whose each hand is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handmesh.client.errors import HandmeshError
from handmesh.sandbox.v1 import sandbox_pb2 as pb

if TYPE_CHECKING:
    from handmesh.client.client import Client

PROVISION_SECONDS = 300.0
MOST_SETTLE_SECONDS = 600.0
"""How long a transfer waits at most for what runs."""


class Hands:
    """The hands of a client's tenant. Methods raise HandmeshError."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._link = client.sandbox_link
        self._stub = client.sandbox_stub

    async def create(self, name: str, environment: str = "", description: str = "") -> pb.Sandbox:
        """Makes a hand that stands outside of sessions until it is released. Idempotent by its name."""
        request = pb.ProvisionRequest(hand=name, environment=environment, description=description)
        return (await self._link.call(self._stub.Provision, request, timeout=PROVISION_SECONDS)).sandbox

    async def all(self, session_id: str | None = None) -> list[pb.Sandbox]:
        """Lists hands, or those of a session, oldest first."""
        return await self._client.sandboxes(session_id)

    async def find(self, name: str) -> pb.Sandbox:
        """Returns a hand by its sandbox id, its name outside of sessions, or `SESSION/HAND`.

        Raises `HAND_UNKNOWN`.
        """
        for each in await self.all():
            if name in (each.sandbox_id, each.standing_hand, f"{each.session_id}/{each.hand}"):
                return each
        raise HandmeshError("HAND_UNKNOWN", f"there is no hand {name!r}", code="NOT_FOUND")

    async def attach(self, name: str, session_id: str, hand: str = "", *, read_only: bool = False) -> pb.Sandbox:
        """Gives a hand that stands outside to a session, or lets the session read it."""
        found = await self.find(name)
        request = pb.ProvisionRequest(
            session_id=session_id,
            hand=hand or found.standing_hand,
            standing_hand=found.sandbox_id,
            read_only=read_only,
        )
        return (await self._link.call(self._stub.Provision, request, timeout=PROVISION_SECONDS)).sandbox

    async def transfer(
        self, name: str, session_id: str | None, hand: str = "", *, settle: float | None = None
    ) -> pb.Sandbox:
        """Gives a hand to a session, or to none: then it stands outside. `settle` is in seconds."""
        found = await self.find(name)
        request = pb.TransferRequest(
            sandbox_id=found.sandbox_id,
            to_session_id=session_id,
            expected_generation=found.generation,
            to_hand=hand,
        )
        if settle is not None:
            request.settle_timeout.FromMilliseconds(round(settle * 1000))
        seconds = MOST_SETTLE_SECONDS + 60.0
        return (await self._link.call(self._stub.Transfer, request, timeout=seconds)).sandbox

    async def share(self, name: str, session_id: str, hand: str = "", *, revoke: bool = False) -> pb.Sandbox:
        """Lets a session use a hand's tools that change nothing, or takes that back."""
        found = await self.find(name)
        request = pb.ShareHandRequest(sandbox_id=found.sandbox_id, session_id=session_id, hand=hand, revoke=revoke)
        return (await self._link.call(self._stub.ShareHand, request)).sandbox

    async def release(self, name: str) -> None:
        """Ends a hand and all that runs in it, and removes its files."""
        await self._client.release((await self.find(name)).sandbox_id)
