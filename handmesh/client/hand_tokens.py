"""The tokens that hands connect with. Each is told once, when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handmesh.client.errors import HandmeshError
from handmesh.session.v1 import session_pb2 as pb

if TYPE_CHECKING:
    from handmesh.client.client import Client


class HandTokens:
    """The hand tokens of a client's tenant. Methods raise HandmeshError."""

    def __init__(self, client: Client) -> None:
        self._link = client.session_link
        self._stub = client.session_stub

    async def create(self, name: str) -> pb.CreateHandTokenResponse:
        """Makes a token for the hand of a name. Nobody tells it again."""
        return await self._link.call(self._stub.CreateHandToken, pb.CreateHandTokenRequest(name=name))

    async def all(self) -> list[pb.HandToken]:
        """Lists the tokens, without the tokens, oldest first."""
        answer = await self._link.call(self._stub.ListHandTokens, pb.ListHandTokensRequest())
        return list(answer.hand_tokens)

    async def revoke(self, name: str) -> list[pb.HandToken]:
        """Makes the token of an id, or all of a hand's name, void. Raises `HAND_TOKEN_NOT_FOUND` for none."""
        found = [each for each in await self.all() if name in (each.hand_token_id, each.name)]
        if not found:
            raise HandmeshError("HAND_TOKEN_NOT_FOUND", f"there is no hand token {name!r}", code="NOT_FOUND")
        revoked = []
        for each in found:
            request = pb.RevokeHandTokenRequest(hand_token_id=each.hand_token_id)
            revoked.append((await self._link.call(self._stub.RevokeHandToken, request)).hand_token)
        return revoked
