"""Through which gateway a device is asked, with real minutes, a real registry and a real broker."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from meshfleet.db.samples import NO_SEQ, More, Sample, SampleKind, open_samples
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.service.accounts.model import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups, Shown
from meshfleet.service.requests.gateway_selection import FailedTries, hearings_of
from meshfleet.service.requests.gateway_selector import GatewaySelector
from meshfleet.wire.ids import Mac, mac_number
from tests.broker.stage import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.db.samples import Rows, SampleStore
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.service.requests.gateway_selector import Route

pytestmark = pytest.mark.anyio

A, B, C = (Mac(f"02005e00000{number}") for number in (1, 2, 3))
DEVICE = Mac("c0ffee0000a1")
MINUTE = 60_000
_parents = count(0xC0FFEE00F001)


def _minute(at: int, *, unreachable: bool) -> More:
    """What is kept of a minute."""
    shown = Shown(count=1, min=-50, max=-50, last=-50, last_at=at, unreachable=unreachable)
    return More(ext=msgspec.json.encode(shown).decode())


class Elsewhere:
    """As a broker of somebody else is seen: nobody tells who is connected."""

    muted = None

    def send(self, messages: object) -> None:
        raise NotImplementedError

    async def offer(self, message: object) -> None:
        raise NotImplementedError

    def listen(self, wanted: str, heard: object) -> object:
        raise NotImplementedError

    def gateways(self) -> None:
        return

    def turn(self, gateway: str) -> None:  # noqa: ARG002 # whoever it is
        return

    last_turn = turn


class Map:
    """A broker, a registry and minutes, and how tests change them."""

    def __init__(self, stage: Stage, samples: SampleStore) -> None:
        self.stage = stage
        self._samples = samples
        self.rollups = Rollups()
        self.failures = FailedTries(stage.clock)
        self.selector = self._selector(stage.broker)
        self.elsewhere = self._selector(Elsewhere())

    def _selector(self, carrier: Carrier) -> GatewaySelector:
        return GatewaySelector(
            self.stage.database,
            self._samples,
            carrier,
            rollups=self.rollups,
            failures=self.failures,
            now=self.stage.clock,
        )

    def claim(self, *macs: Mac) -> None:
        for mac in macs:
            self.stage.database.write_now(
                gateways.claim, mac, name=None, by=COMMAND_LINE, now=self.stage.clock()
            )

    def sight(self, device: Mac, **facts: object) -> None:
        sighting = Sighting(device=device, at=self.stage.clock(), **facts)  # type: ignore[arg-type] # by its names
        self.stage.database.write_now(registry.observe, [sighting])

    def hear(
        self,
        gateway: Mac,
        rssi: float,
        *,
        minutes_ago: float = 2,
        parent: int | None = None,
        unreachable: bool = False,
    ) -> None:
        """Let the device have been heard behind a gateway."""
        now = self.stage.clock()
        at = round(now - minutes_ago * MINUTE)
        link = Sample(
            at,
            SampleKind.LINK,
            next(_parents) if parent is None else parent,
            NO_SEQ,
            mac_number(gateway),
            rssi,
            None,
            _minute(at, unreachable=unreachable),
        )
        self.store({mac_number(DEVICE): [astuple(link)]})

    def store(self, rows: Rows) -> None:
        number = self.stage.database.write_now(self._samples.write, rows, self.stage.clock())
        self._samples.committed(number, rows)

    def hear_now(self, gateway: Mac, rssi: int | None, *, parent: int = 9) -> None:
        """Let the device be heard in the minute under route; None: by a heartbeat."""
        number, now = mac_number(DEVICE), self.stage.clock()
        reading = (
            (ReadingKind.HEARTBEAT, number, mac_number(gateway), now, 0, 0, False)
            if rssi is None
            else (ReadingKind.LINK, number, mac_number(gateway), now, rssi, parent, False)
        )
        self.rollups.add(1, [reading], now)

    def wait(self) -> None:
        """Let so much time pass that nothing is remembered."""
        self.stage.clock.move(seconds=5)

    async def find(self, gateway: Mac | None = None, device: Mac = DEVICE) -> Route:
        return await self.selector.select(device, gateway)


@pytest.fixture
async def place(database: Database, tmp_path: Path) -> AsyncIterator[Map]:
    async with Stage(database) as stage:
        with closing(open_samples(database, tmp_path, {}, now=stage.clock())) as samples:
            made = Map(stage, samples)
            made.claim(A, B, C)
            made.sight(DEVICE)
            yield made


def shown(route: Route) -> list[tuple[str, bool, float | None]]:
    return [(each.gateway, each.connected, each.rssi) for each in route.choice.candidates]


@pytest.mark.rule("rest-102", "rest-193")
async def test_the_one_is_taken_that_heard_the_device_best(place: Map) -> None:
    for mac in (A, B, C):
        await place.stage.gateway(mac)
    place.hear(A, -70)
    place.hear(B, -55.25)
    place.hear(C, -90)
    route = await place.find()
    assert (route.gateway, route.choice.reason) == (B, "strongest")
    assert shown(route) == [(B, True, -55.2), (A, True, -70), (C, True, -90)]
    assert all(each.heard_at is not None for each in route.choice.candidates)


@pytest.mark.rule("rest-102")
async def test_of_those_that_are_connected(place: Map) -> None:
    await place.stage.gateway(A)
    place.hear(A, -95)
    place.hear(B, -40)
    route = await place.find()
    assert (route.gateway, route.choice.reason, shown(route)) == (
        A,
        "strongest",
        [(A, True, -95), (B, False, -40)],
    )


@pytest.mark.rule("rest-102")
async def test_of_each_gateway_the_best_parent_counts_with_its_last_minute(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear(A, -20, minutes_ago=9, parent=1)
    place.hear(A, -80, minutes_ago=2, parent=1)  # it went away from this one
    place.hear(A, -75, minutes_ago=3, parent=2)
    place.hear(B, -60, minutes_ago=3)
    assert shown(await place.find()) == [(B, True, -60), (A, True, -75)]


@pytest.mark.rule("rest-102")
async def test_parents_that_cannot_reach_the_device_do_not_count(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear(A, -30, unreachable=True)
    place.hear(B, -85)
    assert shown(await place.find()) == [(B, True, -85)]
    place.wait()
    place.hear(B, -85, unreachable=True, minutes_ago=1, parent=7)
    place.hear(B, -20, minutes_ago=2, parent=7)  # it could be reached then, and cannot any more
    assert shown(await place.find()) == [(B, True, -85)]


@pytest.mark.rule("rest-102")
async def test_what_was_heard_long_ago_does_not_count(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear(A, -30, minutes_ago=16)
    place.hear(B, -85, minutes_ago=14)
    assert shown(await place.find()) == [(B, True, -85)]
    place.stage.clock.move(seconds=600)
    with pytest.raises(NoGateway):
        await place.find()


@pytest.mark.rule("rest-102", "rest-193")
async def test_without_any_radio_of_late_it_is_the_one_that_brought_the_last_report(place: Map) -> None:
    await place.stage.gateway(A)
    place.sight(DEVICE, gateway=A)
    route = await place.find()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert shown(route) == [(A, True, None)]
    await place.stage.gateway(B)
    place.hear(B, -80, minutes_ago=0)
    place.wait()
    route = await place.find()
    assert shown(route) == [(B, True, -80), (A, True, None)]
    assert (route.gateway, route.choice.reason) == (B, "strongest")


@pytest.mark.rule("rest-102")
async def test_the_last_gateway_helps_out_when_the_best_are_away(place: Map) -> None:
    await place.stage.gateway(A)
    place.sight(DEVICE, gateway=A)
    place.hear(B, -30)
    route = await place.find()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert shown(route) == [(A, True, None), (B, False, -30)]


@pytest.mark.rule("rest-101")
async def test_if_none_is_there_the_best_one_is_told(place: Map) -> None:
    place.hear(A, -70)
    place.hear(B, -40)
    with pytest.raises(GatewayOffline, match=f"gateway {B} is not connected, nor any other of 2"):
        await place.find()
    with pytest.raises(GatewayOffline, match=f"gateway {C} is not connected$"):
        await place.find(C)


@pytest.mark.rule("rest-193")
async def test_a_gateway_goes_through_itself_and_who_is_asked_for_is_taken(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear(A, -30)
    itself, asked = await place.find(device=B), await place.find(B)
    assert (itself.gateway, itself.choice.reason, shown(itself)) == (B, "itself", [(B, True, None)])
    assert (asked.gateway, asked.choice.reason, shown(asked)) == (B, "asked", [(B, True, None)])
    assert (await place.find(A, device=B)).choice.reason == "asked"


async def test_who_is_unknown_or_no_gateway_is_told(place: Map) -> None:
    stranger = Mac("0123456789ab")
    for gateway, device in ((None, stranger), (A, stranger), (stranger, DEVICE), (DEVICE, DEVICE)):
        with pytest.raises(NotFound):
            await place.find(gateway, device)
    with pytest.raises(NoGateway, match=f"no gateway has heard device {DEVICE} yet"):
        await place.find()


@pytest.mark.rule("rest-102")
async def test_on_another_broker_those_are_there_that_were_heard(place: Map) -> None:
    await place.stage.gateway(B)  # nobody there knows of it
    place.sight(A, connected=True)
    place.hear(A, -80)
    place.hear(B, -30)
    route = await place.elsewhere.select(DEVICE, None)
    assert (route.gateway, shown(route)) == (A, [(A, True, -80), (B, False, -30)])
    with pytest.raises(GatewayOffline):
        await place.elsewhere.select(DEVICE, B)


@pytest.mark.rule("rest-101", "rest-102")
async def test_what_is_remembered_of_a_device_is_not_who_is_connected(place: Map) -> None:
    first, _ = await place.stage.gateway(A), await place.stage.gateway(B)
    place.hear(A, -30)
    place.hear(B, -60)
    assert (await place.find()).gateway == A
    first.cut()
    await place.stage.until(lambda: not place.stage.broker.turn(A))
    assert shown(await place.find()) == [(B, True, -60), (A, False, -30)]
    await place.stage.gateway(A)
    assert (await place.find()).gateway == A


async def test_a_device_that_was_just_heard_is_reached_at_once(place: Map) -> None:
    await place.stage.gateway(A)
    with pytest.raises(NoGateway):
        await place.find()
    place.sight(DEVICE, gateway=A)
    assert (await place.find()).gateway == A


async def test_a_gateway_that_was_released_is_not_asked_for(place: Map) -> None:
    await place.stage.gateway(A)
    place.stage.database.write_now(gateways.release, A, by=COMMAND_LINE, now=place.stage.clock())
    with pytest.raises(NotFound):
        await place.find(A)


@pytest.mark.rule("rest-102")
async def test_the_minute_under_way_counts_at_once(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.sight(DEVICE, gateway=B)
    assert (await place.find()).gateway == B  # and what is stored is remembered from now on
    place.hear_now(B, -92, parent=2)
    place.hear_now(A, -50, parent=1)
    route = await place.find()
    assert (route.choice.reason, shown(route)) == ("strongest", [(A, True, -50), (B, True, -92)])


@pytest.mark.rule("rest-102")
async def test_a_minute_that_is_closed_is_missed_at_no_moment(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear_now(A, -50)
    place.sight(DEVICE, gateway=B)
    for second in range(0, 80, 4):
        assert (await place.find()).gateway == A, second
        place.stage.clock.move(seconds=4)
        now = place.stage.clock()
        if rows := place.rollups.close(now):
            assert (await place.find()).gateway == A, second  # not stored yet
            place.store(rows)
            place.rollups.forget_closed(rows)
    assert not place.rollups.minutes_of(mac_number(DEVICE), {SampleKind.LINK})


@pytest.mark.rule("rest-102")
async def test_several_are_chosen_as_one_is(place: Map) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.hear(A, -60)
    place.hear(B, -50)
    device, nobody, stranger = mac_number(DEVICE), 0xC0FFEE0000A2, 0xC0FFEE0000A3
    place.sight(Mac(f"{nobody:012x}"), gateway=C)  # which is not connected
    wanted = [device, nobody, stranger, mac_number(A)]
    first = await place.selector.select_many(wanted)
    assert first == {device: mac_number(B), nobody: None, stranger: None, mac_number(A): mac_number(A)}
    place.failures.add(device, mac_number(B))
    assert (await place.selector.select_many([device])) == {device: mac_number(A)}


@pytest.mark.rule("rest-102", "rest-193")
async def test_after_a_failed_try_the_next_best_is_taken_for_ten_minutes(place: Map) -> None:
    device = mac_number(DEVICE)
    for mac in (A, B, C):
        await place.stage.gateway(mac)

    async def chosen() -> tuple[str, str]:
        for mac, rssi in ((A, -40), (B, -60), (C, -80)):
            place.hear_now(mac, rssi, parent=mac_number(mac))
        route = await place.find()
        return route.gateway, route.choice.reason

    assert await chosen() == (A, "strongest")
    turns = []
    for _ in range(5):
        route = await place.find()
        turns.append((route.gateway, route.choice.reason))
        place.failures.add(device, mac_number(route.gateway))
        place.stage.clock.move(seconds=1)
    assert turns == [
        (A, "strongest"),
        (B, "next-best"),
        (C, "next-best"),
        (A, "strongest"),
        (B, "next-best"),
    ]
    order = [(each.gateway, each.failed_at) for each in (await place.find()).choice.candidates]
    assert [gateway for gateway, _ in order] == [C, A, B]
    assert sorted(at or "" for _, at in order) == [at for _, at in order], "the oldest failure comes first"
    place.failures.clear(device, mac_number(B))
    assert await chosen() == (B, "next-best")
    place.stage.clock.move(seconds=600)
    assert await chosen() == (A, "strongest")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(-100, -1), st.booleans()), max_size=30
    )
)
def test_the_newest_minute_of_each_parent_counts_in_whatever_order_they_come(
    minutes: list[tuple[int, int, int, bool]],
) -> None:
    links = [
        Sample(
            -place, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, _minute(-place, unreachable=True)
        )
        if unreachable
        else Sample(-place, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None)
        for place, (gateway, parent, rssi, unreachable) in enumerate(minutes)
    ]
    last: dict[int, tuple[int, int, bool]] = {}
    for gateway, parent, rssi, unreachable in minutes:  # the newest are first
        last.setdefault(parent, (gateway, rssi, unreachable))
    found = {each.parent: (each.gateway, each.rssi, each.unreachable) for each in hearings_of(links)}
    assert found == last
    assert found == {
        each.parent: (each.gateway, each.rssi, each.unreachable) for each in hearings_of(reversed(links))
    }
