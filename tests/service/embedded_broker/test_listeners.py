"""Connections occupy slots of the limits from accept on, even without any MQTT packet."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.mqtt.broker.connections import FailedLoginLimiter
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Connack, ConnectReturnCode
from meshfleet.settings import Settings
from tests.mqtt.broker.raw_client import RawClient
from tests.selection import backend_for_loop
from tests.service.embedded_broker.mqtt_accounts import MqttAccounts
from tests.service.embedded_broker.running_broker import RunningBroker, build_connect, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

SCHEMES = ["mqtt", "mqtts", "ws", "wss"]

UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)


@pytest.fixture
def accounts(sqlite_database: Database) -> Iterator[MqttAccounts]:
    created = MqttAccounts(sqlite_database)
    yield created
    created.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    certificate_pair = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate_pair.cert_chain_pems[0].write_to_path(certificate)
    certificate_pair.private_key_pem.write_to_path(key)
    limits = BrokerLimits(connections=20, connections_per_address=3)
    return Settings(tls_cert=certificate, tls_key=key, limits=limits)


async def is_rejected(running: RunningBroker) -> bool:
    """Open a connection and return whether it is closed at once."""
    return (await (await running.open_unauthenticated()).receive_bytes()) == b""


async def fill_slots(running: RunningBroker) -> list[RawClient]:
    """Open as many idle connections as one address may have."""
    clients = [await running.open_unauthenticated() for _ in range(3)]
    await until(lambda: len(running.broker.connections) + running.broker.connections.reserved_slots == 3)
    return clients


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_idle_connections_occupy_slots_of_every_listener(
    accounts: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(accounts, settings, scheme=scheme) as running:
        await fill_slots(running)
        assert await is_rejected(running)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_closed_connections_free_their_slots(
    accounts: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(accounts, settings, scheme=scheme) as running:
        for client in await fill_slots(running):
            await client.close()
        await until(lambda: len(running.broker.connections) + running.broker.connections.reserved_slots == 0)
        await fill_slots(running)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_failed_tls_handshakes_free_their_slots(
    accounts: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(accounts, settings, scheme=scheme) as running:
        for client in await fill_slots(running):
            client.send(b"\x10\x00" * 20)
            await client.receive_bytes()
        await until(lambda: running.broker.connections.reserved_slots == 0)


async def test_a_websocket_is_counted_once_after_its_handshake(
    accounts: MqttAccounts, settings: Settings
) -> None:
    async with RunningBroker(accounts, settings, scheme="ws") as running:
        clients = await fill_slots(running)
        assert running.broker.connections.reserved_slots == 3
        clients[0].send(UPGRADE)
        await until(lambda: len(running.broker.connections) == 1)
        assert running.broker.connections.reserved_slots == 2
        assert await is_rejected(running)
        clients[0].abort()
        await until(lambda: len(running.broker.connections) == 0)
        await running.open_unauthenticated()
        await until(lambda: running.broker.connections.reserved_slots == 3)


async def test_the_total_limit_applies_to_all_addresses_together(
    accounts: MqttAccounts, settings: Settings
) -> None:
    async with RunningBroker(accounts, settings) as running:
        reserved = [running.broker.connections.reserve_slot(f"192.0.2.{number}") for number in range(25)]
        assert reserved == [True] * 20 + [False] * 5
        assert await is_rejected(running)
        running.broker.connections.release_slot("192.0.2.0")
        await running.open_unauthenticated()
        await until(lambda: len(running.broker.connections) == 1)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
async def test_connections_reset_before_accept_free_their_slots(
    accounts: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(accounts, settings, scheme=scheme) as running:
        connections = running.broker.connections
        for _ in range(5):
            with closing(socket.create_connection(("127.0.0.1", running.port))) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # send RST
            await (await running.open_unauthenticated()).close()  # accepted after the reset one
            await until(lambda: len(connections) + connections.reserved_slots == 0)


# --- Connections that end without a login ---


@pytest.mark.rule("broker-29")
async def test_a_flood_without_logins_is_rejected_while_other_addresses_log_in(
    accounts: MqttAccounts, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(accounts, Settings(limits=BrokerLimits(failed_connections=1))) as running:
        connections = running.broker.connections
        connections.failed_logins = FailedLoginLimiter(1, clock=lambda: 0.0)
        (await running.open_unauthenticated()).abort()
        await until(lambda: connections.failed_logins.is_exceeded("127.0.0.1"))
        assert await is_rejected(running)
        assert connections.rejected_count == 1
        (line,) = [each.getMessage() for each in caplog.records if "closed unread" in each.getMessage()]
        assert line.startswith("connections from 127.0.0.1 are closed unread, 1 since the last such line")
        assert "limits.failed-connections is 1" in line
        other_client = RawClient(
            *await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
        )
        other_client.send(build_connect(accounts.gateway()))
        assert (await other_client.expect(Connack)).code == ConnectReturnCode.ACCEPTED
        await other_client.close()


@pytest.mark.rule("broker-29")
async def test_successful_logins_from_one_address_are_not_limited(
    accounts: MqttAccounts,
) -> None:
    async with RunningBroker(accounts, Settings(limits=BrokerLimits(failed_connections=1))) as running:
        await asyncio.gather(*(running.connect(accounts.gateway()) for _ in range(20)))
        assert (len(running.broker.connections), running.broker.connections.rejected_count) == (20, 0)


@pytest.mark.rule("broker-29")
def test_failed_logins_are_counted_per_network() -> None:
    now = 0.0
    limiter = FailedLoginLimiter(20, clock=lambda: now)
    for _ in range(19):
        limiter.record_failure("192.0.2.1")
        limiter.record_failure("2001:db8::1")
    assert not any(map(limiter.is_exceeded, ("192.0.2.1", "2001:db8::1")))
    limiter.record_failure("192.0.2.1")
    limiter.record_failure("2001:db8::2")
    addresses = (
        "192.0.2.1",
        "192.0.2.2",
        "2001:db8::ffff",
        "2001:db8:0:1::1",
        "fe80::1%eth0",
        "",
        "somewhere",
    )
    assert [limiter.is_exceeded(each) for each in addresses] == [
        True,
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    for _ in range(1000):
        limiter.record_failure("192.0.2.1")
    now = 0.1
    assert not limiter.is_exceeded("192.0.2.1"), "failures beyond the limit do not accumulate"
