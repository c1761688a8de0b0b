"""The certificate of a service and the authorities that it trusts: three files, read again when they change.

`ca.pem` may hold several authorities, so that one can follow the other. New connections use what the files say; those
that are open stay as they are.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from services.kit.watched import UnreadableError, Watched

NAMES = ("key.pem", "cert.pem", "ca.pem")


@dataclass(frozen=True)
class Certificate:
    """A service's key and certificate, and whom it trusts. All in PEM."""

    key: bytes = field(repr=False)
    cert: bytes
    ca: bytes


def watched(tls_dir: Path, every: float | None = None) -> Watched[Certificate]:
    """Watches a folder of `ca.pem`, `cert.pem` and `key.pem`. Raises as `read`."""
    files = [tls_dir / name for name in NAMES]
    return Watched(files, lambda: read(tls_dir)) if every is None else Watched(files, lambda: read(tls_dir), every)


def read(tls_dir: Path) -> Certificate:
    """Reads the three. Raises OSError, and UnreadableError when they do not belong together."""
    _context(ssl.PROTOCOL_TLS_CLIENT, tls_dir)
    return Certificate(*((tls_dir / name).read_bytes() for name in NAMES))


def server_credentials(tls_dir: Path, *, mutual: bool) -> grpc.ServerCredentials:
    """Makes credentials for a port, which each new connection finds renewed. With `mutual` callers show theirs."""
    files = watched(tls_dir, every=0.0)
    shown = files.get()

    def renewed() -> Any:
        nonlocal shown
        now = files.get()
        if now is shown:
            return None
        shown = now
        return _configuration(now, mutual)

    return grpc.dynamic_ssl_server_credentials(_configuration(shown, mutual), renewed, mutual)


def _configuration(shown: Certificate, mutual: bool) -> Any:
    return grpc.ssl_server_certificate_configuration([(shown.key, shown.cert)], shown.ca if mutual else None)


def client_context(tls_dir: Path) -> Callable[[], ssl.SSLContext]:
    """Returns what gives a context for connections to other services that are not gRPC, renewed when files change."""
    context = Watched([tls_dir / name for name in NAMES], lambda: _context(ssl.PROTOCOL_TLS_CLIENT, tls_dir))
    return context.get


def server_context(tls_dir: Path) -> ssl.SSLContext:
    """Returns a context for a listener that is not gRPC: callers show certificates, and each finds it renewed."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, tls_dir)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    files = Watched([tls_dir / name for name in NAMES], make, every=0.0)
    listening = make()

    def renew(connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = files.get()

    listening.sni_callback = renew  # called for each connection, with a name or without
    return listening


def _context(protocol: int, tls_dir: Path) -> ssl.SSLContext:
    key, cert, ca = (tls_dir / name for name in NAMES)
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # both sides are ours
    try:
        context.load_cert_chain(cert, key)
        context.load_verify_locations(ca)
    except ssl.SSLError as problem:
        raise UnreadableError(f"key.pem, cert.pem and ca.pem do not belong together: {problem.reason}") from None
    return context
