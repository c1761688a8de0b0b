"""No response of any service can carry a secret: there is no field for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handmesh.harness.v1 import harness_pb2
from handmesh.sandbox.v1 import sandbox_pb2
from handmesh.session.v1 import memory_pb2, session_pb2
from handmesh.status.v1 import status_pb2
from handmesh.vault_proxy.v1 import vault_proxy_pb2

FILES = (session_pb2, memory_pb2, harness_pb2, sandbox_pb2, status_pb2, vault_proxy_pb2)
WORDS = ("token", "secret", "password", "authorization", "private_key", "api_key")
# Token here is what a model counts, where a page goes on, or what a reader of a vault needs for one minute.
INNOCENT = {"page_token", "next_page_token", "input_tokens", "output_tokens", "max_output_tokens", "max_tokens"}
INNOCENT |= {"authorization_url", "cache_creation_input_tokens", "cache_read_input_tokens"}

INNOCENT |= {"hand_token_id", "hand_tokens", "hand_token"}  # what is known of a token, without the token

INNOCENT |= {"api_key_id", "api_keys", "api_key"}  # likewise

# Told once, when they are made.
TOLD_ONCE = {"handmesh.session.v1.CreateHandTokenResponse.token", "handmesh.session.v1.CreateApiKeyResponse.key"}

# What shows that its bearer may: none of them is a credential, and each lapses within a minute.
WORDS_OF_HONOUR = {"vault_jwt", "voucher"}


def _fields(message: Any, seen: set[str]) -> Iterator[Any]:
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field
        if field.message_type is not None:
            yield from _fields(field.message_type, seen)


def test_no_response_has_a_field_for_a_secret() -> None:
    """Walks every response of every method, all the way down."""
    found = []
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                for field in _fields(method.output_type, set()):
                    named = any(word in field.name for word in WORDS) and field.name not in INNOCENT
                    redacted = field.GetOptions().debug_redact and field.name not in WORDS_OF_HONOUR
                    if (named or redacted) and field.full_name not in TOLD_ONCE:
                        found.append(f"{method.full_name}: {field.full_name}")
    assert found == []


def test_requests_mark_their_secrets() -> None:
    """Every secret that a request brings is marked `debug_redact`, so that printing it hides it."""
    secret = vault_proxy_pb2.CredentialSecret.DESCRIPTOR
    values = [field for field in _fields(secret, set()) if field.name in {"access", "refresh", "value", "private_key"}]
    assert len(values) == 6
    assert all(field.GetOptions().debug_redact for field in values)
