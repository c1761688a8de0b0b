"""What the command's options mean."""

from pathlib import Path

import pytest

from handmesh.cli.arguments import (
    SESSION_TOOLS,
    RunOptions,
    UsageError,
    checked_text,
    config_of,
    labels_of,
    statuses_of,
)
from handmesh.cli.sessions import in_tree
from handmesh.session.v1 import config_pb2, session_pb2


def test_options_become_a_configuration() -> None:
    """Every option ends in its field, and nowhere else."""
    options = RunOptions(
        model="claude-x",
        system="Be brief.",
        title="a title",
        environment="docker",
        hands=["tests=default"],
        mcp=["notes=https://notes.example/mcp?a=b"],
        vaults=["vault_1"],
        labels=["team=red", "empty="],
    )
    assert config_of(options) == config_pb2.SessionConfig(
        model="claude-x",
        system="Be brief.",
        title="a title",
        hands={
            "main": config_pb2.HandSpec(environment="docker"),
            "tests": config_pb2.HandSpec(environment="default"),
        },
        mcp_servers=[config_pb2.McpServer(name="notes", url="https://notes.example/mcp?a=b")],
        vault_ids=["vault_1"],
        labels={"team": "red", "empty": ""},
    )


def test_sessions_that_it_may_start() -> None:
    """`--children` gives the limits and the tools; where `--tool` names some of them, only those."""
    limits = config_pb2.ChildLimits(max_children=3, max_depth=2)
    config = config_of(RunOptions(children=3, child_depth=2))
    assert (list(config.mesh_tools), config.child_limits) == (list(SESSION_TOOLS), limits)
    more = config_of(RunOptions(children=1, mesh_tools=["session_events"]))
    assert list(more.mesh_tools) == ["session_events", *SESSION_TOOLS]
    config = config_of(RunOptions(children=3, mesh_tools=["list_sessions"]))
    assert (list(config.mesh_tools), config.child_limits) == (["list_sessions"], config_pb2.ChildLimits(max_children=3))
    assert not config_of(RunOptions(mesh_tools=["session_events"])).HasField("child_limits")
    with pytest.raises(UsageError, match="--children"):
        config_of(RunOptions(child_depth=1))


def test_a_tree_of_sessions() -> None:
    """Each below the one that started it, in the order in which they began; one whose parent is not shown stays."""
    names = {"new": "", "b2": "b", "x": "gone", "b1": "b", "a1": "a", "b": "a", "a": ""}  # newest first
    found = []
    for name, parent in names.items():
        session = session_pb2.Session(session_id=name)
        if parent:
            session.config.parent_session_id = parent
        found.append(session)
    shown = [(depth, each.session_id) for depth, each in in_tree(found)]
    assert shown == [(0, "new"), (0, "x"), (0, "a"), (1, "b"), (2, "b1"), (2, "b2"), (1, "a1")]


def test_no_options_leave_all_to_the_mesh() -> None:
    """Defaults are the mesh's, so the command sends none of its own."""
    assert config_of(RunOptions()) == config_pb2.SessionConfig()


def test_a_hand_is_of_an_environment_or_stands_outside() -> None:
    """A bare name is the environment's too: that is how a hand that dialled out is asked for."""
    hands = config_of(RunOptions(hands=["laptop", "box=docker", "bench=@tests"])).hands
    assert {name: spec.environment or f"@{spec.standing_hand}" for name, spec in hands.items()} == {
        "laptop": "laptop",
        "box": "docker",
        "bench": "@tests",
    }


@pytest.mark.parametrize(
    "options",
    [
        RunOptions(hands=["No-name-of-a-hand"]),
        RunOptions(hands=["Upper=default"]),
        RunOptions(hands=["a b=default"]),
        RunOptions(hands=["name="]),
        RunOptions(hands=["x" * 33 + "=default"]),
        RunOptions(hands=["main=default"], environment="docker"),
        RunOptions(hands=["a=default"], no_hands=True),
        RunOptions(mcp=["notes=notes.example/mcp"]),
        RunOptions(mcp=["notes=ftp://notes.example"]),
        RunOptions(mcp=["notes=https://"]),
        RunOptions(labels=["=value"]),
        RunOptions(memories=["team"]),
        RunOptions(memories=["Team=team"]),
        RunOptions(memories=["team="]),
    ],
)
def test_wrong_options_are_refused(options: RunOptions) -> None:
    """An option of the wrong form is refused before the mesh is asked."""
    with pytest.raises(UsageError, match=r"expected|once|alone"):
        config_of(options)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    """A URL ends in the log: one with a password is refused, and the error does not show it."""
    with pytest.raises(UsageError) as refused:
        config_of(RunOptions(mcp=["notes=https://user:hunter2@notes.example/mcp"]))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["", " \n\t ", "caf\udce9"])
def test_text_must_say_something_in_utf_8(text: str) -> None:
    """The model refuses an empty message, and protobuf a lone surrogate: both are said plainly."""
    with pytest.raises(UsageError):
        checked_text(text)


def test_statuses_are_the_contracts() -> None:
    """Every status of the contract can be asked for by its word, and nothing else can."""
    words = [name.removeprefix("SESSION_STATUS_").lower() for name, _ in session_pb2.SessionStatus.items()]
    known = [word for word in words if word != "unspecified"]
    assert statuses_of(known) == [value for value in session_pb2.SessionStatus.values() if value]
    with pytest.raises(UsageError, match="idle"):
        statuses_of(["unspecified"])


def test_labels_keep_what_comes_after_the_first_equals_sign() -> None:
    """A label's value may hold an equals sign."""
    assert labels_of(["a=b=c"]) == {"a": "b=c"}


def test_a_context_policy_is_an_object_or_a_file_with_one(tmp_path: Path) -> None:
    """The text is kept as it is; anything else is said."""
    policy = '{"compaction": "off"}'
    (tmp_path / "policy.json").write_text(policy)
    (tmp_path / "list.json").write_text("[]")
    for value in (policy, str(tmp_path / "policy.json")):
        assert config_of(RunOptions(context=value)).context_policy_json == policy
    for value in ("{", "no such file", str(tmp_path / "list.json")):
        with pytest.raises(UsageError, match="--context"):
            config_of(RunOptions(context=value))
