"""Certificates for the hosts at which a placeholder is replaced, signed by an authority that only sandboxes trust.

Leaf certificates and their one key are made in memory and never on a disk.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from services.kit.settings import SettingsError

LEAF_HOURS = 24
KEPT_SECONDS = 6 * 3600.0  # of the leaf's day: so none runs out while a long connection begins with it
BACKDATED_HOURS = 1  # for clocks of sandboxes that lag
MOST_KEPT = 1_000  # hosts; the one that was used the longest ago goes


@dataclass(frozen=True)
class _Kept:
    context: ssl.SSLContext
    until: float


class Authority:
    """Answers for hosts. `certificate` is its own, PEM: what a sandbox must trust."""

    def __init__(self, certificate_file: Path, key_file: Path) -> None:
        """Reads the authority. Raises SettingsError when the two files are not one."""
        try:
            self._issuer = x509.load_pem_x509_certificate(certificate_file.read_bytes())
            key = load_pem_private_key(key_file.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as problem:
            raise SettingsError(f"the door's authority cannot be read: {type(problem).__name__}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != self._issuer.public_key():
            raise SettingsError("the door's authority needs a certificate and the elliptic-curve key that it is for")
        self._issuer_key = key
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.certificate = self._issuer.public_bytes(Encoding.PEM).decode()

    def context(self, host: str) -> ssl.SSLContext:
        """Returns how to answer TLS as a host: HTTP/1.1, and only a client that names this host or none."""
        now = time.monotonic()
        kept = self._kept.get(host)
        if kept is None or kept.until < now:
            kept = self._kept[host] = _Kept(self._made(host), now + KEPT_SECONDS)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(host)
        return kept.context

    def _made(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        chain = self._leaf(host).public_bytes(Encoding.PEM) + self._leaf_key_pem
        file = os.memfd_create("leaf", os.MFD_CLOEXEC)  # ssl reads certificates from files only
        try:
            with open(file, "wb", closefd=False) as memory:
                memory.write(chain)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)

        def named(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if name is not None and name.lower() != host else None

        context.sni_callback = named
        return context

    def _leaf(self, host: str) -> x509.Certificate:
        now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
        try:
            name: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
            .issuer_name(self._issuer.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=BACKDATED_HOURS))
            .not_valid_after(now + datetime.timedelta(hours=LEAF_HOURS))
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._issuer_key.public_key()), critical=False
            )
            .sign(self._issuer_key, SHA256())
        )
