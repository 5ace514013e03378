"""Reports that show that a device is active: those of the last minute, of every kind, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, build_report, dfu, heartbeat, link, prop, temperature
from tests.service.presence.presence_harness import (
    DAY,
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.mqtt.codec.packets import Publish

KINDS: dict[str, Callable[[int], Publish]] = {
    "heartbeat": heartbeat,
    "rssi": lambda time: link(time, -60),
    "rssi, unreachable": lambda time: link(time, -60, unreachable=True),
    "measurement": lambda time: build_report("measurement/8800", time, seq=1, value="0a00"),
    "measurement-decoded": temperature,
    "measurement-error": lambda time: build_report("measurement-error/8800", time, seq=1, error=8),
    "property": lambda time: build_report("property/8001", time, value="010203"),
    "property-decoded": lambda time: prop("unheard-of", time, 1),
    "event": lambda time: build_report("event/9000", time, seq=1, value="01"),
    "event-decoded": lambda time: build_report("event-decoded/unheard-of", time, seq=1, value=1),
}

for_every_kind = each_row("build", [pytest.param(build, id=kind) for kind, build in KINDS.items()])


@pytest.mark.rule("report-48")
@for_every_kind
def test_a_fresh_report_of_any_kind_connects_a_device(build: Callable[[int], Publish]) -> None:
    harness = PresenceHarness(A)
    assert summarize(harness.commit_and_collect(build(NOON))) == [(D, True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@for_every_kind
@each_row("age", [MINUTE - 1, -MINUTE + 1, 0])
def test_a_report_is_fresh_for_less_than_a_minute(build: Callable[[int], Publish], age: int) -> None:
    harness = PresenceHarness(A)
    assert len(harness.commit_and_collect(build(NOON - age))) == 1


@pytest.mark.rule("report-48", "report-49")
@for_every_kind
@each_row("age", [MINUTE, 61 * SECOND, HOUR, 40 * DAY, -MINUTE, -HOUR, -400 * DAY])
def test_an_old_or_future_report_does_not_connect_a_device(build: Callable[[int], Publish], age: int) -> None:
    harness = PresenceHarness(A)
    assert harness.commit_and_collect(build(NOON - age)) == []
    assert not harness.is_connected(D)


@pytest.mark.rule("report-48", "report-49")
@for_every_kind
def test_an_old_report_does_not_keep_a_device_connected(build: Callable[[int], Publish]) -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    assert harness.advance(150) == []
    harness.commit(build(harness.now - MINUTE))
    assert summarize(harness.advance(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48")
def test_a_device_in_dfu_mode_stays_connected() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    for _ in range(20):
        harness.commit(dfu(harness.now))
        assert harness.advance(150) == []
    assert harness.is_connected(D)
    harness.commit(dfu(harness.now - MINUTE))
    assert summarize(harness.advance(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48", "report-49")
def test_fresh_reports_count_anywhere_in_a_batch() -> None:
    for index in range(4):
        harness = PresenceHarness(A)
        batch = [temperature(NOON - HOUR - each * 30 * MINUTE, seq=each) for each in range(3)]
        batch.insert(index, temperature(NOON, seq=9))
        assert summarize(harness.commit_and_collect(*batch)) == [(D, True, "heard")]


@pytest.mark.rule("report-49", "rest-51")
@each_row("is_last", [True, False])
def test_replayed_reports_do_not_change_the_gateway_of_a_device(
    is_last: bool,  # noqa: FBT001 # a column of the table
) -> None:
    harness = PresenceHarness(A, B)
    harness.commit_and_collect(temperature(NOON))
    harness.advance(60)
    fresh = temperature(harness.now, seq=2)
    replayed = temperature(NOON - HOUR, gateway=B, seq=3)
    harness.commit_and_collect(*([fresh, replayed] if is_last else [replayed, fresh]))
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("report-49")
def test_backfill_does_not_keep_a_silent_device_alive() -> None:
    """Replay stored samples of a silent device, the newest first, while its gateway sees others."""
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    for index in range(60):
        time = harness.now - MINUTE - index * 10 * SECOND
        harness.commit(*(temperature(time - each * SECOND, seq=each) for each in range(3)))
        harness.advance(5, HeartbeatSource(E, 5))
    assert [each for each in summarize(harness.changes) if each[0] == D] == [
        (D, True, "heard"),
        (D, False, "silent"),
    ]


ages = st.one_of(st.integers(MINUTE, 2 * HOUR), st.integers(MINUTE, 40 * DAY), st.just(MINUTE))
kinds = st.sampled_from([*KINDS.values(), dfu])


@pytest.mark.rule("report-49")
@settings(max_examples=examples(50))
@given(
    stream=st.lists(st.tuples(st.integers(0, 40), kinds, ages), max_size=40),
    is_active=st.booleans(),
)
def test_old_reports_never_change_the_state_of_a_device_if_the_clock_is_right(
    stream: list[tuple[int, Callable[[int], Publish], int]],
    is_active: bool,  # noqa: FBT001 # drawn by Hypothesis
) -> None:
    """Check that old reports neither connect a device, nor keep it connected, nor disconnect it."""
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON, device=A))
    sources = [HeartbeatSource(A, 5), *([HeartbeatSource(D)] if is_active else [])]
    if is_active:
        harness.commit_and_collect(heartbeat(NOON))
        harness.advance(300, *sources)
    was_connected = harness.is_connected(D)
    for wait, build, age in stream:
        harness.commit(build(harness.now - age))
        harness.advance(wait, *sources)
    harness.advance(60, *sources)
    changes = [each for each in harness.changes if summarize([each])[0][0] == D]
    if is_active:
        assert (was_connected, len(changes)) == (True, 1)
    else:
        assert (was_connected, changes) == (False, [])


@pytest.mark.rule("report-49")
@settings(max_examples=examples(50))
@given(
    lag=st.integers(2, 90),
    speed=st.integers(3, 50),
    lags=st.lists(st.integers(-9, 9), min_size=1, max_size=5),
)
def test_replayed_reports_never_connect_a_device(lag: int, speed: int, lags: list[int]) -> None:
    """Replay the stored reports of a gateway that was offline for minutes or days, without other reports."""
    harness = PresenceHarness(A)
    time = NOON - lag * MINUTE
    while harness.now - time >= MINUTE + 10 * SECOND:
        jitter = lags[harness.now // 5000 % len(lags)] * SECOND
        harness.commit_and_collect(*(heartbeat(time + jitter, device=each) for each in (D, E, A)))
        assert not harness.is_connected(D)
        harness.now += 5 * SECOND
        time += 5 * speed * SECOND
    assert harness.changes == []
