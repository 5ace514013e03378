"""Whatever breaks while gateways report: all that was acknowledged is stored, as it was said, and once."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Self

import pytest

from meshfleet.wire.mqtt.encoder import encode
from meshfleet.wire.mqtt.packets import Connack, Puback, Publish
from meshfleet.wire.times import write_millis
from tests.cli.outside import PATIENCE
from tests.scenarios.load import Load, PahoGateway
from tests.scenarios.serving import Service, loopback
from tests.scenarios.stored import check, samples
from tests.servers import PostgreSQL, postgresql_folder
from tests.service.mqtt.site import connect, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers import Address
    from tests.service.mqtt.house import Credentials

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
    with postgresql_folder() as folder, PostgreSQL(folder) as running:
        yield running


@pytest.fixture
def service(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> Iterator[Service]:
    given = loopback("--mqtt")
    if database_kind == "postgresql":
        server: PostgreSQL = request.getfixturevalue("server")
        given += ["--database", f"{server.url}/postgres"]
    with Service(tmp_path, *given) as running:
        yield running


@pytest.fixture
def gateways(service: Service) -> list[Credentials]:
    return [service.claim(f"02005e00000{number}") for number in range(1, 4)]


@pytest.fixture
def load(service: Service, gateways: list[Credentials]) -> Load:
    """Two of them report."""
    return Load(service.mqtt["mqtt"], gateways[:2])


# --- The service ends ---


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_killed_again_and_again_has_what_it_acknowledged(
    service: Service, gateways: list[Credentials], load: Load
) -> None:
    async with load, PahoGateway(service.mqtt["mqtt"], gateways[2]) as other:
        for _ in range(KILLS):
            await load.go_on()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
        await load.go_on()
    check(service, [*load.ledgers, other.ledger])


@pytest.mark.rule("broker-2")
async def test_a_service_that_is_stopped_under_load_has_what_it_acknowledged(
    service: Service, load: Load
) -> None:
    async with load:
        await load.go_on()
        code, errors = await asyncio.to_thread(service.stop)
        assert (code, "Traceback" in errors) == (0, False), errors
        await asyncio.to_thread(service.start)
        await load.go_on()
    check(service, load.ledgers)


@pytest.mark.rule("broker-2")
async def test_a_device_that_reported_once_before_a_kill_is_known_with_its_sample(
    service: Service, gateways: list[Credentials]
) -> None:
    who = gateways[0]
    gateway = await service.guest(who)
    gateway.send(_measurement(who.user, "02005e0000bb", b"21.5"))
    assert await gateway.expect(Puback) == Puback(1)
    await asyncio.to_thread(service.kill)
    await service.hang_up()
    await asyncio.to_thread(service.start)
    await until(lambda: service.ask("GET", "/api/v1/devices?Ids=bmac-02005e0000bb")["items"])
    assert samples(service, "02005e0000bb") == 1


def _measurement(gateway: str, device: str, value: bytes, packet_id: int = 1) -> Publish:
    topic = f"mt/gateway/{gateway}/device/{device}/measurement-decoded/temperature"
    payload = b'{"time":"%s","seq":1,"value":%s}' % (write_millis(NOW).encode(), value)
    return Publish(topic, payload, 1, packet_id=packet_id)


# --- The database is away ---


class Flood:
    """A gateway that sends 120 MB without waiting for anything; it is always the same report."""

    def __init__(self, place: Address, who: Credentials) -> None:
        value = b'"%s"' % (b"x" * 60_000)
        messages = [_measurement(who.user, STUBBORN, value, number) for number in range(1, 2001)]
        self._rest = memoryview(b"".join(map(encode, messages)))
        self._answers = len(messages) * len(encode(Puback(1)))
        self._socket = socket.create_connection(place)
        self._socket.sendall(encode(connect(who)))
        assert self._socket.recv(4) == encode(Connack())
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
        self._socket.settimeout(PATIENCE)
        self._socket.sendall(self._rest)
        while self._answers:
            come = len(self._socket.recv(0x1_0000))
            assert come
            self._answers -= come


@contextmanager
def away(request: pytest.FixtureRequest, service: Service) -> Iterator[None]:
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
    request: pytest.FixtureRequest, service: Service, gateways: list[Credentials], load: Load
) -> None:
    """One gateway sends on and on: it is not listened to any more before it fills the memory."""
    with Flood(service.mqtt["mqtt"], gateways[2]) as flood:
        async with load:
            await load.go_on()
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
            await load.go_on()
            await asyncio.to_thread(flood.finish)
    await until(service.is_ready)
    check(service, load.ledgers)
    assert samples(service, STUBBORN) == 1


# --- The database crashes ---


@pytest.mark.rule("broker-2")
async def test_a_database_server_that_crashes_and_comes_back_has_what_was_acknowledged(
    server: PostgreSQL, tmp_path: Path
) -> None:
    """At first one of its processes is killed, which makes it start anew by itself; then all of them are."""
    given = [*loopback("--mqtt"), "--database", f"{server.url}/postgres"]
    with Service(tmp_path, *given) as service:
        gateways = [service.claim(f"02005e00000{number}") for number in range(1, 4)]
        async with Load(service.mqtt["mqtt"], gateways) as load:
            for _ in range(KILLS):
                await load.go_on()
                server.kill_one("meshfleet")
                await load.go_on()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await load.go_on()
        check(service, load.ledgers)
        await until(service.is_ready)
