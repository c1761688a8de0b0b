"""docs/vault.md says what is so: its policies are the ones that are tested, its limits are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from handmesh.launcher.vault_operator import POLICY
from services.vault_proxy import credentials, executions
from services.vault_proxy.core import answer, catalog
from services.vault_proxy.mcp import connections
from tests.vault_proxy.bao import READER_POLICY, WRITER_POLICY

PAGE = (Path(__file__).parents[2] / "docs" / "vault.md").read_text()


def rules(policy: str) -> list[str]:
    """Returns a policy's lines with their spaces made one."""
    return [re.sub(r"\s+", " ", line).strip() for line in policy.splitlines() if line.strip()]


def test_the_policies_are_the_tested_ones() -> None:
    """Reading as the launcher sets it up, writing as the tests of the API have it."""
    told = [re.sub(r"\s+", " ", line).strip() for line in PAGE.splitlines() if line.strip().startswith("path ")]
    assert told == rules(READER_POLICY) + rules(WRITER_POLICY)
    assert rules(POLICY) == rules(WRITER_POLICY)


def test_the_limits_are_the_codes() -> None:
    """Each number of the table."""
    for said in (
        f"calls of a session at once | {executions.MOST_RUNNING} |",
        f"text of a result | {answer.OUTPUT_CHARACTERS:,} characters |",
        f"images and documents of a result | {answer.CONTENT_BYTES // 2**20} MiB |",
        f"tools of a server | {catalog.MOST_TOOLS:,}, and {catalog.CATALOG_BYTES // 2**20} MiB",
        f"remembered results | {executions.MOST_KEPT:,}, and {executions.KEPT_BYTES // 2**20} MiB |",
        f"credentials of a vault | {credentials.MOST_CREDENTIALS} ",
        f"connections | {connections.MOST_CONNECTIONS:,} ",
        f"for at most {connections.CREDENTIAL_SECONDS:g} seconds",
    ):
        assert said in PAGE, said
