"""docs/vault.md says what is so: its policies are the ones that are tested, its limits are the code's."""

from __future__ import annotations

import json
from pathlib import Path

from handmesh.launcher.vault_operator import POLICY, session_policy, session_role
from services.session import vouchers
from services.vault_proxy import credentials, executions
from services.vault_proxy.connecting import accounts, discovery, pending
from services.vault_proxy.core import answer, catalog, metadata
from services.vault_proxy.mcp import connections

POLICIES = Path(__file__).parents[2] / "docs" / "vault"
PAGE = (Path(__file__).parents[2] / "docs" / "vault.md").read_text()


def test_the_policies_are_the_tested_ones() -> None:
    """The files for operators say what the launcher sets up, and with it what all tests run with."""
    assert (POLICIES / "vault-proxy.hcl").read_text() == POLICY
    assert (POLICIES / "handmesh-session.hcl").read_text() == session_policy("ACCESSOR")
    assert json.loads((POLICIES / "session-role.json").read_text()) == session_role()


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
        f"connected | {pending.MOST_PENDING:,} of a tenant, {pending.LIFETIME_SECONDS / 60:g} minutes each |",
        f"is connected | {accounts.START_SECONDS:g} s, {discovery.ASK_SECONDS:g} s for a question, "
        f"{metadata.DOCUMENT_BYTES // 1024} KiB",
        f"a voucher | {vouchers.LIFETIME_SECONDS} s, once |",
        f"for at most {connections.CREDENTIAL_SECONDS:g} seconds",
    ):
        assert said in PAGE, said
