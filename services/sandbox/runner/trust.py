"""The authorities that tools trust, in the forms that they read: those of the image, and one that is given."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import struct

BUNDLE, OWN, JAVA = "ca.pem", "own.pem", "ca.jks"
_SYSTEM = (  # where distributions keep theirs
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_PEM = re.compile("-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\\s]+)-----END CERTIFICATE-----")
_MAGIC, _VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_PASSWORD = "changeit"  # Java's own default; it keeps nothing secret


def write(folder: str, system: str, own: str) -> None:
    """Writes the files. `system` is taken where the image has no authorities; `own` may be empty. Both are PEM."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    bundle = (_image() or system).rstrip("\n") + "\n" + own
    for name, content in ((BUNDLE, bundle.encode()), (OWN, own.encode()), (JAVA, java(bundle))):
        path = os.path.join(folder, name)
        with open(path + ".new", "wb") as file:
            file.write(content)
        os.chmod(path + ".new", 0o644)
        os.replace(path + ".new", path)


def _image() -> str:
    for path in _SYSTEM:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            continue
    return ""


def java(bundle: str) -> bytes:
    """Returns a trust store in Java's own format, JKS, which every Java reads."""
    certificates = [base64.b64decode(text) for text in _PEM.findall(bundle)]
    store = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for number, certificate in enumerate(certificates):
        entry = struct.pack(">I", _TRUSTED) + _text(str(number)) + struct.pack(">Q", 0) + _text("X.509")
        store += entry + struct.pack(">I", len(certificate)) + certificate
    sealed = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + store
    return store + hashlib.sha1(sealed).digest()  # what the format has


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
