"""What a session may do with git repositories: rules, and how they are read off what the session service says.

A rule names one repository, `https://host/owner/name`, or ends in `/*`: then it is for every repository below, which is
what submodules of one owner need. The rule's own repository is named exactly; nothing is guessed from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from services.kit.origin import Origin, UrlRefused, origin_of

MOST_SEGMENTS = 8  # of a repository's path
MOST_PATTERNS = 32

_SEGMENT = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9._~+-]{1,128}"
PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{0,{MOST_SEGMENTS - 1}}}")
_PATTERN = re.compile(r"refs/[A-Za-z0-9._/*@+-]{1,250}")
# Of what git takes for a reference (git check-ref-format), what needs no quoting anywhere.
_REFERENCE = re.compile(r"refs/(?![./])(?!.*(?:\.\.|//|/\.|\.lock(?:/|$)))[A-Za-z0-9._/@+=#,-]{1,250}(?<![./])")


@dataclass(frozen=True)
class Repository:
    """A repository on a host. `path` has no slash at either end and no `.git`."""

    origin: Origin
    path: str

    def __str__(self) -> str:
        return f"{self.origin}/{self.path}"


@dataclass(frozen=True)
class Rule:
    """What may be done with one repository, or with all whose path is below `path`."""

    repository: Repository
    push_patterns: tuple[str, ...] = ()
    below: bool = False

    def __str__(self) -> str:
        return f"{self.repository}/*" if self.below else str(self.repository)

    def covers(self, repository: Repository) -> bool:
        """Says whether the rule is for a repository. Hosts differ in whether they fold case: here it counts."""
        if self.below:
            mine, its = self.repository, repository
            return mine.origin == its.origin and its.path.startswith(f"{mine.path}/")
        return self.repository == repository


def rule_of(repository: str, push_patterns: Iterable[str]) -> Rule | None:
    """Reads a rule; None for a repository that no door leads to. Patterns that no reference can match are left out."""
    address, below = (repository[:-2], True) if repository.endswith("/*") else (repository, False)
    found = repository_of(address)
    if found is None:
        return None
    patterns = tuple(each for each in push_patterns if _PATTERN.fullmatch(each))
    return Rule(found, patterns[:MOST_PATTERNS], below)


def repository_of(url: str) -> Repository | None:
    """Reads `https://host[:port]/owner/name`, with `.git` or without; None for what is none."""
    try:
        origin = origin_of(url)
    except UrlRefused:
        return None
    path = url.partition("://")[2].partition("/")[2].removesuffix("/").removesuffix(".git")
    return Repository(origin, path) if PATH.fullmatch(path) else None


def allowing(rules: Iterable[Rule], repository: Repository) -> tuple[Rule, ...]:
    """Returns the rules that are for a repository: none means that it may not be read."""
    return tuple(rule for rule in rules if rule.covers(repository))


def may_push(rules: Iterable[Rule], reference: str) -> bool:
    """Says whether rules let a reference be pushed to. In a pattern `*` stands for any characters, also for none."""
    if not _REFERENCE.fullmatch(reference):
        return False
    return any(fnmatchcase(reference, pattern) for rule in rules for pattern in rule.push_patterns)
