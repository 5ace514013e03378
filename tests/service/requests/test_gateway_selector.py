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

from meshfleet.db.samples import NO_SEQ, SampleExtras, SampleKind, StoredSample, open_sample_store
from meshfleet.errors import GatewayOffline, NoGateway, NotFound
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.gateways import store as gateways
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import MinuteSummary, Rollups
from meshfleet.service.requests.gateway_ranking import FailedAttempts, parse_link_minutes
from meshfleet.service.requests.gateway_selector import GatewaySelector
from tests.mqtt.broker.running_broker import RunningBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleRows, SampleStore
    from meshfleet.service.requests.gateway_selector import GatewayRoute
    from meshfleet.service.transport import Transport

pytestmark = pytest.mark.anyio

A, B, C = (Mac(f"02005e00000{number}") for number in (1, 2, 3))
DEVICE = Mac("c0ffee0000a1")
MINUTE = 60_000
_parents = count(0xC0FFEE00F001)


def _minute(at: int, *, unreachable: bool) -> SampleExtras:
    """What is kept of a minute."""
    shown = MinuteSummary(count=1, min=-50, max=-50, last=-50, last_at=at, unreachable=unreachable)
    return SampleExtras(ext=msgspec.json.encode(shown).decode())


class UnknownConnections:
    """As a broker of somebody else is seen: nobody tells who is connected."""

    unavailable_reason = None

    def send(self, messages: object) -> None:
        raise NotImplementedError

    async def send_urgent(self, message: object) -> None:
        raise NotImplementedError

    def subscribe(self, topic_filter: str, callback: object) -> object:
        raise NotImplementedError

    def connected_gateways(self) -> None:
        return

    def connection_number(self, gateway: str) -> None:  # noqa: ARG002 # whoever it is
        return

    last_connection_number = connection_number


class SelectorHarness:
    """A broker, a registry and minutes, and how tests change them."""

    def __init__(self, stage: RunningBroker, samples: SampleStore) -> None:
        self.stage = stage
        self._samples = samples
        self.rollups = Rollups()
        self.failures = FailedAttempts(stage.clock)
        self.selector = self._selector(stage.broker)
        self.external_selector = self._selector(UnknownConnections())

    def _selector(self, transport: Transport) -> GatewaySelector:
        return GatewaySelector(
            self.stage.database,
            self._samples,
            transport,
            rollups=self.rollups,
            failures=self.failures,
            now=self.stage.clock,
        )

    def claim(self, *macs: Mac) -> None:
        for mac in macs:
            self.stage.database.write_now(
                gateways.claim_gateway, mac, name=None, by=COMMAND_LINE, now=self.stage.clock()
            )

    def observe(self, device: Mac, **facts: object) -> None:
        sighting = DeviceObservation(device=device, at=self.stage.clock(), **facts)  # type: ignore[arg-type] # by its names
        self.stage.database.write_now(registry.record_observations, [sighting])

    def store_link(
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
        link = StoredSample(
            at,
            SampleKind.LINK,
            next(_parents) if parent is None else parent,
            NO_SEQ,
            mac_to_int(gateway),
            rssi,
            None,
            _minute(at, unreachable=unreachable),
        )
        self.store({mac_to_int(DEVICE): [astuple(link)]})

    def store(self, rows: SampleRows) -> None:
        number = self.stage.database.write_now(self._samples.write, rows, self.stage.clock())
        self._samples.publish_committed(number, rows)

    def add_link(self, gateway: Mac, rssi: int | None, *, parent: int = 9) -> None:
        """Let the device be heard in the minute under route; None: by a heartbeat."""
        number, now = mac_to_int(DEVICE), self.stage.clock()
        reading = (
            (ReadingKind.HEARTBEAT, number, mac_to_int(gateway), now, 0, 0, False)
            if rssi is None
            else (ReadingKind.LINK, number, mac_to_int(gateway), now, rssi, parent, False)
        )
        self.rollups.add(1, [reading], now)

    def expire_cache(self) -> None:
        """Let so much time pass that nothing is remembered."""
        self.stage.clock.move(seconds=5)

    async def select(self, gateway: Mac | None = None, device: Mac = DEVICE) -> GatewayRoute:
        return await self.selector.select(device, gateway)


@pytest.fixture
async def place(database: Database, tmp_path: Path) -> AsyncIterator[SelectorHarness]:
    async with RunningBroker(database) as stage:
        with closing(open_sample_store(database, tmp_path, {}, now=stage.clock())) as samples:
            made = SelectorHarness(stage, samples)
            made.claim(A, B, C)
            made.observe(DEVICE)
            yield made


def shown(route: GatewayRoute) -> list[tuple[str, bool, float | None]]:
    return [(each.gateway, each.connected, each.rssi) for each in route.choice.candidates]


@pytest.mark.rule("rest-102", "rest-193")
async def test_the_one_is_taken_that_heard_the_device_best(place: SelectorHarness) -> None:
    for mac in (A, B, C):
        await place.stage.gateway(mac)
    place.store_link(A, -70)
    place.store_link(B, -55.25)
    place.store_link(C, -90)
    route = await place.select()
    assert (route.gateway, route.choice.reason) == (B, "strongest")
    assert shown(route) == [(B, True, -55.2), (A, True, -70), (C, True, -90)]
    assert all(each.heard_at is not None for each in route.choice.candidates)


@pytest.mark.rule("rest-102")
async def test_of_those_that_are_connected(place: SelectorHarness) -> None:
    await place.stage.gateway(A)
    place.store_link(A, -95)
    place.store_link(B, -40)
    route = await place.select()
    assert (route.gateway, route.choice.reason, shown(route)) == (
        A,
        "strongest",
        [(A, True, -95), (B, False, -40)],
    )


@pytest.mark.rule("rest-102")
async def test_of_each_gateway_the_best_parent_counts_with_its_last_minute(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.store_link(A, -20, minutes_ago=9, parent=1)
    place.store_link(A, -80, minutes_ago=2, parent=1)  # it went away from this one
    place.store_link(A, -75, minutes_ago=3, parent=2)
    place.store_link(B, -60, minutes_ago=3)
    assert shown(await place.select()) == [(B, True, -60), (A, True, -75)]


@pytest.mark.rule("rest-102")
async def test_parents_that_cannot_reach_the_device_do_not_count(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.store_link(A, -30, unreachable=True)
    place.store_link(B, -85)
    assert shown(await place.select()) == [(B, True, -85)]
    place.expire_cache()
    place.store_link(B, -85, unreachable=True, minutes_ago=1, parent=7)
    place.store_link(B, -20, minutes_ago=2, parent=7)  # it could be reached then, and cannot any more
    assert shown(await place.select()) == [(B, True, -85)]


@pytest.mark.rule("rest-102")
async def test_what_was_heard_long_ago_does_not_count(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.store_link(A, -30, minutes_ago=16)
    place.store_link(B, -85, minutes_ago=14)
    assert shown(await place.select()) == [(B, True, -85)]
    place.stage.clock.move(seconds=600)
    with pytest.raises(NoGateway):
        await place.select()


@pytest.mark.rule("rest-102", "rest-193")
async def test_without_any_radio_of_late_it_is_the_one_that_brought_the_last_report(
    place: SelectorHarness,
) -> None:
    await place.stage.gateway(A)
    place.observe(DEVICE, gateway=A)
    route = await place.select()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert shown(route) == [(A, True, None)]
    await place.stage.gateway(B)
    place.store_link(B, -80, minutes_ago=0)
    place.expire_cache()
    route = await place.select()
    assert shown(route) == [(B, True, -80), (A, True, None)]
    assert (route.gateway, route.choice.reason) == (B, "strongest")


@pytest.mark.rule("rest-102")
async def test_the_last_gateway_helps_out_when_the_best_are_away(place: SelectorHarness) -> None:
    await place.stage.gateway(A)
    place.observe(DEVICE, gateway=A)
    place.store_link(B, -30)
    route = await place.select()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert shown(route) == [(A, True, None), (B, False, -30)]


@pytest.mark.rule("rest-101")
async def test_if_none_is_there_the_best_one_is_told(place: SelectorHarness) -> None:
    place.store_link(A, -70)
    place.store_link(B, -40)
    with pytest.raises(GatewayOffline, match=f"gateway {B} is not connected, nor is any other of the 2 gateways"):
        await place.select()
    with pytest.raises(GatewayOffline, match=f"gateway {C} is not connected$"):
        await place.select(C)


@pytest.mark.rule("rest-193")
async def test_a_gateway_goes_through_itself_and_who_is_asked_for_is_taken(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.store_link(A, -30)
    itself, asked = await place.select(device=B), await place.select(B)
    assert (itself.gateway, itself.choice.reason, shown(itself)) == (B, "itself", [(B, True, None)])
    assert (asked.gateway, asked.choice.reason, shown(asked)) == (B, "asked", [(B, True, None)])
    assert (await place.select(A, device=B)).choice.reason == "asked"


async def test_who_is_unknown_or_no_gateway_is_told(place: SelectorHarness) -> None:
    stranger = Mac("0123456789ab")
    for gateway, device in ((None, stranger), (A, stranger), (stranger, DEVICE), (DEVICE, DEVICE)):
        with pytest.raises(NotFound):
            await place.select(gateway, device)
    with pytest.raises(NoGateway, match=f"no gateway has received a report of device {DEVICE} yet"):
        await place.select()


@pytest.mark.rule("rest-102")
async def test_on_another_broker_those_are_there_that_were_heard(place: SelectorHarness) -> None:
    await place.stage.gateway(B)  # nobody there knows of it
    place.observe(A, connected=True)
    place.store_link(A, -80)
    place.store_link(B, -30)
    route = await place.external_selector.select(DEVICE, None)
    assert (route.gateway, shown(route)) == (A, [(A, True, -80), (B, False, -30)])
    with pytest.raises(GatewayOffline):
        await place.external_selector.select(DEVICE, B)


@pytest.mark.rule("rest-101", "rest-102")
async def test_what_is_remembered_of_a_device_is_not_who_is_connected(place: SelectorHarness) -> None:
    first, _ = await place.stage.gateway(A), await place.stage.gateway(B)
    place.store_link(A, -30)
    place.store_link(B, -60)
    assert (await place.select()).gateway == A
    first.abort()
    await place.stage.until(lambda: not place.stage.broker.connection_number(A))
    assert shown(await place.select()) == [(B, True, -60), (A, False, -30)]
    await place.stage.gateway(A)
    assert (await place.select()).gateway == A


async def test_a_device_that_was_just_heard_is_reached_at_once(place: SelectorHarness) -> None:
    await place.stage.gateway(A)
    with pytest.raises(NoGateway):
        await place.select()
    place.observe(DEVICE, gateway=A)
    assert (await place.select()).gateway == A


async def test_a_gateway_that_was_released_is_not_asked_for(place: SelectorHarness) -> None:
    await place.stage.gateway(A)
    place.stage.database.write_now(gateways.release_gateway, A, by=COMMAND_LINE, now=place.stage.clock())
    with pytest.raises(NotFound):
        await place.select(A)


@pytest.mark.rule("rest-102")
async def test_the_minute_under_way_counts_at_once(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.observe(DEVICE, gateway=B)
    assert (await place.select()).gateway == B  # and what is stored is remembered from now on
    place.add_link(B, -92, parent=2)
    place.add_link(A, -50, parent=1)
    route = await place.select()
    assert (route.choice.reason, shown(route)) == ("strongest", [(A, True, -50), (B, True, -92)])


@pytest.mark.rule("rest-102")
async def test_a_minute_that_is_closed_is_missed_at_no_moment(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.add_link(A, -50)
    place.observe(DEVICE, gateway=B)
    for second in range(0, 80, 4):
        assert (await place.select()).gateway == A, second
        place.stage.clock.move(seconds=4)
        now = place.stage.clock()
        if rows := place.rollups.close_due(now):
            assert (await place.select()).gateway == A, second  # not stored yet
            place.store(rows)
            place.rollups.drop_closed(rows)
    assert not place.rollups.list_open_minutes(mac_to_int(DEVICE), {SampleKind.LINK})


@pytest.mark.rule("rest-102")
async def test_several_are_chosen_as_one_is(place: SelectorHarness) -> None:
    for mac in (A, B):
        await place.stage.gateway(mac)
    place.store_link(A, -60)
    place.store_link(B, -50)
    device, nobody, stranger = mac_to_int(DEVICE), 0xC0FFEE0000A2, 0xC0FFEE0000A3
    place.observe(Mac(f"{nobody:012x}"), gateway=C)  # which is not connected
    wanted = [device, nobody, stranger, mac_to_int(A)]
    first = await place.selector.select_many(wanted)
    assert first == {device: mac_to_int(B), nobody: None, stranger: None, mac_to_int(A): mac_to_int(A)}
    place.failures.add(device, mac_to_int(B))
    assert (await place.selector.select_many([device])) == {device: mac_to_int(A)}


@pytest.mark.rule("rest-102", "rest-193")
async def test_after_a_failed_try_the_next_best_is_taken_for_ten_minutes(place: SelectorHarness) -> None:
    device = mac_to_int(DEVICE)
    for mac in (A, B, C):
        await place.stage.gateway(mac)

    async def chosen() -> tuple[str, str]:
        for mac, rssi in ((A, -40), (B, -60), (C, -80)):
            place.add_link(mac, rssi, parent=mac_to_int(mac))
        route = await place.select()
        return route.gateway, route.choice.reason

    assert await chosen() == (A, "strongest")
    turns = []
    for _ in range(5):
        route = await place.select()
        turns.append((route.gateway, route.choice.reason))
        place.failures.add(device, mac_to_int(route.gateway))
        place.stage.clock.move(seconds=1)
    assert turns == [
        (A, "strongest"),
        (B, "next-best"),
        (C, "next-best"),
        (A, "strongest"),
        (B, "next-best"),
    ]
    order = [(each.gateway, each.failed_at) for each in (await place.select()).choice.candidates]
    assert [gateway for gateway, _ in order] == [C, A, B]
    assert sorted(at or "" for _, at in order) == [at for _, at in order], "the oldest failure comes first"
    place.failures.clear(device, mac_to_int(B))
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
        StoredSample(
            -place, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, _minute(-place, unreachable=True)
        )
        if unreachable
        else StoredSample(-place, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None)
        for place, (gateway, parent, rssi, unreachable) in enumerate(minutes)
    ]
    last: dict[int, tuple[int, int, bool]] = {}
    for gateway, parent, rssi, unreachable in minutes:  # the newest are first
        last.setdefault(parent, (gateway, rssi, unreachable))
    found = {
        each.parent: (each.gateway, each.rssi, each.is_unreachable) for each in parse_link_minutes(links)
    }
    assert found == last
    assert found == {
        each.parent: (each.gateway, each.rssi, each.is_unreachable)
        for each in parse_link_minutes(reversed(links))
    }
