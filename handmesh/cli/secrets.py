"""Reads secrets: from a file, from standard input, or typed where nobody sees it. Never from an argument."""

from __future__ import annotations

import sys
from pathlib import Path

from handmesh.cli.arguments import UsageError

MOST_BYTES = 64 * 1024


def secret_of(file: Path | None, prompt: str = "Secret") -> str:
    """Returns a secret, without the line end behind it. None: typed, or standard input where that is no terminal.

    Raises UsageError.
    """
    if file is not None and str(file) != "-":
        try:
            with file.open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
        except OSError as problem:
            raise UsageError(f"{file}: {problem.strerror}") from None
    elif file is None and sys.stdin.isatty():
        import getpass

        content = getpass.getpass(f"{prompt} (not shown): ").encode()
    else:
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    return _text(content)


def _text(content: bytes) -> str:
    if len(content) > MOST_BYTES:
        raise UsageError(f"the secret has more than {MOST_BYTES} bytes")
    try:
        found = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError("the secret is no text") from None
    if not found:
        raise UsageError("the secret is empty. Give it on standard input, or with --from FILE")
    return found
