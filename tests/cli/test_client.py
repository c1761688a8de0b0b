"""The Python client against a peer on the wire."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from handmesh.client import Addresses, Client, HandmeshError, connect
from handmesh.client.channels import is_loopback
from handmesh.client.health import serves
from handmesh.client.settings import read
from handmesh.harness.v1 import harness_pb2
from handmesh.launcher.lock import Lock
from handmesh.launcher.ports import Ports
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import config_pb2, event_pb2, session_pb2
from tests.cli.peer import KEY, PAGE, Peer


async def test_a_session_begins_with_its_first_message(peer: Peer, client: Client) -> None:
    """One call starts the session and says the first thing; the configuration arrives as given."""
    session = await client.create_session(config_pb2.SessionConfig(system="Be brief."), "Hi – ünïcode")
    log = peer.events(session.id)
    assert [event.WhichOneof("kind") for event in log] == ["session_started", "message_received"]
    assert json.loads(log[1].message_received.content_json) == [{"type": "text", "text": "Hi – ünïcode"}]
    assert peer.configs[session.id].system == "Be brief."


async def test_a_request_id_makes_one_session(client: Client) -> None:
    """A caller that lost the answer may say the same again."""
    first = await client.create_session(request_id="once")
    assert (await client.create_session(request_id="once")).id == first.id
    assert (await client.create_session()).id != (await client.create_session()).id


async def test_the_same_event_id_is_emitted_once(peer: Peer, client: Client) -> None:
    """An event of the caller's own id is in the log once, and its position is told again."""
    session = client.session(peer.start("s"))
    assert await session.send("hi", event_id="mine") == await session.send("hi", event_id="mine") == 2
    assert await session.send("hi") == 3
    assert await session.send("hi") == 4


async def test_all_that_a_client_says_arrives(peer: Peer, client: Client) -> None:
    """Interrupts, decisions, answers and blocks become the events of the contract."""
    session = client.session(peer.start("s"))
    await session.interrupt()
    asked = event_pb2.ToolConfirmationRequested(tool_use_id="t1", name="bash", call_hash="abc")
    await session.confirm(asked, allowed=False, reason="not that")
    await session.answer_custom_tool("t2", "42", outcome=tool_pb2.TOOL_OUTCOME_TOOL_ERROR)
    await session.send([{"type": "text", "text": "blocks"}])
    said = peer.events("s")[1:]
    assert said[0].HasField("interrupt_requested")
    assert said[1].tool_confirmed == event_pb2.ToolConfirmed(
        tool_use_id="t1", allowed=False, message="not that", call_hash="abc"
    )
    assert said[2].custom_tool_answered == event_pb2.CustomToolAnswered(
        tool_use_id="t2", result=tool_pb2.ToolResult(output="42", outcome=tool_pb2.TOOL_OUTCOME_TOOL_ERROR)
    )
    assert json.loads(said[3].message_received.content_json) == [{"type": "text", "text": "blocks"}]
    assert len({event.event_id for event in said}) == 4


async def test_wake_and_end(peer: Peer, client: Client) -> None:
    """Waking goes to the harness, ending to the log."""
    session = client.session(peer.start("s"))
    assert await session.wake() == harness_pb2.WAKE_OUTCOME_STARTED
    assert peer.woken == ["s"]
    assert (await session.end("done with it")).last_position == 2
    assert peer.events("s")[-1].session_ended.reason == "done with it"


async def test_events_are_read_page_by_page(peer: Peer, client: Client) -> None:
    """A slice longer than a page arrives whole, in order, and bounded by its ends."""
    session = client.session(peer.start("s"))
    for _ in range(3 * PAGE):
        await session.send("x")
    length = 3 * PAGE + 1
    assert [event.position async for event in session.events()] == list(range(1, length + 1))
    assert [event.position async for event in session.events(3, 9)] == [3, 4, 5, 6, 7, 8]
    assert [event.position async for event in session.events(last=5)] == list(range(length - 4, length + 1))
    assert [event.position async for event in session.events(kinds=["session_started"])] == [1]
    assert [event.position async for event in session.events(length + 1)] == []


async def test_sessions_are_listed_page_by_page(peer: Peer, client: Client) -> None:
    """More sessions than one page holds are all listed, each once."""
    ids = [peer.start(f"s{number}") for number in range(2 * PAGE + 1)]
    assert [session.session_id async for session in client.sessions()] == sorted(ids, reverse=True)


@pytest.mark.parametrize("breaks", [[0], [1, 1, 1], [2, 0, 1]])
async def test_a_watch_goes_on_after_a_break(peer: Peer, client: Client, breaks: list[int]) -> None:
    """However often the stream breaks, each position comes once and in order."""
    session = client.session(peer.start("s"))
    for _ in range(6):
        peer.append("s", message_received=event_pb2.MessageReceived())
    peer.break_after = list(breaks)
    seen = []
    async for event in session.watch():
        seen.append(event.position)
        if event.position == 7:
            break
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert peer.watches == len(breaks) + 1


async def test_a_watch_passes_on_nothing_twice(peer: Peer, client: Client) -> None:
    """Even of a service that sends again what was asked for before, each position is seen once."""
    session = client.session(peer.start("s"))
    for _ in range(3):
        peer.append("s", message_received=event_pb2.MessageReceived())
    peer.forgetful, peer.break_after = True, [2]
    assert [event.position async for event in _first(session.watch(), 4)] == [1, 2, 3, 4]


async def test_a_watch_survives_a_restart_of_the_service(peer: Peer, client: Client) -> None:
    """The service may be away for a while: the watch waits for it and goes on where it was."""
    session = client.session(peer.start("s"))
    watching = session.watch(patience=30)
    assert (await anext(watching)).position == 1
    await asyncio.to_thread(peer.stop)
    waiting = asyncio.ensure_future(anext(watching))
    again = Peer(peer.port)
    try:
        again.start("s")
        again.append("s", message_received=event_pb2.MessageReceived())
        assert (await waiting).position == 2
        await watching.aclose()
    finally:
        again.stop()


async def test_a_watch_gives_up_when_its_patience_is_over(peer: Peer, client: Client) -> None:
    """A mesh that is gone is said to be gone, in time."""
    session = client.session(peer.start("s"))
    await asyncio.to_thread(peer.stop)
    with pytest.raises(HandmeshError) as gone:
        await anext(session.watch(patience=0.2))
    assert gone.value.code == "UNAVAILABLE"


async def test_a_watch_refuses_a_gap(peer: Peer, client: Client) -> None:
    """A log has no gaps: an event that is missing is an error, not something to pass over."""
    session = client.session(peer.start("s"))
    for position in (2, 4):
        peer.append("s", message_received=event_pb2.MessageReceived()).position = position
    seen = []
    with pytest.raises(HandmeshError) as broken:
        async for event in session.watch():
            seen.append(event.position)
    assert seen == [1, 2]
    assert (broken.value.reason, broken.value.metadata) == ("LOG_INVALID", {"position": "3"})


async def test_previews_come_only_when_asked_for(peer: Peer, client: Client) -> None:
    """Previews arrive between the events, in order, for who asked."""
    session = client.session(peer.start("s"))
    peer.show("s", event_id="r", text="He")
    peer.show("s", event_id="r", text="llo", offset=2)
    peer.append("s", model_replied=event_pb2.ModelReplied())
    assert [event.position async for event in _first(session.watch(), 2)] == [1, 2]
    seen = [item async for item in _first(session.watch(previews=True), 4)]
    assert [item.text for item in seen if isinstance(item, session_pb2.Preview)] == ["He", "llo"]


async def _first(items, count):
    for _ in range(count):
        yield await anext(items)
    await items.aclose()


async def test_errors_say_reason_message_and_metadata(client: Client) -> None:
    """What the service said arrives in its parts, so that programs branch on the reason."""
    with pytest.raises(HandmeshError) as missing:
        await client.session("sess_nowhere").get()
    problem = missing.value
    assert (problem.reason, problem.code, problem.message) == ("SESSION_NOT_FOUND", "NOT_FOUND", "no such session")
    assert problem.metadata == {"session_id": "sess_nowhere"}
    assert str(problem) == "no such session [SESSION_NOT_FOUND]"


async def test_a_watch_of_an_unknown_session_is_refused_at_once(client: Client) -> None:
    """A refusal is no break: a watch does not try it again."""
    with pytest.raises(HandmeshError, match="SESSION_NOT_FOUND"):
        await anext(client.session("sess_nowhere").watch(patience=None))


async def test_a_wrong_key_is_refused(peer: Peer, data_directory: Path) -> None:
    """Without the right key nothing is answered."""
    async with connect(f"127.0.0.1:{peer.port}", "wrong") as stranger:
        with pytest.raises(HandmeshError) as refused:
            await stranger.create_session()
    assert refused.value.reason == "IDENTITY_UNKNOWN"


async def test_the_key_is_not_shown(client: Client) -> None:
    """A client that is printed or logged does not tell its key."""
    assert KEY not in repr(client) + repr(client.session_link) + repr(read({"HANDMESH_API_KEY": KEY}))


async def test_a_mesh_elsewhere_comes_from_the_environment(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address and key of another machine's mesh are set in the environment; the harness may be elsewhere again."""
    monkeypatch.setenv("HANDMESH_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HANDMESH_ADDRESS", f"127.0.0.1:{peer.port}")
    monkeypatch.setenv("HANDMESH_HARNESS_ADDRESS", "127.0.0.1:9")
    monkeypatch.setenv("HANDMESH_API_KEY", KEY)
    async with connect() as client:
        assert client.addresses.harness == "127.0.0.1:9"
        assert [session async for session in client.sessions()] == []


def test_without_a_mesh_the_key_is_sent_nowhere(tmp_path: Path) -> None:
    """Who listens on the default port of a mesh that does not run might be anybody."""
    with pytest.raises(HandmeshError, match="handmesh up") as no_key:
        connect(data_directory=tmp_path)
    assert no_key.value.reason == "IDENTITY_UNKNOWN"
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "api_key").write_text(KEY)
    with pytest.raises(HandmeshError, match="no mesh runs") as no_mesh:
        connect(data_directory=tmp_path)
    assert no_mesh.value.reason == "UNAVAILABLE"


def test_ports_come_from_the_running_launcher(tmp_path: Path) -> None:
    """A mesh on other ports is found by its data directory, as long as it runs."""
    lock = Lock.acquire(tmp_path, replace(Ports.at(), session=12_345))
    assert Addresses.local(tmp_path) == replace(Addresses.of_ports(Ports.at()), session="127.0.0.1:12345")
    lock.release()
    assert Addresses.local(tmp_path) is None


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("10.0.0.1:1", False), ("mesh.example:1", False)],
)
def test_plain_text_is_for_this_machine_only(address: str, local: bool) -> None:
    """A key is never sent over a network in plain text."""
    assert is_loopback(address) is local


async def test_other_addresses_are_spoken_to_in_tls(peer: Peer) -> None:
    """An address that is not loopback gets no word in plain text, even if something there would listen."""
    peer.start("s")
    async with connect(f"0.0.0.0:{peer.port}", KEY) as client:
        with pytest.raises(HandmeshError) as failed:
            await client.session("s").send("hi")
    assert failed.value.code == "UNAVAILABLE"
    assert len(peer.events("s")) == 1


async def test_health_is_asked_over_the_wire(peer: Peer) -> None:
    """A service that serves says so; a closed port is no service."""
    address = f"127.0.0.1:{peer.port}"
    assert await serves(address)
    await asyncio.to_thread(peer.stop)
    assert not await serves(address)


def test_the_data_directory_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """State lies where the system's rules put it, unless said otherwise."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert read({}).data_directory == Path("/home/someone/.local/state/handmesh")
    assert read({"XDG_STATE_HOME": "/state"}).data_directory == Path("/state/handmesh")
    assert read({"HANDMESH_DATA_DIR": "/d", "XDG_STATE_HOME": "/state"}).data_directory == Path("/d")
