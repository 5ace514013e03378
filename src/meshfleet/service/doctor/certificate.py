"""Check of the TLS certificate: when it expires, and whether it names the hosts that clients use."""

from __future__ import annotations

import math
import shlex
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from meshfleet.service.doctor.finding import Finding, Level
from meshfleet.tls import read_certificate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.settings import Settings

_WARN_DAYS, _FAIL_DAYS = 14, 3
_DAY_SECONDS: Final = 86_400


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
        certificate = read_certificate(settings.tls_cert, settings.tls_key)
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
