"""Requests over HTTPS."""

from __future__ import annotations

import logging
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.service.http.running_service import RunningService, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def service(
    authority: trustme.CA, sqlite_of_module: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """Run a service with a certificate."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    chain, key = folder / "chain.pem", folder / "key.pem"
    for each in certificate.cert_chain_pems:
        each.write_to_path(chain, append=True)
    certificate.private_key_pem.write_to_path(key)
    with run_service(sqlite_of_module, Settings(tls_cert=chain, tls_key=key)) as service:
        yield service


@pytest.fixture
def client(service: RunningService, authority: trustme.CA) -> Iterator[httpx.Client]:
    """Return a client that trusts the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with httpx.Client(base_url=service.url, verify=context) as client:
        yield client


@pytest.mark.rule("rest-172")
def test_requests_are_answered_over_tls(service: RunningService, client: httpx.Client) -> None:
    assert service.url.startswith("https://")
    assert client.get("/healthz").json() == {"status": "ok"}
    headers = {"Authorization": service.viewer.headers["Authorization"]}
    assert client.get("/api/v1/auth/me", headers=headers).status_code == 200


@pytest.mark.rule("rest-172")
def test_an_untrusted_certificate_is_rejected_by_the_client(service: RunningService) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        service.anonymous.get("/healthz")


@each_row("path", ["/healthz", "/nothing", "/api/v1/devices"])
def test_responses_over_tls_have_strict_transport_security(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "server" not in response.headers


@pytest.mark.parametrize(
    "data", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"x", b""]
)
def test_data_that_is_not_tls_gets_no_response_and_causes_no_error(
    service: RunningService, client: httpx.Client, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    parsed_url = urlsplit(service.url)
    with socket.create_connection(("127.0.0.1", parsed_url.port or 0), 10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            response = connection.recv(100)
        except ConnectionResetError:
            response = b""
    assert not response.startswith(b"HTTP")
    assert client.get("/healthz").status_code == 200
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_only_modern_tls_versions_are_accepted(service: RunningService, authority: trustme.CA) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    parsed_url = urlsplit(service.url)
    with (
        socket.create_connection(("127.0.0.1", parsed_url.port or 0), 10) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        assert secured.version() == "TLSv1.3"
