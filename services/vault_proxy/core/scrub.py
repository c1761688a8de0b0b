"""Taking a credential out of what a server says.

This is a tripwire, not a boundary: it finds the credential as it is and in the encodings that careless servers use, not
one that is cut in half, reversed or compressed. The boundary is that a credential is sent to its own origin only.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

MARK = "[credential removed]"
SHORTEST_ENCODED = 6  # fewer characters of an encoding than this occur by chance


class Scrubber:
    """Knows one credential in its forms: raw, JSON-escaped, percent-encoded, hex, base64 at its three alignments."""

    def __init__(self, value: str) -> None:
        self._forms = sorted(forms_of(value), key=lambda form: (-len(form), form))
        self.found = 0  # how many times it was taken out

    def __repr__(self) -> str:
        return "Scrubber(<secret>)"

    def text(self, text: str) -> str:
        """Returns the text with the credential replaced by MARK."""
        for form in self._forms:
            if form in text:
                self.found += text.count(form)
                text = text.replace(form, MARK)
        return text

    def value(self, value: Any) -> Any:
        """Returns a JSON value with the credential replaced in every string and every key."""
        match value:
            case str():
                return self.text(value)
            case list():
                return [self.value(each) for each in value]
            case dict():
                return {self.text(str(key)): self.value(each) for key, each in value.items()}
            case _:
                return value


class NoScrubber(Scrubber):
    """For calls without a credential: changes nothing."""

    def __init__(self) -> None:
        self._forms = []
        self.found = 0


def forms_of(value: str) -> set[str]:
    """Returns a value as it is, and in the encodings that careless servers use."""
    data = value.encode()
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    escaped |= {form.replace("/", "\\/") for form in escaped}
    escaped |= {"".join(f"\\u{ord(each):04x}" for each in value), "".join(f"\\u{ord(each):04X}" for each in value)}
    percent = {quote(value, safe=safe) for safe in ("", "/", "/:@!$&'()*+,;=~")}
    percent |= {form.replace("%20", "+") for form in percent}
    percent |= {"".join(f"%{each:02x}" for each in data), "".join(f"%{each:02X}" for each in data)}
    percent |= {_lower_escapes(form) for form in percent}
    encoded = {data.hex(), data.hex().upper()}
    for alignment in range(3):
        encoded |= {_aligned(data, alignment), _aligned(data, alignment).translate(_URL_ALPHABET)}
    kept = {value} | escaped | percent | {form for form in encoded if len(form) >= SHORTEST_ENCODED}
    return {form for form in kept if form}


_URL_ALPHABET = str.maketrans("+/", "-_")


def _aligned(data: bytes, alignment: int) -> str:
    """Returns the characters of a base64 text that only this data decides, when `alignment` bytes are before it."""
    encoded = base64.b64encode(bytes(alignment) + data).decode()
    first = (alignment * 8 + 5) // 6
    last = (alignment + len(data)) * 8 // 6
    return encoded[first:last]


def _lower_escapes(form: str) -> str:
    parts = form.split("%")
    return parts[0] + "".join("%" + part[:2].lower() + part[2:] for part in parts[1:])
