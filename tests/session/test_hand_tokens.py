"""Hand tokens: one hand's, of one tenant, kept hashed, void at once when they are revoked."""

from __future__ import annotations

import asyncio

import pytest

from handmesh.session.v1 import session_pb2 as pb
from tests.session.running import Service, refusal


async def made(service: Service, name: str = "phone") -> pb.CreateHandTokenResponse:
    return await service.client.CreateHandToken(pb.CreateHandTokenRequest(name=name))


async def checked(service: Service, token: str) -> pb.CheckHandTokenResponse:
    return await service.sandbox.CheckHandToken(pb.CheckHandTokenRequest(token=token))


async def test_a_token_is_one_hands_of_one_tenant(service: Service) -> None:
    """It is told once; lists have what is known of it, and neither it nor its hash; another tenant sees nothing."""
    one, two = await made(service), await made(service, "laptop")
    assert one.token.startswith(one.hand_token.hand_token_id + ".") and one.hand_token.name == "phone"
    assert await checked(service, one.token) == pb.CheckHandTokenResponse(
        hand_token_id=one.hand_token.hand_token_id, tenant="default", name="phone"
    )
    known = {each.hand_token_id for each in (one.hand_token, two.hand_token)}
    listed = await service.client.ListHandTokens(pb.ListHandTokensRequest())
    mine = [each for each in listed.hand_tokens if each.hand_token_id in known]
    assert mine == [one.hand_token, two.hand_token]
    assert one.token.partition(".")[2] not in str(listed)
    others = await service.other.ListHandTokens(pb.ListHandTokensRequest())
    assert known.isdisjoint(each.hand_token_id for each in others.hand_tokens)


async def test_a_revoked_token_is_nobodys_and_the_news_is_told(service: Service) -> None:
    """Whoever watches revocations hears of it at once; to revoke again changes nothing; others cannot."""
    one = await made(service)
    watch = service.sandbox.WatchRevocations(pb.WatchRevocationsRequest())
    await watch.read()
    wanted = pb.RevokeHandTokenRequest(hand_token_id=one.hand_token.hand_token_id)
    assert (await refusal(service.other.RevokeHandToken(wanted))).reason == "HAND_TOKEN_NOT_FOUND"
    assert (await checked(service, one.token)).name == "phone"
    revoked = await service.client.RevokeHandToken(wanted)
    assert revoked.hand_token.revoke_time.seconds > 0
    async with asyncio.timeout(10):
        while (await watch.read()).hand_token_id != one.hand_token.hand_token_id:
            pass
    watch.cancel()
    assert (await refusal(checked(service, one.token))).reason == "GRANT_INVALID"
    assert await service.client.RevokeHandToken(wanted) == revoked


@pytest.mark.parametrize(
    "token", ["", "hand_", "hand_x.y", "sess_" + "0" * 26 + ".x", "hand_" + "0" * 26 + "." + "a" * 999]
)
async def test_what_is_no_token_is_refused(service: Service, token: str) -> None:
    """Nothing, guesses and long ones; so is another secret under a token's id."""
    one = await made(service)
    for wrong in (token, one.token[:-1], one.token + "x", one.hand_token.hand_token_id + "."):
        error = await refusal(checked(service, wrong))
        assert (error.code, error.reason, error.metadata) == ("UNAUTHENTICATED", "GRANT_INVALID", {})


@pytest.mark.parametrize("name", ["", "Phone", "a b", "../x", "x" * 65, "a.b"])
async def test_a_hand_has_a_name_that_environments_can_have(service: Service, name: str) -> None:
    """Anything else is refused."""
    assert (await refusal(made(service, name))).reason == "ARGUMENT_INVALID"


async def test_who_may(service: Service) -> None:
    """Clients make, list and revoke; only the sandbox asks whose one is."""
    token = (await made(service)).token
    for stub in (service.harness, service.sandbox, service.vault_proxy):
        assert (await refusal(stub.CreateHandToken(pb.CreateHandTokenRequest(name="x")))).reason == "METHOD_DENIED"
        assert (await refusal(stub.ListHandTokens(pb.ListHandTokensRequest()))).reason == "METHOD_DENIED"
    for stub in (service.harness, service.client, service.vault_proxy):
        error = await refusal(stub.CheckHandToken(pb.CheckHandTokenRequest(token=token)))
        assert error.reason == "METHOD_DENIED"
