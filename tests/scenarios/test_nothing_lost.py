"""Failures while gateways report: everything that was acknowledged is stored unchanged, and only once."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Self

import pytest

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Puback, Publish
from meshfleet.protocol.times import format_millis
from tests.cli.programs import TEST_TIMEOUT
from tests.scenarios.report_load import PahoGateway, ReportLoad
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.stored_samples import check_stored_samples, count_samples
from tests.servers import PostgreSQL, postgresql_directory
from tests.service.embedded_broker.running_broker import build_connect, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import ServerAddress
    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

KILLS = 2
NOW = time.time_ns() // 1_000_000
FLOODING_DEVICE = "02005e0000aa"
"""Device of a gateway that does not wait for acknowledgments."""

_BLOCKED_SECONDS = 2.0
"""Seconds after which a socket that accepts no bytes counts as blocked."""

MAX_GROWTH = 90.0
"""MiB by which the memory of a service may grow while its database is unavailable; it is sent more than
that."""


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """Run a server that the test may stop and kill."""
    with postgresql_directory() as directory, PostgreSQL(directory) as running:
        yield running


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    options = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: PostgreSQL = request.getfixturevalue("server")
        options += ["--database", f"{server.url}/postgres"]
    with ServiceProcess(tmp_path, *options) as running:
        yield running


@pytest.fixture
def gateways(service: ServiceProcess) -> list[Credentials]:
    return [service.claim(f"02005e00000{number}") for number in range(1, 4)]


@pytest.fixture
def load(service: ServiceProcess, gateways: list[Credentials]) -> ReportLoad:
    """Return a load of two of the gateways."""
    return ReportLoad(service.mqtt["mqtt"], gateways[:2])


# --- The service ends ---


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_killed_repeatedly_has_stored_what_it_acknowledged(
    service: ServiceProcess, gateways: list[Credentials], load: ReportLoad
) -> None:
    async with load, PahoGateway(service.mqtt["mqtt"], gateways[2]) as other:
        for _ in range(KILLS):
            await load.wait_for_acks()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        await load.wait_for_acks()
    check_stored_samples(service, [*load.sources, other.source])


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_stopped_under_load_has_stored_what_it_acknowledged(
    service: ServiceProcess, load: ReportLoad
) -> None:
    async with load:
        await load.wait_for_acks()
        code, errors = await asyncio.to_thread(service.stop)
        assert (code, "Traceback" in errors) == (0, False), errors
        await asyncio.to_thread(service.start)
        await load.wait_for_acks()
    check_stored_samples(service, load.sources)


@pytest.mark.rule("broker-2")
async def test_a_device_that_reported_once_before_a_kill_is_registered_with_its_sample(
    service: ServiceProcess, gateways: list[Credentials]
) -> None:
    credentials = gateways[0]
    gateway = await service.connect(credentials)
    gateway.send(_build_measurement(credentials.user, "02005e0000bb", b"21.5"))
    assert await gateway.expect(Puback) == Puback(1)
    await asyncio.to_thread(service.kill)
    await service.disconnect_all()
    await asyncio.to_thread(service.start)
    await until(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-02005e0000bb")["items"])
    assert count_samples(service, "02005e0000bb") == 1


def _build_measurement(gateway: str, device: str, value: bytes, packet_id: int = 1) -> Publish:
    topic = f"mt/gateway/{gateway}/device/{device}/measurement-decoded/temperature"
    payload = b'{"time":"%s","seq":1,"value":%s}' % (format_millis(NOW).encode(), value)
    return Publish(topic, payload, 1, packet_id=packet_id)


# --- The database is unavailable ---


class Flood:
    """Gateway that sends 120 MB of the same report without waiting for acknowledgments."""

    def __init__(self, address: ServerAddress, credentials: Credentials) -> None:
        value = b'"%s"' % (b"x" * 60_000)
        messages = [
            _build_measurement(credentials.user, FLOODING_DEVICE, value, number) for number in range(1, 2001)
        ]
        self._remaining = memoryview(b"".join(map(encode_packet, messages)))
        self._expected_bytes = len(messages) * len(encode_packet(Puback(1)))
        self._socket = socket.create_connection(address)
        self._socket.sendall(encode_packet(build_connect(credentials)))
        assert self._socket.recv(4) == encode_packet(Connack())
        self._socket.settimeout(_BLOCKED_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def unsent(self) -> int:
        """Bytes that the broker has not accepted."""
        return len(self._remaining)

    def push(self) -> None:
        """Send until the broker accepts no more."""
        with suppress(TimeoutError):
            while self._remaining:
                self._remaining = self._remaining[self._socket.send(self._remaining) :]

    def finish(self) -> None:
        """Send the rest, and wait for all acknowledgments."""
        self._socket.settimeout(TEST_TIMEOUT)
        self._socket.sendall(self._remaining)
        while self._expected_bytes:
            received = len(self._socket.recv(0x1_0000))
            assert received
            self._expected_bytes -= received


@contextmanager
def stopped_database(request: pytest.FixtureRequest, service: ServiceProcess) -> Iterator[None]:
    """Stop or lock the database of a service while a block lasts."""
    if "server" in request.fixturenames:
        server: PostgreSQL = request.getfixturevalue("server")
        server.stop()
        yield
        server.start()
    else:
        with closing(sqlite3.connect(service.data / "meshfleet.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield


@pytest.mark.part("long")
@pytest.mark.rule("broker-2", "rest-160")
async def test_publishers_wait_and_nothing_is_lost_while_the_database_is_unavailable(
    request: pytest.FixtureRequest, service: ServiceProcess, gateways: list[Credentials], load: ReportLoad
) -> None:
    """Send continuously from one gateway: the service must stop reading before memory runs out."""
    with Flood(service.mqtt["mqtt"], gateways[2]) as flood:
        async with load:
            await load.wait_for_acks()
            before = service.memory
            with stopped_database(request, service):
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(flood.push)
                acknowledged, unsent = load.acknowledged, flood.unsent
                await asyncio.to_thread(flood.push)
                assert (load.acknowledged, flood.unsent) == (acknowledged, unsent)
                assert unsent > 0
                assert service.memory - before < MAX_GROWTH
                assert not service.is_ready()
            await load.wait_for_acks()
            await asyncio.to_thread(flood.finish)
    await until(service.is_ready)
    check_stored_samples(service, load.sources)
    assert count_samples(service, FLOODING_DEVICE) == 1


# --- The database crashes ---


@pytest.mark.rule("broker-2")
async def test_a_crashed_database_server_has_stored_what_was_acknowledged(
    server: PostgreSQL, tmp_path: Path
) -> None:
    """Kill one process of the server, which then restarts by itself; later kill all of them."""
    options = [*loopback_options("--mqtt"), "--database", f"{server.url}/postgres"]
    with ServiceProcess(tmp_path, *options) as service:
        gateways = [service.claim(f"02005e00000{number}") for number in range(1, 4)]
        async with ReportLoad(service.mqtt["mqtt"], gateways) as load:
            for _ in range(KILLS):
                await load.wait_for_acks()
                server.kill_backend("meshfleet")
                await load.wait_for_acks()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await load.wait_for_acks()
        check_stored_samples(service, load.sources)
        await until(service.is_ready)
