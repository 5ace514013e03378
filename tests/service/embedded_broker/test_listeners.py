"""Who is at an entrance takes room, whether or not it ever says a word of MQTT."""

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
def house(sqlite_database: Database) -> Iterator[MqttAccounts]:
    made = MqttAccounts(sqlite_database)
    yield made
    made.close()
    sqlite_database.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    mine = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    mine.cert_chain_pems[0].write_to_path(certificate)
    mine.private_key_pem.write_to_path(key)
    limits = BrokerLimits(connections=20, connections_per_address=3)
    return Settings(tls_cert=certificate, tls_key=key, limits=limits)


async def is_sent_away(site: RunningBroker) -> bool:
    """Whether somebody who comes now is sent away at once."""
    return (await (await site.open_unauthenticated()).receive_bytes()) == b""


async def crowd(site: RunningBroker) -> list[RawClient]:
    """As many strangers as may come from one address."""
    clients = [await site.open_unauthenticated() for _ in range(3)]
    await until(lambda: len(site.broker.connections) + site.broker.connections.reserved_slots == 3)
    return clients


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_strangers_who_say_nothing_take_room_at_every_entrance(
    house: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(house, settings, scheme=scheme) as site:
        await crowd(site)
        assert await is_sent_away(site)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_strangers_who_leave_make_room(house: MqttAccounts, settings: Settings, scheme: str) -> None:
    async with RunningBroker(house, settings, scheme=scheme) as site:
        for client in await crowd(site):
            await client.close()
        await until(lambda: len(site.broker.connections) + site.broker.connections.reserved_slots == 0)
        await crowd(site)


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_who_speaks_no_tls_makes_room(house: MqttAccounts, settings: Settings, scheme: str) -> None:
    async with RunningBroker(house, settings, scheme=scheme) as site:
        for client in await crowd(site):
            client.send(b"\x10\x00" * 20)
            await client.receive_bytes()
        await until(lambda: site.broker.connections.reserved_slots == 0)


async def test_a_websocket_is_counted_once_when_it_has_become_one(
    house: MqttAccounts, settings: Settings
) -> None:
    async with RunningBroker(house, settings, scheme="ws") as site:
        clients = await crowd(site)
        assert site.broker.connections.reserved_slots == 3
        clients[0].send(UPGRADE)
        await until(lambda: len(site.broker.connections) == 1)
        assert site.broker.connections.reserved_slots == 2
        assert await is_sent_away(site)
        clients[0].abort()
        await until(lambda: len(site.broker.connections) == 0)
        await site.open_unauthenticated()
        await until(lambda: site.broker.connections.reserved_slots == 3)


async def test_all_addresses_together_have_no_more_room_than_there_is(
    house: MqttAccounts, settings: Settings
) -> None:
    async with RunningBroker(house, settings) as site:
        taken = [site.broker.connections.reserve_slot(f"192.0.2.{number}") for number in range(25)]
        assert taken == [True] * 20 + [False] * 5
        assert await is_sent_away(site)
        site.broker.connections.release_slot("192.0.2.0")
        await site.open_unauthenticated()
        await until(lambda: len(site.broker.connections) == 1)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws"])
async def test_clients_that_are_gone_before_they_are_accepted_make_room(
    house: MqttAccounts, settings: Settings, scheme: str
) -> None:
    async with RunningBroker(house, settings, scheme=scheme) as site:
        crowd = site.broker.connections
        for _ in range(5):
            with closing(socket.create_connection(("127.0.0.1", site.port))) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            await (await site.open_unauthenticated()).close()  # who comes later is accepted later
            await until(lambda: len(crowd) + crowd.reserved_slots == 0)


# --- Connections that end without a login ---


@pytest.mark.rule("broker-29")
async def test_a_flood_without_logins_is_closed_unread_while_others_log_in(
    house: MqttAccounts, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(house, Settings(limits=BrokerLimits(failed_connections=1))) as site:
        crowd = site.broker.connections
        crowd.failed_logins = FailedLoginLimiter(1, clock=lambda: 0.0)
        (await site.open_unauthenticated()).abort()
        await until(lambda: crowd.failed_logins.is_exceeded("127.0.0.1"))
        assert await is_sent_away(site)
        assert crowd.rejected_count == 1
        (line,) = [each.getMessage() for each in caplog.records if "closed unread" in each.getMessage()]
        assert line.startswith("connections from 127.0.0.1 are closed unread, 1 since the last such line")
        assert "limits.failed-connections is 1" in line
        elsewhere = RawClient(
            *await asyncio.open_connection("127.0.0.1", site.port, local_addr=("127.0.0.2", 0))
        )
        elsewhere.send(build_connect(house.gateway()))
        assert (await elsewhere.expect(Connack)).code == ConnectReturnCode.ACCEPTED
        await elsewhere.close()


@pytest.mark.rule("broker-29")
async def test_any_number_of_clients_that_log_in_may_come_from_one_address_at_once(
    house: MqttAccounts,
) -> None:
    async with RunningBroker(house, Settings(limits=BrokerLimits(failed_connections=1))) as site:
        await asyncio.gather(*(site.connect(house.gateway()) for _ in range(20)))
        assert (len(site.broker.connections), site.broker.connections.rejected_count) == (20, 0)


@pytest.mark.rule("broker-29")
def test_only_failures_count_and_by_network() -> None:
    now = 0.0
    rate = FailedLoginLimiter(20, clock=lambda: now)
    for _ in range(19):
        rate.record_failure("192.0.2.1")
        rate.record_failure("2001:db8::1")
    assert not any(map(rate.is_exceeded, ("192.0.2.1", "2001:db8::1")))
    rate.record_failure("192.0.2.1")
    rate.record_failure("2001:db8::2")
    addresses = (
        "192.0.2.1",
        "192.0.2.2",
        "2001:db8::ffff",
        "2001:db8:0:1::1",
        "fe80::1%eth0",
        "",
        "somewhere",
    )
    assert [rate.is_exceeded(each) for each in addresses] == [True, False, True, False, False, False, False]
    for _ in range(1000):
        rate.record_failure("192.0.2.1")
    now = 0.1
    assert not rate.is_exceeded("192.0.2.1"), "it has no debts"
