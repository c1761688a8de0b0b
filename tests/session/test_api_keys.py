"""API keys: minted here alone, kept hashed, of one tenant and one scope, and void at once when they are revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceStub
from services.kit.errors import ServiceError
from services.session.api_keys import BUCKET
from tests.session.running import Service, refusal

IDENTITY_UNKNOWN = ("UNAUTHENTICATED", "IDENTITY_UNKNOWN")


async def make(service: Service, stub: Any = None, scope: str = "RUN", **fields: Any) -> pb.CreateApiKeyResponse:
    """Makes a key, by default as the operator."""
    wanted = {"name": "test", "scope": pb.Scope.Value(f"SCOPE_{scope}"), **fields}
    answer: pb.CreateApiKeyResponse = await (stub or service.client).CreateApiKey(pb.CreateApiKeyRequest(**wanted))
    return answer


@asynccontextmanager
async def holding(service: Service, key: str) -> AsyncIterator[Any]:
    """Calls with a key."""
    async with service.served.as_client(key) as channel:
        yield SessionServiceStub(channel)


def told(error: ServiceError) -> tuple[str, str]:
    return error.code, error.reason


async def test_a_key_is_one_tenants_and_told_once(service: Service) -> None:
    """It calls for its tenant; nothing that is kept or listed has it; another tenant sees neither it nor its id."""
    made = await make(service, tenant="acme", scope="ADMIN", name="ada")
    assert made.key.startswith(f"hm_{made.api_key.api_key_id}_")
    assert (made.api_key.tenant, made.api_key.name, made.api_key.scope) == ("acme", "ada", pb.SCOPE_ADMIN)
    entry = await service.store.registry.get(BUCKET, f"s.{made.api_key.api_key_id}")
    assert entry is not None and made.key.rpartition("_")[2].encode() not in entry.value
    async with holding(service, made.key) as acme:
        session = (await acme.CreateSession(pb.CreateSessionRequest())).session
        assert session.config.tenant == "acme"
        listed = await acme.ListApiKeys(pb.ListApiKeysRequest())
        assert made.api_key in listed.api_keys and made.key.rpartition("_")[2] not in str(listed)
    others = await service.other.ListApiKeys(pb.ListApiKeysRequest())
    assert made.api_key.api_key_id not in {each.api_key_id for each in others.api_keys}
    error = await refusal(service.other.RevokeApiKey(pb.RevokeApiKeyRequest(api_key_id=made.api_key.api_key_id)))
    nothing = await refusal(service.other.RevokeApiKey(pb.RevokeApiKeyRequest(api_key_id="key_" + "0" * 26)))
    assert told(error) == told(nothing) == ("NOT_FOUND", "API_KEY_NOT_FOUND") and error.message == nothing.message


async def test_a_revoked_key_is_refused_and_its_streams_end(service: Service) -> None:
    """At once for what calls, though an answer about it was kept; and for what watches. To revoke again changes
    nothing."""
    made = await make(service, scope="ADMIN")
    async with holding(service, made.key) as stub:
        session = (await stub.CreateSession(pb.CreateSessionRequest())).session
        watch = stub.WatchEvents(pb.WatchEventsRequest(session_id=session.session_id))
        await watch.read()
        wanted = pb.RevokeApiKeyRequest(api_key_id=made.api_key.api_key_id)
        revoked = await service.client.RevokeApiKey(wanted)
        assert revoked.api_key.HasField("revoke_time")
        async with asyncio.timeout(10):
            assert told(await refusal(watch)) == IDENTITY_UNKNOWN
        assert told(await refusal(stub.ListSessions(pb.ListSessionsRequest()))) == IDENTITY_UNKNOWN
    assert await service.client.RevokeApiKey(wanted) == revoked


async def test_a_key_ends_when_it_says(service: Service) -> None:
    """What calls is refused then, and what watches ends; nobody has to revoke it."""
    request = pb.CreateApiKeyRequest(name="soon", scope=pb.SCOPE_RUN)
    request.expire_time.FromNanoseconds(time.time_ns() + 1_500_000_000)
    made = await service.client.CreateApiKey(request)
    async with holding(service, made.key) as stub:
        session = (await stub.CreateSession(pb.CreateSessionRequest())).session
        watch = stub.WatchEvents(pb.WatchEventsRequest(session_id=session.session_id))
        async with asyncio.timeout(30):
            assert told(await refusal(watch)) == IDENTITY_UNKNOWN
        assert told(await refusal(stub.ListSessions(pb.ListSessionsRequest()))) == IDENTITY_UNKNOWN
        answer = await refusal(service.sandbox.CheckCaller(pb.CheckCallerRequest(credential=made.key)))
        assert told(answer) == IDENTITY_UNKNOWN


async def test_a_scope_is_what_a_key_may(service: Service) -> None:
    """Each includes those before it; the error names what is needed and what is there."""
    calls = {
        "read": ("ListSessions", pb.ListSessionsRequest()),
        "run": ("CreateSession", pb.CreateSessionRequest()),
        "admin": ("ListApiKeys", pb.ListApiKeysRequest()),
    }
    order = list(calls)
    for has in order:
        async with holding(service, (await make(service, scope=has.upper())).key) as stub:
            for needed, (method, request) in calls.items():
                call = getattr(stub, method)(request)
                if order.index(needed) <= order.index(has):
                    await call
                else:
                    error = await refusal(call)
                    assert told(error) == ("PERMISSION_DENIED", "SCOPE_DENIED")
                    assert error.metadata == {"scope": needed, "has": has}


async def test_nobody_gives_more_than_they_have(service: Service) -> None:
    """An admin makes keys of its own tenant, up to admin; an operator those of every tenant; no call makes an
    operator."""
    admin = await make(service, tenant="acme", scope="ADMIN")
    async with holding(service, admin.key) as stub:
        assert (await make(service, stub, scope="ADMIN", tenant="acme")).api_key.tenant == "acme"
        assert (await make(service, stub)).api_key.tenant == "acme"
        for call in (
            make(service, stub, tenant="default"),
            stub.ListApiKeys(pb.ListApiKeysRequest(tenant="default")),
        ):
            error = await refusal(call)
            assert (*told(error), error.metadata["scope"]) == ("PERMISSION_DENIED", "SCOPE_DENIED", "operator")
        theirs = await make(service, tenant="default")
        wanted = pb.RevokeApiKeyRequest(api_key_id=theirs.api_key.api_key_id)
        assert (await refusal(stub.RevokeApiKey(wanted))).reason == "API_KEY_NOT_FOUND"
        error = await refusal(make(service, stub, scope="OPERATOR"))
        assert (error.reason, error.metadata) == ("ARGUMENT_INVALID", {"field": "scope"})
    error = await refusal(make(service, scope="OPERATOR"))
    assert (error.reason, error.metadata) == ("ARGUMENT_INVALID", {"field": "scope"})


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "x" * 65}),
        ("name", {"name": "a\nb"}),
        ("scope", {"scope": "UNSPECIFIED"}),
        ("tenant", {"tenant": "../acme"}),
        ("tenant", {"tenant": "*"}),
        ("limits", {"limits": pb.CallerLimits(calls=-1)}),
        ("limits", {"limits": pb.CallerLimits(burst=10**9)}),
    ],
)
async def test_what_no_key_can_be(service: Service, field: str, wrong: dict[str, Any]) -> None:
    """The error names the field."""
    error = await refusal(make(service, **wrong))
    assert (error.code, error.reason, error.metadata) == ("INVALID_ARGUMENT", "ARGUMENT_INVALID", {"field": field})


async def test_a_key_does_not_end_before_it_begins(service: Service) -> None:
    """A time in the past, and the beginning of time, which is no `never`."""
    for seconds in (0, int(time.time()) - 1):
        request = pb.CreateApiKeyRequest(name="late", scope=pb.SCOPE_RUN)
        request.expire_time.FromSeconds(seconds)
        error = await refusal(service.client.CreateApiKey(request))
        assert (error.reason, error.metadata) == ("ARGUMENT_INVALID", {"field": "expire_time"})


async def test_what_is_no_key_is_refused_in_the_same_way(service: Service) -> None:
    """Guesses, other secrets under a key's id, and what is too long: one reason and one message, here and for those
    who ask."""
    made = await make(service)
    unknown = made.key.replace(made.api_key.api_key_id, "key_" + "0" * 26)
    wrong = [made.key[:-1], made.key[:-1] + ("a" if made.key[-1] != "a" else "b"), unknown, "hm_", "x", "x" * 5_000]
    seen = set()
    for key in wrong:
        async with holding(service, key) as stub:
            error = await refusal(stub.ListSessions(pb.ListSessionsRequest()))
        asked = await refusal(service.harness.CheckCaller(pb.CheckCallerRequest(credential=key)))
        seen |= {(*told(each), each.message, str(each.metadata)) for each in (error, asked)}
    assert len(seen) == 1 and next(iter(seen))[:2] == IDENTITY_UNKNOWN


async def test_the_services_ask_whose_a_credential_is(service: Service) -> None:
    """They are told the tenant, the scope and the limits, and hear of it when that is over; a client cannot ask."""
    limits = pb.CallerLimits(calls_per_second=5, burst=7, calls=3, streams=2)
    made = await make(service, tenant="acme", limits=limits)
    request = pb.CheckCallerRequest(credential=made.key)
    expected = pb.CheckCallerResponse(
        caller_id=made.api_key.api_key_id, tenant="acme", name="test", scope=pb.SCOPE_RUN, limits=limits
    )
    for stub in (service.harness, service.sandbox, service.vault_proxy):
        assert await stub.CheckCaller(request) == expected
    assert (await refusal(service.client.CheckCaller(request))).reason == "METHOD_DENIED"
    watch = service.harness.WatchRevocations(pb.WatchRevocationsRequest())
    await watch.read()
    await service.client.RevokeApiKey(pb.RevokeApiKeyRequest(api_key_id=made.api_key.api_key_id))
    async with asyncio.timeout(10):
        while (await watch.read()).caller_id != made.api_key.api_key_id:
            pass
    watch.cancel()


async def test_a_key_has_a_rate_of_its_own(service: Service) -> None:
    """Over it RESOURCE_EXHAUSTED says when to come back; another key of the same tenant goes on."""
    slow = await make(service, limits=pb.CallerLimits(calls_per_second=1, burst=2))
    other = await make(service)
    async with holding(service, slow.key) as stub, holding(service, other.key) as neighbour:
        calls = [refusal_or_none(stub.ListServedTypes(pb.ListServedTypesRequest())) for _ in range(4)]
        refused = [error for error in await asyncio.gather(*calls) if error is not None]
        assert len(refused) >= 1
        assert {told(error) for error in refused} == {("RESOURCE_EXHAUSTED", "RATE_LIMITED")}
        assert all(error.retry_after and error.retry_after <= 1 for error in refused)
        assert refused[0].metadata == {"calls_per_second": "1", "burst": "2"}
        await neighbour.ListServedTypes(pb.ListServedTypesRequest())


async def refusal_or_none(call: Any) -> ServiceError | None:
    try:
        return await refusal(call)
    except AssertionError:
        return None


async def test_a_key_that_leaves_the_file_is_void(service: Service) -> None:
    """The operator's file is watched: nothing is restarted."""
    file = service.served.tls.parent / "keys.json"
    before = file.read_text()
    watch = service.harness.WatchRevocations(pb.WatchRevocationsRequest())
    await watch.read()
    async with service.served.as_client("hm_other") as channel:
        await SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest())
        try:
            file.write_text("[" + before.partition("}, {")[0].removeprefix("[") + "}]")
            async with asyncio.timeout(10):
                while not (await watch.read()).caller_id.startswith("file:"):
                    pass
            error = await refusal(SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest()))
            assert told(error) == IDENTITY_UNKNOWN
        finally:
            file.write_text(before)
    watch.cancel()


async def test_two_authorizations_are_none(service: Service) -> None:
    """It could not be said which of them is meant."""
    made = await make(service)
    async with grpc.aio.insecure_channel(service.served.client_address) as channel:
        pairs = (("authorization", f"Bearer {made.key}"), ("authorization", f"Bearer {service.served.key}"))
        call = SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest(), metadata=pairs)  # type: ignore[call-arg]
        assert told(await refusal(call)) == IDENTITY_UNKNOWN
