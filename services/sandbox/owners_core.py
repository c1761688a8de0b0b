"""Rules of who owns a hand, who may do what with it, and how it gets from one owner to another. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from services.kit.errors import Conflict, Denied, Exists, Full, Invalid, Refused
from services.sandbox.hand import Labels, Move, Owner, Reader
from services.sandbox.tools import Tool

HAND_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
MESH = "mesh"  # no hand's name: the mesh's own tools have it
MOST_READERS = 16  # of one hand
MOST_PAST = 16  # owners that are remembered: the results of older ones are nobody's any more
MAX_DESCRIPTION = 1_000
SETTLE_SECONDS, MAX_SETTLE_SECONDS = 30.0, 600.0


@dataclass(frozen=True)
class Goal:
    """Where a hand shall go: to a session, or to nobody when that is empty. The name that it shall have there."""

    session_id: str
    hand: str


@dataclass(frozen=True)
class SessionSeen:
    """A session as far as hands go.

    `hands` are those of its configuration: for each the standing hand it names. Those in `reading` it may only read.
    """

    tenant: str
    ended: bool = False
    archived: bool = False
    hands: Mapping[str, str] = field(default_factory=dict)
    servers: Collection[str] = ()
    parent: str = ""
    hand_over_to: Collection[str] = ()
    reading: Collection[str] = ()


@dataclass(frozen=True)
class Right:
    """What a call may do with a hand. `session_id` is whose harness calls; empty for others.

    It is good for the `generation` that it was given for: the hand may change its owner while a call is on its way.
    With `past` it may wait for executions of these generations, and start none. With `reads` it may use only tools
    that change nothing.
    """

    session_id: str = ""
    reads: bool = False
    past: frozenset[int] = frozenset()
    generation: int = 0  # 0 for whichever


EVERYTHING = Right()


def check_name(name: str) -> None:
    """Raises Invalid (`ARGUMENT_INVALID`) unless a hand can have the name."""
    if not HAND_NAME.fullmatch(name) or name == MESH:
        what = f"a hand's name matches ^{HAND_NAME.pattern}$ and is not {MESH}"
        raise Invalid("ARGUMENT_INVALID", what, field="hand")


def check_description(text: str) -> None:
    """Raises Invalid (`ARGUMENT_INVALID`) for one that is too long."""
    if len(text) > MAX_DESCRIPTION:
        what = f"description has at most {MAX_DESCRIPTION} characters"
        raise Invalid("ARGUMENT_INVALID", what, field="description")


def settle_seconds(wanted: float | None) -> float:
    """Returns how long running executions may take to end. Raises Invalid (`ARGUMENT_INVALID`)."""
    if wanted is not None and not 0 <= wanted <= MAX_SETTLE_SECONDS:
        what = f"settle_timeout is from 0 to {MAX_SETTLE_SECONDS:g} s"
        raise Invalid("ARGUMENT_INVALID", what, field="settle_timeout")
    return SETTLE_SECONDS if wanted is None else wanted


def request_of(tenant: str, name: str) -> str:
    """Returns the request that makes a standing hand: so there is one of each name. No client can send it."""
    return f"@{tenant}/{name}"


# --- who may do what ---
def right_of(labels: Labels, session_id: str) -> Right | None:
    """Returns what a session's harness may do with a hand; None for a stranger."""
    if session_id == labels.session_id:
        return Right(session_id, generation=labels.generation)
    if any(reader.session_id == session_id and not reader.leaving for reader in labels.readers):
        return Right(session_id, reads=True, generation=labels.generation)
    past = frozenset(owner.generation for owner in labels.past if owner.session_id == session_id)
    return Right(session_id, past=past) if past else None


def check_right(labels: Labels, right: Right) -> None:
    """Raises Refused (`HAND_TRANSFERRED`) when a hand has changed its owner since a right was given."""
    if right.generation not in (0, labels.generation):
        raise transferred(labels)


def is_leaving(labels: Labels) -> bool:
    """Says whether nothing may start for the owner that the labels name."""
    return labels.move is not None and labels.move.stage != "OWNED"


def transferred(labels: Labels) -> Refused:
    """Returns what a call is refused with that comes too late: where the hand is, or goes."""
    to = labels.move.to_session_id if labels.move is not None and is_leaving(labels) else labels.session_id
    said = f"went to session {to}" if to else "stands outside of sessions now"
    return Refused("HAND_TRANSFERRED", f"this hand {said}", session_id=to)


def check_reading(tools: Iterable[Tool], name: str) -> None:
    """Raises Denied (`HAND_READ_ONLY`) unless a tool is known to change nothing."""
    if not any(tool.name == name and tool.read_only for tool in tools):
        what = "this hand is only shared with the session: it may use the tools that change nothing"
        raise Denied("HAND_READ_ONLY", what, name=name[:200])


# --- from one owner to another ---
def is_there(labels: Labels, goal: Goal, expected: int) -> bool:
    """Says whether a transfer is done already, or under way; False when it is to begin.

    Raises Conflict (`GENERATION_CONFLICT`) when another one came first, or is under way.
    """
    move = labels.move
    under_way = move is not None and is_leaving(labels)
    begun = labels.generation if under_way else labels.generation - 1
    if under_way:
        assert move is not None
        same = (move.to_session_id, move.to_hand) == (goal.session_id, goal.hand)
    else:
        same = (labels.session_id, labels.hand) == (goal.session_id, goal.hand)
    if same and expected in (0, begun, labels.generation):
        return True
    if under_way or expected not in (0, labels.generation):
        text = f"the hand has generation {labels.generation}{' and is on its way' if under_way else ''}"
        raise Conflict("GENERATION_CONFLICT", text, generation=labels.generation)
    return False


def check_session(session_id: str, seen: SessionSeen) -> None:
    """Raises Refused (`SESSION_ENDED`, `SESSION_ARCHIVED`) for a session that can be given nothing."""
    if seen.ended:
        raise Refused("SESSION_ENDED", f"session {session_id} has ended")
    if seen.archived:
        raise Refused("SESSION_ARCHIVED", f"session {session_id} is archived")


def check_kin(session_id: str, seen: SessionSeen, to_session_id: str, to: SessionSeen) -> None:
    """Raises Denied (`HAND_OVER_DENIED`) unless a session's harness may give its hands to another one."""
    if to_session_id not in (seen.parent, *seen.hand_over_to) and to.parent != session_id:
        what = "a session may give its hands to its parent, to those that it has started and to those it was told"
        raise Denied("HAND_OVER_DENIED", what, session_id=to_session_id)


def check_free(labels: Labels, goal: Goal, tenant: str, seen: SessionSeen | None, others: Iterable[Labels]) -> None:
    """Raises Exists (`HAND_NAME_TAKEN`) when there is a hand or a server of that name where a hand shall go.

    `others` are the labels of all other hands, `seen` is the session, if it goes to one. A name of the session's
    configuration is for the standing hand that the configuration means by it.
    """
    taken = False
    if seen is not None:
        mine = {labels.sandbox_id, labels.standing} - {""}
        taken = goal.hand in seen.servers or (goal.hand in seen.hands and seen.hands[goal.hand] not in mine)
        taken = taken or any(goal.hand in _names_in(other, goal.session_id) for other in others)
    else:
        taken = any(other.tenant == tenant and goal.hand in _standing_names(other) for other in others)
    if taken:
        raise Exists("HAND_NAME_TAKEN", f"there is a hand or a server named {goal.hand} already", hand=goal.hand)


def _names_in(labels: Labels, session_id: str) -> set[str]:
    """Returns the names that a hand has, or will have, in a session."""
    names = {reader.hand for reader in labels.readers if reader.session_id == session_id}
    if labels.session_id == session_id:
        names.add(labels.hand)
    if labels.move is not None and labels.move.to_session_id == session_id:
        names.add(labels.move.to_hand)
    return names - {""}


def _standing_names(labels: Labels) -> set[str]:
    """Returns the names that a hand has, or will have, outside of sessions."""
    coming = labels.move is not None and not labels.move.to_session_id
    return {labels.standing, labels.move.to_hand if coming and labels.move else ""} - {""}


def leaving(labels: Labels, goal: Goal, until: float, tenant: str = "") -> Labels:
    """Returns the labels of a tenant's hand that is to go. `until` is when what runs is cancelled (Unix seconds)."""
    return replace(labels, move=Move(goal.session_id, goal.hand, until, tenant=tenant))


def decided(labels: Labels) -> Labels:
    """Returns the labels of a hand that will go, whatever happens."""
    assert labels.move is not None
    return replace(labels, move=replace(labels.move, stage="DECIDED"))


def stayed(labels: Labels) -> Labels:
    """Returns the labels of a hand that stays where it was. It counts as another owner: its fence is raised."""
    past = _past(labels)
    return replace(labels, move=None, generation=labels.generation + 1, past=past)


def owned(labels: Labels, tenant: str) -> Labels:
    """Returns the labels of a hand that has its new owner, which its log is yet to say. Its readers read no more."""
    move = labels.move
    assert move is not None
    standing = labels.standing if move.to_session_id else move.to_hand
    return replace(
        labels,
        session_id=move.to_session_id,
        hand=move.to_hand,
        generation=labels.generation + 1,
        standing=standing,
        tenant=tenant if standing else "",
        request_id=request_of(tenant, standing) if standing else "",
        move=replace(move, stage="OWNED", from_session_id=labels.session_id),
        readers=tuple(replace(reader, leaving=True) for reader in labels.readers),
        past=_past(labels),
    )


def _past(labels: Labels) -> tuple[Owner, ...]:
    mine = (Owner(labels.generation, labels.session_id),) if labels.session_id else ()
    return (*labels.past, *mine)[-MOST_PAST:]


def arrived(labels: Labels) -> Labels:
    """Returns the labels of a hand whose way is at its end."""
    return replace(labels, move=None)


# --- sharing ---
def shared(labels: Labels, session_id: str, hand: str) -> Labels:
    """Returns the labels with a reader more. Raises Full (`FULL`)."""
    if len(labels.readers) >= MOST_READERS:
        raise Full("FULL", f"a hand has at most {MOST_READERS} readers")
    number = labels.shares + 1
    return replace(labels, readers=(*labels.readers, Reader(session_id, hand, number)), shares=number)


def reader_of(labels: Labels, session_id: str) -> Reader | None:
    """Returns a session as a reader."""
    return next((reader for reader in labels.readers if reader.session_id == session_id), None)


def with_reader(labels: Labels, reader: Reader) -> Labels:
    """Returns the labels with a reader in place of the one that has its number."""
    return replace(labels, readers=tuple(reader if each.number == reader.number else each for each in labels.readers))


def without_reader(labels: Labels, number: int) -> Labels:
    """Returns the labels without a reader."""
    return replace(labels, readers=tuple(each for each in labels.readers if each.number != number))
