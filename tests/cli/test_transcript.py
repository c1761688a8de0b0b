"""The live view prints each character of the model's text once, whatever previews were lost."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from handmesh.cli.transcript import Transcript
from handmesh.sandbox.v1 import tool_pb2
from handmesh.session.v1 import event_pb2, session_pb2


class Screen:
    """A transcript on paper: `text` is standard output, `notes` is standard error."""

    def __init__(self) -> None:
        self.text, self.notes = io.StringIO(), io.StringIO()
        self.transcript = Transcript(Console(file=self.notes, width=100, markup=False), self.text)

    def preview(self, text: str, offset: int, event_id: str = "r1", block: int = 0) -> None:
        self.transcript.preview(session_pb2.Preview(event_id=event_id, block_index=block, offset=offset, text=text))

    def reply(self, *blocks: dict[str, object], event_id: str = "r1") -> None:
        reply = event_pb2.ModelReplied(content_json=json.dumps(blocks))
        self.transcript.show(event_pb2.Event(event_id=event_id, model_replied=reply))


def text_block(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


@given(st.text("ab \n", max_size=30), st.data())
def test_lost_previews_lose_no_text(text: str, data: st.DataObject) -> None:
    """Previews may be shed at any place: with the event of record the whole text is there, each character once."""
    screen, offset = Screen(), 0
    while offset < len(text):
        size = data.draw(st.integers(1, len(text) - offset))
        if data.draw(st.booleans()):
            screen.preview(text[offset : offset + size], offset)
        offset += size
    screen.reply(text_block(text))
    assert screen.text.getvalue() == (text if text.endswith("\n") or not text else f"{text}\n")


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), st.data())
def test_blocks_stand_on_lines_of_their_own(texts: list[str], data: st.DataObject) -> None:
    """An answer of several blocks reads the same, shown in previews or not."""
    screen = Screen()
    for index, text in enumerate(texts):
        if data.draw(st.booleans()):
            screen.preview(text, 0, block=index)
    screen.reply(*map(text_block, texts))
    shown = screen.text.getvalue()
    assert sorted(shown.split()) == sorted(texts)
    assert shown.endswith("\n")


def test_an_answer_that_breaks_off_is_marked_and_told_anew() -> None:
    """A harness that dies in an answer leaves a piece of it: the next answer stands for itself."""
    screen = Screen()
    screen.preview("I was about to", 0, event_id="r1")
    screen.preview("Hello", 0, event_id="r2")
    screen.reply(text_block("Hello there"), event_id="r2")
    assert screen.text.getvalue() == "I was about to\nHello there\n"
    assert "broke off" in screen.notes.getvalue()


def test_a_discarded_answer_is_marked() -> None:
    """The mesh says when an answer will not come; what is shown next begins anew."""
    screen = Screen()
    screen.preview("Half", 0)
    screen.transcript.preview(session_pb2.Preview(event_id="r1", discarded=True))
    screen.preview("Whole", 0, event_id="r2")
    screen.reply(text_block("Whole"), event_id="r2")
    assert screen.text.getvalue() == "Half\nWhole\n"
    assert "broke off" in screen.notes.getvalue()


def test_calls_and_results_are_compact_and_not_on_standard_output() -> None:
    """Tools are told on standard error, so that standard output is the model's text alone."""
    screen = Screen()
    screen.reply(text_block("I look."), {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}})
    result = tool_pb2.ToolResult(output="\n".join(map(str, range(20))), outcome=tool_pb2.TOOL_OUTCOME_OK)
    screen.transcript.show(event_pb2.Event(tool_finished=event_pb2.ToolFinished(tool_use_id="t1", result=result)))
    assert screen.text.getvalue() == "I look.\n"
    notes = [line.strip() for line in screen.notes.getvalue().splitlines()]
    assert notes == ["→ bash: ls", "← bash (ok)", "0", "1", "2", "3", "4", "5", "… 14 more lines"]


def test_nothing_hostile_is_printed() -> None:
    """Neither the model nor a tool gives the terminal orders, in a preview, a reply, a call or a result."""
    hostile, screen = "\x1b]0;owned\x07\u202e", Screen()
    screen.preview(hostile, 0)
    screen.reply(text_block(hostile), {"type": "tool_use", "id": hostile, "name": hostile, "input": {hostile: hostile}})
    result = tool_pb2.ToolResult(output=hostile, outcome=tool_pb2.TOOL_OUTCOME_TOOL_ERROR)
    screen.transcript.show(event_pb2.Event(tool_finished=event_pb2.ToolFinished(tool_use_id=hostile, result=result)))
    error = event_pb2.ErrorRaised(reason=hostile, message=hostile, part=hostile)
    screen.transcript.show(event_pb2.Event(error_raised=error))
    printed = screen.text.getvalue() + screen.notes.getvalue()
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)
    assert printed.count("owned") >= 5


def test_another_harness_is_told() -> None:
    """That a harness wakes for the next turn is no news; that another one does is."""
    screen = Screen()
    for position, instance in ((3, "a"), (9, "a"), (12, "b")):
        woke = event_pb2.HarnessWoke(instance=instance)
        screen.transcript.show(event_pb2.Event(position=position, harness_woke=woke))
    assert screen.notes.getvalue() == "another harness has taken over: b, epoch 12\n"
