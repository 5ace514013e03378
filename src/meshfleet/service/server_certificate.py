"""TLS certificate of all listeners of the service, which can be replaced while clients are connected.

A listener keeps one TLS context for its lifetime. When a client connects, OpenSSL calls `sni_callback`, even
if the client sends no server name, and the connection continues with the context of the newest certificate. A
new pair is not loaded into a context in use: if certificate and key do not match, OpenSSL drops the old key
before it reports the error, and no client could connect any more.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from meshfleet.errors import Fault
from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.errors.startup import WrongSettings
from meshfleet.tls import create_server_context, read_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)


class FileVersion(NamedTuple):
    """State of a file that changes when the file is written or replaced."""

    inode: int
    modified_ns: int
    size: int


def read_file_version(path: Path) -> FileVersion | None:
    """Return the version of a file, or of the target if it is a symbolic link; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileVersion(status.st_ino, status.st_mtime_ns, status.st_size)


class ServerCertificate:
    """TLS certificate and key in use.

    `context` is the TLS context for listeners. `ends_at` is the Unix time at which the newest certificate
    ends; None if that is not known.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load certificate and key. Raise `UnusableCertificate` if that is not possible."""
        self._lock = Lock()
        self._versions: list[FileVersion | None] = []
        self.replace(certificate, key)
        self.context = self._newest_context
        self.context.sni_callback = self._select_newest

    def replace(self, certificate: Path, key: Path) -> None:
        """Use another certificate and key for new connections; open connections continue.

        Raise `UnusableCertificate` if they cannot be used: then the previous certificate stays in use.
        """
        with self._lock:
            self._load(certificate, key)

    def apply_settings(self, settings: Settings) -> None:
        """Use the certificate that changed settings name. Raise `WrongSettings` if it cannot be used."""
        try:
            self.replace(settings.tls_cert or self._files[0], settings.tls_key or self._files[1])
        except UnusableCertificate as exc:
            raise WrongSettings([Fault("tls-cert", str(exc))]) from exc

    async def watch_files(self, interval: float) -> None:
        """Check every `interval` seconds whether the certificate files have changed. If so, load them.

        Files that cannot be used are logged once, not at every check. Runs until canceled.
        """
        while True:
            await asyncio.sleep(interval)
            await asyncio.to_thread(self._load_changed)

    def _load_changed(self) -> None:
        """Load the certificate files if they have changed. Log an error if they cannot be used."""
        with self._lock:
            versions = [read_file_version(path) for path in self._files]
            if versions == self._versions:
                return
            try:
                self._load(*self._files)
            except UnusableCertificate as exc:
                self._versions = versions
                _log.error("the certificate cannot be replaced; the previous one stays in use: %s", exc)
            else:
                _log.info("the certificate %s has changed and is used for new connections", self._files[0])

    def _load(self, certificate: Path, key: Path) -> None:
        """Load certificate and key for new connections."""
        # The versions are read before the files, so that a later change is noticed.
        versions = [read_file_version(path) for path in (certificate, key)]
        self._newest_context = create_server_context(certificate, key)
        self.ends_at = _read_end(certificate, key)
        self._files = (certificate, key)
        self._versions = versions

    def _select_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Continue a new connection with the newest certificate. OpenSSL calls this (`sni_callback`)."""
        connection.context = self._newest_context


def _read_end(certificate: Path, key: Path) -> int | None:
    """Return the Unix time at which a certificate ends; None if clients would refuse it for other reasons."""
    try:
        fields = read_certificate(certificate, key, may_be_expired=True)
    except ssl.SSLError:
        return None
    return ssl.cert_time_to_seconds(fields["notAfter"])


def load_server_certificate(settings: Settings) -> ServerCertificate | None:
    """Load the certificate that the settings name. Return None if they name no certificate."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServerCertificate(settings.tls_cert, settings.tls_key)
