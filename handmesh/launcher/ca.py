"""Identities of a one-machine mesh: a development CA, a certificate per service, one API key for clients.

    <data>/tls/ca/{ca.pem,key.pem}                       the authority; its key never leaves this machine
    <data>/tls/doors/{ca.pem,key.pem}                    another one, vault_proxy's own: it answers sandboxes as a host
    <data>/tls/<service>/{ca.pem,cert.pem,key.pem}       what one service gets, and nothing of the others
    <data>/client/api_key                                the key that the `handmesh` command reads
    <data>/api_keys.json                                 what the session service knows of it

What is there and still good is used again.
"""

import base64
import datetime
import hashlib
import ipaddress
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from handmesh.launcher.files import write_private, write_private_json

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_LIFETIME = datetime.timedelta(days=3650)
SERVICE_LIFETIME = datetime.timedelta(days=365)

RENEW_BEFORE = datetime.timedelta(days=30)
"""A certificate with less time left than this is made anew, at the next start or by a mesh that runs."""

BACKDATED = datetime.timedelta(minutes=5)
"""How long before its making a certificate is valid, for clocks that lag."""

TRUST_DOMAIN = "handmesh"

API_KEY_PREFIX = "hmk_"
API_KEY_BYTES = 32


def ensure_certificates(
    tls: Path,
    services: Iterable[str],
    now: datetime.datetime,
    hosts: Mapping[str, Sequence[str]] | None = None,
    settle: Callable[[], object] = lambda: None,
) -> None:
    """Makes below `tls` what is missing, expires soon at `now` (aware), or was signed by another authority.

    A certificate is good for this machine's loopback addresses, and for a service's `hosts`: names by which others
    reach it. One that lacks a name is made anew.

    When the authority itself is new, all services trust it and the one before, first; then `settle` waits until those
    that run have read that, and only then they get certificates of it.
    """
    services, authority, before = tuple(services), _usable_authority(tls / "ca", now), b""
    if authority is None:
        old = _read_certificate(tls / "ca" / "ca.pem")
        authority = _new_authority(tls / "ca", "handmesh development CA", now)
        if old is not None and now < old.not_valid_after_utc < now + RENEW_BEFORE:  # else it is not to be trusted
            before = _certificate_pem(old)
            for service in services:
                write_private(tls / service / "ca.pem", _certificate_pem(authority[0]) + before)
            settle()
    for service in services:
        names = (hosts or {}).get(service, ())
        if not _is_usable(tls / service, authority[0], now, names):
            _new_certificate(tls / service, service, authority, now, names, before)


def ensure_door_authority(tls: Path, now: datetime.datetime) -> None:
    """Makes below `tls` the authority that sandboxes trust and no service does, if it is missing or expires soon."""
    if _usable_authority(tls / "doors", now) is None:
        _new_authority(tls / "doors", "handmesh egress door", now)


def ensure_api_key(data_directory: Path) -> Path:
    """Makes the clients' API key unless there is one, writes the services' list of keys, returns the key's file.

    The list holds the SHA-256 (hex) of the whole key as ASCII.
    """
    path = data_directory / "client" / "api_key"
    if not path.exists():
        body = base64.b32encode(secrets.token_bytes(API_KEY_BYTES)).decode().rstrip("=").lower()
        write_private(path, f"{API_KEY_PREFIX}{body}\n".encode())
    digest = hashlib.sha256(path.read_bytes().strip()).hexdigest()
    row = {"sha256": digest, "tenant": "default", "name": "local", "scope": "operator"}
    write_private_json(data_directory / "api_keys.json", [row])
    return path


def _usable_authority(
    directory: Path, now: datetime.datetime
) -> "tuple[x509.Certificate, EllipticCurvePrivateKey] | None":
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = _read_certificate(directory / "ca.pem")
    if certificate is None or certificate.not_valid_after_utc - now < RENEW_BEFORE:
        return None
    try:
        key = load_pem_private_key((directory / "key.pem").read_bytes(), password=None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return certificate, key


def _new_authority(
    directory: Path, common_name: str, now: datetime.datetime
) -> "tuple[x509.Certificate, EllipticCurvePrivateKey]":
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    certificate = (
        _unsigned(name, name, key, now, CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    write_private(directory / "key.pem", _key_pem(key))
    write_private(directory / "ca.pem", _certificate_pem(certificate))
    return certificate, key


def _is_usable(
    directory: Path, authority: "x509.Certificate", now: datetime.datetime, hosts: Sequence[str] = ()
) -> bool:
    """Says whether a service's directory is complete, good for a while and for its hosts, and of this authority."""
    from cryptography.exceptions import InvalidSignature

    certificate = _read_certificate(directory / "cert.pem")
    if (
        certificate is None
        or not (directory / "key.pem").exists()
        or _read_certificate(directory / "ca.pem") != authority
    ):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return certificate.not_valid_after_utc - now >= RENEW_BEFORE and set(hosts) <= _hosts(certificate)


def _hosts(certificate: "x509.Certificate") -> set[str]:
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


def _host(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _new_certificate(
    directory: Path,
    service: str,
    authority: "tuple[x509.Certificate, EllipticCurvePrivateKey]",
    now: datetime.datetime,
    hosts: Sequence[str],
    before: bytes,
) -> None:
    """Writes a certificate of the authority. The one `before`, if any, is trusted too."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName(
        [
            x509.UniformResourceIdentifier(f"spiffe://{TRUST_DOMAIN}/{service}"),
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.IPAddress(ipaddress.ip_address("::1")),
            *map(_host, hosts),
        ]
    )
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        _unsigned(_name(service), issuer.subject, key, now, SERVICE_LIFETIME)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, SHA256())
    )
    write_private(directory / "key.pem", _key_pem(key))
    write_private(directory / "cert.pem", _certificate_pem(certificate))
    write_private(directory / "ca.pem", _certificate_pem(issuer) + before)


def _unsigned(
    subject: "x509.Name",
    issuer: "x509.Name",
    key: "EllipticCurvePrivateKey",
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _read_certificate(path: Path) -> "x509.Certificate | None":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None


def _certificate_pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _key_pem(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
