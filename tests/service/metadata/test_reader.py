"""Reading missing metadata from devices, through a real broker, with little load."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

from meshfleet.emulator import generate_site
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac, ModelNumber, Version, mac_to_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store
from meshfleet.service.metadata.reader import MetadataReader
from meshfleet.service.requests.rpc import RpcClient
from tests.emulator.runtime.fleet_builder import FleetBuilder, fresh_mac
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import PASSWORD, D, G, RunningBroker
from tests.servers import NO_TRUSTED_AUTHORITIES
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from meshfleet.db import Database
    from meshfleet.service.requests.gateway_ranking import SelectGateways
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

pytestmark = pytest.mark.anyio

LONG = 30.0
"""Seconds; reached only on failure."""

VALUES = {"8000": "2011", "8001": "01020300", "8002": "0105", "8007": "04"}
FACTS: dict[str, Any] = {
    "model": ModelNumber("2031"),
    "variant": 0,
    "firmware": Version(9, 9, 9),
    "hardware": Version(3, 0, 0),
}


def respond_with_values(request: IncomingRequest) -> list[OutgoingMessage]:
    """Respond with the value of the identifier."""
    return [request.build_response(value=VALUES[request.topic_suffix.rpartition("/")[2]])]


class MetadataHarness:
    """Metadata reader that polls when the test calls it."""

    def __init__(
        self, broker: RunningBroker, *, timeout: float = LONG, select_gateways: SelectGateways | None = None
    ) -> None:
        self.database = broker.database
        self.clock = broker.clock
        self.rpc = RpcClient(broker.broker, TopicCodec(), broker.clock)
        self.reader = MetadataReader(
            broker.database,
            self.rpc,
            now=broker.clock,
            monotonic=broker.clock,
            timeout=timeout,
            select_gateways=select_gateways,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with asyncio.TaskGroup() as self._tasks:
            yield self

    async def poll(self, *, seconds: float = 10.0) -> None:
        """Advance the time and poll once."""
        self.clock.move(seconds=seconds)
        await self.reader.poll(self._tasks)

    async def poll_until(self, condition: Callable[[], object], *, seconds: float = 10.0) -> None:
        async def poll_if_needed() -> bool:
            if condition():
                return True
            await self.poll(seconds=seconds)
            return False

        await eventually_async(poll_if_needed, "the condition of the test is true", patience=LONG)

    async def wait_until_idle(self) -> None:
        """Wait until no device is being read."""
        await eventually_async(lambda: not running_reads(), "all reads have finished", patience=LONG)

    def stored_metadata(self, mac: str = D) -> tuple[str, str, str]:
        """Return model, firmware and hardware of a device as REST shows them."""
        device = self.database.read_now(listing.load_device, Mac(mac))
        return device.model_number, device.firmware_version, device.hardware_version


def running_reads() -> list[str]:
    """Return the task names of the devices that are being read."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("metadata ")]


def observe(broker: RunningBroker, mac: str, **facts: Any) -> None:
    at = broker.clock() - 120_000
    broker.database.write_now(
        registry.record_observations,
        [DeviceObservation(device=Mac(mac), at=at, connected=True, heard=False, **facts)],
    )


def claim(broker: RunningBroker, mac: str = G) -> None:
    """Claim a gateway whose metadata is complete."""
    broker.database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)
    observe(broker, mac, gateway=Mac(mac), **FACTS)


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(database) as broker:
        claim(broker)
        yield broker


@pytest.fixture
async def harness(broker: RunningBroker) -> AsyncIterator[MetadataHarness]:
    async with MetadataHarness(broker).running() as harness:
        yield harness


@pytest.mark.rule("rest-47")
async def test_missing_metadata_is_read_raw_and_with_the_lowest_priority(
    broker: RunningBroker, harness: MetadataHarness
) -> None:
    observe(broker, D, gateway=Mac(G))
    assert harness.stored_metadata() == ("0000", "0.0.0", "0.0.0")
    async with connect_gateway(broker.port, respond_with_values) as gateway:
        await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))
        assert [request.topic_suffix for request in gateway.requests] == [
            f"{D}/read/{identifier}" for identifier in ("8007", "8000", "8001", "8002")
        ]
        assert {request.body["priority"] for request in gateway.requests} == {0}
        for _ in range(10):
            await harness.poll(seconds=3600)
        await harness.wait_until_idle()
        assert len(gateway.requests) == 4


@pytest.mark.rule("rest-47")
async def test_only_missing_properties_are_read(broker: RunningBroker, harness: MetadataHarness) -> None:
    observe(broker, D, gateway=Mac(G), model=ModelNumber("2011"), variant=1, hardware=Version(2, 0, 0))
    async with connect_gateway(broker.port, respond_with_values) as gateway:
        await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "2.0.0"))
    assert [request.topic_suffix for request in gateway.requests] == [f"{D}/read/8001"]


async def test_later_reports_replace_read_values_and_earlier_ones_do_not(
    broker: RunningBroker, harness: MetadataHarness
) -> None:
    observe(broker, D, gateway=Mac(G), variant=0)
    async with connect_gateway(broker.port, respond_with_values):
        await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))
    read_at = broker.clock()
    for at, version in ((read_at - 3_600_000, Version(0, 9, 0)), (read_at + 1, Version(2, 0, 0))):
        broker.database.write_now(
            registry.record_observations, [DeviceObservation(device=Mac(D), at=at, firmware=version)]
        )
        assert harness.stored_metadata()[1] == ("1.2.3" if at < read_at else "2.0.0")


@pytest.mark.rule("rest-47")
async def test_the_metadata_of_a_gateway_is_read(broker: RunningBroker, harness: MetadataHarness) -> None:
    other = f"{mac_to_int(Mac(G)) + 1:012x}"
    broker.database.write_now(store.claim_gateway, Mac(other), name=None, by=COMMAND_LINE, now=0)
    observe(broker, other)
    async with connect_gateway(broker.port, respond_with_values, other) as gateway:
        await harness.poll_until(lambda: harness.stored_metadata(other) == ("2011", "1.2.3", "1.5.0"))
    assert {request.topic.split("/")[4] for request in gateway.requests} == {other}


# --- Load and backoff ---


async def test_one_device_per_gateway_and_four_in_total_are_read_at_a_time(sqlite_database: Database) -> None:
    macs = [f"{mac_to_int(Mac(G)) + number:012x}" for number in range(6)]
    async with RunningBroker(sqlite_database) as broker:
        for number, mac in enumerate(macs):
            claim(broker, mac)
            await broker.gateway(mac)
            for index in range(3):
                observe(broker, f"{0xD00000000000 + number * 100 + index:012x}", gateway=Mac(mac))
        async with MetadataHarness(broker, timeout=2.0).running() as harness:
            for _ in range(3):
                await harness.poll(seconds=1)
            await asyncio.sleep(0)
            task_names = running_reads()
            assert len(task_names) == harness.rpc.pending == 4
            gateways = Counter((int(name.split()[1], 16) - 0xD00000000000) // 100 for name in task_names)
            assert set(gateways.values()) == {1}
            await harness.wait_until_idle()


async def test_an_unresponsive_gateway_gets_fewer_and_fewer_requests(
    sqlite_database: Database,
) -> None:
    async with RunningBroker(sqlite_database) as broker:
        claim(broker)
        for number in range(50):
            observe(broker, f"{0xD00000000000 + number:012x}", gateway=Mac(G))
        async with (
            MetadataHarness(broker, timeout=0.02).running() as harness,
            connect_gateway(broker.port, never_respond) as gateway,
        ):
            for _ in range(24 * 6):  # a day with six polls per hour
                await harness.poll(seconds=600)
                await harness.wait_until_idle()
            await broker.until(lambda: len(gateway.requests) > 3)
            assert len(gateway.requests) <= 8


async def test_limits_and_backoff_apply_to_the_selected_gateway(sqlite_database: Database) -> None:
    silent, b, c = (f"{mac_to_int(Mac(G)) + number:012x}" for number in range(3))
    routes: dict[int, int] = {}

    async def select(devices: Sequence[int]) -> Mapping[int, int | None]:
        return {each: routes[each] for each in devices}

    async with RunningBroker(sqlite_database) as broker:
        for mac in (silent, b, c):
            claim(broker, mac)
        for number in range(50):
            device = f"{0xD00000000000 + number:012x}"
            routes[mac_to_int(Mac(device))] = mac_to_int(Mac(silent))
            observe(broker, device, gateway=Mac(c if number % 2 else b))
        async with (
            MetadataHarness(broker, timeout=0.1, select_gateways=select).running() as harness,
            connect_gateway(broker.port, never_respond, silent) as silent_gateway,
            connect_gateway(broker.port, respond_with_values, b),
        ):
            for _ in range(24 * 6):  # a day with six polls per hour
                await harness.poll(seconds=600)
                assert len(running_reads()) <= 1
                await harness.wait_until_idle()
            await broker.until(lambda: len(silent_gateway.requests) > 3)
            assert len(silent_gateway.requests) <= 8
            routes[mac_to_int(Mac(D))] = mac_to_int(Mac(b))
            observe(broker, D, gateway=Mac(silent))  # its own gateway is in backoff, another one is selected
            await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))


async def test_a_long_queue_does_not_delay_a_device_behind_another_gateway(
    sqlite_database: Database,
) -> None:
    silent, other = (f"{mac_to_int(Mac(G)) + number:012x}" for number in range(2))
    macs = [f"{0xD00000000000 + number:012x}" for number in range(60)]
    routes = dict.fromkeys((mac_to_int(Mac(each)) for each in macs), mac_to_int(Mac(silent)))
    routes[mac_to_int(Mac(macs[-1]))] = mac_to_int(Mac(other))

    async def select(devices: Sequence[int]) -> Mapping[int, int | None]:
        return {each: routes[each] for each in devices}

    async with RunningBroker(sqlite_database) as broker:
        for mac in (silent, other):
            claim(broker, mac)
        for mac in macs:
            observe(broker, mac, gateway=Mac(silent))
        async with (
            MetadataHarness(broker, timeout=0.1, select_gateways=select).running() as harness,
            connect_gateway(broker.port, never_respond, silent),
            connect_gateway(broker.port, respond_with_values, other),
        ):
            await harness.poll_until(lambda: harness.stored_metadata(macs[-1]) == ("2011", "1.2.3", "1.5.0"))


@pytest.mark.parametrize("status", [4, 5, 7])
async def test_an_unsupported_property_is_read_once_per_day(
    broker: RunningBroker, harness: MetadataHarness, status: int
) -> None:
    observe(broker, D, gateway=Mac(G))
    async with connect_gateway(
        broker.port, lambda request: [request.build_response(status=status)]
    ) as gateway:
        for hour in range(23):
            await harness.poll(seconds=3600 if hour else 10)
            await harness.wait_until_idle()
            await broker.until(lambda: len(gateway.requests) == 4)
        await harness.poll_until(lambda: len(gateway.requests) > 4, seconds=600)
        await harness.wait_until_idle()


@pytest.mark.parametrize("status", [1, 8, 9, 10, 200])
async def test_reading_a_device_stops_at_a_failure_and_is_retried_later(
    sqlite_database: Database, status: int
) -> None:
    async with RunningBroker(sqlite_database) as broker:
        claim(broker)
        observe(broker, D, gateway=Mac(G), variant=0)
        async with (
            MetadataHarness(broker).running() as harness,
            connect_gateway(broker.port, lambda request: [request.build_response(status=status)]) as gateway,
        ):
            await harness.poll()
            await harness.wait_until_idle()
            assert len(gateway.requests) == 1
            gateway.responder = respond_with_values
            await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"8000": ""}, ("0000", "1.2.3", "1.5.0")),
        ({"8000": "20"}, ("0000", "1.2.3", "1.5.0")),
        ({"8001": "01"}, ("2011", "0.0.0", "1.5.0")),
        ({"8000": "zz"}, ("0000", "1.2.3", "1.5.0")),
        ({"8000": "0000", "8002": "0000"}, ("0000", "1.2.3", "0.0.0")),
    ],
)
async def test_implausible_values_are_rejected_and_not_read_again_at_once(
    sqlite_database: Database, values: dict[str, str], expected: tuple[str, str, str]
) -> None:
    async with RunningBroker(sqlite_database) as broker:
        claim(broker)
        observe(broker, D, gateway=Mac(G), variant=0)

        def respond(request: IncomingRequest) -> list[OutgoingMessage]:
            identifier = request.topic_suffix.rpartition("/")[2]
            return [request.build_response(value=values.get(identifier, VALUES[identifier]))]

        async with (
            MetadataHarness(broker).running() as harness,
            connect_gateway(broker.port, respond) as gateway,
        ):
            await harness.poll()
            await broker.until(lambda: len(gateway.requests) == 3)
            await harness.wait_until_idle()
            await harness.poll(seconds=30)
            await harness.wait_until_idle()
            assert len(gateway.requests) == 3
            await broker.until(lambda: harness.stored_metadata() == expected)


async def test_devices_behind_a_disconnected_gateway_are_not_read_and_need_no_backoff(
    broker: RunningBroker, harness: MetadataHarness
) -> None:
    observe(broker, D, gateway=Mac(G))  # presence has not detected yet that the gateway is disconnected
    for _ in range(5):
        await harness.poll()
        await harness.wait_until_idle()
    async with connect_gateway(broker.port, respond_with_values):
        await harness.poll()
        await broker.until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))


async def test_a_database_outage_is_logged_once_and_reading_continues(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(sqlite_database) as broker:
        claim(broker)
        observe(broker, D, gateway=Mac(G))
        async with (
            MetadataHarness(broker).running() as harness,
            connect_gateway(broker.port, respond_with_values),
        ):
            with database_outage(sqlite_database):
                for _ in range(3):
                    await harness.poll()
            assert caplog.text.count("metadata of devices cannot be read or stored") == 1
            await harness.poll_until(lambda: harness.stored_metadata() == ("2011", "1.2.3", "1.5.0"))


# --- Emulated gateways ---


@pytest.mark.rule("rest-47")
async def test_the_metadata_of_an_emulated_site_is_read_completely(sqlite_database: Database) -> None:
    mac = fresh_mac()
    site = generate_site(mac, devices=6, seed=1)
    macs = [mac, *(each.mac for each in site.devices)]
    async with (
        RunningBroker(sqlite_database) as broker,
        httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as http,
    ):
        broker.database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=0)
        for each in macs:
            observe(broker, each, gateway=mac)
        address = BrokerAddress(host="127.0.0.1", port=broker.port, user=mac, password=PASSWORD.decode())
        fleet = FleetBuilder(http, speed=100.0)
        fleet.add(address, mac, site=site)
        async with fleet.run(), MetadataHarness(broker).running() as harness:
            await broker.until(lambda: mac in broker.broker.connected_gateways())
            await harness.poll_until(
                lambda: all("0000" not in harness.stored_metadata(each)[0] for each in macs), seconds=30
            )
            await harness.poll_until(
                lambda: all("0.0.0" not in harness.stored_metadata(each) for each in macs), seconds=30
            )
