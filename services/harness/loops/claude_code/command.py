"""How Claude Code is called: its arguments and its environment, which is built from nothing. Pure.

Nothing of the harness's environment is passed on. The model's key is the only secret in it.
"""

from __future__ import annotations

import json
from pathlib import Path

from services.harness.loops.claude_code.transcript import GO_ON

SERVER = "handmesh"  # the MCP server in this process, as Claude Code knows it
NO_PROGRAMS = "/nonexistent"  # its PATH: it is to run nothing
LARGE = "1000000"


def arguments(binary: Path, home: Path, model: str, system: bool, session: str, resumed: bool) -> list[str]:
    """Returns the arguments. `system` tells whether the system prompt lies in its file (see `system_file`)."""
    return [
        str(binary),
        *("--output-format", "stream-json", "--input-format", "stream-json", "--verbose"),
        "--include-partial-messages",
        *("--tools", ""),
        *("--allowedTools", f"mcp__{SERVER}"),
        *("--mcp-config", json.dumps({"mcpServers": {SERVER: {"type": "sdk", "name": SERVER}}})),
        "--strict-mcp-config",
        "--setting-sources=",
        *("--model", model),
        *(("--system-prompt-file", str(system_file(home))) if system else ("--system-prompt", "")),
        f"--resume={session}" if resumed else f"--session-id={session}",
    ]


def system_file(home: Path) -> Path:
    """Returns where the system prompt is put: an argument can be read by everybody, and is short."""
    return home / "system"


def environment(home: Path, key: str, base_url: str | None, max_output_tokens: int, goes_on: bool) -> dict[str, str]:
    """Returns the whole environment of the process, whose own directory is `home`.

    `goes_on` tells whether it goes on by itself with what its transcript ends with.
    """
    told = {
        "HOME": str(home),
        "TMPDIR": str(home),
        "CLAUDE_CONFIG_DIR": str(config_dir(home)),
        "PATH": NO_PROGRAMS,
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": key,
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        "CLAUDE_CODE_SIMPLE": "1",  # no hooks, plugins, memory files, background look-ups or notes of its own
        "CLAUDE_AGENT_SDK_MCP_NO_PREFIX": "1",  # a tool has the same name there and in the log
        "ENABLE_TOOL_SEARCH": "false",  # the model is told of all tools at once
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_MAX_RETRIES": "0",  # what fails is tried again by us, and seen in the log
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
        "CLAUDE_CODE_MAX_MCP_DESCRIPTION_LENGTH": LARGE,  # nothing is cut there that is whole in the log
        "MAX_MCP_OUTPUT_TOKENS": LARGE,
        "ENABLE_MCP_LARGE_OUTPUT_FILES": "0",
        "MCP_TOOL_TIMEOUT": "2000000000",  # milliseconds: how long a call takes is the session's to say
        "CLAUDE_CODE_MCP_AUTO_BACKGROUND_MS": "0",
    }
    if base_url:
        told["ANTHROPIC_BASE_URL"] = base_url
    if max_output_tokens:
        told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max_output_tokens)
    if goes_on:
        told["CLAUDE_CODE_RESUME_INTERRUPTED_TURN"] = "1"
        told["CLAUDE_CODE_RESUME_INTERRUPTED_TURN_MAX_AGE_MS"] = "0"  # however old it is
        told["CLAUDE_CODE_RESUME_PROMPT"] = GO_ON
    return told


def config_dir(home: Path) -> Path:
    """Returns where Claude Code keeps what it keeps."""
    return home / "config"


def transcript_file(home: Path, project: str, session: str) -> Path:
    """Returns where Claude Code looks for a session's transcript. `project` is its name for where it works."""
    return config_dir(home) / "projects" / project / f"{session}.jsonl"
