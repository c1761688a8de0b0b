"""The tool `session_events`: the model reads its own log, in bounded answers that say where to go on."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.session.v1 import event_pb2 as pb
from handmesh.session.v1.config_pb2 import SessionConfig
from services.harness.config import Config
from services.harness.mesh.calls import checked
from services.harness.mesh.event_texts import KINDS, LOOK
from services.harness.mesh.session_events import MAX_CHARACTERS, MAX_PAGES, PAGE_EVENTS, SessionEvents
from services.harness.mesh.tool import Asked
from services.harness.ports import Standing
from tests.harness.test_loop import run
from tests.support.harness_ports import MemoryLog, ScriptedModel, message, ports, said

CONFIG = Config(mesh_tools=("session_events",))


async def look(log: MemoryLog, outcome: str = "OK", **given: Any) -> str:
    """Calls the tool as a harness does."""
    (spec,) = SessionEvents().offered(CONFIG)
    checked_input, wrong = checked(spec, json.dumps(given))
    assert not wrong
    asked = Asked(log, CONFIG, Standing(3, "grant"), "session_events", checked_input, "t1")
    result = await SessionEvents().execute(asked)
    assert result.outcome == outcome, result.output
    return result.output


def positions(answer: str) -> list[int]:
    """Returns the positions of the events in an answer."""
    return [int(found) for found in re.findall(r"^#(\d+) ", answer, re.MULTILINE)]


def onward(answer: str) -> dict[str, Any]:
    """Returns the fields with which an answer says to go on; none when it was all."""
    found = re.search(r"go on with start_position (\d+)(, newest_first true)?\.\]$", answer)
    if found is None:
        assert answer.endswith("[That is all.]")
        return {}
    return {"start_position": int(found[1]), **({"newest_first": True} if found[2] else {})}


def called(id: str, name: str, given: dict[str, Any]) -> pb.Event:
    """Makes a reply with a call."""
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."}]
    content.append({"type": "tool_use", "id": id, "name": name, "input": given})
    it = pb.ModelReplied(content_json=json.dumps(content), stop_reason="tool_use")
    return pb.Event(event_id=f"reply-{id}", model_replied=it)


def finished(id: str, output: str) -> pb.Event:
    """Makes a result."""
    result = ToolResult(output=output, outcome=ToolOutcome.TOOL_OUTCOME_OK)
    blob = pb.BlobRef(blob_id="blob_x", media_type="text/plain", size=9)
    return pb.Event(event_id=f"f-{id}", tool_finished=pb.ToolFinished(tool_use_id=id, result=result, blobs=[blob]))


async def test_only_sessions_that_ask_have_it() -> None:
    """The schema is one that the model's API takes."""
    assert SessionEvents().offered(Config()) == []
    (spec,) = SessionEvents().offered(CONFIG)
    assert (spec.read_only, json.loads(spec.schema)["type"]) == (True, "object")


async def test_events_are_told_as_text() -> None:
    """What was said, called and answered, with blobs by name, and nothing of the machines."""
    log = MemoryLog()
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400}}
    big = {"type": "handmesh_blob", "blob_id": "blob_y", "media_type": "image/png", "size": 7, "sha256": "s"}
    shown = pb.MessageReceived(content_json=json.dumps([{"type": "text", "text": "see"}, picture, big]))
    await log.add(
        pb.Event(event_id="w", harness_woke=pb.HarnessWoke(harness="messages", instance="secret-host:17")),
        pb.Event(event_id="p", message_received=shown),
        called("t1", "bash", {"command": "ls"}),
        pb.Event(event_id="s", tool_started=pb.ToolStarted(tool_use_id="t1", name="bash", hand="main")),
        finished("t1", "a\nb"),
    )
    answer = await look(log, start_position=2)
    when = "1970-01-01T00:00:00Z"
    assert answer == (
        f"{LOOK} The last position is 7.\n"
        f"#2 {when} message_received\n  hello\n"
        f"#3 {when} harness_woke\n"
        f"#4 {when} message_received\n  see\n  [image, image/png, 300 bytes]\n  [blob blob_y: image/png, 7 bytes]\n"
        f"#5 {when} model_replied, tool_use\n  [thinking, 2 characters]\n  I look.\n"
        '  [calls bash, id t1] {"command": "ls"}\n'
        f"#6 {when} tool_started, bash on main, id t1\n"
        f"#7 {when} tool_finished OK, id t1\n  a\n  b\n  [blob blob_x: text/plain, 9 bytes]\n"
        "[That is all.]"
    )


async def test_every_kind_can_be_told() -> None:
    """Also those that nobody thought of here: an event of any kind, empty, is an answer."""
    log = MemoryLog()
    for number, kind in enumerate(KINDS):
        event = pb.Event(event_id=f"e{number}")
        getattr(event, kind).SetInParent()
        if kind == "tools_offered":
            event.tools_offered.tools_json = "[]"
        await log.add(event)
    answer = await look(log, start_position=3, limit=200)
    assert len(positions(answer)) == len(KINDS)
    assert all(f" {kind}" in answer for kind in KINDS)


@pytest.mark.parametrize("back", [False, True])
async def test_slices_join_to_the_whole_log(back: bool) -> None:
    """Whoever goes on where an answer says so sees each event once, in either direction."""
    log = MemoryLog()
    for number in range(130):
        await log.add(message(f"message {number} " + "x" * 300, f"m-{number}"))
    given: dict[str, Any] = {"newest_first": True} if back else {}
    seen: list[int] = []
    while True:
        answer = await look(log, **given)
        assert len(answer) <= MAX_CHARACTERS + 200
        seen += positions(answer)
        if not (given := onward(answer)):
            break
    assert seen == (list(range(132, 0, -1)) if back else list(range(1, 133)))


async def test_kinds_and_text_choose() -> None:
    """A search is by kind, by text in upper or lower case, or both; it shows what is around the text."""
    log = MemoryLog()
    await log.add(message("x" * 900 + " the Needle " + "y" * 900, "m-a"), called("t1", "bash", {"q": "needle"}))
    assert positions(await look(log, text="NEEDLE")) == [3, 4]
    assert positions(await look(log, text="needle", kinds=["model_replied"])) == [4]
    answer = await look(log, text="needle", kinds=["message_received"])
    assert "x the Needle y" in answer
    assert "[705 characters before]" in answer
    assert "(no such event)" in await look(log, text="nothing like it")
    assert "no events of the kind bogus" in await look(log, "TOOL_ERROR", kinds=["bogus"])


async def test_a_long_search_ends_and_says_where_to_go_on() -> None:
    """Not all of a long log is looked through at once."""
    log = MemoryLog()
    for number in range(MAX_PAGES * PAGE_EVENTS):
        await log.add(message(f"{number}", f"m-{number}"))
    await log.add(message("needle", "m-last"))
    first = await look(log, text="needle")
    assert positions(first) == []
    assert onward(first) == {"start_position": MAX_PAGES * PAGE_EVENTS + 1}
    assert positions(await look(log, text="needle", **onward(first))) == [MAX_PAGES * PAGE_EVENTS + 3]


async def test_an_event_can_be_read_whole() -> None:
    """In short an event's text is cut and says by how much; whole, offsets lead through all of it."""
    text = "".join(f"{number:07d} " for number in range(10_000))
    log = MemoryLog()
    await log.add(message(text, "m-long"))
    assert "[79500 characters more]" in await look(log, start_position=3)
    found, offset = "", 0
    while True:
        answer = await look(log, start_position=3, limit=1, whole=True, offset=offset)
        assert len(answer) <= MAX_CHARACTERS + 200
        body = answer.split("\n")[2]
        found += body.removeprefix("  ")
        more = re.search(r"whole true, limit 1, offset (\d+)\.\]", answer)
        if more is None:
            break
        offset = int(more[1])
    assert found == text.rstrip() + " "


async def test_a_blob_that_the_log_names_is_read() -> None:
    """By its id, from an offset; one that is not the session's, or no text, is told so."""
    log = MemoryLog()
    ref = await log.put_blob(b"0123456789" * 5_000, "text/plain")
    picture = await log.put_blob(b"\x89PNG\xff", "image/png")
    first = await look(log, blob_id=ref.blob_id)
    assert first.startswith(f"{LOOK}\n0123456789")
    offset = int(re.search(r"offset (\d+)\.\]$", first)[1])  # type: ignore[index]
    assert (await look(log, blob_id=ref.blob_id, offset=offset)).endswith("89")
    assert "no text" in await look(log, "TOOL_ERROR", blob_id=picture.blob_id)
    assert "has no blob" in await look(log, "TOOL_ERROR", blob_id="blob_other")


async def test_an_answer_is_not_found_by_the_next_search() -> None:
    """What the tool has said of the log is not said again as a part of it."""
    log = MemoryLog(SessionConfig(mesh_tools=["session_events"], no_hands=True), first="needle")
    call = ("session_events", {"text": "needle", "kinds": ["message_received", "tool_finished"]})
    model = ScriptedModel(said(t1=call), said(t2=call), said())
    await run(log, ports(model, mesh=[SessionEvents()]))
    answers = [it.result.output for it in log.only("tool_finished")]
    assert [positions(answer) for answer in answers] == [[2], [2]]
