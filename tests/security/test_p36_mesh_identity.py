"""P36, identities in the mesh: who shows nothing, the wrong thing, something old or somebody else's is refused, on
every method, and docs/reference.md says who may call what."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import importlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from handmesh.launcher.ca import ensure_certificates
from handmesh.launcher.ports import SERVICES
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.session_pb2_grpc import SessionServiceServicer, SessionServiceStub
from services.kit import settings
from services.kit.access import Scope
from services.kit.channels import connect, raised
from services.kit.serving import Server
from tests.support.authority import Authority
from tests.support.mesh_server import Served

MODULES = ("session.v1.session", "session.v1.memory", "harness.v1.harness", "sandbox.v1.sandbox")
MODULES += ("vault_proxy.v1.vault_proxy",)
STATUS = "handmesh.status.v1.StatusService"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
REFUSED = {"METHOD_DENIED", "SCOPE_DENIED", "IDENTITY_UNKNOWN"}
SESSION = "handmesh.session.v1.SessionService"
ADMINS = ("CreateApiKey", "ListApiKeys", "RevokeApiKey", "CreateHandToken", "DeleteSession", "ImportSession")


class Counting(SessionServiceServicer):
    """Counts what gets in."""

    def __init__(self) -> None:
        self.created = 0

    async def CreateSession(self, request: pb.CreateSessionRequest, context: object) -> pb.CreateSessionResponse:
        self.created += 1
        return pb.CreateSessionResponse()


class Everything:
    """A server with every method of every contract, none of which is built but one: what is asked is who gets in."""

    def __init__(self, served: Served, counting: Counting, folder: Path) -> None:
        self.served = served
        self.counting = counting
        self.folder = folder

    async def reason(self, channel: Any, method: Any, metadata: Any = ()) -> str:
        """Calls with an empty request; returns the reason of the error, or `ok`."""
        name = f"/{method.containing_service.full_name}/{method.name}"
        kinds = (Message.SerializeToString, GetMessageClass(method.output_type).FromString)
        request = GetMessageClass(method.input_type)()
        form = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        asked = iter([request]) if method.client_streaming else request
        call = getattr(channel, form)(name, *kinds)(asked, metadata=metadata, timeout=20)
        try:
            if method.server_streaming:
                async for _ in call:
                    break
                call.cancel()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return raised(error, "UNREACHABLE").reason
        return "ok"


def methods() -> list[Any]:
    """Every method of every contract, from the descriptors."""
    files = [importlib.import_module(f"handmesh.{name}_pb2") for name in (*MODULES, "status.v1.status")]
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return [method for service in services for method in service.methods]


def documented() -> dict[str, set[str]]:
    """What docs/reference.md says: who may call each method."""
    found: dict[str, set[str]] = {}
    service = ""
    for line in REFERENCE.read_text().splitlines():
        if line.startswith("### handmesh."):
            service = line.removeprefix("### ")
        elif service and (row := re.fullmatch(r"\| `(\w+)` \| .* \| ([^|]+) \|", line)):
            found[f"{service}/{row[1]}"] = set(row[2].split(", "))
    return found


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of every service, and a key of each scope, which is its name."""
    data = tmp_path_factory.mktemp("p36")
    ensure_certificates(data / "tls", SERVICES, datetime.datetime.now(datetime.UTC))
    rows = [
        {
            "sha256": hashlib.sha256(scope.word.encode()).hexdigest(),
            "tenant": "default",
            "name": scope.word,
            "scope": scope.word,
        }
        for scope in Scope
    ]
    (data / "api_keys.json").write_text(json.dumps(rows))
    return data


@asynccontextmanager
async def everything(data: Path, **more: Any) -> AsyncIterator[Everything]:
    """Serves every method."""
    counting = Counting()
    tls = more.pop("tls_dir", data / "tls" / "session")
    mesh = settings.Mesh("127.0.0.1:0", "127.0.0.1:0", tls, data / "api_keys.json", "info", **more)
    server = Server(mesh)
    for name in MODULES:
        module = importlib.import_module(f"handmesh.{name}_pb2_grpc")
        for adder in [each for each in dir(module) if each.startswith("add_")]:
            servicer = getattr(module, adder.removeprefix("add_").removesuffix("_to_server"))()
            getattr(module, adder)(counting if isinstance(servicer, SessionServiceServicer) else servicer, server.grpc)
    await server.start(SESSION)
    address, client_address = server.addresses
    try:
        yield Everything(Served(address, client_address or "", data / "tls", "operator"), counting, data)
    finally:
        await server.stop(grace=0)


@pytest.fixture
async def all_methods(keys: Path) -> AsyncIterator[Everything]:
    async with everything(keys) as it:
        yield it


async def test_every_method_and_every_identity_is_as_the_reference_says(all_methods: Everything) -> None:
    """Each method x each service's certificate, each scope, a hand and nobody. A method without a row in the reference
    fails; so does one that lets in, or keeps out, somebody else than is written there."""
    said = documented()
    wrong: list[str] = []
    served = all_methods.served
    identities: dict[str, tuple[Any, Any]] = {name: (served.as_service(name), ()) for name in SERVICES}
    plain = grpc.aio.insecure_channel(served.client_address)
    for scope in Scope:
        identities[f"client ({scope.word})"] = plain, (("authorization", f"Bearer {scope.word}"),)
    identities["hand"] = plain, (("authorization", "Bearer hand_" + "0" * 26 + ".x"),)
    identities["anyone"] = plain, ()
    for method in methods():
        name = f"{method.containing_service.full_name}/{method.name}"
        for who, (channel, metadata) in identities.items():
            reason = await all_methods.reason(channel, method, metadata)
            if (reason not in REFUSED) != lets_in(said[name], who):
                wrong.append(f"{name}: {who}: {reason}")
    assert wrong == []
    assert len(said) == len(methods())
    for channel in {id(it): it for it, _ in identities.values()}.values():
        await channel.close()


def lets_in(row: set[str], who: str) -> bool:
    """Says whether a row of the reference lets somebody in. A scope includes those below it."""
    client = re.fullmatch(r"client \((\w+)\)", who)
    if client is None or "anyone" in row:
        return bool({who, "anyone"} & row)
    needed = [Scope[found[1].upper()] for each in row if (found := re.fullmatch(r"client \((\w+)\)", each))]
    return bool(needed) and Scope[client[1].upper()] >= needed[0]


async def test_a_services_certificate_is_no_clients_key(all_methods: Everything) -> None:
    """A harness's certificate with an operator's key beside it is a harness: it calls nothing that keeps the mesh."""
    metadata = (("authorization", "Bearer operator"),)
    async with all_methods.served.as_service("harness") as channel:
        for method in methods():
            if method.name in ADMINS:
                assert await all_methods.reason(channel, method, metadata) == "METHOD_DENIED", method.name


@asynccontextmanager
async def insecure(it: Everything) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(it.served.address) as channel:
        yield channel


@asynccontextmanager
async def without_certificate(it: Everything) -> AsyncIterator[Any]:
    trusted = grpc.ssl_channel_credentials((it.served.tls / "harness" / "ca.pem").read_bytes())
    async with grpc.aio.secure_channel(it.served.address, trusted) as channel:
        yield channel


@asynccontextmanager
async def of_another_authority(it: Everything) -> AsyncIterator[Any]:
    trusted = (it.served.tls / "harness" / "ca.pem").read_bytes()
    folder = Authority().issue(it.folder / "foreign", "spiffe://handmesh/harness", trusted=trusted)
    async with connect(it.served.address, folder) as channel:
        yield channel


@asynccontextmanager
async def expired(it: Everything) -> AsyncIterator[Any]:
    tls = it.folder / "expired"
    shutil.copytree(it.served.tls / "ca", tls / "ca", dirs_exist_ok=True)
    ensure_certificates(tls, ("harness",), datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=366))
    async with connect(it.served.address, tls / "harness") as channel:
        yield channel


@pytest.mark.parametrize("attacker", [insecure, without_certificate, of_another_authority, expired])
async def test_who_shows_no_good_certificate_reaches_nothing(
    all_methods: Everything, attacker: Callable[[Everything], Any]
) -> None:
    """The connection fails before any method is named, whatever key is shown on it."""
    health = pb.DESCRIPTOR.services_by_name["SessionService"].methods_by_name["CreateSession"]
    async with attacker(all_methods) as channel:
        for metadata in ((), (("authorization", "Bearer operator"),)):
            assert await all_methods.reason(channel, health, metadata) == "UNREACHABLE"
    assert all_methods.counting.created == 0


async def test_names_of_other_issuers_count_when_they_are_mapped(keys: Path, tmp_path: Path) -> None:
    """SPIFFE ids and DNS names of another authority stand for a service by the operator's file, and for no other; a
    name that is not in it is refused everywhere, with an operator's key beside it too."""
    issuer = Authority()
    own = (keys / "tls" / "session" / "ca.pem").read_bytes()
    server = issuer.issue(tmp_path / "session", "spiffe://org/ns/mesh/sa/session", trusted=own)
    names = {"spiffe://org/ns/mesh/sa/harness": "harness", "proxy.mesh.internal": "vault_proxy"}
    (tmp_path / "names.json").write_text(json.dumps(names))
    find = {method.name: method for method in methods() if method.containing_service.full_name == SESSION}
    key = (("authorization", "Bearer operator"),)
    async with everything(keys, tls_dir=server, identities_file=tmp_path / "names.json") as it:

        async def reasons(folder: Path) -> list[str]:
            async with connect(it.served.address, folder) as channel:
                calls = ("ClaimWork", "RedeemVoucher", "ListSessions")
                return [await it.reason(channel, find[name], key) for name in calls]

        harness = issuer.issue(tmp_path / "h", "spiffe://org/ns/mesh/sa/harness")
        assert await reasons(harness) == ["UNIMPLEMENTED", "METHOD_DENIED", "METHOD_DENIED"]
        proxy = issuer.issue(tmp_path / "p", dns=["proxy.mesh.internal"])
        assert await reasons(proxy) == ["METHOD_DENIED", "UNIMPLEMENTED", "METHOD_DENIED"]
        strangers = {
            "not mapped": issuer.issue(tmp_path / "s", "spiffe://org/ns/mesh/sa/other"),
            "no name at all": issuer.issue(tmp_path / "n"),
            "longer": issuer.issue(tmp_path / "l", "spiffe://org/ns/mesh/sa/harness/x"),
            "of two services": issuer.issue(tmp_path / "t", *names, dns=["proxy.mesh.internal"]),
            "the built-in one": issuer.issue(tmp_path / "b", "spiffe://handmesh/harness"),
            "of our own authority": keys / "tls" / "harness",
        }
        for why, folder in strangers.items():
            if why == "of our own authority":  # it trusts the other one for this call
                folder = shutil.copytree(folder, tmp_path / "o")
                (folder / "ca.pem").write_bytes(issuer.pem)
            assert await reasons(folder) == ["IDENTITY_UNKNOWN"] * 3, why


async def test_what_was_recorded_is_of_no_use(all_methods: Everything) -> None:
    """The bytes of a call, said again on a new connection, are no call: nothing is done a second time."""
    host, _, port = all_methods.served.address.rpartition(":")
    recorded = bytearray()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as both:
            both.create_task(pass_on(reader, onward, recorded))
            both.create_task(pass_on(there, writer, bytearray()))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as middle:
        address = f"127.0.0.1:{middle.sockets[0].getsockname()[1]}"
        async with connect(address, all_methods.served.tls / "harness") as channel:
            await SessionServiceStub(channel).CreateSession(pb.CreateSessionRequest())
    assert all_methods.counting.created == 1 and recorded
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bytes(recorded))
    async with asyncio.timeout(20):
        try:
            while await reader.read(65_536):
                pass
        except ConnectionError:
            pass
    writer.close()
    assert all_methods.counting.created == 1


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while piece := await reader.read(65_536):
            kept += piece
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()
