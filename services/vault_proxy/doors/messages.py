"""Doors as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping

from handmesh.session.v1.session_pb2 import GitRule
from handmesh.vault_proxy.v1 import vault_proxy_pb2 as pb
from services.vault_proxy.doors.reception import Prepared
from services.vault_proxy.doors.visit import Policy

DOORS: Mapping[int, str] = {pb.DOOR_KIND_GIT: "git", pb.DOOR_KIND_EGRESS: "egress"}


def policy_of(network: pb.NetworkPolicy) -> Policy:
    """Reads what an environment may reach."""
    return Policy(tuple(network.allow), network.allow_package_managers, network.allow_mcp_servers)


def prepared_message(prepared: Prepared) -> pb.PrepareDoorsResponse:
    """Returns what a sandbox is told of its doors."""
    return pb.PrepareDoorsResponse(
        placeholders=[pb.Placeholder(variable=variable, value=value) for variable, value in prepared.placeholders],
        ca_certificate=prepared.ca_certificate,
        repositories=[
            GitRule(repository=str(rule), push_patterns=rule.push_patterns) for rule in prepared.repositories
        ],
    )
