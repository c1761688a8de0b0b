"""Identities: the development CA, a certificate per service, the clients' API key."""

import datetime
import hashlib
import json
import re
import shutil
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from handmesh.launcher.ca import (
    CA_LIFETIME,
    RENEW_BEFORE,
    SERVICE_LIFETIME,
    ensure_api_key,
    ensure_certificates,
    ensure_door_authority,
)

NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
NAMES = ("session", "harness")


def certificate(tls: Path, service: str) -> x509.Certificate:
    """Reads a service's certificate."""
    return x509.load_pem_x509_certificate((tls / service / "cert.pem").read_bytes())


def contents(tls: Path) -> dict[str, bytes]:
    """Returns every file below `tls`."""
    return {str(path.relative_to(tls)): path.read_bytes() for path in tls.rglob("*") if path.is_file()}


def test_a_service_gets_its_own_name_and_the_loopback_names(tmp_path: Path) -> None:
    """The URI names the service; the other names are those under which loopback is dialled."""
    ensure_certificates(tmp_path, NAMES, NOW)
    names = certificate(tmp_path, "session").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://handmesh/session"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]


def test_a_certificate_serves_both_ends_and_signs_nothing(tmp_path: Path) -> None:
    """A service is server and client of the mesh; its key must not make further identities."""
    ensure_certificates(tmp_path, NAMES, NOW)
    extensions = certificate(tmp_path, "session").extensions
    usages = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert usages == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_files_are_private_and_a_service_directory_holds_no_other_key(tmp_path: Path) -> None:
    """Layout and modes: 0600 each, three files per service, the authority's key in its own directory only."""
    ensure_certificates(tmp_path, NAMES, NOW)
    assert sorted(contents(tmp_path)) == [
        "ca/ca.pem",
        "ca/key.pem",
        *(f"{service}/{file}" for service in ("harness", "session") for file in ("ca.pem", "cert.pem", "key.pem")),
    ]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.pem")} == {0o600}


def test_the_authority_of_doors_is_another_one(tmp_path: Path) -> None:
    """Sandboxes trust it, and no service does: its own key and name, private, and kept while it is good."""
    ensure_certificates(tmp_path, NAMES, NOW)
    ensure_door_authority(tmp_path, NOW)
    first = contents(tmp_path)
    assert first["doors/key.pem"] != first["ca/key.pem"] and first["doors/ca.pem"] != first["ca/ca.pem"]
    made = x509.load_pem_x509_certificate(first["doors/ca.pem"])
    assert made.subject.rfc4514_string() == "CN=handmesh egress door"
    assert (tmp_path / "doors" / "key.pem").stat().st_mode & 0o777 == 0o600
    ensure_door_authority(tmp_path, NOW)
    assert contents(tmp_path) == first


def test_what_is_good_is_used_again(tmp_path: Path) -> None:
    """A second start changes no byte."""
    ensure_certificates(tmp_path, NAMES, NOW)
    before = contents(tmp_path)
    ensure_certificates(tmp_path, NAMES, NOW + SERVICE_LIFETIME - RENEW_BEFORE)
    assert contents(tmp_path) == before


def test_a_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    """With less than RENEW_BEFORE left the services' certificates are made anew, by the same authority."""
    ensure_certificates(tmp_path, NAMES, NOW)
    before = contents(tmp_path)
    ensure_certificates(tmp_path, NAMES, NOW + SERVICE_LIFETIME - RENEW_BEFORE + datetime.timedelta(seconds=1))
    after = contents(tmp_path)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {f"{service}/{file}" for service in NAMES for file in ("cert.pem", "key.pem")}


@pytest.mark.parametrize("damaged", ["ca/key.pem", "ca/ca.pem"])
def test_a_damaged_authority_is_replaced_with_all_it_signed(tmp_path: Path, damaged: str) -> None:
    """No service keeps a certificate that the new authority does not vouch for."""
    ensure_certificates(tmp_path, NAMES, NOW)
    (tmp_path / damaged).write_bytes(b"no PEM")
    ensure_certificates(tmp_path, NAMES, NOW)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca" / "ca.pem").read_bytes())
    for service in NAMES:
        certificate(tmp_path, service).verify_directly_issued_by(authority)
        assert (tmp_path / service / "ca.pem").read_bytes() == (tmp_path / "ca" / "ca.pem").read_bytes()


def test_a_certificate_of_another_authority_is_replaced(tmp_path: Path) -> None:
    """A folder that was copied from another mesh does not stay a stranger's."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for tls in (ours, theirs):
        ensure_certificates(tls, NAMES, NOW)
    for file in ("cert.pem", "key.pem"):
        shutil.copy(theirs / "session" / file, ours / "session" / file)
    ensure_certificates(ours, NAMES, NOW)
    authority = x509.load_pem_x509_certificate((ours / "ca" / "ca.pem").read_bytes())
    certificate(ours, "session").verify_directly_issued_by(authority)


def test_two_services_trust_each_other_by_mutual_tls(tmp_path: Path) -> None:
    """A handshake with both certificates required succeeds, under the address that the mesh dials."""
    ensure_certificates(tmp_path, NAMES, NOW)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "session" / "ca.pem"))
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(tmp_path / "session" / "cert.pem", tmp_path / "session" / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "harness" / "ca.pem"))
    client.load_cert_chain(tmp_path / "harness" / "cert.pem", tmp_path / "harness" / "key.pem")
    seen: list[object] = []

    def accept(listener: socket.socket) -> None:
        raw, _ = listener.accept()
        with server.wrap_socket(raw, server_side=True) as connection:
            peer = connection.getpeercert()
            seen.append(peer.get("subjectAltName") if peer else None)
            connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as raw,
            client.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            assert connection.recv(1) == b"x"
        thread.join()
    assert ("URI", "spiffe://handmesh/harness") in seen[0]  # type: ignore[operator]


def test_the_api_key_is_made_once_and_services_know_its_hash_only(tmp_path: Path) -> None:
    """The key has its prefix and 52 base32 characters; the services' list has the tenant and no key."""
    path = ensure_api_key(tmp_path)
    key = path.read_text().strip()
    assert re.fullmatch(r"hmk_[a-z2-7]{52}", key)
    assert path.stat().st_mode & 0o777 == 0o600
    digest = hashlib.sha256(key.encode()).hexdigest()
    listed = json.loads((tmp_path / "api_keys.json").read_text())
    assert listed == [{"sha256": digest, "tenant": "default", "name": "local", "scope": "operator"}]
    assert ensure_api_key(tmp_path).read_text().strip() == key


def test_an_authority_that_ends_is_followed_by_another_without_a_gap(tmp_path: Path) -> None:
    """Services trust both before anybody shows a certificate of the new one; what they show is its."""
    ensure_certificates(tmp_path, NAMES, NOW)
    later = NOW + CA_LIFETIME - RENEW_BEFORE + datetime.timedelta(days=1)
    old = (tmp_path / "ca" / "ca.pem").read_bytes()
    shown = {service: (tmp_path / service / "cert.pem").read_bytes() for service in NAMES}
    settled = []

    def settle() -> None:
        new = (tmp_path / "ca" / "ca.pem").read_bytes()
        assert new != old
        for service in NAMES:
            assert (tmp_path / service / "ca.pem").read_bytes() == new + old
            assert (tmp_path / service / "cert.pem").read_bytes() == shown[service]
        settled.append(new)

    ensure_certificates(tmp_path, NAMES, later, settle=settle)
    authority = x509.load_pem_x509_certificate(settled[0])
    for service in NAMES:
        certificate(tmp_path, service).verify_directly_issued_by(authority)
        assert (tmp_path / service / "ca.pem").read_bytes() == settled[0] + old
    before = (tmp_path / "session" / "cert.pem").read_bytes()
    ensure_certificates(tmp_path, NAMES, later, settle=settle)
    assert len(settled) == 1 and (tmp_path / "session" / "cert.pem").read_bytes() == before
