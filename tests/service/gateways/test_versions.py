"""Versions of gateways: requested through a real broker, stored, and rejected if implausible."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import httpx
import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker.auth import Account, AccountKind
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac, Version, mac_from_int, mac_to_int
from meshfleet.protocol.request_tracker import ResponseMatch
from meshfleet.protocol.times import format_millis
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.gateways import store
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.gateways.versions import GatewayVersions, VersionTracker
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.metric_table import add_gateway_metrics
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.requests.rpc import RpcClient
from tests.emulator.runtime.fleet_builder import FleetBuilder, fresh_mac
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import PASSWORD, Clock, G, RunningBroker
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.external_broker.storing_consumer import PATIENT, StoringConsumer
from tests.service.metric_values import read_added_metrics
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.transport import Transport
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway

pytestmark = pytest.mark.anyio

NUMBER = mac_to_int(Mac(G))
RESPONSE_TIMEOUT = 30.0
"""Seconds to wait for gateways that respond."""
MAX_EARLY_REQUESTS = 4
"""Number of requests to an unresponsive gateway within minutes."""


def respond_with_version(
    version: str, *, clock: Clock | None = None
) -> Callable[[IncomingRequest], list[OutgoingMessage]]:
    """Return a responder with this version, and with the time of this clock."""
    return lambda request: [
        request.build_response(version=version, time=format_millis(clock() if clock else 0))
    ]


class TrackerHarness:
    """Version tracker that polls when the test calls it."""

    def __init__(
        self,
        database: Database,
        transport: Transport,
        clock: Clock,
        *,
        acks_enabled: bool = True,
        timeout: float = RESPONSE_TIMEOUT,
    ) -> None:
        self.database = database
        self.clock = clock
        self.clocks = GatewayClocks()
        self.traffic = GatewayTraffic(clock.monotonic)
        self.rpc = RpcClient(transport, TopicCodec(), clock, on_clock_sample=self.clocks.measure_offset)
        self.versions = GatewayVersions(acks_enabled=acks_enabled)
        self.tracker = VersionTracker(
            database,
            self.rpc,
            transport,
            versions=self.versions,
            traffic=self.traffic,
            clocks=self.clocks,
            now=clock,
            monotonic=clock.monotonic,
            timeout=timeout,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Provide a task group for the requests."""
        async with asyncio.TaskGroup() as self._tasks:
            yield self

    async def poll(self, *, seconds: float = 1.0) -> None:
        """Advance the time and poll once."""
        self.clock.move(seconds=seconds)
        await self.tracker.poll(self._tasks)

    async def poll_until(self, condition: Callable[[], object], *, seconds: float = 1.0) -> None:
        """Poll until a condition is true, with this much time before each poll."""

        async def poll_if_needed() -> bool:
            if condition():
                return True
            await self.poll(seconds=seconds)
            return False

        await eventually_async(poll_if_needed, "the condition of the test is true")

    @property
    def stored_version(self) -> str | None:
        """Stored version of the gateway."""
        return self.database.read_now(store.load_gateway, Mac(G)).api_version

    async def wait_for_requests(self, gateway: ScriptedGateway, count: int) -> None:
        """Wait for this many requests to a gateway that does not respond: some soon, and then hourly."""
        for number in range(1, count + 1):
            seconds = 1.0 if number == 1 else 30.0 if number <= MAX_EARLY_REQUESTS else 600.0
            await self.poll_until(lambda: len(gateway.requests) >= number, seconds=seconds)  # noqa: B023 # awaited in the same iteration
            await eventually_async(lambda: self.rpc.pending == 0, "the request has timed out")


def claim(database: Database, mac: str = G) -> None:
    database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)


@pytest.fixture
async def broker(database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(database) as broker:
        claim(database)
        yield broker


@pytest.fixture
async def harness(broker: RunningBroker) -> AsyncIterator[TrackerHarness]:
    async with TrackerHarness(broker.database, broker.broker, broker.clock).running() as harness:
        yield harness


# --- Requests ---


@pytest.mark.rule("rest-75", "version-10", "version-11")
async def test_the_version_of_a_connected_gateway_is_requested_and_stored(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    assert harness.versions.get(NUMBER) == Version(1, 2, 0)
    async with connect_gateway(broker.port, respond_with_version("2.3.0")) as gateway:
        await harness.poll_until(lambda: harness.stored_version)
        assert [request.topic_suffix for request in gateway.requests] == [f"{G}/apiversion"]
    assert harness.stored_version == "2.3.0"
    assert harness.versions.get(NUMBER) == Version(2, 3, 0)
    restarted = TrackerHarness(broker.database, broker.broker, broker.clock)
    await restarted.tracker.restore()
    assert restarted.versions.get(NUMBER) == Version(2, 3, 0)


@pytest.mark.rule("version-10", "version-11")
async def test_an_unresponsive_gateway_gets_hourly_requests_and_counts_as_the_oldest_version(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "meshfleet.service")
    tracker_harness = TrackerHarness(broker.database, broker.broker, broker.clock, timeout=0.05)
    async with tracker_harness.running() as harness, connect_gateway(broker.port, never_respond) as gateway:
        await harness.wait_for_requests(gateway, 6)
        assert harness.versions.ack_capable == set()
        assert harness.versions.get(NUMBER) == Version(1, 2, 0)
    assert harness.stored_version is None
    assert not [record for record in caplog.records if record.name.startswith("meshfleet.service")]


async def test_an_implausible_version_is_rejected(broker: RunningBroker, harness: TrackerHarness) -> None:
    invalid_versions = [
        "",
        "2",
        "two",
        "2.4.0.0",
        "0.0.0",
        "99999.0.0",
        "100.0.0",
        "2.4.0; DROP TABLE gateway",
        None,
        2.4,
    ]
    async with connect_gateway(broker.port, respond_with_version("2.4.0")):
        await harness.poll_until(lambda: harness.stored_version)
    stored_versions = {}
    for version in invalid_versions:
        await broker.until(lambda: not broker.broker.connected_gateways())
        async with connect_gateway(
            broker.port,
            lambda request: [request.build_response(version=version)],  # noqa: B023 # used in this iteration only
        ) as gateway:
            await harness.poll(seconds=100)
            await harness.poll_until(lambda: gateway.requests and not harness.rpc.pending)
            await harness.poll()
        stored_versions[version] = harness.stored_version
    assert stored_versions == dict.fromkeys(invalid_versions, "2.4.0")
    assert harness.versions.ack_capable == {NUMBER}


async def test_a_version_with_an_error_status_is_ignored(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    async with connect_gateway(
        broker.port, lambda request: [request.build_response(status=3, version="2.4.0")]
    ) as gateway:
        await harness.poll_until(lambda: len(gateway.requests) >= 2)
    assert harness.stored_version is None


async def test_late_repeated_and_foreign_responses_change_nothing(broker: RunningBroker) -> None:
    def respond_with_foreign_messages(request: IncomingRequest) -> list[OutgoingMessage]:
        correct = request.build_response(version="2.4.0")
        foreign = request.build_response(version="2.4.0", id="other-request")
        return [foreign, correct._replace(topic=correct.topic.replace("apiversion", "read/8000")), foreign]

    tracker_harness = TrackerHarness(broker.database, broker.broker, broker.clock, timeout=0.05)
    async with (
        tracker_harness.running() as harness,
        connect_gateway(broker.port, respond_with_foreign_messages) as gateway,
    ):
        await harness.poll_until(lambda: gateway.requests)
        await broker.until(lambda: harness.rpc.pending == 0)
        gateway.publish(gateway.requests[0].build_response(version="2.4.0"))  # too late
        await broker.until(lambda: harness.rpc.response_counts[ResponseMatch.LATE] == 1)
        await harness.poll()
        assert harness.stored_version is None
        gateway.responder = lambda request: [
            request.build_response(version="2.2.0"),
            request.build_response(version="2.4.0"),
        ]
        await harness.poll_until(lambda: harness.stored_version)
        await harness.poll_until(lambda: harness.rpc.response_counts[ResponseMatch.REPEATED])
        await harness.poll()
    assert harness.stored_version == "2.2.0"


async def test_the_number_of_concurrent_requests_is_limited(sqlite_database: Database) -> None:
    macs = [f"{mac_to_int(Mac(G)) + number:012x}" for number in range(60)]
    async with RunningBroker(sqlite_database) as broker:
        for mac in macs:
            await broker.gateway(mac)
        tracker_harness = TrackerHarness(sqlite_database, broker.broker, broker.clock, timeout=0.1)
        max_pending, request_count = 0, 0
        async with tracker_harness.running() as harness:
            for _ in range(10):
                await harness.poll(seconds=2)
                await asyncio.sleep(0)
                max_pending = max(max_pending, harness.rpc.pending)
                request_count += harness.rpc.pending
                await broker.until(lambda: harness.rpc.pending == 0)
    assert max_pending == 20
    assert request_count >= 60


async def test_a_database_outage_is_logged_once_and_no_version_is_lost(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(sqlite_database) as broker:
        claim(sqlite_database)
        tracker_harness = TrackerHarness(sqlite_database, broker.broker, broker.clock)
        async with (
            tracker_harness.running() as harness,
            connect_gateway(broker.port, respond_with_version("2.4.0")),
        ):
            await harness.poll_until(lambda: harness.rpc.response_counts[ResponseMatch.ANSWER])
            with database_outage(sqlite_database):
                for _ in range(5):
                    await harness.poll(seconds=10)
                with pytest.raises(DatabaseUnavailable):
                    await harness.tracker.restore()
            assert caplog.text.count("versions and clock offsets of gateways cannot be stored") == 1
            await harness.poll_until(lambda: harness.stored_version)
    assert harness.versions.ack_capable == {NUMBER}


# --- Acknowledgements and clocks ---


@pytest.mark.rule("version-11")
async def test_gateways_from_2_4_0_on_support_acknowledgements(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    expected = {"1.2.0": False, "2.3.9": False, "2.4.0-beta.1": False, "2.4.0": True, "3.0.0": True}
    supported = {}
    for version in expected:
        await broker.until(lambda: not broker.broker.connected_gateways())
        async with connect_gateway(broker.port, respond_with_version(version)):
            await harness.poll(seconds=100)
            await harness.poll_until(lambda: harness.stored_version == version)  # noqa: B023 # awaited in the same iteration
            await harness.poll(seconds=10)
        supported[version] = harness.versions.ack_capable == {NUMBER}
    assert supported == expected


async def test_downgraded_and_released_gateways_do_not_support_acknowledgements(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    ack_capable = harness.versions.ack_capable
    async with connect_gateway(broker.port, respond_with_version("2.4.0")):
        await harness.poll_until(lambda: ack_capable)
    await broker.until(lambda: not broker.broker.connected_gateways())
    async with connect_gateway(broker.port, respond_with_version("2.0.1")):
        await harness.poll(seconds=100)
        await harness.poll_until(lambda: not ack_capable)
    await broker.until(lambda: not broker.broker.connected_gateways())
    async with connect_gateway(broker.port, respond_with_version("2.5.0")):
        await harness.poll(seconds=100)
        await harness.poll_until(lambda: ack_capable)
        broker.database.write_now(store.release_gateway, Mac(G), by=COMMAND_LINE, now=0)
        await harness.poll_until(lambda: not ack_capable)
    assert ack_capable is harness.versions.ack_capable
    assert harness.versions.get(NUMBER) == Version(1, 2, 0)


@pytest.mark.rule("ack-17")
async def test_without_the_setting_no_gateway_gets_acknowledgements(broker: RunningBroker) -> None:
    tracker_harness = TrackerHarness(broker.database, broker.broker, broker.clock, acks_enabled=False)
    async with (
        tracker_harness.running() as harness,
        connect_gateway(broker.port, respond_with_version("2.4.0")),
    ):
        await harness.poll_until(lambda: harness.stored_version)
        await harness.poll(seconds=10)
    assert harness.versions.ack_capable == set()


def has_stored_offset(harness: TrackerHarness, seconds: int) -> bool:
    """Return whether the stored clock offset is about this many seconds; the test moves the local clock."""
    offset = harness.database.read_now(store.load_gateway, Mac(G)).clock_offset
    return offset is not None and abs(offset - seconds) < 3


@pytest.mark.rule("rest-75", "report-48", "version-10")
async def test_every_response_measures_the_clock_of_its_gateway(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    """Measure a clock that is hours ahead or behind, jumps, drifts, and is right again."""
    assert harness.database.read_now(store.load_gateway, Mac(G)).clock_offset is None
    gateway_offset = 6 * 3600
    async with connect_gateway(
        broker.port,
        lambda request: [
            request.build_response(
                version="2.4.0", time=format_millis(broker.clock() + gateway_offset * 1000)
            )
        ],
    ) as gateway:
        await harness.poll_until(lambda: has_stored_offset(harness, gateway_offset))
        for gateway_offset in (-6 * 3600, 0, 60, 70, 3 * 86_400, 0):
            # A report that is not fresh only shows that the known offset is wrong.
            harness.clocks.is_fresh(NUMBER, 0, harness.clock())
            harness.clock.move(seconds=30)  # the minimum between two requests
            await harness.poll_until(lambda: has_stored_offset(harness, gateway_offset))  # noqa: B023 # awaited in the same iteration
        request_count = len(gateway.requests)
        await harness.poll(seconds=4000)
        await harness.poll_until(lambda: len(gateway.requests) > request_count)  # hourly, suspect or not
    restarted = TrackerHarness(broker.database, broker.broker, broker.clock)
    await restarted.tracker.restore()
    assert list(restarted.clocks.offsets) == [NUMBER]


@pytest.mark.rule("report-48")
async def test_an_offset_is_unconfirmed_after_another_connection_even_if_that_has_ended(
    broker: RunningBroker,
) -> None:
    """Check this because reports of a connection may be processed after it has ended."""
    clocks, confirmed = (
        GatewayClocks(lambda number: broker.broker.last_connection_id(mac_from_int(number))),
        [],
    )
    for measures in (True, False):
        async with connect_gateway(broker.port):
            if measures:
                clocks.measure_offset(NUMBER, 0, 0, 0)
        await broker.until(lambda: not broker.broker.connected_gateways())
        confirmed.append(clocks.is_confirmed(NUMBER))
    assert confirmed == [True, False]
    broker.broker.disconnect_account(Account(kind=AccountKind.GATEWAY, name=G), delete_sessions=True)
    assert broker.broker.last_connection_id(G) == 0


@pytest.mark.rule("report-48")
async def test_offsets_are_corrected_when_the_local_clock_is_set(
    broker: RunningBroker, harness: TrackerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect_gateway(broker.port, respond_with_version("2.4.0", clock=Clock())) as gateway:
        await harness.poll_until(lambda: harness.clocks.offsets)
        request_count, offset_before = len(gateway.requests), harness.clocks.offsets[NUMBER]
        broker.clock.set(seconds=-86_400)
        await harness.poll()
        assert harness.clocks.offsets[NUMBER] == pytest.approx(offset_before + 86_400_000, abs=5000)
        broker.clock.set(seconds=86_400)
        await harness.poll()
        assert harness.clocks.offsets[NUMBER] == pytest.approx(offset_before, abs=5000)
        assert len(gateway.requests) == request_count
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "clock of this machine was set back by 86400 s; clock offsets of gateways are corrected",
        "clock of this machine was set ahead by 86400 s; clock offsets of gateways are corrected",
    ]


@pytest.mark.rule("report-48", "version-10")
async def test_a_gateway_that_stopped_responding_is_measured_by_its_reports(
    broker: RunningBroker,
) -> None:
    broker.database.write_now(store.update_api_versions, {NUMBER: "2.4.0"})
    tracker_harness = TrackerHarness(broker.database, broker.broker, broker.clock, timeout=0.05)
    await tracker_harness.tracker.restore()

    def is_measured(*, hours: int) -> bool:
        now = broker.clock()
        tracker_harness.clocks.is_fresh(NUMBER, now + hours * 3_600_000, now)
        return abs(tracker_harness.clocks.offsets.get(NUMBER, 0) - hours * 3_600_000) < 5000

    async with tracker_harness.running() as harness, connect_gateway(broker.port, never_respond) as gateway:
        await harness.wait_for_requests(gateway, 6)
        await harness.poll_until(partial(is_measured, hours=-6), seconds=60)
    assert harness.versions.get(NUMBER) == Version(2, 4, 0)


async def test_metrics_count_gateways_that_support_acknowledgements(
    broker: RunningBroker, harness: TrackerHarness
) -> None:
    async with connect_gateway(broker.port, respond_with_version("2.4.0")):
        await harness.poll_until(lambda: harness.versions.ack_capable)
    metrics = read_added_metrics(partial(add_gateway_metrics, versions=harness.versions))
    assert metrics == {("meshfleet_gateways_acking",): 1}


# --- Emulated gateways and an external broker ---


@pytest.mark.rule("rest-75", "version-10")
async def test_emulated_gateways_respond_with_their_versions(broker: RunningBroker) -> None:
    versions = {fresh_mac(): version for version in ("1.2.0", "2.0.0", "2.4.0")}
    for mac in versions:
        claim(broker.database, mac)
    tracker_harness = TrackerHarness(broker.database, broker.broker, broker.clock)

    def load_versions() -> dict[Mac, str | None]:
        return {mac: broker.database.read_now(store.load_gateway, mac).api_version for mac in versions}

    async with (
        httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as http,
        tracker_harness.running() as harness,
    ):
        fleet = FleetBuilder(http, speed=100.0)
        for mac, version in versions.items():
            address = BrokerAddress(host="127.0.0.1", port=broker.port, user=mac, password=PASSWORD.decode())
            fleet.add(address, mac, api_version=Version.parse(version))
        async with fleet.run():
            await harness.poll_until(lambda: None not in load_versions().values())
    assert load_versions() == versions


@pytest.mark.rule("version-10")
async def test_on_an_external_broker_the_version_is_requested_after_the_first_report(
    sqlite_database: Database, tmp_path: Path
) -> None:
    claim(sqlite_database)
    with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
        address = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        consumer = StoringConsumer(sqlite_database)
        client = ExternalBrokerClient(address, "meshfleet0123", prefix="", options=PATIENT)
        tracker_harness = TrackerHarness(sqlite_database, client, Clock())
        run_task = asyncio.create_task(client.run(consumer))
        async with (
            tracker_harness.running() as harness,
            connect_gateway(mosquitto.address.port, respond_with_version("2.4.0")) as gateway,
        ):
            await harness.poll(seconds=60)
            batch = ParsedBatch(harness.clock())
            batch.report_gateways.append(NUMBER)
            batch.report_kinds.append("heartbeat")
            assert gateway.requests == []
            harness.traffic.on_commit(batch)
            await harness.poll_until(lambda: harness.stored_version)
        run_task.cancel()
        await asyncio.wait([run_task])
    assert harness.versions.ack_capable == {NUMBER}
