"""TLS contexts for outgoing connections."""

from __future__ import annotations

import ssl
from functools import cache
from typing import TYPE_CHECKING

from meshfleet.errors.mqtt import UnusableCertificate

if TYPE_CHECKING:
    from pathlib import Path


def create_tls_context(
    *, authorities: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Create a context that verifies the server's certificate and name.

    `authorities` is a file of CA certificates; None uses those of the system. `certificate` and `key` are
    those of the client. The verification cannot be turned off. Raise `UnusableCertificate` if a file cannot
    be read.
    """
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, key, _refuse_password_prompt)
    except (OSError, _EncryptedKeyError) as problem:
        files = ", ".join(str(file) for file in (authorities, certificate, key) if file is not None)
        raise UnusableCertificate(files, getattr(problem, "strerror", None) or str(problem)) from problem
    return context


@cache
def system_tls_context() -> ssl.SSLContext:
    """Return a context with the CA certificates of the system.

    Cached: loading them takes longer than a connection.
    """
    return create_tls_context()


class _EncryptedKeyError(Exception):
    """Raised when a private key is encrypted."""


def _refuse_password_prompt() -> str:
    """Keep OpenSSL from prompting for a password at the terminal: a service has none."""
    raise _EncryptedKeyError(
        "the private key is encrypted; use one without a password, readable only by this user"
    )
