"""P37, tenants: whoever names what is another tenant's is told what they are told of what does not exist, by every
method of every service that a client may call, and changes nothing by it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import astuple, dataclass
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import text_format
from google.protobuf.message_factory import GetMessageClass

from handmesh.harness.v1 import harness_pb2 as harness
from handmesh.sandbox.v1 import sandbox_pb2 as sandbox
from handmesh.session.v1 import config_pb2 as config
from handmesh.session.v1 import event_pb2 as ev
from handmesh.session.v1 import memory_pb2 as memory
from handmesh.session.v1 import session_pb2 as session
from handmesh.session.v1.config_pb2 import MemoryAccess
from handmesh.session.v1.memory_pb2_grpc import MemoryServiceStub
from handmesh.status.v1 import status_pb2 as status
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as vault
from services.kit import ids
from services.kit.access import ACCESS
from services.kit.channels import raised
from services.kit.grants import GRANT_KEY
from tests.security.ground import Ground, Person, bearer

pytestmark = [pytest.mark.e2e, pytest.mark.nats, pytest.mark.bwrap, pytest.mark.asyncio(loop_scope="session")]

HOMES = {session: "session", memory: "session", harness: "harness", sandbox: "sandbox", vault: "vault_proxy"}
TEXT = '[{"type": "text", "text": "pwned"}]'
CONNECTION = {"url": "https://a.example/mcp", "redirect_uri": "http://127.0.0.1:1/callback", "name": "x"}
Make = Callable[["Things"], Any]


@dataclass(frozen=True)
class Things:
    """Ids of what somebody has."""

    session: str
    sandbox: str
    execution: str
    blob: str
    store: str
    vault: str
    credential: str
    hand_token: str
    api_key: str
    checkpoint: str
    standing: str


NOWHERE = Things(
    ids.mint("sess"),
    ids.mint("sbx"),
    "toolu_nowhere",
    ids.mint("blob"),
    ids.mint("mem"),
    ids.mint("vault"),
    ids.mint("cred"),
    ids.mint("hand"),
    ids.mint("key"),
    ids.mint("ckpt"),
    ids.mint("sbx"),
)


def event(**kind: Any) -> ev.Event:
    return ev.Event(**kind)


MESSAGE = event(message_received=ev.MessageReceived(content_json=TEXT))
CONFIRMED = event(tool_confirmed=ev.ToolConfirmed(tool_use_id="toolu_1", allowed=True))
EMITTED = (MESSAGE, CONFIRMED, event(interrupt_requested=ev.InterruptRequested()))


def _config(it: Things) -> config.SessionConfig:
    """Wants another's memory store."""
    return config.SessionConfig(memory_stores=[MemoryAccess(memory_store_id=it.store)], no_hands=True)


# Requests that name something.
AIMED: dict[str, list[Make]] = {
    "CreateSession": [lambda it: session.CreateSessionRequest(config=_config(it))],
    "GetSession": [lambda it: session.GetSessionRequest(session_id=it.session)],
    "UpdateSession": [lambda it: session.UpdateSessionRequest(session_id=it.session, config=config.SessionConfig())],
    "EndSession": [lambda it: session.EndSessionRequest(session_id=it.session)],
    "ArchiveSession": [lambda it: session.ArchiveSessionRequest(session_id=it.session)],
    "DeleteSession": [lambda it: session.DeleteSessionRequest(session_id=it.session)],
    "ForkSession": [lambda it: session.ForkSessionRequest(session_id=it.session)],
    "VerifySession": [lambda it: session.VerifySessionRequest(session_id=it.session)],
    "EmitEvent": [lambda it, e=e: session.EmitEventRequest(session_id=it.session, event=e) for e in EMITTED],
    "EmitEvents": [lambda it: session.EmitEventsRequest(session_id=it.session, events=[MESSAGE])],
    "GetEvents": [
        lambda it: session.GetEventsRequest(session_id=it.session),
        lambda it: session.GetEventsRequest(session_id=it.session, start_position=2, page_size=1),
    ],
    "WatchEvents": [
        lambda it: session.WatchEventsRequest(session_id=it.session, previews=True),
        lambda it: session.WatchEventsRequest(session_id=it.session, start_position=3),
    ],
    "UploadBlob": [lambda it: session.UploadBlobRequest(session_id=it.session, media_type="text/plain", chunk=b"x")],
    "DownloadBlob": [lambda it: session.DownloadBlobRequest(session_id=it.session, blob_id=it.blob)],
    "ListBlobs": [lambda it: session.ListBlobsRequest(session_id=it.session)],
    "ListAuditEntries": [lambda it: session.ListAuditEntriesRequest(session_id=it.session)],
    "RevokeHandToken": [lambda it: session.RevokeHandTokenRequest(hand_token_id=it.hand_token)],
    "RevokeApiKey": [lambda it: session.RevokeApiKeyRequest(api_key_id=it.api_key)],
    "DeleteMemoryStore": [lambda it: memory.DeleteMemoryStoreRequest(memory_store_id=it.store)],
    "WriteMemory": [lambda it: memory.WriteMemoryRequest(memory_store_id=it.store, path="a", content=b"pwned")],
    "ReadMemory": [lambda it: memory.ReadMemoryRequest(memory_store_id=it.store, path="a")],
    "ListMemories": [lambda it: memory.ListMemoriesRequest(memory_store_id=it.store)],
    "ListMemoryVersions": [lambda it: memory.ListMemoryVersionsRequest(memory_store_id=it.store, path="a")],
    "DeleteMemory": [lambda it: memory.DeleteMemoryRequest(memory_store_id=it.store, path="a")],
    "FindMemory": [lambda it: memory.FindMemoryRequest(memory_store_id=it.store, request_id="theirs")],
    "Wake": [lambda it: harness.WakeRequest(session_id=it.session)],
    "Provision": [
        lambda it: sandbox.ProvisionRequest(session_id=it.session, hand="main"),
        lambda it: sandbox.ProvisionRequest(session_id=it.session, hand="main", request_id=f"{it.session}/main/1"),
        lambda it: sandbox.ProvisionRequest(session_id=it.session, hand="x", standing_hand=it.standing),
    ],
    "sandbox.Execute": [
        lambda it: sandbox.ExecuteRequest(sandbox_id=it.sandbox, name="bash", input='{"command": "touch pwned"}'),
        lambda it: sandbox.ExecuteRequest(sandbox_id=it.sandbox, execution_id=it.execution, attach_only=True),
    ],
    "sandbox.WatchExecution": [
        lambda it: sandbox.WatchExecutionRequest(sandbox_id=it.sandbox, execution_id=it.execution)
    ],
    "sandbox.CancelExecution": [
        lambda it: sandbox.CancelExecutionRequest(sandbox_id=it.sandbox, execution_id=it.execution)
    ],
    "ListExecutions": [lambda it: sandbox.ListExecutionsRequest(sandbox_id=it.sandbox)],
    "sandbox.ListTools": [lambda it: sandbox.ListToolsRequest(sandbox_id=it.sandbox)],
    "ListSandboxes": [lambda it: sandbox.ListSandboxesRequest(session_id=it.session)],
    "Release": [
        lambda it: sandbox.ReleaseRequest(sandbox_id=it.sandbox),
        lambda it: sandbox.ReleaseRequest(sandbox_id=it.standing),
    ],
    "PutResources": [lambda it: sandbox.PutResourcesRequest(sandbox_id=it.sandbox)],
    "ListFiles": [lambda it: sandbox.ListFilesRequest(sandbox_id=it.sandbox)],
    "ReadFile": [lambda it: sandbox.ReadFileRequest(sandbox_id=it.sandbox, path="a")],
    "Checkpoint": [lambda it: sandbox.CheckpointRequest(sandbox_id=it.sandbox)],
    "Transfer": [
        lambda it: sandbox.TransferRequest(sandbox_id=it.standing, to_session_id=it.session),
        lambda it: sandbox.TransferRequest(sandbox_id=it.standing),
    ],
    "ShareHand": [lambda it: sandbox.ShareHandRequest(sandbox_id=it.standing, session_id=it.session, hand="x")],
    "GetVault": [lambda it: vault.GetVaultRequest(vault_id=it.vault)],
    "ArchiveVault": [lambda it: vault.ArchiveVaultRequest(vault_id=it.vault)],
    "AddCredential": [
        lambda it: vault.AddCredentialRequest(
            vault_id=it.vault, name="x", origin="https://a.example", secret=bearer("x")
        )
    ],
    "UpdateCredential": [lambda it: vault.UpdateCredentialRequest(credential_id=it.credential, secret=bearer("x"))],
    "ListCredentials": [lambda it: vault.ListCredentialsRequest(vault_id=it.vault)],
    "ArchiveCredential": [lambda it: vault.ArchiveCredentialRequest(credential_id=it.credential)],
    "ValidateCredential": [lambda it: vault.ValidateCredentialRequest(credential_id=it.credential)],
    "StartConnection": [lambda it: vault.StartConnectionRequest(vault_id=it.vault, **CONNECTION)],
    "VouchVault": [lambda it: session.VouchVaultRequest(vault_id=it.vault)],
}
# What names nothing, and shows the caller's own alone.
LISTS = {"ListSessions", "ListSandboxes", "ListVaults", "ListMemoryStores", "ListHandTokens", "ListApiKeys", "ListRuns"}
LISTS |= {"ListAuditEntries"}
# What names nothing that is a tenant's.
NOBODYS = {"ListServedTypes", "ListHarnessTypes", "ListEnvironments", "Drain", "ImportSession"}
NOBODYS |= {"CreateMemoryStore", "CreateVault", "CreateHandToken", "CreateApiKey"}
# What is asked with a session's grant.
GRANTED: dict[str, Make] = {
    "vault_proxy.ListTools": lambda it: vault.ListToolsRequest(),
    "vault_proxy.Execute": lambda it: vault.ExecuteRequest(name="shop__who_am_i", input="{}"),
    "vault_proxy.WatchExecution": lambda it: vault.WatchExecutionRequest(execution_id=it.execution),
    "vault_proxy.CancelExecution": lambda it: vault.CancelExecutionRequest(execution_id=it.execution),
}
SEALED = {"FinishConnection"}  # takes what the caller's own browser brings back (test_v21_oauth_mixups)


def methods() -> dict[str, tuple[str, Any]]:
    """Every method that a client may call, by its name, with its home before it where two have it."""
    every = [
        (home, method)
        for file, home in [*HOMES.items(), (status, "session")]
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if "client" in ACCESS[f"/{service.full_name}/{method.name}"]
    ]
    files = [*HOMES, status]
    names = [each.name for file in files for it in file.DESCRIPTOR.services_by_name.values() for each in it.methods]
    return {
        (f"{home}.{method.name}" if names.count(method.name) > 1 else method.name): (home, method)
        for home, method in every
    }


async def call(who: Person, home: str, method: Any, request: Any, *more: tuple[str, str]) -> str:
    """Calls as a person. Returns all that they are told: the answer, or the error with its details."""
    link = who.link if home == "vault_proxy" else getattr(who.client, f"{home}_link")
    kinds = (type(request).SerializeToString, GetMessageClass(method.output_type).FromString)
    form = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    path = f"/{method.containing_service.full_name}/{method.name}"
    started = getattr(link.channel, form)(path, *kinds)(
        iter([request]) if method.client_streaming else request, metadata=[*link.metadata, *more], timeout=30
    )
    try:
        answers = [each async for each in started] if method.server_streaming else [await started]
    except grpc.aio.AioRpcError as error:
        problem = raised(error)
        return f"{problem.code} {problem.reason}: {problem.message} {problem.metadata} {problem.retry_after}"
    return "ok " + " ".join(text_format.MessageToString(each) for each in answers)


def nameless(told: str, it: Things) -> str:
    """Takes the ids out that the caller has named, and what is new in every answer."""
    told = re.sub(r'(voucher: ")[^"]*|((?:seconds|nanos): )\d+', r"\1\2", told)
    for name in astuple(it):
        told = told.replace(name, "<id>")
    return told


@pytest_asyncio.fixture(loop_scope="session")
async def theirs(ground: Ground) -> AsyncIterator[Things]:
    """What a tenant has that works: a session at rest, its sandbox, a hand outside, memory, secrets, tokens, keys."""
    me = ground.me
    made = await ground.work("everything")
    [place] = await me.client.sandboxes(made.id)
    started = [it.tool_started.tool_use_id async for it in made.events() if it.HasField("tool_started")]
    blob = await made.upload(b"theirs", "text/plain")
    stub, link = MemoryServiceStub(me.client.session_link.channel), me.client.session_link
    store = await stub.CreateMemoryStore(memory.CreateMemoryStoreRequest(name="theirs"), metadata=link.metadata)
    store_id = str(store.memory_store.memory_store_id)
    written = memory.WriteMemoryRequest(memory_store_id=store_id, path="a", content=b"theirs", request_id="theirs")
    await stub.WriteMemory(written, metadata=link.metadata)
    kept = await me.client.sandbox_link.call(
        me.client.sandbox_stub.Checkpoint, sandbox.CheckpointRequest(sandbox_id=place.sandbox_id)
    )
    standing = await me.client.hands.create(f"p37-{ids.mint('x')[-8:]}", "default")
    vault_id = await me.new_vault()
    yield Things(
        session=made.id,
        sandbox=place.sandbox_id,
        execution=started[0],
        blob=blob.blob_id,
        store=store_id,
        vault=vault_id,
        credential=await me.add(vault_id, "https://theirs.example", bearer("theirs")),
        hand_token=(await me.client.hand_tokens.create("theirs")).hand_token.hand_token_id,
        api_key=(await me.client.api_keys.create("theirs", session.SCOPE_READ)).api_key.api_key_id,
        checkpoint=kept.checkpoint_id,
        standing=standing.sandbox_id,
    )
    await me.client.release(standing.sandbox_id)


async def test_every_method_of_a_client_is_judged() -> None:
    """A new method that clients may call has to be put into one of the sets above."""
    assert methods().keys() == AIMED.keys() | LISTS | NOBODYS | GRANTED.keys() | SEALED


async def state(ground: Ground, it: Things) -> dict[str, Any]:
    """Returns what the things' owner sees of them."""
    me = ground.me
    stub, metadata = MemoryServiceStub(me.client.session_link.channel), me.client.session_link.metadata
    read = await stub.ReadMemory(memory.ReadMemoryRequest(memory_store_id=it.store, path="a"), metadata=metadata)
    listed = await me.call("ListCredentials", vault.ListCredentialsRequest(vault_id=it.vault))
    return {
        "events": [each async for each in me.client.session(it.session).events()],
        "files": await ground.run(it.sandbox, "ls -A"),
        "hands": [each for each in await me.client.sandboxes() if each.sandbox_id in (it.sandbox, it.standing)],
        "memory": read.content,
        "credentials": list(listed.credentials),
        "tokens": [each for each in await me.client.hand_tokens.all() if each.hand_token_id == it.hand_token],
        "keys": [each for each in await me.client.api_keys.all() if each.api_key_id == it.api_key],
    }


async def test_what_is_another_tenants_is_as_what_is_not_there(ground: Ground, theirs: Things) -> None:
    """The same status, reason, words and details for both, from every method; and all is as it was for its owner."""
    before = await state(ground, theirs)
    different: dict[str, tuple[str, str]] = {}
    let_in: list[str] = []
    every = methods()
    for name, makes in AIMED.items():
        for at, make in enumerate(makes):
            told = await call(ground.neighbour, *every[name], make(theirs))
            nothing = await call(ground.neighbour, *every[name], make(NOWHERE))
            if nameless(told, theirs) != nameless(nothing, NOWHERE):
                different[f"{name} {at}"] = (told, nothing)
            if not re.match("NOT_FOUND ", told):
                let_in.append(name)
    assert not different, "\n".join(f"{name}:\n  {told}\n  {nothing}" for name, (told, nothing) in different.items())
    # A list of somebody's is empty, what is nobody's is released already, what a voucher is worth the vault says, and a
    # configuration is wrong as a whole.
    assert set(let_in) == {"ListAuditEntries", "ListSandboxes", "Release", "VouchVault", "CreateSession"}
    assert await state(ground, theirs) == before


async def test_lists_have_the_callers_own_alone(ground: Ground, theirs: Things) -> None:
    """However they are asked: from the beginning, or from where the other tenant's own list goes on."""
    every = methods()
    mine = await ground.me.client.session_link.call(
        ground.me.client.session_stub.ListSessions, session.ListSessionsRequest(page_size=1, include_archived=True)
    )
    vaults = await ground.me.call("ListVaults", vault.ListVaultsRequest(page_size=1))
    tokens = {"ListSessions": mine.next_page_token, "ListVaults": vaults.next_page_token}
    for name in LISTS:
        home, method = every[name]
        kind = GetMessageClass(method.input_type)
        requests = [kind(), kind(page_token=tokens[name])] if tokens.get(name) else [kind()]
        for request in requests:
            told = await call(ground.neighbour, home, method, request)
            assert not any(one in told for one in astuple(theirs)), name


async def test_another_tenants_grant_is_no_clients(ground: Ground, theirs: Things) -> None:
    """A grant that was overheard is of no use to a client of another tenant; neither is none."""
    every = methods()
    grant = ground.grant_of(theirs.session)
    for name, make in GRANTED.items():
        for more in ([], [(GRANT_KEY, grant)]):
            told = await call(ground.neighbour, *every[name], make(theirs), *more)
            assert told.startswith("UNAUTHENTICATED GRANT_INVALID"), name


async def test_scopes_keep_within_a_tenant_too(ground: Ground, theirs: Things) -> None:
    """A key that may only look is told which scope is needed before anything is looked for: the answer says nothing of
    whether a thing is there."""
    every = methods()
    made = await ground.neighbour.client.api_keys.create("reader", session.SCOPE_READ)
    for name in ("EmitEvent", "EndSession", "DeleteSession", "RevokeApiKey"):
        _, method = every[name]
        answers = set()
        for it in (theirs, NOWHERE):
            request = AIMED[name][0](it)
            path = f"/{method.containing_service.full_name}/{method.name}"
            kinds = (type(request).SerializeToString, GetMessageClass(method.output_type).FromString)
            metadata = (("authorization", f"Bearer {made.key}"),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ground.neighbour.client.session_link.channel.unary_unary(path, *kinds)(request, metadata=metadata)
            problem = raised(caught.value)
            answers.add((problem.code, problem.reason, problem.message))
        assert len(answers) == 1 and next(iter(answers))[:2] == ("PERMISSION_DENIED", "SCOPE_DENIED")
