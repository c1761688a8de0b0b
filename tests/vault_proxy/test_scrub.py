"""Taking a credential out of what a server says, and types that do not show it."""

from __future__ import annotations

import base64
import copy
import json
import logging
import pickle
from urllib.parse import quote, quote_plus

import pytest

from services.vault_proxy.core.scrub import MARK, NoScrubber, Scrubber
from services.vault_proxy.secret import Secret

VALUE = 'k3y+/"\\ä=~secret'


def b64(before: bytes, after: bytes = b"") -> str:
    return base64.b64encode(before + VALUE.encode() + after).decode()


FORMS = {
    "raw": VALUE,
    "json": json.dumps(VALUE),
    "json without ascii": json.dumps(VALUE, ensure_ascii=False),
    "json with slashes": json.dumps(VALUE).replace("/", "\\/"),
    "json of json": json.dumps({"a": "x" + VALUE}),
    "percent": quote(VALUE, safe=""),
    "percent, lower case": quote(VALUE, safe="").lower() if VALUE.islower() else quote(VALUE, safe=""),
    "percent, slashes kept": quote(VALUE),
    "percent of every byte": "".join(f"%{each:02x}" for each in VALUE.encode()),
    "form": quote_plus(VALUE),
    "hex": VALUE.encode().hex(),
    "HEX": VALUE.encode().hex().upper(),
    "base64 0": b64(b""),
    "base64 1": b64(b"B"),
    "base64 2": b64(b"Be", b" and more"),
    "base64 of the header": b64(b"Bearer "),
    "base64 for URLs": base64.urlsafe_b64encode(b"x" + VALUE.encode() + b"yz").decode(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_credential_is_found_in_its_forms(form: str) -> None:
    """Each form is replaced, alone and inside of other text, and counted."""
    scrubber = Scrubber(VALUE)
    cleaned = scrubber.text(f"<{form}> and <{form}>")
    assert cleaned.count(MARK) == 2
    assert scrubber.found == 2
    assert VALUE not in cleaned
    assert form not in cleaned


def test_what_is_not_the_credential_stays() -> None:
    """The control: other text, and half of the credential, pass."""
    scrubber = Scrubber(VALUE)
    said = f"{VALUE[:-1]} {VALUE[1:]} {'x' * 1000}"
    assert scrubber.text(said) == said
    assert scrubber.found == 0


def test_values_are_cleaned_all_the_way_down() -> None:
    """Strings and keys, in lists and objects; other values stay as they are."""
    cleaned = Scrubber(VALUE).value({"a": [VALUE, {VALUE: 1}], "b": None, "c": 2.5, "d": f"x{VALUE}x"})
    assert cleaned == {"a": [MARK, {MARK: 1}], "b": None, "c": 2.5, "d": f"x{MARK}x"}


def test_without_a_credential_nothing_changes() -> None:
    """Calls without one are not touched."""
    assert NoScrubber().value({"a": [VALUE]}) == {"a": [VALUE]}


def test_a_secret_does_not_show_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Not in repr, text, format, logs, JSON, pickle or a copy; reading it is one word."""
    secret = Secret(VALUE)
    logging.getLogger("x").error("%s %r", secret, secret)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>20}",
        repr([secret]),
        caplog.text,
        repr(Scrubber(VALUE)),
    ]
    assert all(VALUE not in each for each in shown)
    for refused in (json.dumps, pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            refused(secret)
    with pytest.raises(TypeError):
        hash(secret)
    assert secret.reveal() == VALUE
    assert secret == Secret(VALUE)
    assert secret != Secret(VALUE + "x")
    assert secret != VALUE
