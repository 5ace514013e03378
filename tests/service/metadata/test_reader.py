"""What devices never reported is read from them, through a real broker, and gently."""

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
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from meshfleet.db import Database
    from meshfleet.service.requests.gateway_ranking import SelectGateways
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage

pytestmark = pytest.mark.anyio

LONG = 30.0
"""Reached only when something is broken."""

VALUES = {"8000": "2011", "8001": "01020300", "8002": "0105", "8007": "04"}
FACTS: dict[str, Any] = {
    "model": ModelNumber("2031"),
    "variant": 0,
    "firmware": Version(9, 9, 9),
    "hardware": Version(3, 0, 0),
}


def answer_correctly(asked: IncomingRequest) -> list[OutgoingMessage]:
    """Tell everything."""
    return [asked.build_response(value=VALUES[asked.topic_suffix.rpartition("/")[2]])]


class MetadataHarness:
    """An inquiry that goes on when a test says so."""

    def __init__(
        self, stage: RunningBroker, *, patience: float = LONG, select: SelectGateways | None = None
    ) -> None:
        self.database = stage.database
        self.clock = stage.clock
        self.rpc = RpcClient(stage.broker, TopicCodec(), stage.clock)
        self.reader = MetadataReader(
            stage.database,
            self.rpc,
            now=stage.clock,
            steady=stage.clock,
            timeout=patience,
            select_gateways=select,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with asyncio.TaskGroup() as self._tasks:
            yield self

    async def poll(self, *, seconds: float = 10.0) -> None:
        """Let time pass, and go on once."""
        self.clock.move(seconds=seconds)
        await self.reader.poll(self._tasks)

    async def poll_until(self, holds: Callable[[], object], *, seconds: float = 10.0) -> None:
        async def look() -> bool:
            if holds():
                return True
            await self.poll(seconds=seconds)
            return False

        await eventually_async(look, "what is waited for while time passes", patience=LONG)

    async def wait_until_idle(self) -> None:
        """Wait until nobody is being asked."""
        await eventually_async(lambda: not running_reads(), "everybody has been asked", patience=LONG)

    def shown(self, mac: str = D) -> tuple[str, str, str]:
        """Model and versions of a device as REST shows them."""
        found = self.database.read_now(listing.load_device, Mac(mac))
        return found.model_number, found.firmware_version, found.hardware_version


def running_reads() -> list[str]:
    """The devices that are being asked, each behind a word."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("metadata ")]


def observe(stage: RunningBroker, mac: str, **known: Any) -> None:
    at = stage.clock() - 120_000
    stage.database.write_now(
        registry.record_observations,
        [DeviceObservation(device=Mac(mac), at=at, connected=True, heard=False, **known)],
    )


def claim(stage: RunningBroker, mac: str = G) -> None:
    """A gateway of which all is known."""
    stage.database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)
    observe(stage, mac, gateway=Mac(mac), **FACTS)


@pytest.fixture
async def stage(database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(database) as running:
        claim(running)
        yield running


@pytest.fixture
async def curious(stage: RunningBroker) -> AsyncIterator[MetadataHarness]:
    async with MetadataHarness(stage).running() as made:
        yield made


@pytest.mark.rule("rest-47")
async def test_what_a_device_never_reported_is_read_from_it_raw_and_with_the_lowest_priority(
    stage: RunningBroker, curious: MetadataHarness
) -> None:
    observe(stage, D, gateway=Mac(G))
    assert curious.shown() == ("0000", "0.0.0", "0.0.0")
    async with connect_gateway(stage.port, answer_correctly) as third:
        await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))
        assert [asked.topic_suffix for asked in third.requests] == [
            f"{D}/read/{identifier}" for identifier in ("8007", "8000", "8001", "8002")
        ]
        assert {asked.body["priority"] for asked in third.requests} == {0}
        for _ in range(10):
            await curious.poll(seconds=3600)
        await curious.wait_until_idle()
        assert len(third.requests) == 4


@pytest.mark.rule("rest-47")
async def test_only_what_is_missing_is_read(stage: RunningBroker, curious: MetadataHarness) -> None:
    observe(stage, D, gateway=Mac(G), model=ModelNumber("2011"), variant=1, hardware=Version(2, 0, 0))
    async with connect_gateway(stage.port, answer_correctly) as third:
        await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "2.0.0"))
    assert [asked.topic_suffix for asked in third.requests] == [f"{D}/read/8001"]


async def test_what_is_reported_later_wins_and_what_was_reported_earlier_does_not(
    stage: RunningBroker, curious: MetadataHarness
) -> None:
    observe(stage, D, gateway=Mac(G), variant=0)
    async with connect_gateway(stage.port, answer_correctly):
        await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))
    read_at = stage.clock()
    for at, version in ((read_at - 3_600_000, Version(0, 9, 0)), (read_at + 1, Version(2, 0, 0))):
        stage.database.write_now(
            registry.record_observations, [DeviceObservation(device=Mac(D), at=at, firmware=version)]
        )
        assert curious.shown()[1] == ("1.2.3" if at < read_at else "2.0.0")


@pytest.mark.rule("rest-47")
async def test_a_gateway_is_asked_about_itself(stage: RunningBroker, curious: MetadataHarness) -> None:
    other = f"{mac_to_int(Mac(G)) + 1:012x}"
    stage.database.write_now(store.claim_gateway, Mac(other), name=None, by=COMMAND_LINE, now=0)
    observe(stage, other)
    async with connect_gateway(stage.port, answer_correctly, other) as third:
        await curious.poll_until(lambda: curious.shown(other) == ("2011", "1.2.3", "1.5.0"))
    assert {asked.topic.split("/")[4] for asked in third.requests} == {other}


# --- Gently ---


async def test_one_at_a_time_is_asked_through_a_gateway_and_four_over_all(sqlite_database: Database) -> None:
    macs = [f"{mac_to_int(Mac(G)) + number:012x}" for number in range(6)]
    async with RunningBroker(sqlite_database) as stage:
        for number, mac in enumerate(macs):
            claim(stage, mac)
            await stage.gateway(mac)
            for place in range(3):
                observe(stage, f"{0xD00000000000 + number * 100 + place:012x}", gateway=Mac(mac))
        async with MetadataHarness(stage, patience=2.0).running() as curious:
            for _ in range(3):
                await curious.poll(seconds=1)
            await asyncio.sleep(0)
            busy = running_reads()
            assert len(busy) == curious.rpc.pending == 4
            gateways = Counter((int(name.split()[1], 16) - 0xD00000000000) // 100 for name in busy)
            assert set(gateways.values()) == {1}
            await curious.wait_until_idle()
    sqlite_database.close()


async def test_a_gateway_that_never_answers_is_left_alone_longer_and_longer(
    sqlite_database: Database,
) -> None:
    async with RunningBroker(sqlite_database) as stage:
        claim(stage)
        for number in range(50):
            observe(stage, f"{0xD00000000000 + number:012x}", gateway=Mac(G))
        async with (
            MetadataHarness(stage, patience=0.02).running() as curious,
            connect_gateway(stage.port, never_respond) as third,
        ):
            for _ in range(24 * 6):  # a day, of which each hour has six looks
                await curious.poll(seconds=600)
                await curious.wait_until_idle()
            await stage.until(lambda: len(third.requests) > 3)
            assert len(third.requests) <= 8
    sqlite_database.close()


async def test_limits_and_pauses_are_those_of_the_gateway_that_is_asked(sqlite_database: Database) -> None:
    silent, b, c = (f"{mac_to_int(Mac(G)) + number:012x}" for number in range(3))
    routes: dict[int, int] = {}

    async def select(devices: Sequence[int]) -> Mapping[int, int | None]:
        return {each: routes[each] for each in devices}

    async with RunningBroker(sqlite_database) as stage:
        for mac in (silent, b, c):
            claim(stage, mac)
        for number in range(50):
            device = f"{0xD00000000000 + number:012x}"
            routes[mac_to_int(Mac(device))] = mac_to_int(Mac(silent))
            observe(stage, device, gateway=Mac(c if number % 2 else b))
        async with (
            MetadataHarness(stage, patience=0.1, select=select).running() as curious,
            connect_gateway(stage.port, never_respond, silent) as asked,
            connect_gateway(stage.port, answer_correctly, b),
        ):
            for _ in range(24 * 6):  # a day, of which each hour has six looks
                await curious.poll(seconds=600)
                assert len(running_reads()) <= 1
                await curious.wait_until_idle()
            await stage.until(lambda: len(asked.requests) > 3)
            assert len(asked.requests) <= 8
            routes[mac_to_int(Mac(D))] = mac_to_int(Mac(b))
            observe(stage, D, gateway=Mac(silent))  # its own gateway rests, another one hears it
            await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))
    sqlite_database.close()


async def test_devices_of_a_gateway_with_a_long_line_do_not_keep_one_waiting_that_another_gateway_reaches(
    sqlite_database: Database,
) -> None:
    silent, other = (f"{mac_to_int(Mac(G)) + number:012x}" for number in range(2))
    macs = [f"{0xD00000000000 + number:012x}" for number in range(60)]
    routes = dict.fromkeys((mac_to_int(Mac(each)) for each in macs), mac_to_int(Mac(silent)))
    routes[mac_to_int(Mac(macs[-1]))] = mac_to_int(Mac(other))

    async def select(devices: Sequence[int]) -> Mapping[int, int | None]:
        return {each: routes[each] for each in devices}

    async with RunningBroker(sqlite_database) as stage:
        for mac in (silent, other):
            claim(stage, mac)
        for mac in macs:
            observe(stage, mac, gateway=Mac(silent))
        async with (
            MetadataHarness(stage, patience=0.1, select=select).running() as curious,
            connect_gateway(stage.port, never_respond, silent),
            connect_gateway(stage.port, answer_correctly, other),
        ):
            await curious.poll_until(lambda: curious.shown(macs[-1]) == ("2011", "1.2.3", "1.5.0"))
    sqlite_database.close()


@pytest.mark.parametrize("status", [4, 5, 7])
async def test_what_a_device_does_not_have_is_asked_once_a_day(
    stage: RunningBroker, curious: MetadataHarness, status: int
) -> None:
    observe(stage, D, gateway=Mac(G))
    async with connect_gateway(stage.port, lambda asked: [asked.build_response(status=status)]) as third:
        for hour in range(23):
            await curious.poll(seconds=3600 if hour else 10)
            await curious.wait_until_idle()
            await stage.until(lambda: len(third.requests) == 4)
        await curious.poll_until(lambda: len(third.requests) > 4, seconds=600)
        await curious.wait_until_idle()


@pytest.mark.parametrize("status", [1, 8, 9, 10, 200])
async def test_a_device_that_cannot_answer_is_asked_no_more_at_that_visit_and_later_again(
    sqlite_database: Database, status: int
) -> None:
    async with RunningBroker(sqlite_database) as stage:
        claim(stage)
        observe(stage, D, gateway=Mac(G), variant=0)
        async with (
            MetadataHarness(stage).running() as curious,
            connect_gateway(stage.port, lambda asked: [asked.build_response(status=status)]) as third,
        ):
            await curious.poll()
            await curious.wait_until_idle()
            assert len(third.requests) == 1
            third.responder = answer_correctly
            await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))
    sqlite_database.close()


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"8000": ""}, ("0000", "1.2.3", "1.5.0")),
        ({"8000": "20"}, ("0000", "1.2.3", "1.5.0")),
        ({"8001": "01"}, ("2011", "0.0.0", "1.5.0")),
        ({"8000": "zz"}, ("0000", "1.2.3", "1.5.0")),
        ({"8000": "0000", "8002": "0000"}, ("0000", "1.2.3", "0.0.0")),
    ],
)
async def test_what_cannot_be_true_is_not_believed_and_not_asked_again_at_once(
    sqlite_database: Database, values: dict[str, str], shown: tuple[str, str, str]
) -> None:
    async with RunningBroker(sqlite_database) as stage:
        claim(stage)
        observe(stage, D, gateway=Mac(G), variant=0)

        def tell(asked: IncomingRequest) -> list[OutgoingMessage]:
            identifier = asked.topic_suffix.rpartition("/")[2]
            return [asked.build_response(value=values.get(identifier, VALUES[identifier]))]

        async with MetadataHarness(stage).running() as curious, connect_gateway(stage.port, tell) as third:
            await curious.poll()
            await stage.until(lambda: len(third.requests) == 3)
            await curious.wait_until_idle()
            await curious.poll(seconds=30)
            await curious.wait_until_idle()
            assert len(third.requests) == 3
            await stage.until(lambda: curious.shown() == shown)
    sqlite_database.close()


async def test_nobody_is_asked_behind_a_gateway_without_a_connection_and_it_costs_no_try(
    stage: RunningBroker, curious: MetadataHarness
) -> None:
    observe(stage, D, gateway=Mac(G))  # presence has not noticed yet that the gateway is gone
    for _ in range(5):
        await curious.poll()
        await curious.wait_until_idle()
    async with connect_gateway(stage.port, answer_correctly):
        await curious.poll()
        await stage.until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))


async def test_a_database_that_is_away_is_told_of_once_and_then_all_goes_on(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(sqlite_database) as stage:
        claim(stage)
        observe(stage, D, gateway=Mac(G))
        async with MetadataHarness(stage).running() as curious, connect_gateway(stage.port, answer_correctly):
            with database_outage(sqlite_database):
                for _ in range(3):
                    await curious.poll()
            assert caplog.text.count("metadata of devices cannot be read or stored") == 1
            await curious.poll_until(lambda: curious.shown() == ("2011", "1.2.3", "1.5.0"))
    sqlite_database.close()


# --- Our own gateway ---


@pytest.mark.rule("rest-47")
async def test_everything_of_an_emulated_site_becomes_known(sqlite_database: Database) -> None:
    mac = fresh_mac()
    site = generate_site(mac, devices=6, seed=1)
    macs = [mac, *(each.mac for each in site.devices)]
    async with RunningBroker(sqlite_database) as stage, httpx.AsyncClient(trust_env=False) as http:
        stage.database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=0)
        for each in macs:
            observe(stage, each, gateway=mac)
        place = BrokerAddress(host="127.0.0.1", port=stage.port, user=mac, password=PASSWORD.decode())
        crew = FleetBuilder(http, speed=100.0)
        crew.add(place, mac, site=site)
        async with crew.run(), MetadataHarness(stage).running() as curious:
            await stage.until(lambda: mac in stage.broker.connected_gateways())
            await curious.poll_until(
                lambda: all("0000" not in curious.shown(each)[0] for each in macs), seconds=30
            )
            await curious.poll_until(
                lambda: all("0.0.0" not in curious.shown(each) for each in macs), seconds=30
            )
    sqlite_database.close()
