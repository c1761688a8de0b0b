"""The tools that every hand with a runner has: names, descriptions and input schemas. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_COMMAND_SECONDS = 120.0


@dataclass(frozen=True)
class Tool:
    """A tool, as a model is told of it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    idempotent: bool = False
    read_only: bool = False


def _schema(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _text(description: str) -> Mapping[str, Any]:
    return {"type": "string", "description": description}


_FILE_PATH = _text("The file: an absolute path, or one relative to the workspace.")

TOOLS: tuple[Tool, ...] = (
    Tool(
        "bash",
        "Runs a command in bash, in the workspace of an isolated Linux sandbox, and returns what it prints (standard "
        "output and error together) and a non-zero exit code. The working directory, variables and functions last "
        "from one call to the next. There is no terminal and nothing to read on standard input. Processes that a "
        "command leaves in the background are ended with it: to start a server and use it, do both in one command.",
        _schema(
            (),
            command=_text("The command. Needed unless `restart` is true."),
            restart={"type": "boolean", "description": "Starts with a fresh shell: forgets directory and variables."},
            timeout_ms={
                "type": "integer",
                "minimum": 0,
                "description": f"Kills the command after so many milliseconds; {DEFAULT_COMMAND_SECONDS * 1000:.0f} "
                "when not given or 0.",
            },
        ),
    ),
    Tool(
        "read",
        "Reads a file: text up to 256 KiB, or a range of lines of a larger one; PNG, JPEG, GIF and WebP images and "
        "PDF documents up to 5 MiB are shown. Lines come without numbers.",
        _schema(
            ("file_path",),
            file_path=_FILE_PATH,
            view_range={
                "type": "array",
                "items": {"type": "integer"},
                "minItems": 2,
                "maxItems": 2,
                "description": "First and last line, counted from 1, both inclusive; a last line of 0 or less means "
                "the end of the file.",
            },
        ),
        idempotent=True,
        read_only=True,
    ),
    Tool(
        "write",
        "Writes a file, whole. Replaces what was in it and makes the directories that it needs.",
        _schema(("file_path", "content"), file_path=_FILE_PATH, content=_text("The whole new content.")),
        idempotent=True,
    ),
    Tool(
        "edit",
        "Replaces text in a file. `old_string` must match exactly, white space included, and be there once unless "
        "`replace_all` is true. The file keeps its mode and the ends of its lines.",
        _schema(
            ("file_path", "old_string", "new_string"),
            file_path=_FILE_PATH,
            old_string=_text("The text to replace."),
            new_string=_text("The text to put in its place."),
            replace_all={"type": "boolean", "description": "Replaces every occurrence."},
        ),
    ),
    Tool(
        "glob",
        "Lists files and directories whose path matches a pattern, newest first, at most 200. `*` and `?` stay within "
        "a name, `**` spans directories, `[...]` and `{a,b}` work too.",
        _schema(
            ("pattern",),
            pattern=_text("The pattern, relative to `path`: `**/*.py`."),
            path=_text("The directory to look in. The workspace when not given."),
        ),
        idempotent=True,
        read_only=True,
    ),
    Tool(
        "grep",
        "Lists lines that match a regular expression as `path:line number:line`. Looks in files of any depth but not "
        "in .git, node_modules or binary files. `(?i)` in front of it ignores case.",
        _schema(
            ("pattern",),
            pattern=_text("The regular expression."),
            path=_text("The file or directory to look in. The workspace when not given."),
        ),
        idempotent=True,
        read_only=True,
    ),
)
NAMES: tuple[str, ...] = tuple(tool.name for tool in TOOLS)
_BY_NAME = {tool.name: tool for tool in TOOLS}


def offered(names: Sequence[str]) -> tuple[Tool, ...]:
    """Returns the tools of a recipe in the order to offer them. No names means all."""
    return tuple(_BY_NAME[name] for name in names) if names else TOOLS
