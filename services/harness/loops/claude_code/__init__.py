"""The `claude_code` harness type: the real Claude Code, with our hands as its tools (see docs/claude-code.md)."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from services.harness.loops.claude_code.home import sweep
from services.harness.loops.claude_code.loop import TRAITS, ClaudeCode, Place
from services.harness.ports import NotAvailable
from services.harness.settings import Settings
from services.harness.turn.loop import TurnType

DESCRIPTION = "The real Claude Code as the loop, with the session's hands, servers and custom tools as its only tools."
INSTALL = "pip install 'handmesh[claude-code]'"


def make(settings: Settings) -> TurnType:
    """Makes the type. Raises NotAvailable without the SDK or the program in it."""
    return make_at(settings.model_key_file, settings.model_base_url, settings.claude_code_processes)


def make_at(key_file: Path | None, base_url: str | None, processes: int) -> TurnType:
    """Makes the type for a model's key and address, with so many processes at most. Raises NotAvailable."""
    binary = find_binary()
    sweep()
    return TurnType(TRAITS, DESCRIPTION, partial(ClaudeCode, Place(binary, key_file, base_url, processes)))


def find_binary() -> Path:
    """Finds Claude Code, which the SDK brings. Loads nothing: the SDK takes most of a second, and 57 MB."""
    spec = find_spec("claude_agent_sdk")
    if spec is None or spec.origin is None:
        raise NotAvailable(f"the Claude Agent SDK is not installed; get it with: {INSTALL}")
    binary = Path(spec.origin).parent / "_bundled" / "claude"
    if not binary.is_file():
        raise NotAvailable(f"the installed Claude Agent SDK brings no Claude Code for this machine; try: {INSTALL}")
    return binary
