"""Who may emit what."""

from __future__ import annotations

import pytest

from handmesh.session.v1.event_pb2 import Event
from services.session.emitters import CLIENT, EMITTERS, HARNESS, SANDBOX, SESSION, UNKNOWN, VAULT_PROXY, may_emit

KINDS = [field.name for field in Event.DESCRIPTOR.oneofs_by_name["kind"].fields]


def test_every_kind_has_a_row() -> None:
    """A kind that is added to the contract must say who may emit it."""
    assert set(EMITTERS) == {*KINDS, UNKNOWN}


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_names_emitters(kind: str) -> None:
    """A row is never empty, and names only who can be an emitter."""
    assert EMITTERS[kind] and EMITTERS[kind] <= {CLIENT, HARNESS, SANDBOX, SESSION, VAULT_PROXY}


def test_clients_emit_only_what_is_theirs() -> None:
    """Messages, interrupts, decisions, answers, and other things only when no harness need know them."""
    by_clients = {kind for kind in KINDS if may_emit(CLIENT, kind, ignorable=False)}
    assert by_clients == {"message_received", "interrupt_requested", "tool_confirmed", "custom_tool_answered"}
    assert may_emit(CLIENT, "custom", ignorable=True)


def test_harnesses_do_not_speak_for_clients_or_the_log() -> None:
    """A harness cannot make up a message, a decision, a configuration or an end."""
    for kind in ("message_received", "tool_confirmed", "session_started", "config_changed", "session_ended"):
        assert not may_emit(HARNESS, kind, ignorable=True)


def test_only_the_sandbox_service_says_whose_a_hand_is() -> None:
    """A harness can say that a hand is gone, never that one came or went to another session; nor can a client."""
    by_sandbox = {kind for kind in KINDS if may_emit(SANDBOX, kind, ignorable=True)}
    assert by_sandbox == {"hand_attached", "hand_detached", "hand_transferred"}
    for kind in ("hand_attached", "hand_transferred"):
        assert not (may_emit(HARNESS, kind, ignorable=True) or may_emit(CLIENT, kind, ignorable=True))


def test_a_kind_that_is_newer_than_the_table_is_a_harness_matter() -> None:
    """What this server does not know, no client can smuggle in."""
    assert may_emit(HARNESS, UNKNOWN, ignorable=True)
    assert not may_emit(CLIENT, UNKNOWN, ignorable=True)
    assert not may_emit(HARNESS, "no_such_kind", ignorable=True)
