"""State of a device: the newest value of each part wins, in any order of arrival."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from tests.examples import examples
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import (
    A,
    B,
    D,
    E,
    P,
    Q,
    R,
    build_report,
    heartbeat,
    link,
    mac_to_number,
    prop,
    temperature,
)

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Publish

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

T = NOON - MINUTE
"""A minute ago."""


async def test_a_device_is_added_by_its_first_report(harness: IngestHarness) -> None:
    await harness.commit(temperature(T, device=D), heartbeat(T, device=E))
    assert (harness.device(D), harness.device(E)) == (None, None)
    await harness.ingest.flush()
    for mac in (D, E):
        device = harness.device(mac)
        assert (device.id, device.gateway, device.created_at) == (mac_to_number(mac), mac_to_number(A), T)
        assert harness.state(mac).reported_at == T


async def test_each_report_updates_its_part(harness: IngestHarness) -> None:
    await harness.commit_flushed(
        heartbeat(T, 3), link(T + 1, -61), prop("battery-level", T + 2, 77), temperature(T + 3)
    )
    state = harness.state()
    assert (state.status, state.status_at) == (3, T)
    assert (state.parent, state.rssi, state.radio_at) == (mac_to_number(P), -61, T + 1)
    assert (state.battery, state.battery_at) == (77, T + 2)
    assert (state.reported_at, state.boot_mode) == (T + 3, None)


async def test_unreported_parts_are_unknown(harness: IngestHarness) -> None:
    await harness.commit_flushed(temperature(T))
    state = harness.state()
    assert (state.status, state.parent, state.rssi, state.battery) == (None,) * 4
    assert (state.status_at, state.radio_at, state.battery_at) == (None,) * 3


ROUNDS = [
    [heartbeat(T, 1), link(T, -50), prop("battery-level", T, 90), temperature(T)],
    [heartbeat(T + 1, 2), link(T + 1, -51), prop("battery-level", T + 1, 89)],
    [heartbeat(T + 2, 3), temperature(T + 2)],
]


@pytest.mark.rule("report-50")
@pytest.mark.parametrize("apart", [True, False], ids=["one by one", "together"])
async def test_the_order_of_reports_does_not_matter(harness: IngestHarness, apart: bool) -> None:  # noqa: FBT001 # a parameter
    final_states = set()
    for order in permutations(ROUNDS):
        for messages in order:
            await harness.commit(*messages)
            if apart:
                await harness.ingest.flush()
        await harness.ingest.flush()
        final_states.add(tuple(harness.state()))
        harness.database.write_now(registry.delete_device, Mac(D))
    (state,) = final_states
    assert state == (
        *(mac_to_number(D), T + 2, 3, None, mac_to_number(P), -51, 89),
        *(T + 2, T + 1, T + 1, T + 2),
        *(None,) * 5,
        mac_to_number(A),
    )


@pytest.mark.rule("rest-38")
async def test_gateway_parent_and_signal_are_of_one_reading_in_every_order(harness: IngestHarness) -> None:
    readings = {
        (mac_to_number(A), mac_to_number(P), -50),
        (mac_to_number(B), mac_to_number(Q), -70),
        (mac_to_number(B), mac_to_number(R), -45),
    }
    messages = [
        link(T, -50, P, gateway=A),
        heartbeat(T + 1, gateway=B),
        link(T + 2, -70, Q, gateway=B),
        link(T + 3, -45, R, gateway=B),
    ]
    for order in permutations(messages):
        stored: tuple[int | None, int | None, int | None] = (None, None, None)
        for message in order:
            await harness.commit_flushed(message)
            state = harness.state()
            stored = (state.radio_gateway, state.parent, state.rssi)
            assert stored in readings | {(None, None, None)}, order
        assert stored == (mac_to_number(B), mac_to_number(R), -45), order
        harness.database.write_now(registry.delete_device, Mac(D))


@pytest.mark.rule("rest-38")
async def test_a_reading_of_another_gateway_is_shown_for_90_seconds(harness: IngestHarness) -> None:
    def load_live() -> tuple[str | None, str | None, int | None]:
        """Return gateway, parent and signal, which are equal in the list and in the detail."""
        device_filter = DeviceFilter(gateway=Mac(harness.gateway() or ""))
        devices, _ = harness.database.read_now(
            listing.list_devices, device_filter, SortOrder(), after=None, limit=10, live=True
        )
        (live,) = (device.live for device in devices if device.id == f"bmac-{D}")
        assert live == harness.database.read_now(listing.load_device_detail, Mac(D)).live
        return live.gateway, live.parent, live.rssi

    at = T - 10 * MINUTE
    await harness.commit_flushed(heartbeat(at - 95 * SECOND, gateway=B))
    await harness.commit_flushed(link(at - 90 * SECOND, -50, P, gateway=A))
    await harness.commit_flushed(heartbeat(at, gateway=B))
    assert (harness.gateway(), load_live()) == (B, (A, P, -50))
    await harness.commit_flushed(heartbeat(at + 1, gateway=B))
    assert load_live() == (B, None, None)
    await harness.commit_flushed(link(at + 2, -80, Q, gateway=B))
    assert load_live() == (B, Q, -80)
    await harness.commit_flushed(heartbeat(at + 10 * MINUTE, gateway=B))  # the gateway is still the same
    assert load_live() == (B, Q, -80)


@pytest.mark.rule("report-50")
async def test_an_older_value_of_an_unknown_part_is_applied(harness: IngestHarness) -> None:
    """Check that each part has its own time: an unknown part is set even by a late report."""
    await harness.commit_flushed(heartbeat(T, 3))
    await harness.commit_flushed(link(T - SECOND, -61), prop("battery-level", T - SECOND, 77))
    state = harness.state()
    assert (state.reported_at, state.status) == (T, 3)
    assert (state.rssi, state.radio_at, state.battery, state.battery_at) == (-61, T - SECOND, 77, T - SECOND)


@pytest.mark.rule("report-49", "report-50")
async def test_replayed_reports_change_nothing(harness: IngestHarness) -> None:
    for messages in ROUNDS:
        await harness.commit_flushed(*messages)
    before = harness.device(), harness.state()
    harness.now += 20 * MINUTE
    for messages in ROUNDS:
        await harness.commit_flushed(*messages)
    assert (harness.device(), harness.state()) == before
    assert not harness.device().connected


updates = st.one_of(
    st.tuples(st.just("heartbeat"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("battery"), st.integers(0, 3), st.integers(0, 255)),
    st.tuples(st.just("sample"), st.integers(0, 3), st.just(0)),
)
"""Kind of report, its time and its value."""


def build_message(kind: str, at: int, value: int) -> Publish:
    if kind == "heartbeat":
        return heartbeat(T + at, value)
    return prop("8100", T + at, f"{value:02x}") if kind == "battery" else temperature(T + at)


def find_newest(
    updates: list[tuple[str, int, int]], kind: str, highest: int
) -> tuple[int | None, int | None]:
    """Return value and time of the latest update of a kind; of several at that time, of the last one."""
    at, value = max(
        (
            (at, index, value)
            for index, (each_kind, at, value) in enumerate(updates)
            if each_kind == kind and value <= highest
        ),
        default=(None, None, None),
    )[::2]
    return value, None if at is None else T + at


@given(st.lists(st.lists(updates, max_size=4), min_size=1, max_size=3))
@settings(max_examples=examples(20))
async def test_the_newest_value_of_each_part_wins_in_any_order(
    harness: IngestHarness, rounds: list[list[tuple[str, int, int]]]
) -> None:
    harness.database.write_now(registry.delete_device, Mac(D))
    for batch in rounds:
        await harness.commit_flushed(*(build_message(*update) for update in batch))
    sent = [update for batch in rounds for update in batch]
    state = harness.state()
    if not sent:
        assert state is None
        return
    assert state.reported_at == T + max(at for _, at, _ in sent)
    assert (state.status, state.status_at) == find_newest(sent, "heartbeat", 3)
    assert (state.battery, state.battery_at) == find_newest(sent, "battery", 100)


# --- Invalid numbers ---


async def test_numbers_out_of_range_are_clamped(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T, 2**53), link(T, 2**53))
    await harness.commit_flushed(heartbeat(T, -(2**53), device=E), link(T, -(2**53), device=E))
    first, second = harness.state(D), harness.state(E)
    assert (first.status, first.rssi) == (2**31 - 1, 2**15 - 1)
    assert (second.status, second.rssi) == (-(2**31) + 1, -(2**15) + 1)


@pytest.mark.parametrize("level", [255, 101, -1, True, None, "80", 80.5, 2**70, [80], {"level": 80}], ids=str)
async def test_an_invalid_battery_level_is_not_applied(sqlite_harness: IngestHarness, level: object) -> None:
    await sqlite_harness.commit_flushed(prop("battery-level", T, 64))
    await sqlite_harness.commit_flushed(prop("battery-level", T + 1, level))
    state = sqlite_harness.state()
    assert (state.battery, state.battery_at, state.reported_at) == (64, T, T + 1)
    assert len(await sqlite_harness.samples()) == 2


async def test_an_invalid_battery_level_does_not_replace_a_valid_one(
    harness: IngestHarness,
) -> None:
    await harness.commit_flushed(
        prop("8100", T, "32"), prop("8100", T + 1, "ff"), prop("battery-level", T + 2, value=True)
    )
    state = harness.state()
    assert (state.battery, state.battery_at) == (50, T)


# --- Parents ---


async def test_the_parent_with_the_strongest_signal_wins(harness: IngestHarness) -> None:
    await harness.commit_flushed(link(T, -70, P), link(T + 1, -50, Q), link(T + 2, -90, R))
    assert (harness.state().parent, harness.state().rssi) == (mac_to_number(Q), -50)
    await harness.commit_flushed(link(T + 3, -60, P))
    await harness.commit_flushed(link(T + 89 * SECOND, -60, R))
    assert (harness.state().parent, harness.state().radio_at) == (mac_to_number(Q), T + 1)


async def test_the_best_parent_expires_after_a_while(harness: IngestHarness) -> None:
    harness.now = T + 5 * MINUTE
    await harness.commit_flushed(link(T, -50, Q))
    await harness.commit_flushed(link(T + 90 * SECOND, -90, P))
    assert harness.state().parent == mac_to_number(Q)
    await harness.commit_flushed(link(T + 90 * SECOND + 1, -90, P))
    assert (harness.state().parent, harness.state().rssi) == (mac_to_number(P), -90)


async def test_the_best_parent_also_expires_within_one_flush(harness: IngestHarness) -> None:
    harness.now = T + 5 * MINUTE
    await harness.commit_flushed(link(T, -50, Q), link(T + 90 * SECOND + 1, -90, P))
    assert harness.state().parent == mac_to_number(P)


@pytest.mark.parametrize("apart", [True, False], ids=["one by one", "together"])
async def test_a_parent_whose_signal_becomes_weaker_is_replaced(harness: IngestHarness, apart: bool) -> None:  # noqa: FBT001 # a parameter
    for message in (link(T, -50, Q), link(T + 1, -80, Q), link(T + 2, -70, P)):
        await harness.commit(message)
        if apart:
            await harness.ingest.flush()
    await harness.ingest.flush()
    assert (harness.state().parent, harness.state().rssi) == (mac_to_number(P), -70)


async def test_an_unreachable_parent_is_ignored(harness: IngestHarness) -> None:
    await harness.commit_flushed(link(T, -80, P), link(T + 1, -20, Q, unreachable=True))
    assert (harness.state().parent, harness.state().rssi) == (mac_to_number(P), -80)
    assert harness.state().reported_at == T + 1
    await harness.commit_flushed(link(T, -20, Q, device=E, unreachable=True))
    assert (harness.state(E).parent, harness.state(E).radio_at) == (None, None)


# --- Deleted devices ---


@pytest.mark.rule("rest-41")
async def test_a_deleted_device_is_added_again_by_its_next_report(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T, 3), prop("battery-level", T, 50))
    assert harness.database.write_now(registry.delete_device, Mac(D))
    assert (harness.device(), harness.state()) == (None, None)
    await harness.commit_flushed(build_report("property-decoded/motion", T + 1, value=1))
    assert (harness.device().created_at, harness.state().reported_at) == (T + 1, T + 1)
    assert (harness.state().status, harness.state().battery) == (None, None)


async def test_deleting_a_device_between_commit_and_flush_is_harmless(harness: IngestHarness) -> None:
    await harness.commit_flushed(heartbeat(T), heartbeat(T, device=E))
    await harness.commit(heartbeat(T + 1, 5), link(T + 1, -50), heartbeat(T + 1, 6, device=E))
    harness.database.write_now(registry.delete_device, Mac(D))
    await harness.ingest.flush()
    assert (harness.state(D).status, harness.state(D).rssi, harness.state(E).status) == (5, -50, 6)
