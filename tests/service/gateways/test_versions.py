"""Versions of gateways: asked through a real broker, kept in the table, and believed only if they can be."""

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
from meshfleet.service.gateways.metrics import GatewayMetrics
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.gateways.versions import VersionTracker
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.presence.gateway_clocks import GatewayClocks
from meshfleet.service.requests.rpc import RpcClient
from tests.emulator.runtime.fleet_builder import FleetBuilder, fresh_mac
from tests.eventually import eventually_async
from tests.mqtt.broker.running_broker import PASSWORD, Clock, G, RunningBroker
from tests.servers import Mosquitto
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.external_broker.storing_consumer import PATIENT, StoringConsumer
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.transport import Transport
    from tests.service.requests.scripted_gateway import IncomingRequest, OutgoingMessage, ScriptedGateway

pytestmark = pytest.mark.anyio

NUMBER = mac_to_int(Mac(G))
ANSWERS = 30.0
"""Seconds for those who answer."""
SOON = 4
"""So often a gateway that does not answer is asked within minutes."""


def answer_version(
    version: str, *, clock: Clock | None = None
) -> Callable[[IncomingRequest], list[OutgoingMessage]]:
    """Tell this version, and the time by this clock."""
    return lambda asked: [asked.build_response(version=version, time=format_millis(clock() if clock else 0))]


class TrackerHarness:
    """Versions that look at who is there when a test says so."""

    def __init__(
        self,
        database: Database,
        carrier: Transport,
        clock: Clock,
        *,
        acks: bool = True,
        patience: float = ANSWERS,
    ) -> None:
        self.database = database
        self.clock = clock
        self.clocks = GatewayClocks()
        self.traffic = GatewayTraffic(clock.steady)
        self.rpc = RpcClient(carrier, TopicCodec(), clock, on_clock_sample=self.clocks.measure)
        self.tracker = VersionTracker(
            database,
            self.rpc,
            carrier,
            traffic=self.traffic,
            clocks=self.clocks,
            acks_enabled=acks,
            now=clock,
            steady=clock.steady,
            timeout=patience,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Let it have somebody who cares for its tasks."""
        async with asyncio.TaskGroup() as self._tasks:
            yield self

    async def poll(self, *, seconds: float = 1.0) -> None:
        """Let time pass, and look once."""
        self.clock.move(seconds=seconds)
        await self.tracker.poll(self._tasks)

    async def poll_until(self, holds: Callable[[], object], *, seconds: float = 1.0) -> None:
        """Look until something holds, and let so much time pass before each look."""

        async def look() -> bool:
            if holds():
                return True
            await self.poll(seconds=seconds)
            return False

        await eventually_async(look, "what is looked for while time passes")

    @property
    def shown_version(self) -> str | None:
        """The version of the gateway as REST shows it."""
        return self.database.read_now(store.load_gateway, Mac(G)).api_version

    async def wait_for_requests(self, third: ScriptedGateway, times: int) -> None:
        """Let a gateway that does not answer be asked so many times: some soon, and then hourly."""
        for asked in range(1, times + 1):
            seconds = 1.0 if asked == 1 else 30.0 if asked <= SOON else 600.0
            await self.poll_until(lambda: len(third.requests) >= asked, seconds=seconds)  # noqa: B023 # waited for here
            await eventually_async(lambda: self.rpc.pending == 0, "its time is over")


def claim(database: Database, mac: str = G) -> None:
    database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)


@pytest.fixture
async def stage(database: Database) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(database) as running:
        claim(database)
        yield running


@pytest.fixture
async def watched(stage: RunningBroker) -> AsyncIterator[TrackerHarness]:
    async with TrackerHarness(stage.database, stage.broker, stage.clock).running() as made:
        yield made


# --- Asking ---


@pytest.mark.rule("rest-75", "version-10", "version-11")
async def test_a_gateway_that_connects_is_asked_and_its_version_is_kept(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    assert watched.tracker.get(NUMBER) == Version(1, 2, 0)
    async with connect_gateway(stage.port, answer_version("2.3.0")) as third:
        await watched.poll_until(lambda: watched.shown_version)
        assert [asked.topic_suffix for asked in third.requests] == [f"{G}/apiversion"]
    assert watched.shown_version == "2.3.0"
    assert watched.tracker.get(NUMBER) == Version(2, 3, 0)
    after = TrackerHarness(stage.database, stage.broker, stage.clock)
    await after.tracker.restore()
    assert after.tracker.get(NUMBER) == Version(2, 3, 0)


@pytest.mark.rule("version-10", "version-11")
async def test_a_gateway_that_never_answers_is_asked_hourly_and_counts_as_the_oldest(
    stage: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "meshfleet.service")
    watching = TrackerHarness(stage.database, stage.broker, stage.clock, patience=0.05)
    async with watching.running() as watched, connect_gateway(stage.port, never_respond) as third:
        await watched.wait_for_requests(third, 6)
        assert watched.tracker.ack_capable == set()
        assert watched.tracker.get(NUMBER) == Version(1, 2, 0)
    assert watched.shown_version is None
    assert not [record for record in caplog.records if record.name.startswith("meshfleet.service")]


async def test_a_version_that_cannot_be_is_not_believed(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    wrong = [
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
    async with connect_gateway(stage.port, answer_version("2.4.0")):
        await watched.poll_until(lambda: watched.shown_version)
    shown = {}
    for version in wrong:
        await stage.until(lambda: not stage.broker.connected_gateways())
        async with connect_gateway(
            stage.port,
            lambda asked: [asked.build_response(version=version)],  # noqa: B023 # used in this round only
        ) as third:
            await watched.poll(seconds=100)
            await watched.poll_until(lambda: third.requests and not watched.rpc.pending)  # waited for here
            await watched.poll()
        shown[version] = watched.shown_version
    assert shown == dict.fromkeys(wrong, "2.4.0")
    assert watched.tracker.ack_capable == {NUMBER}


async def test_a_refusal_is_no_version(stage: RunningBroker, watched: TrackerHarness) -> None:
    async with connect_gateway(
        stage.port, lambda asked: [asked.build_response(status=3, version="2.4.0")]
    ) as third:
        await watched.poll_until(lambda: len(third.requests) >= 2)
    assert watched.shown_version is None


async def test_answers_that_are_late_twice_or_for_others_change_nothing(stage: RunningBroker) -> None:
    def confused(asked: IncomingRequest) -> list[OutgoingMessage]:
        right = asked.build_response(version="2.4.0")
        wrong = asked.build_response(version="2.4.0", id="somebody-else")
        return [wrong, right._replace(topic=right.topic.replace("apiversion", "read/8000")), wrong]

    watching = TrackerHarness(stage.database, stage.broker, stage.clock, patience=0.05)
    async with watching.running() as watched, connect_gateway(stage.port, confused) as third:
        await watched.poll_until(lambda: third.requests)
        await stage.until(lambda: watched.rpc.pending == 0)
        third.publish(third.requests[0].build_response(version="2.4.0"))  # too late
        await stage.until(lambda: watched.rpc.response_counts[ResponseMatch.LATE] == 1)
        await watched.poll()
        assert watched.shown_version is None
        third.responder = lambda asked: [
            asked.build_response(version="2.2.0"),
            asked.build_response(version="2.4.0"),
        ]
        await watched.poll_until(lambda: watched.shown_version)
        await watched.poll_until(lambda: watched.rpc.response_counts[ResponseMatch.REPEATED])
        await watched.poll()
    assert watched.shown_version == "2.2.0"


async def test_only_so_many_are_asked_at_once(sqlite_database: Database) -> None:
    macs = [f"{mac_to_int(Mac(G)) + number:012x}" for number in range(60)]
    async with RunningBroker(sqlite_database) as stage:
        for mac in macs:
            await stage.gateway(mac)
        watching = TrackerHarness(sqlite_database, stage.broker, stage.clock, patience=0.1)
        most, ended = 0, 0
        async with watching.running() as watched:
            for _ in range(10):
                await watched.poll(seconds=2)
                await asyncio.sleep(0)
                most = max(most, watched.rpc.pending)
                ended += watched.rpc.pending
                await stage.until(lambda: watched.rpc.pending == 0)
    assert most == 20
    assert ended >= 60
    sqlite_database.close()


async def test_a_database_that_is_away_is_told_of_once_and_nothing_is_lost(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunningBroker(sqlite_database) as stage:
        claim(sqlite_database)
        watching = TrackerHarness(sqlite_database, stage.broker, stage.clock)
        async with watching.running() as watched, connect_gateway(stage.port, answer_version("2.4.0")):
            await watched.poll_until(lambda: watched.rpc.response_counts[ResponseMatch.ANSWER])
            with database_outage(sqlite_database):
                for _ in range(5):
                    await watched.poll(seconds=10)
                with pytest.raises(DatabaseUnavailable):
                    await watched.tracker.restore()
            assert caplog.text.count("versions and clock offsets of gateways cannot be stored") == 1
            await watched.poll_until(lambda: watched.shown_version)
    assert watched.tracker.ack_capable == {NUMBER}
    sqlite_database.close()


# --- What follows from it ---


@pytest.mark.rule("version-11")
async def test_gateways_from_2_4_0_on_take_acknowledgements(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    takes_acks = {"1.2.0": False, "2.3.9": False, "2.4.0-beta.1": False, "2.4.0": True, "3.0.0": True}
    found = {}
    for version in takes_acks:
        await stage.until(lambda: not stage.broker.connected_gateways())
        async with connect_gateway(stage.port, answer_version(version)):
            await watched.poll(seconds=100)
            await watched.poll_until(lambda: watched.shown_version == version)  # noqa: B023 # waited for here
            await watched.poll(seconds=10)
        found[version] = watched.tracker.ack_capable == {NUMBER}
    assert found == takes_acks


async def test_a_gateway_that_tells_an_older_version_leaves_and_one_that_is_released_too(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    acking = watched.tracker.ack_capable
    async with connect_gateway(stage.port, answer_version("2.4.0")):
        await watched.poll_until(lambda: acking)
    await stage.until(lambda: not stage.broker.connected_gateways())
    async with connect_gateway(stage.port, answer_version("2.0.1")):
        await watched.poll(seconds=100)
        await watched.poll_until(lambda: not acking)
    await stage.until(lambda: not stage.broker.connected_gateways())
    async with connect_gateway(stage.port, answer_version("2.5.0")):
        await watched.poll(seconds=100)
        await watched.poll_until(lambda: acking)
        stage.database.write_now(store.release_gateway, Mac(G), by=COMMAND_LINE, now=0)
        await watched.poll_until(lambda: not acking)
    assert acking is watched.tracker.ack_capable
    assert watched.tracker.get(NUMBER) == Version(1, 2, 0)


@pytest.mark.rule("ack-17")
async def test_without_the_setting_nobody_takes_acknowledgements(stage: RunningBroker) -> None:
    watching = TrackerHarness(stage.database, stage.broker, stage.clock, acks=False)
    async with watching.running() as watched, connect_gateway(stage.port, answer_version("2.4.0")):
        await watched.poll_until(lambda: watched.shown_version)
        await watched.poll(seconds=10)
    assert watched.tracker.ack_capable == set()


def is_ahead(watched: TrackerHarness, seconds: int) -> bool:
    """Whether REST shows that the clock of the gateway is ahead by so much; the test moves the other one."""
    offset = watched.database.read_now(store.load_gateway, Mac(G)).clock_offset
    return offset is not None and abs(offset - seconds) < 3


@pytest.mark.rule("rest-75", "report-48", "version-10")
async def test_every_answer_measures_the_clock_of_its_gateway(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    """It is shown whatever it is: hours ahead or behind, jumping, drifting, and right again."""
    assert watched.database.read_now(store.load_gateway, Mac(G)).clock_offset is None
    theirs = 6 * 3600
    async with connect_gateway(
        stage.port,
        lambda asked: [
            asked.build_response(version="2.4.0", time=format_millis(stage.clock() + theirs * 1000))
        ],
    ) as third:
        await watched.poll_until(lambda: is_ahead(watched, theirs))
        for theirs in (-6 * 3600, 0, 60, 70, 3 * 86_400, 0):
            # What it reports tells that something is wrong with what is known of its clock, and no more.
            watched.clocks.is_fresh(NUMBER, 0, watched.clock())
            watched.clock.move(seconds=30)  # it is not asked more often
            await watched.poll_until(lambda: is_ahead(watched, theirs))  # noqa: B023 # it is waited for here
        asked = len(third.requests)
        await watched.poll(seconds=4000)
        await watched.poll_until(lambda: len(third.requests) > asked)  # hourly, in doubt or not
    after = TrackerHarness(stage.database, stage.broker, stage.clock)
    await after.tracker.restore()
    assert list(after.clocks.offsets) == [NUMBER]


@pytest.mark.rule("report-48")
async def test_an_offset_is_not_proved_after_another_connection_though_it_has_ended(
    stage: RunningBroker,
) -> None:
    """What came on a connection may be read when that has ended already."""
    clocks, found = (
        GatewayClocks(lambda number: stage.broker.last_connection_number(mac_from_int(number))),
        [],
    )
    for measures in (True, False):
        async with connect_gateway(stage.port):
            if measures:
                clocks.measure(NUMBER, 0, 0, 0)
        await stage.until(lambda: not stage.broker.connected_gateways())
        found.append(clocks.is_confirmed(NUMBER))
    assert found == [True, False]
    stage.broker.disconnect_account(Account(kind=AccountKind.GATEWAY, name=G), delete_sessions=True)
    assert stage.broker.last_connection_number(G) == 0


@pytest.mark.rule("report-48")
async def test_when_our_own_clock_is_set_no_gateway_seems_wrong_for_long(
    stage: RunningBroker, watched: TrackerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect_gateway(stage.port, answer_version("2.4.0", clock=Clock())) as third:
        await watched.poll_until(lambda: watched.clocks.offsets)
        asked, before = len(third.requests), watched.clocks.offsets[NUMBER]
        stage.clock.set(seconds=-86_400)
        await watched.poll()
        assert watched.clocks.offsets[NUMBER] == pytest.approx(before + 86_400_000, abs=5000)
        stage.clock.set(seconds=86_400)
        await watched.poll()
        assert watched.clocks.offsets[NUMBER] == pytest.approx(before, abs=5000)
        assert len(third.requests) == asked
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "clock of this machine was set back by 86400 s, clock offsets of gateways are corrected",
        "clock of this machine was set ahead by 86400 s, clock offsets of gateways are corrected",
    ]


@pytest.mark.rule("report-48", "version-10")
async def test_a_gateway_that_has_stopped_answering_is_asked_hourly_and_measured_by_its_reports(
    stage: RunningBroker,
) -> None:
    stage.database.write_now(store.update_api_versions, {NUMBER: "2.4.0"})
    watching = TrackerHarness(stage.database, stage.broker, stage.clock, patience=0.05)
    await watching.tracker.restore()

    def is_measured(*, hours: int) -> bool:
        now = stage.clock()
        watching.clocks.is_fresh(NUMBER, now + hours * 3_600_000, now)
        return abs(watching.clocks.offsets.get(NUMBER, 0) - hours * 3_600_000) < 5000

    async with watching.running() as watched, connect_gateway(stage.port, never_respond) as third:
        await watched.wait_for_requests(third, 6)
        await watched.poll_until(partial(is_measured, hours=-6), seconds=60)
    assert watched.tracker.get(NUMBER) == Version(2, 4, 0)


async def test_figures_tell_how_many_take_acknowledgements(
    stage: RunningBroker, watched: TrackerHarness
) -> None:
    async with connect_gateway(stage.port, answer_version("2.4.0")):
        await watched.poll_until(lambda: watched.tracker.ack_capable)
    found = {
        sample.name: sample.value
        for family in GatewayMetrics(watched.tracker).collect()
        for sample in family.samples
    }
    assert found == {"meshfleet_gateways_acking": 1}


# --- With others ---


@pytest.mark.rule("rest-75", "version-10")
async def test_emulated_gateways_tell_their_versions(stage: RunningBroker) -> None:
    versions = {fresh_mac(): version for version in ("1.2.0", "2.0.0", "2.4.0")}
    for mac in versions:
        claim(stage.database, mac)
    watching = TrackerHarness(stage.database, stage.broker, stage.clock)

    def shown() -> dict[Mac, str | None]:
        return {mac: stage.database.read_now(store.load_gateway, mac).api_version for mac in versions}

    async with httpx.AsyncClient(trust_env=False) as http, watching.running() as watched:
        crew = FleetBuilder(http, speed=100.0)
        for mac, version in versions.items():
            place = BrokerAddress(host="127.0.0.1", port=stage.port, user=mac, password=PASSWORD.decode())
            crew.add(place, mac, api_version=Version.parse(version))
        async with crew.run():
            await watched.poll_until(lambda: None not in shown().values())
    assert shown() == versions


@pytest.mark.rule("version-10")
async def test_on_another_broker_a_gateway_is_asked_when_it_is_first_heard(
    sqlite_database: Database, tmp_path: Path
) -> None:
    claim(sqlite_database)
    with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
        place = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        shelf = StoringConsumer(sqlite_database)
        outside = ExternalBrokerClient(place, "meshfleet0123", prefix="", consumer=shelf, options=PATIENT)
        watching = TrackerHarness(sqlite_database, outside, Clock())
        running = asyncio.create_task(outside.run())
        async with (
            watching.running() as watched,
            connect_gateway(mosquitto.address.port, answer_version("2.4.0")) as third,
        ):
            await watched.poll(seconds=60)
            heard = ParsedBatch(watched.clock())
            heard.report_gateways.append(NUMBER)
            heard.report_kinds.append("heartbeat")
            assert third.requests == []
            watched.traffic.on_commit(heard)
            await watched.poll_until(lambda: watched.shown_version)
        running.cancel()
        await asyncio.wait([running])
    assert watched.tracker.ack_capable == {NUMBER}
    sqlite_database.close()
