"""Certificates are renewed while everything runs: on the server's side, on the caller's, and the authority's too."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from services.kit import certificates, watched
from services.kit.channels import connect
from services.kit.watched import UnreadableError, Watched
from tests.support.authority import Authority

PATH = "/test/Echo"


def put(source: Path, folder: Path) -> None:
    """Puts files in place of those that are there, as an issuer's agent does."""
    for each in source.iterdir():
        draft = folder / f".{each.name}"
        shutil.copy(each, draft)
        draft.replace(folder / each.name)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """Serves one method over mutual TLS; gives the address and, for each call, the caller's name."""
    seen: list[str] = []

    async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        seen.append(context.auth_context()["peer_uri"][0].decode())
        return request

    async def count(request: bytes, context: object) -> AsyncIterator[bytes]:
        for number in range(3):
            yield str(number).encode()
            await wait.wait()

    wait = asyncio.Event()
    server = grpc.aio.server()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
        "Count": grpc.unary_stream_rpc_method_handler(count),
        "Go": grpc.unary_unary_rpc_method_handler(lambda request, context: wait.set() or b""),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_secure_port("127.0.0.1:0", certificates.server_credentials(folder, mutual=True))
    await server.start()
    try:
        yield f"127.0.0.1:{port}", seen
    finally:
        await server.stop(0)


@pytest.fixture(autouse=True)
def looked_at_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the files at every call, and not every second."""
    ordinary = Watched.get

    def get(self: Watched[object]) -> object:
        self._due = 0.0
        return ordinary(self)

    monkeypatch.setattr(watched.Watched, "get", get)


async def test_one_authority_follows_another_and_nothing_stops(tmp_path: Path) -> None:
    """Both are trusted for a while, each side is given its new certificate, the old authority goes. Calls work after
    each step, a stream that was open from the beginning goes on to its end, and who stays behind is refused."""
    old, new = Authority("old"), Authority("new")
    server = old.issue(tmp_path / "server", "spiffe://x/server")
    caller = old.issue(tmp_path / "caller", "spiffe://x/old")
    behind = shutil.copytree(caller, tmp_path / "behind")
    async with serving(server) as (address, seen), connect(address, caller) as channel:
        call, stream = channel.unary_unary(PATH), channel.unary_stream("/test/Count")(b"")
        assert await call(b"1") == b"1" and await stream.read() == b"0"
        for folder, name in ((server, "server"), (caller, "old")):  # both trust both
            put(old.issue(tmp_path / "both" / name, f"spiffe://x/{name}", trusted=new.pem), folder)
        assert await call(b"2") == b"2"
        put(new.issue(tmp_path / "next" / "server", "spiffe://x/server", trusted=old.pem), server)
        assert await call(b"3") == b"3"
        put(new.issue(tmp_path / "next" / "caller", "spiffe://x/new"), caller)
        put(new.issue(tmp_path / "last" / "server", "spiffe://x/server"), server)
        assert await call(b"4") == b"4"
        assert seen == ["spiffe://x/old"] * 3 + ["spiffe://x/new"]
        await channel.unary_unary("/test/Go")(b"")
        assert [await stream.read() for _ in range(3)] == [b"1", b"2", grpc.aio.EOF]
        async with connect(address, behind) as left:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await left.unary_unary(PATH)(b"", timeout=10)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_what_does_not_belong_together_is_not_taken(tmp_path: Path) -> None:
    """Between two of its files, or with a broken one, a service goes on with what it had."""
    authority = Authority()
    server = authority.issue(tmp_path / "server", "spiffe://x/server")
    caller = authority.issue(tmp_path / "caller", "spiffe://x/caller")
    other = authority.issue(tmp_path / "other", "spiffe://x/server")
    async with serving(server) as (address, _):
        for name in certificates.NAMES[:2]:
            kept = (server / name).read_bytes()
            for wrong in ((other / name).read_bytes(), b"nothing", b""):
                (server / name).write_bytes(wrong)
                async with connect(address, caller) as channel:
                    assert await channel.unary_unary(PATH)(b"x") == b"x"
            (server / name).write_bytes(kept)
    (server / "ca.pem").unlink()
    with pytest.raises(FileNotFoundError):
        certificates.read(server)
    (server / "ca.pem").write_bytes(b"nothing")
    with pytest.raises(UnreadableError):
        certificates.read(server)


async def test_listeners_that_are_not_grpc_are_renewed_too(tmp_path: Path) -> None:
    """The doors' listener and its caller: a new certificate and another authority, without a restart; TLS 1.3 alone."""
    old, new = Authority("old"), Authority("new")
    server = old.issue(tmp_path / "server", "spiffe://x/server")
    caller = old.issue(tmp_path / "caller", "spiffe://x/caller")
    behind = certificates.client_context(shutil.copytree(caller, tmp_path / "behind"))

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    context = certificates.client_context(caller)
    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=certificates.server_context(server)) as listener:
        port = listener.sockets[0].getsockname()[1]

        async def said(shown: ssl.SSLContext) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=shown)
            answer = await reader.read()
            writer.close()
            return answer

        assert await said(context()) == b"hello"
        old_fashioned = certificates.client_context(shutil.copytree(caller, tmp_path / "old-fashioned"))()
        old_fashioned.minimum_version = old_fashioned.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(OSError):
            await said(old_fashioned)
        put(new.issue(tmp_path / "next" / "server", "spiffe://x/server"), server)
        put(new.issue(tmp_path / "next" / "caller", "spiffe://x/caller"), caller)
        assert await said(context()) == b"hello"
        with pytest.raises(OSError):  # an SSLError, or the end of the connection
            await said(behind())
            raise ConnectionError("it was let in")
