"""Whom to trust, and who we are."""

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
    """Check the broker's certificate and name, and show our own certificate where one is given.

    Without `authorities` those count that the system trusts. There is no way to turn the checks off.
    """
    try:
        made = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            made.load_cert_chain(certificate, key, _refuse_password_prompt)
    except (OSError, _EncryptedKeyError) as problem:
        files = ", ".join(str(file) for file in (authorities, certificate, key) if file is not None)
        raise UnusableCertificate(files, getattr(problem, "strerror", None) or str(problem)) from problem
    return made


@cache
def system_tls_context() -> ssl.SSLContext:
    """Trust whom the system trusts. Made once: reading its authorities takes longer than a connection."""
    return create_tls_context()


class _EncryptedKeyError(Exception):
    """A key that only its password opens."""


def _refuse_password_prompt() -> str:
    """Do not let OpenSSL ask at the terminal: a service has none."""
    raise _EncryptedKeyError("the key needs a password; use one without, which only we may read")
