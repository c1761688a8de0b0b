"""The real Claude Code as a harness type, against the scripted model: what it writes, asks and leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handmesh.sandbox.v1.tool_pb2 import ToolOutcome, ToolResult
from handmesh.scripted_model import ScriptedModel
from handmesh.session.v1.config_pb2 import Budgets, CustomTool, SessionConfig, ToolPolicy, ToolPolicyAction
from handmesh.session.v1.event_pb2 import (
    ConfigChanged,
    CustomToolAnswered,
    Event,
    InterruptRequested,
    ToolConfirmed,
    TurnEndReason,
)
from services.harness.loops.claude_code import make
from services.harness.loops.claude_code.home import PREFIX, Home
from services.harness.loops.messages import make as make_messages
from services.harness.ports import HarnessType, Ports
from tests.drills.size import FULL
from tests.support.harness_ports import MemoryHands, MemoryLog, Told, message, ports, said
from tests.support.harness_ports import ScriptedModel as MemoryModel

pytestmark = pytest.mark.claude_code

LS = {"tool_use": {"tool": "bash", "input": {"command": "ls"}}}
PWD = {"tool_use": {"tool": "bash", "input": {"command": "pwd"}}}
DONE = {"say": [{"text": "there: {last_tool_result}"}]}
SCRIPT = {
    "conversations": [
        {"when": {"user": "hello"}, "steps": [{"say": [{"thinking": "hm"}, {"text": "look"}, LS, PWD]}, DONE]},
        {"when": {"user": "unknown"}, "steps": [{"say": [{"tool_use": {"name": "nope", "input": {}}}]}, DONE]},
        {
            "when": {"user": "broken"},
            "steps": [{"say": [{"tool_use": {"name": "bash", "input_json": '{"comm'}}]}, DONE],
        },
        {"when": {"user": "ask me"}, "steps": [{"say": [{"tool_use": {"name": "pick", "input": {"n": 1}}}]}, DONE]},
        {"when": {"user": "endless"}, "steps": [{"say": [{"text": "more"}], "stop_reason": "max_tokens"}]},
        {"when": {"user": "bad"}, "steps": [{"say": [{"text": "no"}], "stop_reason": "refusal"}]},
        {
            "when": {"user": "busy"},
            "steps": [{"cases": [{"times": 1, "error": {"status": 529}}, {"say": [{"text": "now"}]}]}],
        },
        {
            "when": {"user": "huge"},
            "steps": [{"say": [{"text": "many"}, LS], "usage": {"input_tokens": 990_000, "output_tokens": 9}}],
        },
        {"when": {"user": "Respond with TEXT ONLY"}, "steps": [{"say": [{"text": "<summary>Sum of it</summary>"}]}]},
        {"when": {"user": "being continued"}, "steps": [{"say": [{"text": "went on"}]}]},
        {"when": {"user": "forbidden"}, "steps": [{"error": {"status": 401}}]},
        {
            "when": {"user": "cut off"},
            "steps": [{"cases": [{"times": 1, "say": [{"text": "12"}], "cut_after_events": 3}, DONE]}],
        },
    ],
    "default": {"repeat": True, "steps": [{"say": [{"text": "You said: {last_user_text}"}]}]},
}  # fmt: skip


class Newest(MemoryModel):
    """Only names a model: Claude Code asks it itself."""

    async def newest(self) -> str:
        return "claude-opus-4-8"


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(SCRIPT, api_key="sk-only") as model:
        yield model


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Whatever happens, no process and no directory of Claude Code outlives its run."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert processes() == []
    assert list(tmp_path.glob(f"{PREFIX}*")) == []


def processes() -> list[Path]:
    """Lists the processes of Claude Code that this one has started, as folders of /proc."""
    mine = f"{PREFIX}".encode()
    here = Path(tempfile.gettempdir()).name.encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "cmdline").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if (
            b"_bundled/claude" in told
            and state != "Z"
            and mine in (path / "environ").read_bytes()
            and here in (path / "environ").read_bytes()
        ):
            found.append(path)
    return found


def claude(model: ScriptedModel, key: str = "sk-only", processes: int = 2) -> HarnessType:
    """Makes the type, as a new process of the harness does."""
    file = Path(tempfile.gettempdir()) / "key"
    file.write_text(f"{key}\n")
    settings: Any = SimpleNamespace(model_key_file=file, model_base_url=model.base_url, claude_code_processes=processes)
    return make(settings)


async def run(model: ScriptedModel, log: MemoryLog, world: Ports | None = None, key: str = "sk-only") -> float | None:
    """Runs a harness that knows nothing of the session but its log."""
    return await claude(model, key).run(log, world or ports(Newest()), "test", Told())


def session(first: str = "hello", **config: Any) -> MemoryLog:
    return MemoryLog(SessionConfig(harness="claude_code", **config), first)


def outcomes(log: MemoryLog) -> list[str]:
    return [ToolOutcome.Name(it.result.outcome).removeprefix("TOOL_OUTCOME_") for it in log.only("tool_finished")]


def ends(log: MemoryLog) -> list[str]:
    return [TurnEndReason.Name(it.reason).removeprefix("TURN_END_REASON_") for it in log.only("turn_ended")]


def conversations(model: ScriptedModel) -> list[list[tuple[str, Any]]]:
    """Returns what each answered request told the model: roles, and of blocks what matters."""
    return [
        [(it["role"], [_block(block) for block in it["content"]]) for it in request.body["messages"]]
        for request in model.requests
        if request.body is not None and request.status == 200
    ]


def _block(block: dict[str, Any]) -> Any:
    match block["type"]:
        case "text":
            return block["text"]
        case "tool_result":
            return block["tool_use_id"], [it.get("text", it["type"]) for it in _listed(block["content"])]
        case "tool_use":
            return block["id"]
    return block["type"]


def _listed(content: Any) -> Sequence[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def calls(log: MemoryLog) -> list[str]:
    return [it.tool_use_id for it in log.only("tool_finished")]


async def test_a_turn_is_in_the_log_as_any_other_types_is(model: ScriptedModel) -> None:
    """Intent before effect, one result for each call; blocks as the model gave them, its usage, id and what it read."""
    log, hands = session(system="Be brief.", max_output_tokens=1234), MemoryHands()
    log.is_watched = True
    await run(model, log, ports(Newest(), hands))
    assert log.kinds()[2:] == [
        "harness_woke",
        "tools_offered",
        "model_replied",
        "sandbox_provisioned",
        *["tool_started"] * 2,
        *["tool_finished"] * 2,
        "model_replied",
        "turn_ended",
    ]
    first, second = log.only("model_replied")
    assert [block["type"] for block in json.loads(first.content_json)] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.get("name") for block in json.loads(first.content_json)[2:]] == ["bash", "bash"]
    assert (first.read_position, second.read_position) == (4, 10)
    assert (first.stop_reason, second.stop_reason, first.model) == ("tool_use", "end_turn", "claude-opus-4-8")
    assert first.message_id.startswith("msg_")
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 0
    assert first.cost_micros > 0
    assert (outcomes(log), ends(log), len(hands.executions)) == (["OK", "OK"], ["DONE"], 2)
    assert "".join(it.text for it in log.shown if it.text).startswith("look")
    body = model.requests[-1].body
    assert body is not None
    assert [tool["name"] for tool in body["tools"]] == ["bash"]
    assert [block["text"] for block in body["system"]][-1] == "Be brief."
    assert body["max_tokens"] == 1234
    assert conversations(model)[-1] == [
        ("user", ["hello"]),
        ("assistant", ["thinking", "look", *calls(log)]),
        ("user", [(id, ["bash ran"]) for id in calls(log)]),
    ]


async def test_one_process_works_for_a_running_turn_and_knows_nothing_of_ours(
    model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the model's key and nothing of the harness's environment, no program, no open file; one for a turn."""
    monkeypatch.setenv("HANDMESH_SECRET", "ours")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours")
    seen: list[tuple[Path, bytes, bytes, list[str]]] = []

    async def look(_tool: str, _input: str) -> None:
        for path in processes():
            files = [str(link.readlink()) for link in (path / "fd").iterdir() if link.exists()]
            seen.append((path, (path / "environ").read_bytes(), (path / "cmdline").read_bytes(), files))

    await run(model, session(), ports(Newest(), MemoryHands(look)))
    assert len({path for path, *_ in seen}) == 1
    _, environ, arguments, files = seen[0]
    assert b"ours" not in environ
    assert b"HANDMESH" not in environ
    assert b"PATH=/nonexistent" in environ
    assert b"sk-only" in environ
    assert b"sk-only" not in arguments
    assert not [file for file in files if file.endswith(("/owner", "/key", ".sock"))]


async def test_a_harness_that_dies_in_a_tool_is_replaced_and_claude_code_goes_on(model: ScriptedModel) -> None:
    """The next one attaches to the execution by its id; Claude Code is given the result of the call that it made."""
    release = asyncio.Event()
    log, hands = session(), MemoryHands(lambda tool, input: release.wait())
    first = asyncio.create_task(run(model, log, ports(Newest(), hands)))
    while len(hands.executions) < 2:
        await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait({first})
    assert processes() == []
    asyncio.get_running_loop().call_later(0.1, release.set)
    await run(model, log, ports(Newest(), hands))
    assert (len(log.only("tool_started")), len(hands.executions)) == (2, 2)
    assert (outcomes(log), ends(log)) == (["OK", "OK"], ["DONE"])
    assert conversations(model)[-1] == [
        ("user", ["hello"]),
        ("assistant", ["thinking", "look", *calls(log)]),
        (
            "user",
            [
                *((id, ["bash ran"]) for id in calls(log)),
                "<system-reminder>\nGo on from where you are.\n</system-reminder>",
            ],
        ),
    ]


class Dying(MemoryLog):
    """A log whose harness dies at its n-th append: before it is stored, or right behind it."""

    def __init__(self, appends: int, stored: bool) -> None:
        super().__init__(SessionConfig(harness="claude_code"))
        self.left, self.stored = appends, stored
        self.died = asyncio.Event()

    async def emit(self, events: Any, epoch: int, expected_position: int | None) -> Any:
        self.left -= 1
        if self.left == 0:
            if self.stored:
                await super().emit(events, epoch, expected_position)
            self.died.set()
            await asyncio.Event().wait()
        return await super().emit(events, epoch, expected_position)


@pytest.mark.parametrize("stored", [True, False] if FULL else [True])
async def test_whichever_append_a_harness_dies_at_each_tool_runs_once(model: ScriptedModel, stored: bool) -> None:
    """Every call is answered once, and the turn ends, at each append of a turn."""
    for appends in range(2 - stored, 9):
        log, hands = Dying(appends, stored), MemoryHands()
        first = asyncio.create_task(run(model, log, ports(Newest(), hands)))
        death = asyncio.create_task(log.died.wait())
        await asyncio.wait({first, death}, return_when=asyncio.FIRST_COMPLETED)
        over = first.done()
        first.cancel()
        death.cancel()
        await asyncio.wait({first, death})
        if not over:
            await run(model, log, ports(Newest(), hands))
        assert (outcomes(log), ends(log), len(hands.executions)) == (["OK", "OK"], ["DONE"], 2), appends
        if over:
            return
    raise AssertionError("a turn has fewer appends")


async def test_an_approval_is_waited_for_without_a_process(model: ScriptedModel) -> None:
    """ASK asks a person; the session rests meanwhile. DENY is told to the model. What was approved runs once."""
    policies = [ToolPolicy(pattern="bash", action=ToolPolicyAction.TOOL_POLICY_ACTION_ASK)]
    log, hands = session(tool_policies=policies), MemoryHands()
    await run(model, log, ports(Newest(), hands))
    assert (processes(), hands.executions) == ([], {})
    first, second = log.only("tool_confirmation_requested")
    yes = ToolConfirmed(tool_use_id=first.tool_use_id, allowed=True, call_hash=first.call_hash)
    no = ToolConfirmed(tool_use_id=second.tool_use_id, allowed=False, message="not that one")
    await log.add(Event(event_id="yes", tool_confirmed=yes), Event(event_id="no", tool_confirmed=no))
    await run(model, log, ports(Newest(), hands))
    assert (sorted(outcomes(log)), ends(log), len(hands.executions)) == (["DENIED", "OK"], ["DONE"], 1)


async def test_a_clients_own_tool_is_answered_by_a_client(model: ScriptedModel) -> None:
    """Claude Code calls it like any other; the answer may come to another process."""
    tool = CustomTool(name="pick", description="Picks.", input_schema_json='{"type":"object"}')
    log = session("ask me", custom_tools=[tool])
    await run(model, log)
    (asked,) = log.only("custom_tool_requested")
    answered = CustomToolAnswered(tool_use_id=asked.tool_use_id, result=ToolResult(output="seven"))
    answered.result.outcome = ToolOutcome.TOOL_OUTCOME_OK
    await log.add(Event(event_id="a", custom_tool_answered=answered))
    await run(model, log)
    assert ends(log) == ["DONE"]
    assert "seven" in log.only("model_replied")[-1].content_json


async def test_an_interrupt_ends_the_process_with_the_turn(model: ScriptedModel) -> None:
    """Calls are cancelled in their hands, each has one result, and the next message is answered as usual."""
    log, hands = session(), MemoryHands(lambda tool, input: asyncio.Event().wait())
    running = asyncio.create_task(run(model, log, ports(Newest(), hands)))
    while len(hands.executions) < 2:
        await asyncio.sleep(0.01)
    await log.add(Event(event_id="stop", interrupt_requested=InterruptRequested()))
    await running
    assert (outcomes(log), ends(log)) == (["INTERRUPTED", "INTERRUPTED"], ["INTERRUPTED"])
    await log.add(message("and now?", "m2"))
    await run(model, log)
    assert "You said: and now?" in log.only("model_replied")[-1].content_json


async def test_what_is_said_while_a_tool_runs_is_answered_with_its_result(model: ScriptedModel) -> None:
    """Another process is started, which is told both."""
    release = asyncio.Event()
    log, hands = session(), MemoryHands(lambda tool, input: release.wait())
    running = asyncio.create_task(run(model, log, ports(Newest(), hands)))
    while len(hands.executions) < 2:
        await asyncio.sleep(0.01)
    await log.add(message("hurry", "m2"))
    release.set()
    await running
    assert ends(log) == ["DONE"]
    assert conversations(model)[-1][2][1][2].strip() == "hurry"


@pytest.mark.parametrize(
    ("first", "end", "replies"),
    [
        ("endless", "LIMIT", 1),
        ("bad", "REFUSED", 1),
        ("busy", "DONE", 1),
        ("forbidden", "FAILED", 0),
        ("cut off", "DONE", 1),
    ],
)
async def test_an_answer_that_ends_otherwise_ends_the_turn_as_in_other_types(
    model: ScriptedModel, first: str, end: str, replies: int
) -> None:
    """Claude Code would go on by itself, or try again by itself: neither is left to it."""
    log = session(first)
    await run(model, log)
    assert (ends(log), len(log.only("model_replied"))) == ([end], replies)
    retried = {"busy": ["MODEL_OVERLOADED"], "cut off": ["MODEL_UNAVAILABLE"]}.get(first, [])
    assert [it.reason for it in log.only("retry_scheduled")] == retried
    assert [it.reason for it in log.only("error_raised")] == (["MODEL_KEY_REFUSED"] if end == "FAILED" else [])


@pytest.mark.parametrize("first", ["unknown", "broken"])
async def test_a_call_that_cannot_run_is_answered_by_us(model: ScriptedModel, first: str) -> None:
    """An unknown tool and an input that is no JSON object: the log has the answer that the model is told."""
    log = session(first)
    await run(model, log)
    assert (outcomes(log), ends(log)) == (["TOOL_ERROR"], ["DONE"])
    (told,) = log.only("tool_finished")
    assert conversations(model)[-1][2][1][0] == (told.tool_use_id, [told.result.output])


async def test_a_budget_holds_back_the_next_question(model: ScriptedModel) -> None:
    """The results are there, and Claude Code does not get them before the limit is raised."""
    log, hands = session(budgets=Budgets(max_model_calls_per_turn=1)), MemoryHands()
    await run(model, log, ports(Newest(), hands))
    assert log.kinds()[-1] == "budget_reached"
    assert len(conversations(model)) == 1
    more = SessionConfig(harness="claude_code", budgets=Budgets(max_model_calls_per_turn=5))
    await log.add(Event(event_id="more", config_changed=ConfigChanged(config=more)))
    await run(model, log, ports(Newest(), hands))
    assert (ends(log), len(hands.executions)) == (["DONE"], 2)


async def test_a_summary_of_claude_codes_is_in_the_log_and_stands_for_what_was_said(model: ScriptedModel) -> None:
    """When its window is full it makes one: the log has it beside all else, and each later process begins from it."""
    log = session("huge")
    await run(model, log)
    (made,) = log.only("context_compacted")
    assert log.kinds().index("context_compacted") > log.kinds().index("tool_finished")
    assert (made.from_position, made.to_position, made.policy) == (
        1,
        log.kinds().index("context_compacted") + 1,
        "compaction",
    )
    assert made.usage.input_tokens >= 990_000 and made.cost_micros > 0
    (block,) = json.loads(made.content_json)
    assert "Sum of it" in block["text"] and tempfile.gettempdir() not in block["text"]
    assert (ends(log), len(log.only("model_replied"))) == (["DONE"], 2)
    await log.add(message("and now?", "m2"))
    await run(model, log)
    told = conversations(model)[-1]
    assert [role for role, _ in told] == ["user", "assistant", "user"]
    assert told[0][1] == [block["text"]] and told[1:] == [("assistant", ["went on"]), ("user", ["and now?"])]


async def test_a_session_moves_between_types_at_a_turns_border(model: ScriptedModel) -> None:
    """Each makes its own view of the same log: what was said before is told as it was."""
    log, hands = MemoryLog(SessionConfig()), MemoryHands()
    steps = MemoryModel(said("mine", t1=("bash", {"command": "ls"})), said("thus"), said("again"))
    await make_messages().run(log, ports(steps, hands), "test", Told())
    await log.add(Event(event_id="move", config_changed=ConfigChanged(config=SessionConfig(harness="claude_code"))))
    await log.add(message("and you?", "m2"))
    await run(model, log, ports(Newest(), hands))
    before = [
        ("user", ["hello"]),
        ("assistant", ["mine", "t1"]),
        ("user", [("t1", ["bash ran"])]),
        ("assistant", ["thus"]),
    ]
    assert conversations(model) == [[*before, ("user", ["and you?"])]]
    await log.add(Event(event_id="back", config_changed=ConfigChanged(config=SessionConfig())))
    await log.add(message("and back?", "m3"))
    await make_messages().run(log, ports(steps, hands), "test", Told())
    assert [it["role"] for it in steps.requests[-1]["messages"]] == ["user", "assistant"] * 3 + ["user"]
    assert ends(log) == ["DONE"] * 3


async def test_a_slow_tool_holds_up_no_other_session(model: ScriptedModel) -> None:
    """With room for one process, the one that waits for its tool gives way; another goes on when the tool is done."""
    release, kind = asyncio.Event(), claude(model, processes=1)
    log, hands, other = session(), MemoryHands(lambda tool, input: release.wait()), session("hi")
    slow = asyncio.create_task(kind.run(log, ports(Newest(), hands), "test", Told()))
    while len(hands.executions) < 2:
        await asyncio.sleep(0.01)
    await kind.run(other, ports(Newest()), "test", Told())
    assert (ends(other), slow.done(), processes()) == (["DONE"], False, [])
    release.set()
    await slow
    assert (ends(log), len(hands.executions)) == (["DONE"], 2)


async def test_what_a_killed_harness_left_is_removed_by_the_next_one(model: ScriptedModel) -> None:
    """A directory belongs to a harness as long as that holds its lock, which nobody does who was killed."""
    theirs, left = Home(), Home()
    os.close(left._lock)
    await run(model, session("hi"))
    assert (theirs.path.exists(), left.path.exists()) == (True, False)
    theirs.remove()


async def test_without_a_key_nothing_is_started(model: ScriptedModel) -> None:
    """The turn ends and says what to do."""
    log = session()
    await run(model, log, key="")
    assert (ends(log), [it.reason for it in log.only("error_raised")]) == (["FAILED"], ["MODEL_KEY_MISSING"])
