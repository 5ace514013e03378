"""TLS contexts of clients and of the service."""

from __future__ import annotations

import ssl
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from meshfleet.errors.mqtt import UnusableCertificate

if TYPE_CHECKING:
    from pathlib import Path

_MAX_ROUNDS: Final = 10
"""More messages than a TLS handshake has."""

_IGNORE_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which the `ssl` module has no name."""


def create_tls_context(
    *, authorities: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Create a TLS context for clients, which verifies the server's certificate and host name.

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
        raise UnusableCertificate(files, _describe_problem(problem)) from problem
    return context


def _describe_problem(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem)


def create_pinned_context(certificate: Path) -> ssl.SSLContext:
    """Create a client context that trusts only one certificate, whatever its host name.

    Programs on the same machine use it to connect to the service with the certificate file of the service.
    """
    context = create_tls_context(authorities=certificate)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def create_server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Create a TLS context for listeners. Raise `UnusableCertificate` if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, _refuse_password_prompt)
    except (OSError, _EncryptedKeyError) as problem:
        raise UnusableCertificate(
            f"{certificate} with key {key}", _describe_pair_problem(problem)
        ) from problem
    return context


def _describe_pair_problem(problem: Exception) -> str:
    if not isinstance(problem, ssl.SSLError):
        return _describe_problem(problem)
    if problem.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    return f"the files are not a certificate and its key in PEM ({problem.reason or 'none found'})"


def read_certificate(certificate: Path, key: Path, *, may_be_expired: bool = False) -> dict[str, Any]:
    """Return the fields of a certificate as a client gets them, by a TLS handshake in memory.

    The `ssl` module decodes only certificates of verified servers, so the client trusts this one. Raise
    `ssl.SSLError` if a client would refuse the certificate, for example because it has expired.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    flags = ssl.VERIFY_X509_PARTIAL_CHAIN | (_IGNORE_TIME if may_be_expired else 0)
    client_context.verify_flags |= flags
    client_context.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(_MAX_ROUNDS):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is client:
                return dict(client.getpeercert() or {})
    raise ssl.SSLError("the handshake did not complete")


@cache
def system_tls_context() -> ssl.SSLContext:
    """Return the TLS context for clients that trusts the CA certificates of the system.

    The context is cached, because loading the certificates takes longer than connecting.
    """
    return create_tls_context()


class _EncryptedKeyError(Exception):
    """Raised when a private key is encrypted."""


def _refuse_password_prompt() -> str:
    """Keep OpenSSL from prompting for a password at the terminal: a service has none."""
    raise _EncryptedKeyError(
        "the private key is encrypted; use one without a password, readable only by this user"
    )
