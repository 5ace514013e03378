"""How a device is, part by part: what is newest counts, in whatever order it comes."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import listing, registry
from meshfleet.service.devices.model import DeviceFilter, SortOrder
from tests.examples import examples
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND
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
    from tests.service.ingest.ingest_harness import IngestHarness

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

T = NOON - MINUTE
"""A minute ago."""


async def test_a_device_is_there_when_it_was_heard(intake: IngestHarness) -> None:
    await intake.commit(temperature(T, device=D), heartbeat(T, device=E))
    assert (intake.device(D), intake.device(E)) == (None, None)
    await intake.ingest.flush()
    for mac in (D, E):
        known = intake.device(mac)
        assert (known.id, known.gateway, known.created_at) == (mac_to_number(mac), mac_to_number(A), T)
        assert intake.state(mac).reported_at == T


async def test_each_report_tells_its_part(intake: IngestHarness) -> None:
    await intake.commit_flushed(
        heartbeat(T, 3), link(T + 1, -61), prop("battery-level", T + 2, 77), temperature(T + 3)
    )
    state = intake.state()
    assert (state.status, state.status_at) == (3, T)
    assert (state.parent, state.rssi, state.radio_at) == (mac_to_number(P), -61, T + 1)
    assert (state.battery, state.battery_at) == (77, T + 2)
    assert (state.reported_at, state.boot_mode) == (T + 3, None)


async def test_what_was_not_reported_is_not_known(intake: IngestHarness) -> None:
    await intake.commit_flushed(temperature(T))
    state = intake.state()
    assert (state.status, state.parent, state.rssi, state.battery) == (None,) * 4
    assert (state.status_at, state.radio_at, state.battery_at) == (None,) * 3


ROUNDS = [
    [heartbeat(T, 1), link(T, -50), prop("battery-level", T, 90), temperature(T)],
    [heartbeat(T + 1, 2), link(T + 1, -51), prop("battery-level", T + 1, 89)],
    [heartbeat(T + 2, 3), temperature(T + 2)],
]


@pytest.mark.rule("report-50")
@pytest.mark.parametrize("apart", [True, False], ids=["one by one", "together"])
async def test_no_order_moves_anything_back(intake: IngestHarness, apart: bool) -> None:  # noqa: FBT001 # a parameter
    seen = set()
    for order in permutations(ROUNDS):
        for messages in order:
            await intake.commit(*messages)
            if apart:
                await intake.ingest.flush()
        await intake.ingest.flush()
        seen.add(tuple(intake.state()))
        intake.database.write_now(registry.delete_device, Mac(D))
    (state,) = seen
    assert state == (
        *(mac_to_number(D), T + 2, 3, None, mac_to_number(P), -51, 89),
        *(T + 2, T + 1, T + 1, T + 2),
        *(None,) * 5,
        mac_to_number(A),
    )


@pytest.mark.rule("rest-38")
async def test_gateway_parent_and_signal_are_of_one_reading_in_every_order(intake: IngestHarness) -> None:
    heard = {
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
        shown: tuple[int | None, int | None, int | None] = (None, None, None)
        for message in order:
            await intake.commit_flushed(message)
            state = intake.state()
            shown = (state.radio_gateway, state.parent, state.rssi)
            assert shown in heard | {(None, None, None)}, order
        assert shown == (mac_to_number(B), mac_to_number(R), -45), order
        intake.database.write_now(registry.delete_device, Mac(D))


@pytest.mark.rule("rest-38")
async def test_a_reading_of_another_gateway_counts_until_it_is_90_seconds_old(intake: IngestHarness) -> None:
    def shown() -> tuple[str | None, str | None, int | None]:
        """Gateway, parent and signal, which lists and the device alone tell alike."""
        chosen = DeviceFilter(gateway=Mac(intake.gateway() or ""))
        devices, _ = intake.database.read_now(
            listing.list_devices, chosen, SortOrder(), after=None, limit=10, live=True
        )
        (live,) = (each.live for each in devices if each.id == f"bmac-{D}")
        assert live == intake.database.read_now(listing.load_device_detail, Mac(D)).live
        return live.gateway, live.parent, live.rssi

    at = T - 10 * MINUTE
    await intake.commit_flushed(heartbeat(at - 95 * SECOND, gateway=B))
    await intake.commit_flushed(link(at - 90 * SECOND, -50, P, gateway=A))
    await intake.commit_flushed(heartbeat(at, gateway=B))
    assert (intake.gateway(), shown()) == (B, (A, P, -50))
    await intake.commit_flushed(heartbeat(at + 1, gateway=B))
    assert shown() == (B, None, None)
    await intake.commit_flushed(link(at + 2, -80, Q, gateway=B))
    assert shown() == (B, Q, -80)
    await intake.commit_flushed(heartbeat(at + 10 * MINUTE, gateway=B))  # the gateway has not changed since
    assert shown() == (B, Q, -80)


@pytest.mark.rule("report-50")
async def test_an_old_part_comes_in_beside_a_newer_one(intake: IngestHarness) -> None:
    """Each part has its own time: what was unknown of the past is not less true for coming late."""
    await intake.commit_flushed(heartbeat(T, 3))
    await intake.commit_flushed(link(T - SECOND, -61), prop("battery-level", T - SECOND, 77))
    state = intake.state()
    assert (state.reported_at, state.status) == (T, 3)
    assert (state.rssi, state.radio_at, state.battery, state.battery_at) == (-61, T - SECOND, 77, T - SECOND)


@pytest.mark.rule("report-49", "report-50")
async def test_reports_that_are_played_again_change_nothing(intake: IngestHarness) -> None:
    for messages in ROUNDS:
        await intake.commit_flushed(*messages)
    before = intake.device(), intake.state()
    intake.now += 20 * MINUTE
    for messages in ROUNDS:
        await intake.commit_flushed(*messages)
    assert (intake.device(), intake.state()) == before
    assert not intake.device().connected


news = st.one_of(
    st.tuples(st.just("heartbeat"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("battery"), st.integers(0, 3), st.integers(0, 255)),
    st.tuples(st.just("sample"), st.integers(0, 3), st.just(0)),
)
"""What is reported, when, and what it says."""


def said(what: str, at: int, value: int) -> Publish:
    if what == "heartbeat":
        return heartbeat(T + at, value)
    return prop("8100", T + at, f"{value:02x}") if what == "battery" else temperature(T + at)


def newest(told: list[tuple[str, int, int]], what: str, most: int) -> tuple[int | None, int | None]:
    """Of some news the latest, or of several such the one that came last: what it says, and its time."""
    at, value = max(
        (
            (at, place, value)
            for place, (each, at, value) in enumerate(told)
            if each == what and value <= most
        ),
        default=(None, None, None),
    )[::2]
    return value, None if at is None else T + at


@given(st.lists(st.lists(news, max_size=4), min_size=1, max_size=3))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_comes_in_whatever_order_the_newest_of_each_part_counts(
    intake: IngestHarness, rounds: list[list[tuple[str, int, int]]]
) -> None:
    intake.database.write_now(registry.delete_device, Mac(D))
    for each in rounds:
        await intake.commit_flushed(*(said(*one) for one in each))
    told = [one for each in rounds for one in each]
    state = intake.state()
    if not told:
        assert state is None
        return
    assert state.reported_at == T + max(at for _, at, _ in told)
    assert (state.status, state.status_at) == newest(told, "heartbeat", 3)
    assert (state.battery, state.battery_at) == newest(told, "battery", 100)


# --- Odd numbers ---


async def test_numbers_that_no_device_has_are_cut_to_what_can_be_kept(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T, 2**53), link(T, 2**53))
    await intake.commit_flushed(heartbeat(T, -(2**53), device=E), link(T, -(2**53), device=E))
    first, second = intake.state(D), intake.state(E)
    assert (first.status, first.rssi) == (2**31 - 1, 2**15 - 1)
    assert (second.status, second.rssi) == (-(2**31) + 1, -(2**15) + 1)


@pytest.mark.parametrize("level", [255, 101, -1, True, None, "80", 80.5, 2**70, [80], {"level": 80}], ids=str)
async def test_a_level_that_no_battery_has_says_nothing(in_file: IngestHarness, level: object) -> None:
    await in_file.commit_flushed(prop("battery-level", T, 64))
    await in_file.commit_flushed(prop("battery-level", T + 1, level))
    state = in_file.state()
    assert (state.battery, state.battery_at, state.reported_at) == (64, T, T + 1)
    assert len(await in_file.samples()) == 2


async def test_a_level_that_no_battery_has_does_not_hide_one_of_the_same_moment(
    intake: IngestHarness,
) -> None:
    await intake.commit_flushed(
        prop("8100", T, "32"), prop("8100", T + 1, "ff"), prop("battery-level", T + 2, value=True)
    )
    state = intake.state()
    assert (state.battery, state.battery_at) == (50, T)


# --- Parents ---


async def test_the_parent_that_hears_best_counts(intake: IngestHarness) -> None:
    await intake.commit_flushed(link(T, -70, P), link(T + 1, -50, Q), link(T + 2, -90, R))
    assert (intake.state().parent, intake.state().rssi) == (mac_to_number(Q), -50)
    await intake.commit_flushed(link(T + 3, -60, P))
    await intake.commit_flushed(link(T + 89 * SECOND, -60, R))
    assert (intake.state().parent, intake.state().radio_at) == (mac_to_number(Q), T + 1)


async def test_the_best_parent_is_forgotten_after_a_while(intake: IngestHarness) -> None:
    intake.now = T + 5 * MINUTE
    await intake.commit_flushed(link(T, -50, Q))
    await intake.commit_flushed(link(T + 90 * SECOND, -90, P))
    assert intake.state().parent == mac_to_number(Q)
    await intake.commit_flushed(link(T + 90 * SECOND + 1, -90, P))
    assert (intake.state().parent, intake.state().rssi) == (mac_to_number(P), -90)


async def test_the_best_parent_is_forgotten_within_one_flush_too(intake: IngestHarness) -> None:
    intake.now = T + 5 * MINUTE
    await intake.commit_flushed(link(T, -50, Q), link(T + 90 * SECOND + 1, -90, P))
    assert intake.state().parent == mac_to_number(P)


@pytest.mark.parametrize("apart", [True, False], ids=["one by one", "together"])
async def test_a_parent_that_hears_worse_is_left(intake: IngestHarness, apart: bool) -> None:  # noqa: FBT001 # a parameter
    for message in (link(T, -50, Q), link(T + 1, -80, Q), link(T + 2, -70, P)):
        await intake.commit(message)
        if apart:
            await intake.ingest.flush()
    await intake.ingest.flush()
    assert (intake.state().parent, intake.state().rssi) == (mac_to_number(P), -70)


async def test_a_parent_that_cannot_reach_a_device_is_not_its_parent(intake: IngestHarness) -> None:
    await intake.commit_flushed(link(T, -80, P), link(T + 1, -20, Q, unreachable=True))
    assert (intake.state().parent, intake.state().rssi) == (mac_to_number(P), -80)
    assert intake.state().reported_at == T + 1
    await intake.commit_flushed(link(T, -20, Q, device=E, unreachable=True))
    assert (intake.state(E).parent, intake.state(E).radio_at) == (None, None)


# --- Devices that are forgotten ---


@pytest.mark.rule("rest-41")
async def test_a_forgotten_device_comes_back_when_it_is_heard(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T, 3), prop("battery-level", T, 50))
    assert intake.database.write_now(registry.delete_device, Mac(D))
    assert (intake.device(), intake.state()) == (None, None)
    await intake.commit_flushed(build_report("property-decoded/motion", T + 1, value=1))
    assert (intake.device().created_at, intake.state().reported_at) == (T + 1, T + 1)
    assert (intake.state().status, intake.state().battery) == (None, None)


async def test_forgetting_a_device_between_take_and_flush_breaks_nothing(intake: IngestHarness) -> None:
    await intake.commit_flushed(heartbeat(T), heartbeat(T, device=E))
    await intake.commit(heartbeat(T + 1, 5), link(T + 1, -50), heartbeat(T + 1, 6, device=E))
    intake.database.write_now(registry.delete_device, Mac(D))
    await intake.ingest.flush()
    assert (intake.state(D).status, intake.state(D).rssi, intake.state(E).status) == (5, -50, 6)
