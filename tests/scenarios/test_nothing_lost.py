"""Whatever breaks while gateways report: all that was acknowledged is stored, as it was said, and once."""

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
STUBBORN = "02005e0000aa"
"""The device of a gateway that does not wait for acknowledgements."""

_HELD = 2.0
"""Seconds after which a socket that takes nothing is not listened to."""

LEEWAY = 90.0
"""MiB that a service may grow by while its database is away; it is sent more than that."""


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server that the test may break."""
    with postgresql_directory() as folder, PostgreSQL(folder) as running:
        yield running


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    given = loopback_options("--mqtt")
    if database_kind == "postgresql":
        server: PostgreSQL = request.getfixturevalue("server")
        given += ["--database", f"{server.url}/postgres"]
    with ServiceProcess(tmp_path, *given) as running:
        yield running


@pytest.fixture
def gateways(service: ServiceProcess) -> list[Credentials]:
    return [service.claim(f"02005e00000{number}") for number in range(1, 4)]


@pytest.fixture
def load(service: ServiceProcess, gateways: list[Credentials]) -> ReportLoad:
    """Two of them report."""
    return ReportLoad(service.mqtt["mqtt"], gateways[:2])


# --- The service ends ---


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_killed_again_and_again_has_what_it_acknowledged(
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
async def test_a_service_that_is_stopped_under_load_has_what_it_acknowledged(
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
async def test_a_device_that_reported_once_before_a_kill_is_known_with_its_sample(
    service: ServiceProcess, gateways: list[Credentials]
) -> None:
    who = gateways[0]
    gateway = await service.connect(who)
    gateway.send(_measurement(who.user, "02005e0000bb", b"21.5"))
    assert await gateway.expect(Puback) == Puback(1)
    await asyncio.to_thread(service.kill)
    await service.disconnect_all()
    await asyncio.to_thread(service.start)
    await until(lambda: service.call("GET", "/api/v1/devices?Ids=bmac-02005e0000bb")["items"])
    assert count_samples(service, "02005e0000bb") == 1


def _measurement(gateway: str, device: str, value: bytes, packet_id: int = 1) -> Publish:
    topic = f"mt/gateway/{gateway}/device/{device}/measurement-decoded/temperature"
    payload = b'{"time":"%s","seq":1,"value":%s}' % (format_millis(NOW).encode(), value)
    return Publish(topic, payload, 1, packet_id=packet_id)


# --- The database is away ---


class Flood:
    """A gateway that sends 120 MB without waiting for anything; it is always the same report."""

    def __init__(self, place: ServerAddress, who: Credentials) -> None:
        value = b'"%s"' % (b"x" * 60_000)
        messages = [_measurement(who.user, STUBBORN, value, number) for number in range(1, 2001)]
        self._rest = memoryview(b"".join(map(encode_packet, messages)))
        self._answers = len(messages) * len(encode_packet(Puback(1)))
        self._socket = socket.create_connection(place)
        self._socket.sendall(encode_packet(build_connect(who)))
        assert self._socket.recv(4) == encode_packet(Connack())
        self._socket.settimeout(_HELD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def left(self) -> int:
        """Bytes that nobody has taken."""
        return len(self._rest)

    def push(self) -> None:
        """Send until nobody takes any more."""
        with suppress(TimeoutError):
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]

    def finish(self) -> None:
        """Send the rest, and take all answers."""
        self._socket.settimeout(TEST_TIMEOUT)
        self._socket.sendall(self._rest)
        while self._answers:
            come = len(self._socket.recv(0x1_0000))
            assert come
            self._answers -= come


@contextmanager
def away(request: pytest.FixtureRequest, service: ServiceProcess) -> Iterator[None]:
    """Let the database of a service be away for a while."""
    if "server" in request.fixturenames:
        server: PostgreSQL = request.getfixturevalue("server")
        server.stop()
        yield
        server.start()
    else:
        with closing(sqlite3.connect(service.data / "meshfleet.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield


@pytest.mark.rule("broker-2", "rest-160")
async def test_while_the_database_is_away_publishers_wait_and_nothing_is_lost(
    request: pytest.FixtureRequest, service: ServiceProcess, gateways: list[Credentials], load: ReportLoad
) -> None:
    """One gateway sends on and on: it is not listened to any more before it fills the memory."""
    with Flood(service.mqtt["mqtt"], gateways[2]) as flood:
        async with load:
            await load.wait_for_acks()
            before = service.memory
            with away(request, service):
                await until(lambda: not service.is_ready())
                await asyncio.to_thread(flood.push)
                acknowledged, left = load.acknowledged, flood.left
                await asyncio.to_thread(flood.push)
                assert (load.acknowledged, flood.left) == (acknowledged, left)
                assert left > 0
                assert service.memory - before < LEEWAY
                assert not service.is_ready()
            await load.wait_for_acks()
            await asyncio.to_thread(flood.finish)
    await until(service.is_ready)
    check_stored_samples(service, load.sources)
    assert count_samples(service, STUBBORN) == 1


# --- The database crashes ---


@pytest.mark.rule("broker-2")
async def test_a_database_server_that_crashes_and_comes_back_has_what_was_acknowledged(
    server: PostgreSQL, tmp_path: Path
) -> None:
    """At first one of its processes is killed, which makes it start anew by itself; then all of them are."""
    given = [*loopback_options("--mqtt"), "--database", f"{server.url}/postgres"]
    with ServiceProcess(tmp_path, *given) as service:
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
