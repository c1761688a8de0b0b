"""Scripts that are right become values; scripts that are wrong are told where and what belongs there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handmesh.scripted_model import Script, ScriptError, load_script
from handmesh.scripted_model.errors import ApiError
from handmesh.scripted_model.script import (
    Conversation,
    Cut,
    ErrorFrame,
    HttpError,
    Pace,
    SayText,
    SayThinking,
    SayToolUse,
    SayVerbatim,
    Silence,
    Step,
    Turn,
    When,
)


def turn(key: str, *say: object, **fields: object) -> Turn:
    plain = {
        "when": None,
        "times": None,
        "say": say,
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": {},
        "pace": Pace(),
        "fault": None,
    }
    return Turn(key=key, **{**plain, **fields})  # type: ignore[arg-type]


EVERYTHING = """
        defaults: {chunk: 5, delay_ms: 10}
        conversations:
          - name: files
            when: {user: list, user_matches: "file(s)?$", tool_offered: bash, system: s, messages: 1}
            steps:
              - say:
                  - thinking: Hm.
                  - text: I'll look.
                  - tool_use: {tool: bash, input: {command: ls}}
                  - tool_use: {name: read, input_json: '{"pa'}
                  - block: {type: redacted_thinking, data: x}
                chunk: 7
              - cases:
                  - when: {tool_result: {tool: bash, contains: x, is_error: false}}
                    say: [{text: a}]
                    stop_reason: refusal
                    stop_details: {category: cyber}
                    usage: {output_tokens: 7}
                  - times: 2
                    say: []
                  - say: [{text: b}]
        default:
          steps: [{say: [{text: c}]}]
          repeat: true
        """


def test_a_script_becomes_values() -> None:
    """Conversations, steps, cases, blocks, paces and conditions stand in the values as they stand in the YAML."""
    script = load_script(EVERYTHING)
    pace = Pace(10, 5, 0)
    first = turn(
        "conversations[0].steps[0]",
        SayThinking("Hm."),
        SayText("I'll look."),
        SayToolUse("bash", True, {"command": "ls"}),
        SayToolUse("read", False, {}, '{"pa'),
        SayVerbatim({"type": "redacted_thinking", "data": "x"}),
        pace=Pace(10, 7, 0),
    )
    cases = (
        turn(
            "conversations[0].steps[1].cases[0]",
            SayText("a"),
            when=When(tool_result="x", tool_result_of="bash", tool_result_is_error=False),
            stop_reason="refusal",
            stop_details={"category": "cyber"},
            usage={"output_tokens": 7},
            pace=pace,
        ),
        turn("conversations[0].steps[1].cases[1]", times=2, pace=pace),
        turn("conversations[0].steps[1].cases[2]", SayText("b"), pace=pace),
    )
    when = When("list", re.compile("file(s)?$", re.IGNORECASE), "s", "bash", messages=1)
    default = Conversation("default", None, (Step((turn("default.steps[0]", SayText("c"), pace=pace),)),), True)
    assert script == Script((Conversation("files", when, (Step((first,)), Step(cases))),), default)


def test_flat_turns_are_cases_of_one_step() -> None:
    """`turns` is a list in which the first that fits is played, whatever came before."""
    script = load_script("turns: [{when: {user: hi}, say: [{text: a}]}, {say: [{text: b}]}]")
    step = Step((turn("turns[0]", SayText("a"), when=When("hi")), turn("turns[1]", SayText("b"))))
    assert script == Script((Conversation("turns", None, (step,), True),), None)


FAULTS = {
    "error: {status: 529}": HttpError(ApiError(529, "overloaded_error", "Overloaded")),
    "error: {status: 503}": HttpError(ApiError(503, "api_error", "Internal server error")),
    "error: {type: rate_limit_error, message: slow down, retry_after: 2}": HttpError(
        ApiError(429, "rate_limit_error", "slow down", 2)
    ),
    "error: {status: 418, type: teapot}": HttpError(ApiError(418, "teapot", "scripted error")),
    "say: [], error_frame: {after_events: 3, type: overloaded_error}": ErrorFrame(
        3, ApiError(529, "overloaded_error", "Overloaded")
    ),
    "say: [], cut_after_events: 2": Cut(2, None),
    "say: [], cut_after_bytes: 0": Cut(None, 0),
    "say: [], silence_after_events: 1": Silence(1),
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_become_values(text: str) -> None:
    """Each fault is one value; an error's missing parts follow from the ones that are there."""
    assert load_script(f"turns: [{{{text}}}]") == Script(
        (Conversation("turns", None, (Step((turn("turns[0]", fault=FAULTS[text]),)),), True),), None
    )


WRONG = {
    "turns: [": ["line 1, column 9: expected YAML; expected the node content, but found '<stream end>'"],
    "turns: &a [*a]": ["line 1, column 8: expected YAML; found unconstructable recursive node"],
    "{[a]: b}": ["line 1, column 2: expected YAML; found unhashable key"],
    "!!python/object/apply:os.getcwd []": [
        "line 1, column 1: expected YAML; could not determine a constructor for the tag "
        "'tag:yaml.org,2002:python/object/apply:os.getcwd'"
    ],
    "a: 1\na: 2": ["line 2, column 1: expected YAML; key 'a' stands twice"],
    "[]": ["Input should be a valid dictionary or object to extract fields from"],
    "": ["Input should be a valid dictionary or object to extract fields from"],
    "{}": ["expected 'conversations', 'turns' or 'default' with something in it"],
    "conversation: []": [
        "conversation: unknown key; expected 'defaults', 'conversations', 'turns' or 'default'",
        "expected 'conversations', 'turns' or 'default' with something in it",
    ],
    "default: {}": [
        "default.steps: Field required",
        "expected 'conversations', 'turns' or 'default' with something in it",
    ],
    "default: {steps: []}": ["default.steps: List should have at least 1 item after validation, not 0"],
    "default: {steps: [{}]}": [
        "default.steps[0]: expected 'say' (what is answered) or 'error' (a refusal instead), one of the two"
    ],
    "default: {steps: [{say: hello}]}": ["default.steps[0].say: Input should be a valid list"],
    "default: {steps: [{say: [hello]}]}": [
        "default.steps[0].say[0]: expected an object with one key, 'text', 'thinking', 'tool_use' or 'block'"
    ],
    "default: {steps: [{say: [{txt: x}]}]}": [
        "default.steps[0].say[0]: expected an object with one key, 'text', 'thinking', 'tool_use' or 'block'"
    ],
    "default: {steps: [{say: [{text: 5}]}]}": ["default.steps[0].say[0].text: Input should be a valid string"],
    "default: {steps: [{say: [{text: ''}]}]}": [
        "default.steps[0].say[0].text: String should have at least 1 character"
    ],
    "default: {steps: [{say: [{tool_use: {input: {}}}]}]}": [
        "default.steps[0].say[0].tool_use: expected either 'name' (as it is) or 'tool' (an offered tool by its last "
        "part)"
    ],
    "default: {steps: [{say: [{tool_use: {name: a, input: {}, input_json: ''}}]}]}": [
        "default.steps[0].say[0].tool_use: expected either 'input' (an object) or 'input_json' (raw text), not both"
    ],
    "default: {steps: [{say: [{block: {data: x}}]}]}": ["default.steps[0].say[0].block.type: Field required"],
    "default: {steps: [{say: [], stop_reason: done}]}": [
        "default.steps[0].stop_reason: Input should be 'end_turn', 'tool_use', 'max_tokens', 'stop_sequence', "
        "'pause_turn', 'refusal' or 'model_context_window_exceeded'"
    ],
    "default: {steps: [{say: [], cut_after_bytes: 1, cut_after_events: 1}]}": [
        "default.steps[0]: expected at most one of 'error', 'error_frame', 'cut_after_events', 'cut_after_bytes' or "
        "'silence_after_events'"
    ],
    "default: {steps: [{say: [], chunk: 0}]}": ["default.steps[0].chunk: Input should be greater than or equal to 1"],
    "default: {steps: [{error: {status: 200}}]}": [
        "default.steps[0].error.status: Input should be greater than or equal to 400"
    ],
    "default: {steps: [{error: {status: 600}}]}": [
        "default.steps[0].error.status: Input should be less than or equal to 599"
    ],
    "default: {steps: [{cases: [{say: []}, {say: []}]}]}": [
        "default.steps[0].cases[0]: expected 'when' or 'times'; without them no later case is ever played"
    ],
    "default: {steps: [{cases: [{say: []}], say: []}]}": [
        "default.steps[0].say: expected 'cases' alone; everything else belongs in a case"
    ],
    "conversations: [{steps: [{say: []}]}, {steps: [{say: []}]}]": [
        "conversations[0]: expected 'when'; without it no later conversation is ever played"
    ],
    "turns: [{when: {user_matches: '('}, say: []}]": [
        "turns[0].when.user_matches: expected a regular expression; missing ), unterminated subpattern at position 0"
    ],
    "turns: [{when: {usr: x}, say: []}]": [
        "turns[0].when.usr: unknown key; expected 'user', 'user_matches', 'system', 'tool_offered', 'tool_result' or "
        "'messages'"
    ],
    "turns: [{say: [{text: 1}], times: 0, what: 1}]": [
        "turns[0].times: Input should be greater than or equal to 1",
        "turns[0].say[0].text: Input should be a valid string",
        "turns[0].what: unknown key; expected 'when', 'times', 'say', 'stop_reason', 'stop_sequence', 'stop_details', "
        "'usage', 'applied_edits', 'compacted', 'delay_ms', 'chunk', 'chunk_delay_ms', 'error', 'error_frame', "
        "'cut_after_events', 'cut_after_bytes' or 'silence_after_events'",
    ],
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_script_is_told_all_that_is_wrong(text: str) -> None:
    """Every mistake is named at once, with its place in the document and what was expected there."""
    with pytest.raises(ScriptError) as caught:
        load_script(text)
    assert [*caught.value.problems] == WRONG[text]


def test_a_script_may_share_parts() -> None:
    """YAML's anchors and merges work, and a merged key may be replaced."""
    script = load_script(
        """
        turns:
          - &busy {error: {status: 529}, times: 1}
          - {<<: *busy, times: 2}
          - say: [{text: a}]
        """
    )
    cases = script.conversations[0].steps[0].cases
    assert [(case.times, type(case.fault)) for case in cases] == [(1, HttpError), (2, HttpError), (None, type(None))]


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    """The error of a file begins with the file's name on each line."""
    path = tmp_path / "wrong.yaml"
    path.write_text("default: {steps: [{say: [{text: 5}, {txt: x}]}]}")
    with pytest.raises(ScriptError) as caught:
        load_script(path)
    assert str(caught.value).splitlines() == [
        f"{path}: default.steps[0].say[0].text: Input should be a valid string",
        f"{path}: default.steps[0].say[1]: expected an object with one key, 'text', 'thinking', 'tool_use' or 'block'",
    ]


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_a_wrong_script(tmp_path: Path, content: bytes | None) -> None:
    """A file that is not there, or is no UTF-8, gives a ScriptError and nothing else."""
    path = tmp_path / "script.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScriptError, match=f"^{re.escape(str(path))}: expected a readable UTF-8 file; "):
        load_script(path)


def test_the_shipped_script_is_right() -> None:
    """The script that is played when nobody names one can be read, and answers everything."""
    assert load_script(None).default is not None
