"""An authority of another issuer than `handmesh up`, for certificates with any names and any times."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates. Times are aware."""

    def __init__(self, name: str = "another authority") -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signed = (
            _unsigned(self._name, self._name, self._key, now - 400 * DAY, now + 400 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, SHA256())
        )
        self.pem = signed.public_bytes(Encoding.PEM)

    def issue(
        self,
        folder: Path,
        *uris: str,
        dns: Sequence[str] = (),
        trusted: bytes = b"",
        begins: datetime.datetime | None = None,
        ends: datetime.datetime | None = None,
    ) -> Path:
        """Writes a folder of `key.pem`, `cert.pem` and `ca.pem`, which has this authority and who else is trusted."""
        now = datetime.datetime.now(datetime.UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.DNSName(name) for name in ("localhost", *dns)]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "some service")])
        certificate = (
            _unsigned(name, self._name, key, begins or now - DAY, ends or now + DAY)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "ca.pem").write_bytes(self.pem + trusted)
        return folder


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
