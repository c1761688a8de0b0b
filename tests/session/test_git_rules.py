"""What a session's configuration lets its hands do with git, as the session service tells it to a vault proxy."""

from __future__ import annotations

import pytest

from handmesh.sandbox.v1.sandbox_pb2 import GitRepository, Resource
from handmesh.session.v1 import session_pb2 as pb
from handmesh.session.v1.config_pb2 import HandSpec, SessionConfig
from handmesh.session.v1.session_pb2 import GitRule
from services.kit.errors import Invalid
from services.session import configs
from services.session.git_rules import git_rules
from tests.session.running import Service, message

ONE, TWO, LIBRARY = "https://git.example/o/one", "https://git.example/o/two", "https://git.example/lib/*"


def with_repositories(*repositories: GitRepository) -> SessionConfig:
    """A configuration with a hand for each repository."""
    config = SessionConfig()
    for at, repository in enumerate(repositories):
        hand = HandSpec(resources=[Resource(mount_path=f"/workspace/{at}", git_repository=repository)])
        config.hands[f"hand-{at}"].CopyFrom(hand)
    return config


def test_each_repository_of_a_hand_is_a_rule() -> None:
    """What may be pushed is joined over the hands; what may only be read has no pattern; no hands, no rules."""
    config = with_repositories(
        GitRepository(url=ONE, push_patterns=["refs/heads/agent/*"], also_read=[LIBRARY, ONE]),
        GitRepository(url=TWO),
        GitRepository(url=ONE, push_patterns=["refs/heads/agent/*", "refs/heads/fix"]),
    )
    assert git_rules(config) == [
        GitRule(repository=ONE, push_patterns=["refs/heads/agent/*", "refs/heads/fix"]),
        GitRule(repository=LIBRARY),
        GitRule(repository=TWO),
    ]
    assert git_rules(SessionConfig()) == []


@pytest.mark.parametrize(
    ("field", "repository"),
    [
        ("push_patterns", GitRepository(url=ONE, push_patterns=["*"])),
        ("push_patterns", GitRepository(url=ONE, push_patterns=["refs/heads/[ab]"])),
        ("push_patterns", GitRepository(url=ONE, push_patterns=["refs/heads/x"] * (configs.MAX_GIT_RULES + 1))),
        ("also_read", GitRepository(url=ONE, also_read=["file:///etc/passwd"])),
        ("also_read", GitRepository(url=ONE, also_read=["https://user:value@git.example/o/one"])),
    ],
)
def test_a_wrong_rule_names_its_field(field: str, repository: GitRepository) -> None:
    """A pattern that no reference can match, and an address that no door leads to, are mistakes to be told."""
    with pytest.raises(Invalid) as refused:
        configs.check(with_repositories(repository))
    assert refused.value.metadata == {"field": f"hands[hand-0].resources[0].git_repository.{field}"}


async def test_a_grant_says_the_rules_of_the_newest_configuration(service: Service) -> None:
    """So that a repository that a session gets, or loses, counts from the next look on."""

    async def told() -> list[GitRule]:
        return list((await service.vault_proxy.CheckGrant(pb.CheckGrantRequest(), metadata=metadata)).git_rules)

    session = await service.create(message(), config=with_repositories(GitRepository(url=ONE)))
    _, grant = await service.wake(session)
    metadata = (("x-handmesh-grant", grant),)
    assert await told() == [GitRule(repository=ONE)]
    changed = with_repositories(GitRepository(url=TWO, push_patterns=["refs/heads/a/*"]))
    await service.client.UpdateSession(pb.UpdateSessionRequest(session_id=session, config=changed))
    assert await told() == [GitRule(repository=TWO, push_patterns=["refs/heads/a/*"])]
