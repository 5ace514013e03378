"""Selection of gateways, with real minutes, a real registry and a real broker."""

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
from meshfleet.service.ingest.minute_rollup import MinuteSummary
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
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
    """Return the extras of a stored minute."""
    summary = MinuteSummary(count=1, min=-50, max=-50, last=-50, last_at=at, unreachable=unreachable)
    return SampleExtras(ext=msgspec.json.encode(summary).decode())


class UnknownConnections:
    """Transport of an external broker, which does not know the connections."""

    unavailable_reason = None

    def send(self, messages: object) -> None:
        raise NotImplementedError

    async def send_urgent(self, message: object) -> None:
        raise NotImplementedError

    def subscribe(self, topic_filter: str, callback: object) -> object:
        raise NotImplementedError

    def connected_gateways(self) -> None:
        return

    def hears_requests(self, gateway: str) -> bool:  # noqa: ARG002 # every gateway does
        return True

    def connection_id(self, gateway: str) -> None:  # noqa: ARG002 # unknown for every gateway
        return

    last_connection_id = connection_id


class SelectorHarness:
    """Broker, registry and minutes, and helpers to change them."""

    def __init__(self, broker: RunningBroker, samples: SampleStore) -> None:
        self.broker = broker
        self._samples = samples
        self.rollups = Rollups()
        self.failures = FailedAttempts(broker.clock)
        self.selector = self._selector(broker.broker)
        self.external_selector = self._selector(UnknownConnections())

    def _selector(self, transport: Transport) -> GatewaySelector:
        return GatewaySelector(
            self.broker.database,
            self._samples,
            transport,
            rollups=self.rollups,
            failures=self.failures,
            now=self.broker.clock,
        )

    def claim(self, *macs: Mac) -> None:
        for mac in macs:
            self.broker.database.write_now(
                gateways.claim_gateway, mac, name=None, by=COMMAND_LINE, now=self.broker.clock()
            )

    def observe(self, device: Mac, **facts: object) -> None:
        observation = DeviceObservation(device=device, at=self.broker.clock(), **facts)  # type: ignore[arg-type] # keyword arguments of one type
        self.broker.database.write_now(registry.record_observations, [observation])

    def store_link(
        self,
        gateway: Mac,
        rssi: float,
        *,
        minutes_ago: float = 2,
        parent: int | None = None,
        unreachable: bool = False,
    ) -> None:
        """Store a minute in which a gateway saw the device."""
        now = self.broker.clock()
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
        number = self.broker.database.write_now(self._samples.write, rows, self.broker.clock())
        self._samples.publish_committed(number, rows)

    def add_link(self, gateway: Mac, rssi: int | None, *, parent: int = 9) -> None:
        """Add a reading of the device in the open minute, or a heartbeat if `rssi` is None."""
        number, now = mac_to_int(DEVICE), self.broker.clock()
        reading = (
            (ReadingKind.HEARTBEAT, number, mac_to_int(gateway), now, 0, 0, False)
            if rssi is None
            else (ReadingKind.LINK, number, mac_to_int(gateway), now, rssi, parent, False)
        )
        self.rollups.add(1, [reading], now)

    def expire_cache(self) -> None:
        """Advance the clock so that the cache is expired."""
        self.broker.clock.move(seconds=5)

    async def select(self, gateway: Mac | None = None, device: Mac = DEVICE) -> GatewayRoute:
        return await self.selector.select(device, gateway)


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> AsyncIterator[SelectorHarness]:
    async with RunningBroker(database) as broker:
        with closing(open_sample_store(database, tmp_path, {}, now=broker.clock())) as samples:
            harness = SelectorHarness(broker, samples)
            harness.claim(A, B, C)
            harness.observe(DEVICE)
            yield harness


def list_candidates(route: GatewayRoute) -> list[tuple[str, bool, float | None]]:
    return [(each.gateway, each.connected, each.rssi) for each in route.choice.candidates]


@pytest.mark.rule("rest-102", "rest-193")
async def test_the_gateway_with_the_best_signal_is_selected(harness: SelectorHarness) -> None:
    for mac in (A, B, C):
        await harness.broker.gateway(mac)
    harness.store_link(A, -70)
    harness.store_link(B, -55.25)
    harness.store_link(C, -90)
    route = await harness.select()
    assert (route.gateway, route.choice.reason) == (B, "strongest")
    assert list_candidates(route) == [(B, True, -55.2), (A, True, -70), (C, True, -90)]
    assert all(each.heard_at is not None for each in route.choice.candidates)


@pytest.mark.rule("rest-102")
async def test_a_connected_gateway_is_selected_before_a_stronger_disconnected_one(
    harness: SelectorHarness,
) -> None:
    await harness.broker.gateway(A)
    harness.store_link(A, -95)
    harness.store_link(B, -40)
    route = await harness.select()
    assert (route.gateway, route.choice.reason, list_candidates(route)) == (
        A,
        "strongest",
        [(A, True, -95), (B, False, -40)],
    )


@pytest.mark.rule("rest-102")
async def test_the_best_parent_of_a_gateway_counts_with_its_last_minute(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.store_link(A, -20, minutes_ago=9, parent=1)
    harness.store_link(A, -80, minutes_ago=2, parent=1)  # the device moved away from this parent
    harness.store_link(A, -75, minutes_ago=3, parent=2)
    harness.store_link(B, -60, minutes_ago=3)
    assert list_candidates(await harness.select()) == [(B, True, -60), (A, True, -75)]


@pytest.mark.rule("rest-102")
async def test_parents_that_cannot_reach_the_device_do_not_count(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.store_link(A, -30, unreachable=True)
    harness.store_link(B, -85)
    assert list_candidates(await harness.select()) == [(B, True, -85)]
    harness.expire_cache()
    harness.store_link(B, -85, unreachable=True, minutes_ago=1, parent=7)
    harness.store_link(B, -20, minutes_ago=2, parent=7)  # reachable then, but not any more
    assert list_candidates(await harness.select()) == [(B, True, -85)]


@pytest.mark.rule("rest-102")
async def test_old_observations_do_not_count(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.store_link(A, -30, minutes_ago=16)
    harness.store_link(B, -85, minutes_ago=14)
    assert list_candidates(await harness.select()) == [(B, True, -85)]
    harness.broker.clock.move(seconds=600)
    with pytest.raises(NoGateway):
        await harness.select()


@pytest.mark.rule("rest-102", "rest-193")
async def test_without_recent_links_the_gateway_of_the_last_report_is_selected(
    harness: SelectorHarness,
) -> None:
    await harness.broker.gateway(A)
    harness.observe(DEVICE, gateway=A)
    route = await harness.select()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert list_candidates(route) == [(A, True, None)]
    await harness.broker.gateway(B)
    harness.store_link(B, -80, minutes_ago=0)
    harness.expire_cache()
    route = await harness.select()
    assert list_candidates(route) == [(B, True, -80), (A, True, None)]
    assert (route.gateway, route.choice.reason) == (B, "strongest")


@pytest.mark.rule("rest-102")
async def test_the_last_gateway_is_selected_when_the_best_ones_are_disconnected(
    harness: SelectorHarness,
) -> None:
    await harness.broker.gateway(A)
    harness.observe(DEVICE, gateway=A)
    harness.store_link(B, -30)
    route = await harness.select()
    assert (route.gateway, route.choice.reason) == (A, "last-heard")
    assert list_candidates(route) == [(A, True, None), (B, False, -30)]


@pytest.mark.rule("rest-101")
async def test_the_error_names_the_best_gateway_if_none_is_connected(harness: SelectorHarness) -> None:
    harness.store_link(A, -70)
    harness.store_link(B, -40)
    with pytest.raises(
        GatewayOffline, match=f"gateway {B} is not connected, nor is any other of the 2 gateways"
    ):
        await harness.select()
    with pytest.raises(GatewayOffline, match=f"gateway {C} is not connected$"):
        await harness.select(C)


@pytest.mark.rule("rest-193")
async def test_a_gateway_is_its_own_gateway_and_a_requested_gateway_is_used(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.store_link(A, -30)
    itself, requested = await harness.select(device=B), await harness.select(B)
    assert (itself.gateway, itself.choice.reason, list_candidates(itself)) == (B, "itself", [(B, True, None)])
    assert (requested.gateway, requested.choice.reason, list_candidates(requested)) == (
        B,
        "asked",
        [(B, True, None)],
    )
    assert (await harness.select(A, device=B)).choice.reason == "asked"


async def test_unknown_devices_and_gateways_are_not_found(harness: SelectorHarness) -> None:
    unknown = Mac("0123456789ab")
    for gateway, device in ((None, unknown), (A, unknown), (unknown, DEVICE), (DEVICE, DEVICE)):
        with pytest.raises(NotFound):
            await harness.select(gateway, device)
    with pytest.raises(NoGateway, match=f"no gateway has seen device {DEVICE} yet"):
        await harness.select()


@pytest.mark.rule("rest-102")
async def test_on_an_external_broker_gateways_with_recent_reports_are_connected(
    harness: SelectorHarness,
) -> None:
    await harness.broker.gateway(B)  # the external transport does not know its connection
    harness.observe(A, connected=True)
    harness.store_link(A, -80)
    harness.store_link(B, -30)
    route = await harness.external_selector.select(DEVICE, None)
    assert (route.gateway, list_candidates(route)) == (A, [(A, True, -80), (B, False, -30)])
    with pytest.raises(GatewayOffline):
        await harness.external_selector.select(DEVICE, B)


@pytest.mark.rule("rest-101", "rest-102")
async def test_connections_are_not_cached(harness: SelectorHarness) -> None:
    first, _ = await harness.broker.gateway(A), await harness.broker.gateway(B)
    harness.store_link(A, -30)
    harness.store_link(B, -60)
    assert (await harness.select()).gateway == A
    first.abort()
    await harness.broker.until(lambda: not harness.broker.broker.connection_id(A))
    assert list_candidates(await harness.select()) == [(B, True, -60), (A, False, -30)]
    await harness.broker.gateway(A)
    assert (await harness.select()).gateway == A


async def test_a_device_can_be_reached_right_after_its_first_report(harness: SelectorHarness) -> None:
    await harness.broker.gateway(A)
    with pytest.raises(NoGateway):
        await harness.select()
    harness.observe(DEVICE, gateway=A)
    assert (await harness.select()).gateway == A


async def test_a_released_gateway_cannot_be_requested(harness: SelectorHarness) -> None:
    await harness.broker.gateway(A)
    harness.broker.database.write_now(
        gateways.release_gateway, A, by=COMMAND_LINE, now=harness.broker.clock()
    )
    with pytest.raises(NotFound):
        await harness.select(A)


@pytest.mark.rule("rest-102")
async def test_the_open_minute_counts_at_once(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.observe(DEVICE, gateway=B)
    assert (await harness.select()).gateway == B  # from now on the stored part is cached
    harness.add_link(B, -92, parent=2)
    harness.add_link(A, -50, parent=1)
    route = await harness.select()
    assert (route.choice.reason, list_candidates(route)) == ("strongest", [(A, True, -50), (B, True, -92)])


@pytest.mark.rule("rest-102")
async def test_a_closing_minute_is_never_missed(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.add_link(A, -50)
    harness.observe(DEVICE, gateway=B)
    for second in range(0, 80, 4):
        assert (await harness.select()).gateway == A, second
        harness.broker.clock.move(seconds=4)
        now = harness.broker.clock()
        if rows := harness.rollups.close_ended_minutes(now):
            assert (await harness.select()).gateway == A, second  # not stored yet
            harness.store(rows)
            harness.rollups.drop_closed_minutes(rows)
    assert not harness.rollups.list_unwritten_minutes(mac_to_int(DEVICE), {SampleKind.LINK})


@pytest.mark.rule("rest-102")
async def test_several_devices_are_selected_like_one(harness: SelectorHarness) -> None:
    for mac in (A, B):
        await harness.broker.gateway(mac)
    harness.store_link(A, -60)
    harness.store_link(B, -50)
    device, unreachable, unknown = mac_to_int(DEVICE), 0xC0FFEE0000A2, 0xC0FFEE0000A3
    harness.observe(Mac(f"{unreachable:012x}"), gateway=C)  # which is not connected
    devices = [device, unreachable, unknown, mac_to_int(A)]
    selected = await harness.selector.select_gateways(devices)
    assert selected == {device: mac_to_int(B), unreachable: None, unknown: None, mac_to_int(A): mac_to_int(A)}
    harness.failures.add(device, mac_to_int(B))
    assert (await harness.selector.select_gateways([device])) == {device: mac_to_int(A)}


@pytest.mark.rule("rest-102", "rest-193")
async def test_after_a_failed_attempt_the_next_best_gateway_is_selected_for_ten_minutes(
    harness: SelectorHarness,
) -> None:
    device = mac_to_int(DEVICE)
    for mac in (A, B, C):
        await harness.broker.gateway(mac)

    async def select_now() -> tuple[str, str]:
        for mac, rssi in ((A, -40), (B, -60), (C, -80)):
            harness.add_link(mac, rssi, parent=mac_to_int(mac))
        route = await harness.select()
        return route.gateway, route.choice.reason

    assert await select_now() == (A, "strongest")
    selections = []
    for _ in range(5):
        route = await harness.select()
        selections.append((route.gateway, route.choice.reason))
        harness.failures.add(device, mac_to_int(route.gateway))
        harness.broker.clock.move(seconds=1)
    assert selections == [
        (A, "strongest"),
        (B, "next-best"),
        (C, "next-best"),
        (A, "strongest"),
        (B, "next-best"),
    ]
    order = [(each.gateway, each.failed_at) for each in (await harness.select()).choice.candidates]
    assert [gateway for gateway, _ in order] == [C, A, B]
    assert sorted(at or "" for _, at in order) == [at for _, at in order], "the oldest failure comes first"
    harness.failures.clear(device, mac_to_int(B))
    assert await select_now() == (B, "next-best")
    harness.broker.clock.move(seconds=600)
    assert await select_now() == (A, "strongest")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(-100, -1), st.booleans()), max_size=30
    )
)
def test_only_the_newest_minute_of_each_parent_counts_whatever_the_order(
    minutes: list[tuple[int, int, int, bool]],
) -> None:
    links = [
        StoredSample(
            -age, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, _minute(-age, unreachable=True)
        )
        if unreachable
        else StoredSample(-age, SampleKind.LINK, parent, NO_SEQ, gateway, rssi, None, None)
        for age, (gateway, parent, rssi, unreachable) in enumerate(minutes)
    ]
    newest: dict[int, tuple[int, int, bool]] = {}
    for gateway, parent, rssi, unreachable in minutes:  # the newest are first
        newest.setdefault(parent, (gateway, rssi, unreachable))
    parsed = {
        each.parent: (each.gateway, each.rssi, each.is_unreachable) for each in parse_link_minutes(links)
    }
    assert parsed == newest
    assert parsed == {
        each.parent: (each.gateway, each.rssi, each.is_unreachable)
        for each in parse_link_minutes(reversed(links))
    }
