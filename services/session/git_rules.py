"""What a session's hands may do with git repositories: read off its configuration, of which nobody else makes more."""

from __future__ import annotations

from collections.abc import Iterator

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository
from handmesh.session.v1.config_pb2 import SessionConfig
from handmesh.session.v1.session_pb2 import GitRule


def git_rules(config: SessionConfig) -> list[GitRule]:
    """Returns a rule for each repository of the session's hands, what may be pushed to it from any of them joined."""
    patterns: dict[str, dict[str, None]] = {}
    for repository in _repositories(config):
        patterns.setdefault(repository.url, {}).update(dict.fromkeys(repository.push_patterns))
        for other in repository.also_read:
            patterns.setdefault(other, {})
    return [GitRule(repository=name, push_patterns=which) for name, which in patterns.items()]


def _repositories(config: SessionConfig) -> Iterator[GitRepository]:
    for _, hand in sorted(config.hands.items()):
        for resource in hand.resources:
            if resource.WhichOneof("source") == "git_repository":
                yield resource.git_repository
