"""What a session's configuration must be. Raises Invalid (`CONFIG_INVALID`) with the field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NoReturn
from urllib.parse import urlsplit

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, LogView
from handmesh.session.v1.config_pb2 import (
    Budgets,
    CustomTool,
    McpServer,
    MemoryAccess,
    SessionConfig,
    ToolPolicyAction,
)
from services.kit import ids
from services.kit.errors import Invalid
from services.session.codec import parse_json

MAX_LABELS = 32
MAX_LABEL_KEY = 64
MAX_LABEL_VALUE = 256
MAX_TITLE = 1_024
MAX_HANDED = 32
MAX_NAMED = 64  # hands, servers, tools or policies of one session
MAX_VAULTS = 16  # of one session: the vault's policy has a line for each
MAX_MEMORY_STORES = 16  # of one session
MAX_MEMORY_DESCRIPTION = 1_024  # characters
MAX_URL = 2_048
MAX_GIT_RULES = 32  # of each kind, of one repository
MAX_DEPTH = 8  # levels of sessions below one
MAX_CHILDREN = 1_000  # sessions that one may start
MAIN_HAND = "main"  # of a session that names none
MESH = "mesh"  # what the mesh's own tools are offered by: no hand and no server

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
HARNESS_TYPE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_PUSH_PATTERN = re.compile(r"refs/[A-Za-z0-9._/*@+-]{1,250}")
_MESH_TOOL = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def keep_identity(config: SessionConfig, old: SessionConfig) -> None:
    """Sets in a new configuration what a session keeps for life. Raises Invalid for another agent."""
    if config.HasField("agent") and config.agent != old.agent:
        _refuse("agent", "cannot change: a session stays the run that it is")
    config.tenant = old.tenant
    config.ClearField("parent_session_id")
    if old.HasField("parent_session_id"):
        config.parent_session_id = old.parent_session_id
    if old.HasField("agent"):
        config.agent.CopyFrom(old.agent)


def check(config: SessionConfig) -> None:
    """Checks a whole configuration."""
    if config.harness and not HARNESS_TYPE.fullmatch(config.harness):
        _refuse("harness", f"must match ^{HARNESS_TYPE.pattern}$")
    _check_length("model", config.model, 256)
    _check_length("title", config.title, MAX_TITLE)
    _check_length("agent.id", config.agent.id, 128)
    _check_length("agent.version", config.agent.version, 128)
    _check_labels(config)
    _check_hands(config)
    hands = frozenset(config.hands) or frozenset(() if config.no_hands else (MAIN_HAND,))
    _check_servers(config.mcp_servers, taken=hands | {MESH})
    if len(config.vault_ids) > MAX_VAULTS:
        _refuse("vault_ids", f"has at most {MAX_VAULTS} entries")
    for at, vault_id in enumerate(config.vault_ids):
        if not ids.MINTED.fullmatch(vault_id):
            _refuse(f"vault_ids[{at}]", "must be a vault's id")
    _check_tools(config.custom_tools)
    for at, policy in enumerate(config.tool_policies):
        if not 1 <= len(policy.pattern) <= 256:
            _refuse(f"tool_policies[{at}].pattern", "has 1 to 256 characters")
        if policy.action not in ToolPolicyAction.values() or not policy.action:
            _refuse(f"tool_policies[{at}].action", "must be ALLOW, ASK or DENY")
    _check_memory(config.memory_stores)
    _check_mesh_tools(config.mesh_tools)
    _check_others(config)
    _check_budgets("budgets", config.budgets)
    if config.max_output_tokens < 0:
        _refuse("max_output_tokens", "must not be negative")
    if config.context_policy_json:
        parse_json(config.context_policy_json, dict, "context_policy_json", "CONFIG_INVALID")
    for field in ("hands", "mcp_servers", "custom_tools", "tool_policies"):
        if len(getattr(config, field)) > MAX_NAMED:
            _refuse(field, f"has at most {MAX_NAMED} entries")


def _check_others(config: SessionConfig) -> None:
    """Checks what a session may do with other sessions."""
    if len(config.hand_over_to) > MAX_HANDED:
        _refuse("hand_over_to", f"has at most {MAX_HANDED} entries")
    if not all(ids.MINTED.fullmatch(each) for each in config.hand_over_to):
        _refuse("hand_over_to", "has ids of sessions")
    for field, most in (("max_depth", MAX_DEPTH), ("max_children", MAX_CHILDREN)):
        if not 0 <= getattr(config.child_limits, field) <= most:
            _refuse(f"child_limits.{field}", f"is from 0 to {most}")
    _check_budgets("child_limits.budgets", config.child_limits.budgets)


def _refuse(field: str, rule: str) -> NoReturn:
    raise Invalid("CONFIG_INVALID", f"config.{field} {rule}", field=field)


def _check_length(field: str, value: str, most: int) -> None:
    if len(value) > most:
        _refuse(field, f"has at most {most} characters")


def _check_labels(config: SessionConfig) -> None:
    if len(config.labels) > MAX_LABELS:
        _refuse("labels", f"has at most {MAX_LABELS} entries")
    for key, value in config.labels.items():
        if not 1 <= len(key) <= MAX_LABEL_KEY:
            _refuse("labels", f"has keys of 1 to {MAX_LABEL_KEY} characters")
        _check_length(f"labels[{key}]", value, MAX_LABEL_VALUE)


def _check_hands(config: SessionConfig) -> None:
    if config.no_hands and config.hands:
        _refuse("no_hands", "says that there are none, and there are")
    for name, hand in config.hands.items():
        if not _NAME.fullmatch(name):
            _refuse("hands", f"has names that match ^{_NAME.pattern}$")
        if name == MESH:
            _refuse("hands", f"has no hand named {MESH}: the mesh itself is")
        _check_length(f"hands[{name}].environment", hand.environment, 128)
        _check_length(f"hands[{name}].standing_hand", hand.standing_hand, 128)
        for at, resource in enumerate(hand.resources):
            if resource.WhichOneof("source") == "git_repository":
                _check_repository(f"hands[{name}].resources[{at}].git_repository", resource.git_repository)
            if resource.WhichOneof("source") == "log_view":
                _check_log_view(f"hands[{name}].resources[{at}].log_view", resource.log_view)


def _check_log_view(field: str, view: LogView) -> None:
    if view.json_lines or view.offset:
        _refuse(field, "is filled by the harness")
    if view.start_position < 0:
        _refuse(f"{field}.start_position", "must not be negative")


def _check_repository(field: str, repository: GitRepository) -> None:
    """Checks what a hand may do with a repository. Where it may lie is for others to say."""
    for its, values in (("push_patterns", repository.push_patterns), ("also_read", repository.also_read)):
        if len(values) > MAX_GIT_RULES:
            _refuse(f"{field}.{its}", f"has at most {MAX_GIT_RULES} entries")
    if not all(_PUSH_PATTERN.fullmatch(each) for each in repository.push_patterns):
        _refuse(f"{field}.push_patterns", f"must match ^{_PUSH_PATTERN.pattern}$")
    if not all(_is_plain_http(each) for each in repository.also_read):
        _refuse(f"{field}.also_read", "must be http or https addresses without credentials")


def _check_servers(servers: Iterable[McpServer], taken: frozenset[str]) -> None:
    names = set(taken)  # a tool is called `hand__tool` or `server__tool`: one name, one of them
    for at, server in enumerate(servers):
        if not _NAME.fullmatch(server.name):
            _refuse(f"mcp_servers[{at}].name", f"must match ^{_NAME.pattern}$")
        if server.name in names:
            _refuse(f"mcp_servers[{at}].name", "is taken by another server or hand")
        names.add(server.name)
        if not _is_plain_http(server.url):
            _refuse(f"mcp_servers[{at}].url", "must be an http or https address without credentials")


def _is_plain_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return (
        len(address) <= MAX_URL
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
    )


def _check_tools(tools: Iterable[CustomTool]) -> None:
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if not _TOOL.fullmatch(tool.name) or "__" in tool.name:
            _refuse(f"custom_tools[{at}].name", f"must match ^{_TOOL.pattern}$, without __")
        if tool.name in names:
            _refuse(f"custom_tools[{at}].name", "is taken by another tool")
        names.add(tool.name)
        field = f"custom_tools[{at}].input_schema_json"
        if parse_json(tool.input_schema_json, dict, field, "CONFIG_INVALID").get("type") != "object":
            _refuse(field, "must be a schema of type object")
        if tool.timeout.ToNanoseconds() < 0:
            _refuse(f"custom_tools[{at}].timeout", "must not be negative")


def _check_memory(stores: Sequence[MemoryAccess]) -> None:
    """Checks the stores as far as they can be without looking: whose they are is for others to say."""
    if len(stores) > MAX_MEMORY_STORES:
        _refuse("memory_stores", f"has at most {MAX_MEMORY_STORES} entries")
    names: set[str] = set()
    for at, store in enumerate(stores):
        if not ids.MINTED.fullmatch(store.memory_store_id):
            _refuse(f"memory_stores[{at}].memory_store_id", "must be a memory store's id")
        if not _NAME.fullmatch(store.name):
            _refuse(f"memory_stores[{at}].name", f"must match ^{_NAME.pattern}$")
        if store.name in names:
            _refuse(f"memory_stores[{at}].name", "is taken by another store")
        names.add(store.name)
        _check_length(f"memory_stores[{at}].description", store.description, MAX_MEMORY_DESCRIPTION)


def _check_mesh_tools(names: Sequence[str]) -> None:
    """Checks how the names look. Which there are, harnesses know, and a later one knows more of them."""
    if len(names) > MAX_NAMED:
        _refuse("mesh_tools", f"has at most {MAX_NAMED} entries")
    if not all(_MESH_TOOL.fullmatch(name) for name in names):
        _refuse("mesh_tools", f"has names that match ^{_MESH_TOOL.pattern}$")
    if len(set(names)) < len(names):
        _refuse("mesh_tools", "has one of them twice")


def _check_budgets(prefix: str, budgets: Budgets) -> None:
    for field in ("max_turns", "max_tokens", "max_cost_micros", "max_tool_calls", "max_model_calls_per_turn"):
        if getattr(budgets, field) < 0:
            _refuse(f"{prefix}.{field}", "must not be negative")
    if budgets.max_wall_time.ToNanoseconds() < 0:
        _refuse(f"{prefix}.max_wall_time", "must not be negative")
