"""Taking credentials out of an answer that streams by: the forms that `scrub` knows, and little is held back.

What is found is overwritten with a mark of the same length, so a Content-Length stays true and nothing has to be kept
until the end. A tripwire like `scrub`, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.vault_proxy.core.scrub import MARK, forms_of

SHORTEST = 6  # fewer characters occur by chance
LONGEST = 4096  # so much of an answer is held back at most


class Mask:
    """Knows credentials in their forms. For one answer: `feed` its parts in order, then take the `rest`."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form.encode() for value in values for form in forms_of(value)}
        self._forms = sorted((form for form in forms if SHORTEST <= len(form) <= LONGEST), key=lambda form: -len(form))
        self._held = b""
        self.found = 0  # how many times one was taken out

    def __repr__(self) -> str:
        return "Mask(<secret>)"

    def line(self, text: bytes) -> bytes:
        """Returns a text that is there as a whole, such as a header's value."""
        for form in self._forms:
            if form in text:
                self.found += text.count(form)
                text = text.replace(form, _mark(len(form)))
        return text

    def feed(self, part: bytes) -> bytes:
        """Takes the next part of the answer. Returns what may go on."""
        data = self.line(self._held + part)
        held = max((_begun(form, data) for form in self._forms), default=0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Returns what is left when the answer ends."""
        rest, self._held = self._held, b""
        return rest


def _mark(length: int) -> bytes:
    return (MARK.encode() + b"*" * length)[:length]


def _begun(form: bytes, data: bytes) -> int:
    """Returns how many bytes at the end of the data are the beginning of a form."""
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(form[:1], at)) >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0
