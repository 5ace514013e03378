"""Certificate of the listeners, replaced while they run."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.errors.mqtt import UnusableCertificate
from meshfleet.service.metric_table import add_certificate_metrics
from meshfleet.service.server_certificate import ServerCertificate
from tests.eventually import eventually_async
from tests.selection import backend_for_loop
from tests.service.metric_values import read_added_metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)


class CertificateFiles:
    """Files of a certificate and its key, which are renewed."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"
        self.renew()

    def renew(self, end: datetime | None = None) -> None:
        """Replace both files, by a certificate that ends at a time."""
        pair = self._authority.issue_cert("localhost", not_after=end)
        pair.cert_chain_pems[0].write_to_path(self.certificate)
        pair.private_key_pem.write_to_path(self.key)

    def mix(self) -> None:
        """Replace the key by that of another certificate, at once: the files may be watched."""
        new = self.key.with_suffix(".new")
        self._authority.issue_cert("localhost").private_key_pem.write_to_path(new)
        new.rename(self.key)


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return CertificateFiles(tmp_path)


@asynccontextmanager
async def listening(certificate: ServerCertificate) -> AsyncIterator[int]:
    """Run a server that echoes lines over TLS, and yield its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=certificate.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def open_client(
    port: int, *, name: str = "localhost", version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and return the certificate of the server with the streams. An empty name is not sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return certificate, reader, writer


async def read_certificate(port: int) -> bytes:
    certificate, _, writer = await open_client(port)
    writer.close()
    return certificate


@pytest.mark.rule("rest-225")
async def test_new_clients_get_the_new_certificate_and_others_stay_connected(files: CertificateFiles) -> None:
    certificate = ServerCertificate(files.certificate, files.key)
    async with listening(certificate) as port:
        first, reader, writer = await open_client(port)
        files.renew()
        certificate.replace(files.certificate, files.key)
        seen = set()
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            for name in ("localhost", ""):
                renewed, _, other = await open_client(port, name=name, version=version)
                seen.add(renewed)
                other.close()
        assert len(seen) == 1
        assert first not in seen
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()


@pytest.mark.rule("rest-225")
async def test_a_pair_that_cannot_be_used_changes_nothing(files: CertificateFiles) -> None:
    certificate = ServerCertificate(files.certificate, files.key)
    async with listening(certificate) as port:
        first = await read_certificate(port)
        files.mix()
        with pytest.raises(UnusableCertificate, match="the key does not belong to the certificate"):
            certificate.replace(files.certificate, files.key)
        files.key.write_text("no key")
        with pytest.raises(
            UnusableCertificate, match=r"key\.pem: the files are not a certificate and its key"
        ):
            certificate.replace(files.certificate, files.key)
        files.key.unlink()
        with pytest.raises(UnusableCertificate, match="No such file or directory"):
            certificate.replace(files.certificate, files.key)
        assert await read_certificate(port) == first


@pytest.mark.rule("rest-225")
async def test_changed_files_are_loaded_and_bad_ones_are_logged_once(
    files: CertificateFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meshfleet.service.server_certificate")
    certificate = ServerCertificate(files.certificate, files.key)

    def count_lines(level: int) -> int:
        return sum(record.levelno == level for record in caplog.records)

    async with listening(certificate) as port:
        watch = asyncio.create_task(certificate.watch_files(0.001))
        first = await read_certificate(port)
        files.mix()
        await eventually_async(lambda: count_lines(logging.ERROR) == 1, "that the bad key is logged")
        for _ in range(5):  # meanwhile the same files are checked again
            assert await read_certificate(port) == first
        assert count_lines(logging.ERROR) == 1
        files.renew()

        async def is_renewed() -> bool:
            return await read_certificate(port) != first

        await eventually_async(is_renewed, "that the new certificate is used")
        await eventually_async(lambda: count_lines(logging.INFO), "that the renewal is logged")
        watch.cancel()
    messages = {record.getMessage() for record in caplog.records if record.levelno == logging.ERROR}
    assert all(str(files.certificate) in each and "BEGIN" not in each for each in messages)


@pytest.mark.rule("rest-161")
async def test_metrics_tell_when_the_newest_certificate_ends(files: CertificateFiles) -> None:
    ends = [datetime(year, 5, 1, tzinfo=UTC) for year in (2031, 2020)]  # also of one that has ended
    found = []
    files.renew(ends[0])
    certificate = ServerCertificate(files.certificate, files.key)
    for end in ends:
        files.renew(end)
        certificate.replace(files.certificate, files.key)
        found.append(read_added_metrics(lambda metrics: add_certificate_metrics(metrics, certificate)))
    name = "meshfleet_certificate_end_timestamp_seconds"
    assert found == [{(name, "server"): end.timestamp()} for end in ends]
