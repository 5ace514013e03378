"""Versions of gateways: asked through a real broker, kept in the table, and believed only if they can be."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import httpx
import pytest

from meshfleet.broker.access import Account, Kind
from meshfleet.errors import DatabaseUnavailable
from meshfleet.link import Address
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.gateways import store
from meshfleet.service.gateways.figures import GatewayFigures
from meshfleet.service.gateways.traffic import Traffic
from meshfleet.service.gateways.versions import Versions
from meshfleet.service.ingest.draft import Draft
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.presence.clocks import Clocks
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.exchange import Fate
from meshfleet.wire.ids import Mac, Version, mac_number, number_mac
from meshfleet.wire.times import write_millis
from meshfleet.wire.topics import Topics
from tests.broker.stage import PASSWORD, Clock, G, Stage
from tests.eventually import eventually_async
from tests.gateway.online.running import Crew, fresh_mac
from tests.servers import Mosquitto
from tests.service.mqtt.house import away
from tests.service.mqtt.shelf import PATIENT, Shelf
from tests.service.requests.third_party import gateway, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.service.mqtt.carrier import Carrier
    from tests.service.requests.third_party import Asked, Gateway, Said

pytestmark = pytest.mark.anyio

NUMBER = mac_number(Mac(G))
ANSWERS = 30.0
"""Seconds for those who answer."""
SOON = 4
"""So often a gateway that does not answer is asked within minutes."""


def telling(version: str, *, clock: Clock | None = None) -> Callable[[Asked], list[Said]]:
    """Tell this version, and the time by this clock."""
    return lambda asked: [asked.answer(version=version, time=write_millis(clock() if clock else 0))]


class Watched:
    """Versions that look at who is there when a test says so."""

    def __init__(
        self,
        database: Database,
        carrier: Carrier,
        clock: Clock,
        *,
        acks: bool = True,
        patience: float = ANSWERS,
    ) -> None:
        self.database = database
        self.clock = clock
        self.clocks = Clocks()
        self.traffic = Traffic(clock.steady)
        self.asking = Asking(carrier, Topics(), clock, measure=self.clocks.measure)
        self.versions = Versions(
            database,
            self.asking,
            carrier,
            traffic=self.traffic,
            clocks=self.clocks,
            acks=acks,
            now=clock,
            steady=clock.steady,
            patience=patience,
        )

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Self]:
        """Let it have somebody who cares for its tasks."""
        async with asyncio.TaskGroup() as self._tasks:
            yield self

    async def look(self, *, seconds: float = 1.0) -> None:
        """Let time pass, and look once."""
        self.clock.move(seconds=seconds)
        await self.versions.look(self._tasks)

    async def look_until(self, holds: Callable[[], object], *, seconds: float = 1.0) -> None:
        """Look until something holds, and let so much time pass before each look."""

        async def look() -> bool:
            if holds():
                return True
            await self.look(seconds=seconds)
            return False

        await eventually_async(look, "what is looked for while time passes")

    @property
    def shown(self) -> str | None:
        """The version of the gateway as REST shows it."""
        return self.database.read_now(store.show, Mac(G)).api_version

    async def be_asked(self, third: Gateway, times: int) -> None:
        """Let a gateway that does not answer be asked so many times: some soon, and then hourly."""
        for asked in range(1, times + 1):
            seconds = 1.0 if asked == 1 else 30.0 if asked <= SOON else 600.0
            await self.look_until(lambda: len(third.asked) >= asked, seconds=seconds)  # noqa: B023 # waited for here
            await eventually_async(lambda: self.asking.pending == 0, "its time is over")


def claim(database: Database, mac: str = G) -> None:
    database.write_now(store.claim, Mac(mac), name=None, by=COMMAND_LINE, now=0)


@pytest.fixture
async def stage(database: Database) -> AsyncIterator[Stage]:
    async with Stage(database) as running:
        claim(database)
        yield running


@pytest.fixture
async def watched(stage: Stage) -> AsyncIterator[Watched]:
    async with Watched(stage.database, stage.broker, stage.clock).looking() as made:
        yield made


# --- Asking ---


@pytest.mark.rule("rest-75", "version-10", "version-11")
async def test_a_gateway_that_connects_is_asked_and_its_version_is_kept(
    stage: Stage, watched: Watched
) -> None:
    assert watched.versions.version(NUMBER) == Version(1, 2, 0)
    async with gateway(stage.port, telling("2.3.0")) as third:
        await watched.look_until(lambda: watched.shown)
        assert [asked.end for asked in third.asked] == [f"{G}/apiversion"]
    assert watched.shown == "2.3.0"
    assert watched.versions.version(NUMBER) == Version(2, 3, 0)
    after = Watched(stage.database, stage.broker, stage.clock)
    await after.versions.restore()
    assert after.versions.version(NUMBER) == Version(2, 3, 0)


@pytest.mark.rule("version-10", "version-11")
async def test_a_gateway_that_never_answers_is_asked_hourly_and_counts_as_the_oldest(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "meshfleet.service")
    watching = Watched(stage.database, stage.broker, stage.clock, patience=0.05)
    async with watching.looking() as watched, gateway(stage.port, nothing) as third:
        await watched.be_asked(third, 6)
        assert watched.versions.acking == set()
        assert watched.versions.version(NUMBER) == Version(1, 2, 0)
    assert watched.shown is None
    assert not [record for record in caplog.records if record.name.startswith("meshfleet.service")]


async def test_a_version_that_cannot_be_is_not_believed(stage: Stage, watched: Watched) -> None:
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
    async with gateway(stage.port, telling("2.4.0")):
        await watched.look_until(lambda: watched.shown)
    shown = {}
    for version in wrong:
        await stage.until(lambda: not stage.broker.gateways())
        async with gateway(stage.port, lambda asked: [asked.answer(version=version)]) as third:  # noqa: B023 # waited for here
            await watched.look(seconds=100)
            await watched.look_until(lambda: third.asked and not watched.asking.pending)  # waited for here
            await watched.look()
        shown[version] = watched.shown
    assert shown == dict.fromkeys(wrong, "2.4.0")
    assert watched.versions.acking == {NUMBER}


async def test_a_refusal_is_no_version(stage: Stage, watched: Watched) -> None:
    async with gateway(stage.port, lambda asked: [asked.answer(status=3, version="2.4.0")]) as third:
        await watched.look_until(lambda: len(third.asked) >= 2)
    assert watched.shown is None


async def test_answers_that_are_late_twice_or_for_others_change_nothing(stage: Stage) -> None:
    def confused(asked: Asked) -> list[Said]:
        right = asked.answer(version="2.4.0")
        wrong = asked.answer(version="2.4.0", id="somebody-else")
        return [wrong, right._replace(topic=right.topic.replace("apiversion", "read/8000")), wrong]

    watching = Watched(stage.database, stage.broker, stage.clock, patience=0.05)
    async with watching.looking() as watched, gateway(stage.port, confused) as third:
        await watched.look_until(lambda: third.asked)
        await stage.until(lambda: watched.asking.pending == 0)
        third.say(third.asked[0].answer(version="2.4.0"))  # too late
        await stage.until(lambda: watched.asking.heard[Fate.LATE] == 1)
        await watched.look()
        assert watched.shown is None
        third.manner = lambda asked: [asked.answer(version="2.2.0"), asked.answer(version="2.4.0")]
        await watched.look_until(lambda: watched.shown)
        await watched.look_until(lambda: watched.asking.heard[Fate.REPEATED])
        await watched.look()
    assert watched.shown == "2.2.0"


async def test_only_so_many_are_asked_at_once(sqlite_database: Database) -> None:
    macs = [f"{mac_number(Mac(G)) + number:012x}" for number in range(60)]
    async with Stage(sqlite_database) as stage:
        for mac in macs:
            await stage.gateway(mac)
        watching = Watched(sqlite_database, stage.broker, stage.clock, patience=0.1)
        most, ended = 0, 0
        async with watching.looking() as watched:
            for _ in range(10):
                await watched.look(seconds=2)
                await asyncio.sleep(0)
                most = max(most, watched.asking.pending)
                ended += watched.asking.pending
                await stage.until(lambda: watched.asking.pending == 0)
    assert most == 20
    assert ended >= 60
    sqlite_database.close()


async def test_a_database_that_is_away_is_told_of_once_and_nothing_is_lost(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with Stage(sqlite_database) as stage:
        claim(sqlite_database)
        watching = Watched(sqlite_database, stage.broker, stage.clock)
        async with watching.looking() as watched, gateway(stage.port, telling("2.4.0")):
            await watched.look_until(lambda: watched.asking.heard[Fate.ANSWER])
            with away(sqlite_database):
                for _ in range(5):
                    await watched.look(seconds=10)
                with pytest.raises(DatabaseUnavailable):
                    await watched.versions.restore()
            assert caplog.text.count("versions of gateways cannot be kept") == 1
            await watched.look_until(lambda: watched.shown)
    assert watched.versions.acking == {NUMBER}
    sqlite_database.close()


# --- What follows from it ---


@pytest.mark.rule("version-11")
async def test_gateways_from_2_4_0_on_take_acknowledgements(stage: Stage, watched: Watched) -> None:
    takes_acks = {"1.2.0": False, "2.3.9": False, "2.4.0-beta.1": False, "2.4.0": True, "3.0.0": True}
    found = {}
    for version in takes_acks:
        await stage.until(lambda: not stage.broker.gateways())
        async with gateway(stage.port, telling(version)):
            await watched.look(seconds=100)
            await watched.look_until(lambda: watched.shown == version)  # noqa: B023 # waited for here
            await watched.look(seconds=10)
        found[version] = watched.versions.acking == {NUMBER}
    assert found == takes_acks


async def test_a_gateway_that_tells_an_older_version_leaves_and_one_that_is_released_too(
    stage: Stage, watched: Watched
) -> None:
    acking = watched.versions.acking
    async with gateway(stage.port, telling("2.4.0")):
        await watched.look_until(lambda: acking)
    await stage.until(lambda: not stage.broker.gateways())
    async with gateway(stage.port, telling("2.0.1")):
        await watched.look(seconds=100)
        await watched.look_until(lambda: not acking)
    await stage.until(lambda: not stage.broker.gateways())
    async with gateway(stage.port, telling("2.5.0")):
        await watched.look(seconds=100)
        await watched.look_until(lambda: acking)
        stage.database.write_now(store.release, Mac(G), by=COMMAND_LINE, now=0)
        await watched.look_until(lambda: not acking)
    assert acking is watched.versions.acking
    assert watched.versions.version(NUMBER) == Version(1, 2, 0)


@pytest.mark.rule("ack-17")
async def test_without_the_setting_nobody_takes_acknowledgements(stage: Stage) -> None:
    watching = Watched(stage.database, stage.broker, stage.clock, acks=False)
    async with watching.looking() as watched, gateway(stage.port, telling("2.4.0")):
        await watched.look_until(lambda: watched.shown)
        await watched.look(seconds=10)
    assert watched.versions.acking == set()


def is_ahead(watched: Watched, seconds: int) -> bool:
    """Whether REST shows that the clock of the gateway is ahead by so much; the test moves the other one."""
    offset = watched.database.read_now(store.show, Mac(G)).clock_offset
    return offset is not None and abs(offset - seconds) < 3


@pytest.mark.rule("rest-75", "report-48", "version-10")
async def test_every_answer_measures_the_clock_of_its_gateway(stage: Stage, watched: Watched) -> None:
    """It is shown whatever it is: hours ahead or behind, jumping, drifting, and right again."""
    assert watched.database.read_now(store.show, Mac(G)).clock_offset is None
    theirs = 6 * 3600
    async with gateway(
        stage.port,
        lambda asked: [asked.answer(version="2.4.0", time=write_millis(stage.clock() + theirs * 1000))],
    ) as third:
        await watched.look_until(lambda: is_ahead(watched, theirs))
        for theirs in (-6 * 3600, 0, 60, 70, 3 * 86_400, 0):
            # What it reports tells that something is wrong with what is known of its clock, and no more.
            watched.clocks.is_fresh(NUMBER, 0, watched.clock())
            watched.clock.move(seconds=30)  # it is not asked more often
            await watched.look_until(lambda: is_ahead(watched, theirs))  # noqa: B023 # it is waited for here
        asked = len(third.asked)
        await watched.look(seconds=4000)
        await watched.look_until(lambda: len(third.asked) > asked)  # hourly, in doubt or not
    after = Watched(stage.database, stage.broker, stage.clock)
    await after.versions.restore()
    assert list(after.clocks.offsets) == [NUMBER]


@pytest.mark.rule("report-48")
async def test_an_offset_is_not_proved_after_another_connection_though_it_has_ended(stage: Stage) -> None:
    """What came on a connection may be read when that has ended already."""
    clocks, found = Clocks(lambda number: stage.broker.last_turn(number_mac(number))), []
    for measures in (True, False):
        async with gateway(stage.port):
            if measures:
                clocks.measure(NUMBER, 0, 0, 0)
        await stage.until(lambda: not stage.broker.gateways())
        found.append(clocks.is_proved(NUMBER))
    assert found == [True, False]
    stage.broker.expel(Account(kind=Kind.GATEWAY, name=G), forget=True)
    assert stage.broker.last_turn(G) == 0


@pytest.mark.rule("report-48")
async def test_when_our_own_clock_is_set_no_gateway_seems_wrong_for_long(
    stage: Stage, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(stage.port, telling("2.4.0", clock=Clock())) as third:
        await watched.look_until(lambda: watched.clocks.offsets)
        asked, before = len(third.asked), watched.clocks.offsets[NUMBER]
        stage.clock.set(seconds=-86_400)
        await watched.look()
        assert watched.clocks.offsets[NUMBER] == pytest.approx(before + 86_400_000, abs=5000)
        stage.clock.set(seconds=86_400)
        await watched.look()
        assert watched.clocks.offsets[NUMBER] == pytest.approx(before, abs=5000)
        assert len(third.asked) == asked
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "the clock of this machine was set back by 86400 s",
        "the clock of this machine was set ahead by 86400 s",
    ]


@pytest.mark.rule("report-48", "version-10")
async def test_a_gateway_that_has_stopped_answering_is_asked_hourly_and_measured_by_its_reports(
    stage: Stage,
) -> None:
    stage.database.write_now(store.set_api_versions, {NUMBER: "2.4.0"})
    watching = Watched(stage.database, stage.broker, stage.clock, patience=0.05)
    await watching.versions.restore()

    def is_measured(*, hours: int) -> bool:
        now = stage.clock()
        watching.clocks.is_fresh(NUMBER, now + hours * 3_600_000, now)
        return abs(watching.clocks.offsets.get(NUMBER, 0) - hours * 3_600_000) < 5000

    async with watching.looking() as watched, gateway(stage.port, nothing) as third:
        await watched.be_asked(third, 6)
        await watched.look_until(partial(is_measured, hours=-6), seconds=60)
    assert watched.versions.version(NUMBER) == Version(2, 4, 0)


async def test_figures_tell_how_many_take_acknowledgements(stage: Stage, watched: Watched) -> None:
    async with gateway(stage.port, telling("2.4.0")):
        await watched.look_until(lambda: watched.versions.acking)
    found = {
        sample.name: sample.value
        for family in GatewayFigures(watched.versions).collect()
        for sample in family.samples
    }
    assert found == {"meshfleet_gateways_acking": 1}


# --- With others ---


@pytest.mark.rule("rest-75", "version-10")
async def test_emulated_gateways_tell_their_versions(stage: Stage) -> None:
    versions = {fresh_mac(): version for version in ("1.2.0", "2.0.0", "2.4.0")}
    for mac in versions:
        claim(stage.database, mac)
    watching = Watched(stage.database, stage.broker, stage.clock)

    def shown() -> dict[Mac, str | None]:
        return {mac: stage.database.read_now(store.show, mac).api_version for mac in versions}

    async with httpx.AsyncClient(trust_env=False) as http, watching.looking() as watched:
        crew = Crew(http, speed=100.0)
        for mac, version in versions.items():
            place = Address(host="127.0.0.1", port=stage.port, user=mac, password=PASSWORD.decode())
            crew.add(place, mac, api_version=Version.parse(version))
        async with crew.run():
            await watched.look_until(lambda: None not in shown().values())
    assert shown() == versions


@pytest.mark.rule("version-10")
async def test_on_another_broker_a_gateway_is_asked_when_it_is_first_heard(
    sqlite_database: Database, tmp_path: Path
) -> None:
    claim(sqlite_database)
    with Mosquitto(tmp_path, "set_tcp_nodelay true") as mosquitto:
        place = Address(host=mosquitto.address.host, port=mosquitto.address.port)
        shelf = Shelf(sqlite_database)
        outside = Outside(place, "meshfleet0123", prefix="", consumer=shelf, options=PATIENT)
        watching = Watched(sqlite_database, outside, Clock())
        running = asyncio.create_task(outside.run())
        async with watching.looking() as watched, gateway(mosquitto.address.port, telling("2.4.0")) as third:
            await watched.look(seconds=60)
            heard = Draft(watched.clock())
            heard.gateways.append(NUMBER)
            heard.seen.append("heartbeat")
            assert third.asked == []
            watched.traffic.follow(heard)
            await watched.look_until(lambda: watched.shown)
        running.cancel()
        await asyncio.wait([running])
    assert watched.versions.acking == {NUMBER}
    sqlite_database.close()
