"""What a session may push: references of its rules' patterns, made new or moved forward, never back and never away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.vault_proxy.core.git_rules import Rule, may_push
from services.vault_proxy.core.pkt_line import LINE_BYTES, Command, LineRefused, Push, pkt_line

HELD_BACK = frozenset({"push-options", "push-cert"})
OTHERS = "another reference of this push is refused"
NOT_FORWARD = (
    "not shown to be a fast-forward: its objects must lead from the old commit to the new one; no force push is let"
    " through; push to a new branch"
)
_ADVERTISED_BYTES = 256 * 1024  # up to the first reference


def refusals(push: Push, rules: Iterable[Rule]) -> dict[str, str]:
    """Returns why references may not be pushed, by their names; nothing when all may.

    Of a push with one that may not be pushed, none is. Signed pushes and push options are refused as a whole: both
    have the upstream do more than to move references.
    """
    rules = tuple(rules)
    if push.signed or "push-options" in push.capabilities:
        why = ("signed pushes are" if push.signed else "push options are") + " not let through"
        return dict.fromkeys(("this push", *(command.reference for command in push.commands)), why)
    found = {command.reference: why for command in push.commands if (why := _why_not(command, rules))}
    if len({command.reference for command in push.commands}) != len(push.commands):
        found |= {command.reference: "a reference is named once" for command in push.commands}
    return found


def _why_not(command: Command, rules: Iterable[Rule]) -> str:
    if command.deletes:
        return "no reference is deleted"
    if not may_push(rules, command.reference):
        patterns = sorted({pattern for rule in rules for pattern in rule.push_patterns})
        return f"this session may push only to {', '.join(patterns)}" if patterns else "this session may not push here"
    return ""


def all_refused(push: Push, why: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns what to say of each reference of a push, some of which are refused."""
    return [(command.reference, why.get(command.reference, OTHERS)) for command in push.commands]


def moved(push: Push) -> tuple[Command, ...]:
    """Returns the commands that move a reference which is there: whether forward, only the objects can tell."""
    return tuple(command for command in push.commands if not command.creates and command.old != command.new)


class Advertisement:
    """Rewrites what an upstream says it can do for a push: nothing that is not let through, and no thin packs.

    A thin pack leaves out what the upstream has, also commits that would show a push to be a fast-forward.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._done = False

    def feed(self, part: bytes) -> bytes:
        """Takes a part of the answer, and returns what to pass on. Raises LineRefused for what is none."""
        if self._done:
            return part
        self._data += part
        at = 0
        while len(self._data) - at >= 4:
            try:
                length = int(bytes(self._data[at : at + 4]), 16)
            except ValueError:
                raise LineRefused("expected a pkt-line") from None
            if not length:
                at += 4
                continue
            if length < 4 or length > LINE_BYTES or at > _ADVERTISED_BYTES:
                raise LineRefused("expected the references of a repository")
            if len(self._data) - at < length:
                break
            line = bytes(self._data[at + 4 : at + length])
            if b"\0" in line:
                self._done = True
                return bytes(self._data[:at]) + pkt_line(_rewritten(line)) + bytes(self._data[at + length :])
            at += length
        return b""

    def end(self) -> bytes:
        """Returns what is left at the end of the answer."""
        return b"" if self._done else bytes(self._data)


def _rewritten(line: bytes) -> bytes:
    reference, _, named = line.partition(b"\0")
    kept = [each for each in named.split() if each.partition(b"=")[0].decode("latin-1") not in HELD_BACK]
    return reference + b"\0" + b" ".join([*kept, b"no-thin"]) + b"\n"
