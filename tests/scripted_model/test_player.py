"""Which turn is played for which request, and what the answer says. Everything is read from the request itself."""

from __future__ import annotations

from typing import Any

import pytest

from handmesh.scripted_model import load_script
from handmesh.scripted_model.errors import ApiError
from handmesh.scripted_model.playback import Playback, Reply
from handmesh.scripted_model.player import Mismatch, choose, find_tool, render
from handmesh.scripted_model.signatures import verify
from handmesh.scripted_model.stream import Answer, Text, Thinking, ToolUse, Verbatim
from handmesh.scripted_model.usage import Usage
from handmesh.scripted_model.view import view

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("laptop__read", "laptop__bash", "box__bash")]


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def call(identity: str, name: str = "laptop__bash") -> dict[str, Any]:
    return {"type": "tool_use", "id": identity, "name": name, "input": {}}


def result(identity: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": identity, "content": content, **more}


def request(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "claude-opus-5-5", "max_tokens": 100, "messages": [*messages], "tools": TOOLS, **fields}


def played(script: str, body: dict[str, Any], used: dict[str, int] | None = None) -> str:
    choice = choose(load_script(script), view(body), used or {})
    return choice.reason if isinstance(choice, Mismatch) else choice.key


def answer(say: str, body: dict[str, Any], more: str = "") -> Answer:
    choice = choose(load_script(f"turns: [{{say: [{say}]{more}}}]"), view(body), {})
    assert not isinstance(choice, Mismatch)
    made = render(choice, view(body), Usage(5))
    assert isinstance(made, Answer)
    return made


TWO_STEPS = """
conversations:
  - when: {user: list the files}
    steps:
      - say: [{text: I will., tool_use: 1}]
      - say: [{text: Done.}]
  - when: {user: thanks}
    steps: [{say: [{text: Welcome.}]}]
""".replace(", tool_use: 1", "")
FIRST = [user("Please LIST the files")]
SECOND = [*FIRST, assistant(call("a")), user(result("a", "x.txt"))]
THIRD = [*SECOND, assistant("Done."), user("Thanks!")]


def test_a_step_is_the_number_of_replies_to_the_latest_user_text() -> None:
    """The first request plays step 0, the one with the tool's result step 1, a new question begins anew."""
    assert [played(TWO_STEPS, request(*messages)) for messages in (FIRST, SECOND, THIRD)] == [
        "conversations[0].steps[0]",
        "conversations[0].steps[1]",
        "conversations[1].steps[0]",
    ]


def test_the_same_request_plays_the_same_turn_in_every_process() -> None:
    """Nothing but the request decides, so a client that was killed gets its answer again, ids and all."""
    answers = []
    for _ in range(2):
        playback = Playback(load_script(None))
        body = b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "list the files"}], "tools": '
        body += b'[{"name": "hand__bash", "input_schema": {"type": "object"}}]}'
        outcome = playback.create({"anthropic-version": "2026-10-21"}, body, 0)
        assert isinstance(outcome.result, Reply)
        answers.append(outcome.result.answer)
    assert answers[0] == answers[1]


def test_a_request_beyond_the_last_step_is_told_so() -> None:
    """A client that goes on where the script has ended sees a reason that names the conversation and the step."""
    beyond = request(*SECOND, assistant(call("b")), user(result("b", "y")))
    assert played(TWO_STEPS, beyond) == (
        "conversation 'conversations[0]' has 2 step(s), and this request asks for step 3 after the user text "
        '"Please LIST the files"'
    )


def test_a_conversation_that_repeats_never_ends() -> None:
    """`repeat` plays the last step for all that comes after it."""
    script = "default: {repeat: true, steps: [{say: [{text: a}]}, {say: [{text: b}]}]}"
    bodies = [request(*messages) for messages in (FIRST, SECOND, [*SECOND, assistant("b"), assistant("b")])]
    assert [played(script, body) for body in bodies] == ["default.steps[0]", "default.steps[1]", "default.steps[1]"]


def test_nothing_fits() -> None:
    """Without a default a request that no conversation fits is told so."""
    assert played(TWO_STEPS, request(user("hello"))) == 'no conversation fits the user text "hello" at step 1'


def test_a_turn_is_used_up_after_its_times() -> None:
    """A turn with `times` is passed over once it was played so often."""
    script = "turns: [{times: 2, error: {status: 529}}, {say: [{text: a}]}]"
    counts = [{}, {"turns[0]": 1}, {"turns[0]": 2}]
    assert [played(script, request(*FIRST), used) for used in counts] == ["turns[0]", "turns[0]", "turns[1]"]


FITTING = {
    "{user: the FILES}": True,
    "{user: the dirs}": False,
    "{user_matches: '^please.*files$'}": True,
    "{user_matches: '^list'}": False,
    "{system: careful}": True,
    "{system: careless}": False,
    "{tool_offered: bash}": True,
    "{tool_offered: laptop__bash}": True,
    "{tool_offered: ash}": False,
    "{messages: 3}": True,
    "{messages: 2}": False,
    "{tool_result: x.txt}": True,
    "{tool_result: y.txt}": False,
    "{tool_result: {tool: bash}}": True,
    "{tool_result: {tool: read}}": False,
    "{tool_result: {is_error: false}}": True,
    "{tool_result: {is_error: true}}": False,
    "{user: the files, system: careless}": False,
}


@pytest.mark.parametrize("when", FITTING)
def test_every_given_part_of_a_condition_must_hold(when: str) -> None:
    """Texts are looked for without regard to case, tools with or without their prefix, parts are joined by and."""
    script = f"turns: [{{when: {when}, say: [{{text: a}}]}}, {{say: [{{text: b}}]}}]"
    assert (played(script, request(*SECOND, system="Be careful.")) == "turns[0]") is FITTING[when]


def test_a_condition_on_a_result_needs_one() -> None:
    """Without a tool result in the last message no condition on one holds."""
    script = "turns: [{when: {tool_result: ''}, say: [{text: a}]}, {say: [{text: b}]}]"
    assert [played(script, request(*messages)) for messages in (FIRST, SECOND)] == ["turns[1]", "turns[0]"]


def test_a_tool_is_found_by_its_last_part() -> None:
    """An exact name goes before a prefixed one, the first offered before a later one."""
    offered = ("laptop__bash", "box__bash", "bash", "rebash")
    assert [find_tool(name, offered) for name in ("bash", "box__bash", "ash")] == ["bash", "box__bash", None]
    assert find_tool("bash", offered[:2]) == "laptop__bash"


def test_blocks_are_said_in_order_with_their_ids() -> None:
    """Text, thinking, calls and verbatim blocks become parts; a call makes the stop reason tool_use."""
    said = answer(
        "{thinking: Hm.}, {text: Look.}, {tool_use: {tool: bash, input: {command: ls}}}, "
        "{tool_use: {name: nowhere, input_json: '{'}}, {block: {type: x, id: 'srv_{unique_id}'}}",
        request(*FIRST),
    )
    thinking, text, first, second, verbatim = said.parts
    assert isinstance(thinking, Thinking) and verify("Hm.", thinking.signature)
    assert isinstance(first, ToolUse) and isinstance(second, ToolUse) and isinstance(verbatim, Verbatim)
    assert text == Text("Look.")
    assert (first.name, first.input_json) == ("laptop__bash", '{"command": "ls"}')
    assert (second.name, second.input_json) == ("nowhere", "{")
    assert len({said.message_id[4:], first.id[6:], second.id[6:], verbatim.block["id"][4:]}) == 4
    assert said.stop_reason == "tool_use"


def test_ids_differ_from_request_to_request() -> None:
    """Another message, system prompt or user id gives other ids; moved cache markers and streaming do not."""
    say = "{tool_use: {tool: bash}}"

    def identity(body: dict[str, Any]) -> str:
        part = answer(say, body).parts[0]
        assert isinstance(part, ToolUse)
        return part.id

    marked = [user({"type": "text", "text": FIRST[0]["content"], "cache_control": {"type": "ephemeral"}})]
    unmarked = [user({"type": "text", "text": FIRST[0]["content"]})]
    assert identity(request(*marked, stream=True)) == identity(request(*unmarked))
    bodies = [
        request(*FIRST),
        request(*SECOND),
        request(*FIRST, system="x"),
        request(*FIRST, metadata={"user_id": "1"}),
        request(*FIRST, metadata={"user_id": "2"}),
    ]
    assert len({identity(body) for body in bodies}) == len(bodies)


def test_names_in_braces_are_filled_in() -> None:
    """The last result and the latest user text are put in, once, everywhere; other braces stay."""
    body = request(*SECOND[:2], user(result("a", "{last_user_text} {x}")))
    said = answer(
        "{text: 'r={last_tool_result} u={last_user_text} {other} {}'}, "
        "{tool_use: {tool: bash, input: {a: ['{last_user_text}'], n: 1}}}",
        body,
    )
    assert said.parts[0] == Text("r={last_user_text} {x} u=Please LIST the files {other} {}")
    assert isinstance(said.parts[1], ToolUse)
    assert said.parts[1].input_json == '{"a": ["Please LIST the files"], "n": 1}'


def test_texts_of_results_are_filled_in() -> None:
    """Of results that are JSON objects, by number and key; what is not there stays as it is."""
    results = user(result("a", '{"id": "x", "n": 1}'), result("b", "no JSON"))
    called = [{"type": "tool_use", "id": name, "name": "bash", "input": {}} for name in ("a", "b")]
    body = request(SECOND[0], {"role": "assistant", "content": called}, results)
    said = answer("{text: '{result 1 id} {result 1 n} {result 2 id}'}", body)
    assert said.parts == (Text("x {result 1 n} {result 2 id}"),)


def test_an_empty_text_is_never_said() -> None:
    """A text that would be empty says so: an empty block would be refused when it comes back."""
    assert answer("{text: '{last_tool_result}'}", request(*SECOND[:2], user(result("a", "")))).parts == (
        Text("(nothing)"),
    )


def test_a_tool_that_is_not_offered_is_a_hole_in_the_script() -> None:
    """`tool` wants an offered tool; the reason names the turn, the tool and what is offered."""
    body = request(*FIRST)
    choice = choose(load_script("turns: [{say: [{tool_use: {tool: write}}]}]"), view(body), {})
    assert not isinstance(choice, Mismatch)
    assert render(choice, view(body), Usage(1)) == Mismatch(
        "turns[0] wants the tool 'write', and the request offers ['laptop__read', 'laptop__bash', 'box__bash']"
    )


STOPS = {
    "": ("end_turn", None, None),
    ", stop_reason: max_tokens": ("max_tokens", None, None),
    ", stop_reason: stop_sequence": ("stop_sequence", "END", None),
    ", stop_reason: stop_sequence, stop_sequence: FIN": ("stop_sequence", "FIN", None),
    ", stop_reason: refusal": ("refusal", None, {"type": "refusal", "category": None, "explanation": None}),
    ", stop_reason: refusal, stop_details: {category: bio, explanation: no}": (
        "refusal",
        None,
        {"type": "refusal", "category": "bio", "explanation": "no"},
    ),
    ", stop_reason: pause_turn": ("pause_turn", None, None),
    ", stop_reason: model_context_window_exceeded": ("model_context_window_exceeded", None, None),
}


@pytest.mark.parametrize("more", STOPS)
def test_stop_reasons_are_those_of_the_script(more: str) -> None:
    """Every stop reason can be scripted; a stop sequence is the request's first unless the script names one."""
    said = answer(
        "{text: a}", request(*FIRST, stop_sequences=["END"]), more.replace("explanation: no", "explanation: 'no'")
    )
    assert (said.stop_reason, said.stop_sequence, said.stop_details) == STOPS[more]


def test_max_tokens_zero_says_nothing() -> None:
    """A request that only fills the cache gets no content."""
    said = answer("{text: a}", request(*FIRST, max_tokens=0))
    assert (said.parts, said.stop_reason, said.usage.output_tokens) == ((), "max_tokens", 0)


def test_thinking_may_be_hidden() -> None:
    """With `display: omitted` the thinking is empty and its signature still holds."""
    body = request(*FIRST, thinking={"type": "adaptive", "display": "omitted"})
    part = answer("{thinking: Hm.}", body).parts[0]
    assert isinstance(part, Thinking)
    assert (part.text, verify("", part.signature)) == ("", True)


def test_usage_follows_what_was_said() -> None:
    """Output tokens grow with the text, thinking is counted among them, and the script may name any of the numbers."""
    counted = answer("{thinking: '12345678'}, {text: '12345678'}", request(*FIRST))
    assert counted.usage == Usage(5, output_tokens=4, thinking_tokens=2)
    told = answer(
        "{text: a}",
        request(*FIRST),
        ", usage: {input_tokens: 1, output_tokens: 2, cache_creation_input_tokens: 3, cache_read_input_tokens: 4}",
    )
    assert told.usage == Usage(1, 2, 4, 3, 0, 0)


def test_a_refused_request_uses_up_nothing() -> None:
    """`times` counts turns that were played, so a request that the API would refuse does not count."""
    playback = Playback(load_script("turns: [{times: 1, error: {status: 529}}, {say: [{text: a}]}]"))
    headers = {"anthropic-version": "2026-10-21"}
    wrong, right = b'{"model": "m"}', b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}'
    results = [playback.create(headers, body, 0).result for body in (wrong, right, right)]
    assert [result.status if isinstance(result, ApiError) else "said" for result in results] == [400, 529, "said"]
