"""Makes foreign text safe to print: a terminal obeys control characters, and people misread invisible ones.

Everything that a terminal could obey (C0, C1, DEL) or that changes how its neighbours look without being seen (bidi
marks, zero-width and other format characters, lone surrogates, private and unassigned code points) is spelled out, such
as `\\x1b` or `\\u202e`. A character is judged alone, so text may be escaped piece by piece.
"""

from __future__ import annotations

import unicodedata

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\t")


def escaped(text: str) -> str:
    """Returns the text with all that is unsafe spelled out. Line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_spelled, text))


def one_line(text: str, limit: int) -> str:
    """Returns the text escaped, on one line, in at most `limit` characters; `…` stands for what was cut."""
    start = text[: 4 * limit + 64]  # far more than is shown, so that a megabyte costs nothing
    flat = " ".join(escaped(start).split())
    if len(flat) <= limit and len(start) == len(text):
        return flat
    return flat[: max(0, limit - 1)].rstrip() + "…"


def _spelled(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSAFE:
        return character
    if character == "\r":
        return "\\r"
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
