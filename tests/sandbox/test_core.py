"""The rules of the sandbox service, without a sandbox."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.kit.errors import Conflict, Invalid
from services.sandbox import core
from services.sandbox.hand import File
from services.sandbox.tools import NAMES, TOOLS, offered


def order(
    name: str, given: object, wanted: float | None = None, most: float = 600.0, tools: tuple[str, ...] = ()
) -> Any:
    """Makes an order of a tool's input, given as a value or as JSON text."""
    text = given if isinstance(given, str) else json.dumps(given)
    return core.order(offered(tools), name, text, "id", wanted, most, 3)


def test_an_order_carries_what_was_asked() -> None:
    """Name, parsed input, id and epoch are those of the call."""
    made = order("bash", {"command": "ls"})
    assert (made.execution_id, made.name, made.input, made.epoch) == ("id", "bash", {"command": "ls"}, 3)


@pytest.mark.parametrize(
    ("given", "wanted", "most", "seconds"),
    [
        ({"command": "x"}, None, 600.0, 120.0),
        ({"command": "x"}, None, 60.0, 60.0),
        ({"command": "x", "timeout_ms": 0}, None, 600.0, 120.0),
        ({"command": "x", "timeout_ms": 500}, None, 600.0, 0.5),
        ({"command": "x", "timeout_ms": 9_999_999}, None, 600.0, 600.0),
        ({"command": "x", "timeout_ms": 300_000}, 30.0, 600.0, 30.0),
        ({"command": "x", "timeout_ms": 1_000}, 30.0, 600.0, 1.0),
    ],
)
def test_the_shortest_limit_counts(given: object, wanted: float | None, most: float, seconds: float) -> None:
    """The environment's limit is the most; a caller and the model may ask for less; a command has 120 s by itself."""
    assert order("bash", given, wanted, most).seconds == seconds


@pytest.mark.parametrize("name", ["rm", "", "_put", "BASH", "bash\0", "x" * 10_000, "\ud800"])
def test_an_unknown_tool_is_refused(name: str) -> None:
    """Tools are those of the table, and the service's own ones are not among them."""
    with pytest.raises(Invalid, match="TOOL_UNKNOWN"):
        order(name, {})


def test_a_recipe_may_offer_less() -> None:
    """A tool that the recipe leaves out is unknown there."""
    assert [tool.name for tool in offered(("read", "grep"))] == ["read", "grep"]
    with pytest.raises(Invalid, match="TOOL_UNKNOWN"):
        order("bash", {"command": "ls"}, tools=("read",))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("bash", "not json"),
        ("bash", "[]"),
        ("bash", '"text"'),
        ("bash", "{}"),
        ("bash", {"restart": False}),
        ("bash", {"command": 7}),
        ("bash", {"command": "a\0b"}),
        ("bash", '{"command": "\\ud800"}'),
        ("bash", {"command": "ls", "timeout_ms": -1}),
        ("bash", {"command": "ls", "timeout_ms": "1"}),
        ("bash", {"command": "ls", "more": 1}),
        ("bash", "[" * 100_000),
        ("read", {}),
        ("read", {"file_path": "a\0b"}),
        ("read", {"file_path": "a", "view_range": [1]}),
        ("read", {"file_path": "a", "view_range": [1, "2"]}),
        ("write", {"file_path": "a"}),
        ("edit", {"file_path": "a", "old_string": "b"}),
        ("glob", {"path": "."}),
        ("grep", {"pattern": None}),
        ("grep", {"pattern": "x", "path": "\0"}),
    ],
)
def test_input_that_the_schema_refuses_is_refused(name: str, given: object) -> None:
    """Whatever is wrong with an input is said before anything runs."""
    with pytest.raises(Invalid, match="TOOL_INPUT_INVALID"):
        order(name, given)


def test_null_is_what_was_left_out() -> None:
    """Models spell options that they do not use as null; a field that is needed is still missing then."""
    assert order("bash", {"command": "x", "restart": None, "timeout_ms": None}).input == {"command": "x"}
    assert order("read", {"file_path": "x", "view_range": None}).digest == order("read", {"file_path": "x"}).digest
    with pytest.raises(Invalid, match="TOOL_INPUT_INVALID"):
        order("read", {"file_path": None})


def test_tools_and_fields_have_the_names_that_models_know() -> None:
    """Those of `agent_toolset_20260401`, all of them and no other."""
    assert {tool.name: sorted(tool.input_schema["properties"]) for tool in TOOLS} == {
        "bash": ["command", "restart", "timeout_ms"],
        "read": ["file_path", "view_range"],
        "write": ["content", "file_path"],
        "edit": ["file_path", "new_string", "old_string", "replace_all"],
        "glob": ["path", "pattern"],
        "grep": ["path", "pattern"],
    }


def test_a_restart_needs_no_command() -> None:
    """`restart` alone is a whole input; an empty command is one too."""
    assert order("bash", {"restart": True}).input == {"restart": True}
    assert order("bash", {"command": ""}).input == {"command": ""}


def test_the_digest_is_of_the_meaning() -> None:
    """Spelling JSON otherwise changes nothing; another tool or value does."""
    one = order("edit", '{"file_path":"a","old_string":"b","new_string":"c"}')
    two = order("edit", '{ "new_string": "c", "old_string": "\\u0062", "file_path": "a" }')
    assert one.digest == two.digest
    assert one.digest != order("edit", {"file_path": "a", "old_string": "b", "new_string": "d"}).digest
    assert order("read", {"file_path": "a"}).digest != order("glob", {"pattern": "a"}).digest


@pytest.mark.parametrize("tool", TOOLS, ids=NAMES)
def test_schemas_are_such_as_the_models_api_takes(tool: Any) -> None:
    """The root is a plain object without a combinator, every property is explained, names are simple."""
    schema = tool.input_schema
    assert schema["type"] == "object" and not {"anyOf", "oneOf", "allOf", "$ref"} & set(schema)
    assert all(part["description"] for part in schema["properties"].values())
    assert set(schema["required"]) <= set(schema["properties"]) and tool.description
    assert not tool.read_only or tool.idempotent


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "/", "/workspace", "/workspace/", "workspace/x", "/workspace//x", "/workspace/../usr/x"),
        *("/workspace/./x", "/proc/x", "/run/handmesh/x", "/etc/gitconfig", "../../etc/x", "/workspace/a b"),
        *(
            "/workspace/x\0",
            "/workspace/x\n",
            "/workspace/é",
            "/workspace/" + "x" * 65,
            "/workspace" + "/x" * 9,
            "x" * 5000,
        ),
    ],
)
def test_resources_go_under_the_workspace_only(path: str) -> None:
    """One spelling is right, all others are refused, so nothing of ours can be shadowed."""
    with pytest.raises(Invalid, match="RESOURCE_INVALID"):
        core.check_contents([File(path, b"")])


def test_resources_have_a_size_and_a_place_of_their_own() -> None:
    """A file over the limit, one path twice and one under another are refused; neighbours are not."""
    core.check_contents(
        [File("/workspace/a", b"x" * core.MAX_FILE_BYTES), File("/workspace/a-b", b""), File("/workspace/b/a", b"")]
    )
    for files in (
        [File("/workspace/a", b"x" * (core.MAX_FILE_BYTES + 1))],
        [File("/workspace/a", b""), File("/workspace/a", b"")],
        [File("/workspace/a/b", b""), File("/workspace/a-c", b""), File("/workspace/a", b"")],
    ):
        with pytest.raises(Invalid, match="RESOURCE_INVALID"):
            core.check_contents(files)


def test_an_older_epoch_is_refused() -> None:
    """Per session; equal ones pass, 0 and nobody's sandboxes are not fenced."""
    epochs = core.Epochs()
    epochs.admit("s", 5)
    epochs.admit("s", 5)
    epochs.admit("t", 1)
    epochs.admit("s", 0)
    epochs.admit("", 1)
    with pytest.raises(Conflict, match="EPOCH_STALE") as refused:
        epochs.admit("s", 4)
    assert refused.value.metadata == {"epoch": "5"}


def test_epochs_are_bounded() -> None:
    """The sessions seen last are remembered, not all there ever were."""
    epochs = core.Epochs()
    for number in range(core.MAX_SESSIONS_FENCED + 1):
        epochs.admit(f"s{number}", 9)
    epochs.admit("s0", 1)
    with pytest.raises(Conflict):
        epochs.admit(f"s{core.MAX_SESSIONS_FENCED}", 1)
