"""The runner as one file that Python runs, and what it is told: how every hand with a runner starts it."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from services.sandbox import runner
from services.sandbox.hand import Recipe
from services.sandbox.runner.config import Config

NAME = "runner.pyz"
_MAIN = "from runner.daemon import main\nmain()\n"
_MOMENT = (1980, 1, 1, 0, 0, 0)  # the same archive each time

# No pager, no editor and no prompt ever waits for somebody.
_QUIET = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
}
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@functools.cache
def archive() -> bytes:
    """Returns the runner's package as a zip that `python3 -I -S` runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo("__main__.py", _MOMENT), _MAIN)
        for source in sorted(Path(runner.__path__[0]).glob("*.py")):
            file.writestr(zipfile.ZipInfo(f"runner/{source.name}", _MOMENT), source.read_bytes())
    return buffer.getvalue()


def told(
    recipe: Recipe,
    *,
    workspace: str,
    records: str,
    anchor: str,
    socket: str | None = None,
    socket_fd: int | None = None,
    tool_uid: int | None = None,
    oom_files: tuple[str, ...] = (),
    rlimits: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Returns the runner's argument: what the recipe says, and where the backend has put things."""
    limits = recipe.limits
    variables = {"PATH": DEFAULT_PATH, "HOME": workspace, **_QUIET, **recipe.env, **(env or {})}
    config = Config(
        workspace=workspace,
        records=records,
        anchor=anchor,
        socket=socket,
        socket_fd=socket_fd,
        tool_uid=tool_uid,
        env=variables,
        oom_files=oom_files,
        memory_bytes=limits.memory_bytes,
        output_text_bytes=limits.output_text_bytes,
        output_file_bytes=limits.output_file_bytes,
        output_total_bytes=limits.output_total_bytes,
        records_bytes=2 * limits.output_file_bytes,
        rlimits={"core": 0, "nofile": limits.open_files, **(rlimits or {})},
    )
    return json.dumps(config._asdict())
