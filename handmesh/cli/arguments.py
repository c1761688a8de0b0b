"""Turns options into a session's configuration. Raises UsageError with what was expected."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handmesh.session.v1 import config_pb2, session_pb2

DEFAULT_HAND = "main"
_STATUS = "SESSION_STATUS_"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class UsageError(ValueError):
    """Something on the command line is wrong. The text says what was expected."""


@dataclass(frozen=True)
class RunOptions:
    """What `handmesh run` was told about a new session."""

    model: str = ""
    system: str = ""
    title: str = ""
    environment: str = ""
    hands: Sequence[str] = ()
    no_hands: bool = False
    mcp: Sequence[str] = ()
    vaults: Sequence[str] = ()
    labels: Sequence[str] = ()
    budgets: Sequence[str] = ()
    harness: str = ""
    mesh_tools: Sequence[str] = ()
    children: int = 0
    child_depth: int = 0
    memories: Sequence[str] = ()
    context: str = ""


SESSION_TOOLS = ("start_session", "send_message", "wait_for_session", "end_session", "list_sessions")


def config_of(options: RunOptions) -> config_pb2.SessionConfig:
    """Makes the configuration. What is not given is left to the mesh's defaults."""
    hands = dict(_hand_of(each) for each in options.hands)
    if options.environment:
        if DEFAULT_HAND in hands:
            raise UsageError(f"--environment is the hand {DEFAULT_HAND!r}: give it, or --hand {DEFAULT_HAND}=..., once")
        hands[DEFAULT_HAND] = config_pb2.HandSpec(environment=options.environment)
    if options.no_hands and hands:
        raise UsageError("--no-hands stands alone: leave out --hand and --environment")
    from handmesh.cli.spending import budgets_of  # which raises this module's error

    servers = [named("--mcp", "NAME=URL", each) for each in options.mcp]
    return config_pb2.SessionConfig(
        harness=options.harness,
        model=options.model,
        system=options.system,
        title=options.title,
        hands=hands,
        no_hands=options.no_hands,
        mcp_servers=[config_pb2.McpServer(name=name, url=checked_url(url)) for name, url in servers],
        vault_ids=list(options.vaults),
        labels=labels_of(options.labels),
        budgets=budgets_of(options.budgets) if options.budgets else None,
        mesh_tools=_mesh_tools(options),
        child_limits=_child_limits(options),
        memory_stores=[_memory_of(each) for each in options.memories],
        context_policy_json=context_of(options.context) if options.context else "",
    )


def _memory_of(value: str) -> config_pb2.MemoryAccess:
    """Reads a memory store's directory, and which store it is: by its id or, yet to be looked up, its name."""
    name, store = named("--memory", "NAME=STORE or NAME=STORE:ro", value)
    chosen, separator, how = store.rpartition(":")
    if separator and how == "ro":
        return config_pb2.MemoryAccess(memory_store_id=chosen, name=name, read_only=True)
    return config_pb2.MemoryAccess(memory_store_id=store, name=name)


def _child_limits(options: RunOptions) -> config_pb2.ChildLimits | None:
    if options.child_depth and not options.children:
        raise UsageError("--child-depth says how deep: say how many, too, with --children")
    if not options.children:
        return None
    return config_pb2.ChildLimits(max_children=options.children, max_depth=options.child_depth)


def context_of(value: str) -> str:
    """Returns the JSON text of a context policy: the value itself if it is an object, else what is in that file."""
    text = value
    if not value.lstrip().startswith("{"):
        try:
            text = Path(value).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"--context {value!r}: expected a JSON object, or a file that holds one") from None
    try:
        if isinstance(json.loads(text), dict):
            return text
    except (ValueError, RecursionError):
        pass  # said below, as for a list
    raise UsageError(f"--context {value[:200]!r}: expected a JSON object, or a file that holds one")


def _mesh_tools(options: RunOptions) -> list[str]:
    """Returns the tools that were named, and all that children need unless some of those were named."""
    named = list(options.mesh_tools)
    return named + list(SESSION_TOOLS) if options.children and not set(named) & set(SESSION_TOOLS) else named


def _hand_of(value: str) -> tuple[str, config_pb2.HandSpec]:
    """Takes `NAME=ENVIRONMENT`, `NAME` for the environment of that name, `NAME=@HAND` for one that stands outside."""
    name, rest = named("--hand", "NAME, NAME=ENVIRONMENT or NAME=@HAND", value if "=" in value else f"{value}={value}")
    if rest.startswith("@"):
        return name, config_pb2.HandSpec(standing_hand=rest[1:])
    return name, config_pb2.HandSpec(environment=rest)


def named(option: str, form: str, value: str) -> tuple[str, str]:
    """Splits `name=value`, where the name is one that the model will read."""
    name, separator, rest = value.partition("=")
    if not separator or not rest or not _NAME.fullmatch(name):
        raise UsageError(f"{option} {value!r}: expected {form}, the name as ^{_NAME.pattern}$")
    return name, rest


def checked_url(url: str) -> str:
    """Returns an MCP server's URL. Credentials in it would end in the log, so they are refused here."""
    scheme, separator, rest = url.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not separator or not host:
        raise UsageError(f"--mcp {url!r}: expected a URL that starts with http:// or https://")
    if "@" in host:
        raise UsageError("--mcp: the URL must not hold a user or a password; put a credential into a vault (--vault)")
    return url


def labels_of(values: Sequence[str]) -> dict[str, str]:
    """Splits `key=value` labels."""
    labels = {}
    for value in values:
        key, separator, rest = value.partition("=")
        if not separator or not key:
            raise UsageError(f"--label {value!r}: expected KEY=VALUE")
        labels[key] = rest
    return labels


def text_of(argument: str) -> str:
    """Returns the text that an argument stands for: itself, or standard input for `-`."""
    return checked_text(sys.stdin.read() if argument == "-" else argument)


def checked_text(text: str) -> str:
    """Returns a message's text. It must say something, in UTF-8: an argument with other bytes has lone surrogates."""
    if not text.strip():
        raise UsageError("the text is empty: say what the agent should do")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("the text is not valid UTF-8") from None
    return text


def statuses_of(words: Sequence[str]) -> list[session_pb2.SessionStatus.ValueType]:
    """Returns the statuses that words such as `idle` name."""
    known = {name.removeprefix(_STATUS).lower(): value for name, value in session_pb2.SessionStatus.items() if value}
    for word in words:
        if word.lower() not in known:
            raise UsageError(f"--status {word!r}: expected one of {', '.join(known)}")
    return [known[word.lower()] for word in words]
