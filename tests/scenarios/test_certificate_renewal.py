"""Certificates that are renewed while clients are connected, with the service as a program."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.mqtt.codec.packets import Connack
from tests.eventually import eventually
from tests.mqtt.broker.raw_client import RawClient
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.service.embedded_broker.mqtt_accounts import Credentials
from tests.service.embedded_broker.running_broker import build_connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import ServerAddress

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def write_pair(authority: trustme.CA, folder: Path) -> None:
    """Issue a certificate and write it with its key, as certbot does."""
    pair = authority.issue_cert("127.0.0.1", "localhost")
    (folder / "cert.pem").write_bytes(b"".join(each.bytes() for each in pair.cert_chain_pems))
    pair.private_key_pem.write_to_path(folder / "key.pem")


def read_serial(address: ServerAddress, trusting: ssl.SSLContext) -> object:
    """Connect, and return the serial number of the certificate of the service."""
    with (
        socket.create_connection(address) as connection,
        trusting.wrap_socket(connection, server_hostname="localhost") as encrypted,
    ):
        certificate = encrypted.getpeercert()
        assert certificate is not None
        return certificate["serialNumber"]


async def connect_clients(count: int, port: int, trusting: ssl.SSLContext, key: str) -> list[RawClient]:
    clients = []
    for number in range(count):
        client = await RawClient.open(port, tls=trusting)
        client.send(build_connect(Credentials("apikey", key), client_id=f"client-{number}"))
        await client.expect(Connack)
        clients.append(client)
    return clients


@pytest.mark.rule("rest-225")
@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.part("long"))])
async def test_a_renewed_certificate_disconnects_no_client_and_a_bad_one_is_not_used(
    tmp_path: Path, count: int
) -> None:
    authority, trusting = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusting)
    write_pair(authority, tmp_path)
    pair = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    limits = ["--limits-connections-per-account", str(count), "--mqtt", "off"]
    with ServiceProcess(
        tmp_path, *pair, *limits, *loopback_options("--mqtt-tls"), trusting=trusting
    ) as service:
        key = service.call("POST", "/api/v1/api-keys", {"name": "listener", "role": "viewer"})["key"]
        mqtt = service.mqtt["mqtts"]
        host, port = service.url.removeprefix("https://").split(":")
        https = mqtt._replace(port=int(port))
        clients = await connect_clients(count, mqtt.port, trusting, key)
        browser = http.client.HTTPSConnection(host, int(port), context=trusting)
        browser.request("GET", "/healthz")
        assert browser.getresponse().read()
        kept_socket = browser.sock
        first = read_serial(mqtt, trusting)

        write_pair(authority, tmp_path)
        service.hang_up()
        eventually(lambda: read_serial(mqtt, trusting) != first, "that new clients get the new certificate")
        renewed = read_serial(mqtt, trusting)
        assert read_serial(https, trusting) == renewed

        (tmp_path / "key.pem").write_text("no key\n")
        service.hang_up()
        eventually(lambda: " ERROR " in service.errors, "that the bad key is logged")
        assert read_serial(mqtt, trusting) == read_serial(https, trusting) == renewed

        await asyncio.gather(*(client.receive_until_pong() for client in clients))
        browser.request("GET", "/healthz")
        assert browser.getresponse().status == 200
        assert browser.sock is kept_socket, "the HTTPS connection was closed"
        browser.close()
        await asyncio.gather(*(client.close() for client in clients))
        code, errors = service.stop()
    assert code == 0
    (line,) = [line for line in errors.splitlines() if " ERROR " in line]
    assert str(tmp_path / "cert.pem") in line
    assert str(tmp_path / "key.pem") in line
    assert "no key" not in line
