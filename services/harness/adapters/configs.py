"""A session's configuration, as far as a harness type needs it."""

from __future__ import annotations

from typing import cast

from google.protobuf.duration_pb2 import Duration

from handmesh.session.v1 import config_pb2
from services.harness import config as of
from services.harness import core
from services.harness.usage import Budgets

MAIN_HAND = "main"  # the hand of a session that names none


def config_of(config: config_pb2.SessionConfig) -> core.Config:
    """Returns what a harness type needs of a session's configuration. Hands are in the order of their names."""
    names = sorted(config.hands) or ([] if config.no_hands else [MAIN_HAND])
    specs = [config.hands[name] if name in config.hands else config_pb2.HandSpec() for name in names]
    return core.Config(
        harness=config.harness or "messages",
        model=config.model,
        system=config.system,
        hands=tuple(names),
        hand_specs=tuple(spec.SerializeToString(deterministic=True) for spec in specs),
        servers=tuple(server.name for server in config.mcp_servers),
        custom_tools=tuple(
            core.ToolSpec(tool.name, tool.description, tool.input_schema_json, timeout=_seconds(tool.timeout))
            for tool in config.custom_tools
        ),
        policies=tuple(core.Policy(rule.pattern, _policy(rule.action)) for rule in config.tool_policies),
        max_output_tokens=config.max_output_tokens,
        budgets=_budgets(config.budgets),
        context_policy=config.context_policy_json,
        memory_stores=tuple(
            of.MemoryStore(store.memory_store_id, store.name, store.read_only, store.description)
            for store in config.memory_stores
        ),
        mesh_tools=tuple(config.mesh_tools),
        log_views=tuple(
            of.LogView(name, resource.mount_path, max(1, resource.log_view.start_position))
            for name, spec in zip(names, specs, strict=True)
            for resource in spec.resources
            if resource.WhichOneof("source") == "log_view"
        ),
        child_limits=_child_limits(config.child_limits) if config.HasField("child_limits") else None,
    )


def _child_limits(limits: config_pb2.ChildLimits) -> of.ChildLimits:
    return of.ChildLimits(limits.max_depth, limits.max_children, _budgets(limits.budgets))


def _budgets(budgets: config_pb2.Budgets) -> Budgets:
    return Budgets(
        max_turns=budgets.max_turns,
        max_tokens=budgets.max_tokens,
        max_cost_micros=budgets.max_cost_micros,
        max_wall_time=_seconds(budgets.max_wall_time),
        max_tool_calls=budgets.max_tool_calls,
        max_model_calls_per_turn=budgets.max_model_calls_per_turn,
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _policy(action: config_pb2.ToolPolicyAction.ValueType) -> core.PolicyAction:
    name = config_pb2.ToolPolicyAction.Name(action).removeprefix("TOOL_POLICY_ACTION_")
    return cast("core.PolicyAction", name if name in ("ALLOW", "DENY") else "ASK")
