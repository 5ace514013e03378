"""Check of the TLS certificate: when it expires, and whether it names the hosts that clients use."""

from __future__ import annotations

import math
import shlex
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from meshfleet.service.doctor.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.settings import Settings

_WARN_DAYS, _FAIL_DAYS = 14, 3
_DAY_SECONDS: Final = 86_400
_MAX_ROUNDS: Final = 10
"""More messages than a TLS handshake has."""


def check_certificate(settings: Settings, *, now: int) -> Iterator[Finding]:
    """Check the TLS certificate of the listeners: when it expires, and which hosts it names.

    That its key fits was checked with the settings.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        yield Finding(Level.OK, "certificate", "none: listeners have no TLS")
        return
    command = f"openssl x509 -in {shlex.quote(str(settings.tls_cert))} -noout -dates -ext subjectAltName"
    name = settings.tls_cert.name
    try:
        certificate = _load_certificate(settings.tls_cert, settings.tls_key)
    except ssl.SSLCertVerificationError as exc:
        yield Finding(Level.FAIL, "certificate", f"{name}: {exc.verify_message}", command)
        return
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - now / 1000) / _DAY_SECONDS
    level = Level.FAIL if days < _FAIL_DAYS else Level.WARN if days < _WARN_DAYS else Level.OK
    names = [value for _, value in certificate.get("subjectAltName", ())]
    texts = [f"{name} ends in {math.floor(days)} days", f"names {', '.join(names) or 'nothing'}"]
    for setting, host in _list_public_hosts(settings):
        if not any(_matches_name(host, each) for each in names):
            level = Level.FAIL
            texts.append(f"does not name {host}, the host of {setting}")
    yield Finding(level, "certificate", "; ".join(texts), None if level is Level.OK else command)


def _list_public_hosts(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name and host of each setting whose host clients find in this certificate.

    `public-url` is left out if a proxy is trusted, because the proxy has a certificate of its own.
    """
    if settings.public_url is not None and not settings.trusted_proxies:
        parts = urlsplit(settings.public_url)
        if parts.scheme == "https" and parts.hostname:
            yield "public-url", parts.hostname
    if settings.public_mqtt is not None and settings.public_mqtt.tls and settings.external_broker is None:
        yield "public-mqtt", settings.public_mqtt.host


def _matches_name(host: str, name: str) -> bool:
    """Return whether a name in a certificate, such as `*.example.org`, applies to a host."""
    try:
        return ip_address(host) == ip_address(name)
    except ValueError:
        pass
    host, name = host.lower().rstrip("."), name.lower()
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:]
    return host == name


def _load_certificate(certificate: Path, key: Path) -> dict[str, Any]:
    """Return the fields of a certificate as a client gets them, by a TLS handshake in memory.

    The `ssl` module decodes only certificates of verified servers, so the client trusts this one.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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
