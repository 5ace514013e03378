"""Which reports show that a device is there: those of the last minute, of every kind, and no others."""

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
    "rssi": lambda at: link(at, -60),
    "rssi, unreachable": lambda at: link(at, -60, unreachable=True),
    "measurement": lambda at: build_report("measurement/8800", at, seq=1, value="0a00"),
    "measurement-decoded": temperature,
    "measurement-error": lambda at: build_report("measurement-error/8800", at, seq=1, error=8),
    "property": lambda at: build_report("property/8001", at, value="010203"),
    "property-decoded": lambda at: prop("unheard-of", at, 1),
    "event": lambda at: build_report("event/9000", at, seq=1, value="01"),
    "event-decoded": lambda at: build_report("event-decoded/unheard-of", at, seq=1, value=1),
}

every_kind = each_row("made", [pytest.param(made, id=kind) for kind, made in KINDS.items()])


@pytest.mark.rule("report-48")
@every_kind
def test_a_report_of_any_kind_is_a_sign_of_life(made: Callable[[int], Publish]) -> None:
    scene = PresenceHarness(A)
    assert summarize(scene.commit_and_collect(made(NOON))) == [(D, True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@every_kind
@each_row("age", [MINUTE - 1, -MINUTE + 1, 0])
def test_it_is_one_for_less_than_a_minute(made: Callable[[int], Publish], age: int) -> None:
    scene = PresenceHarness(A)
    assert len(scene.commit_and_collect(made(NOON - age))) == 1


@pytest.mark.rule("report-48", "report-49")
@every_kind
@each_row("age", [MINUTE, 61 * SECOND, HOUR, 40 * DAY, -MINUTE, -HOUR, -400 * DAY])
def test_afterwards_it_is_none(made: Callable[[int], Publish], age: int) -> None:
    scene = PresenceHarness(A)
    assert scene.commit_and_collect(made(NOON - age)) == []
    assert not scene.is_connected(D)


@pytest.mark.rule("report-48", "report-49")
@every_kind
def test_nor_does_it_keep_a_device_that_is_there(made: Callable[[int], Publish]) -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    assert scene.advance(150) == []
    scene.commit(made(scene.now - MINUTE))
    assert summarize(scene.advance(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48")
def test_a_device_in_dfu_mode_is_alive() -> None:
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON))
    scene.advance(600, HeartbeatSource(D))
    for _ in range(20):
        scene.commit(dfu(scene.now))
        assert scene.advance(150) == []
    assert scene.is_connected(D)
    scene.commit(dfu(scene.now - MINUTE))
    assert summarize(scene.advance(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48", "report-49")
def test_of_a_batch_the_fresh_reports_count_wherever_they_are() -> None:
    for place in range(4):
        scene = PresenceHarness(A)
        batch = [temperature(NOON - HOUR - each * 30 * MINUTE, seq=each) for each in range(3)]
        batch.insert(place, temperature(NOON, seq=9))
        assert summarize(scene.commit_and_collect(*batch)) == [(D, True, "heard")]


@pytest.mark.rule("report-49", "rest-51")
@each_row("is_last", [True, False])
def test_a_gateway_that_only_replays_is_not_the_one_that_hears_a_device(
    is_last: bool,  # noqa: FBT001 # a parameter
) -> None:
    scene = PresenceHarness(A, B)
    scene.commit_and_collect(temperature(NOON))
    scene.advance(60)
    fresh = temperature(scene.now, seq=2)
    replayed = temperature(NOON - HOUR, gateway=B, seq=3)
    scene.commit_and_collect(*([fresh, replayed] if is_last else [replayed, fresh]))
    scene.disconnect(A)
    assert summarize(scene.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("report-49")
def test_backfill_does_not_keep_a_silent_device_alive() -> None:
    """Its gateway hears others, and sends what this one kept, the newest first."""
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.advance(600, HeartbeatSource(D), HeartbeatSource(E))
    for place in range(60):
        kept = scene.now - MINUTE - place * 10 * SECOND
        scene.commit(*(temperature(kept - each * SECOND, seq=each) for each in range(3)))
        scene.advance(5, HeartbeatSource(E, 5))
    assert [each for each in summarize(scene.changes) if each[0] == D] == [
        (D, True, "heard"),
        (D, False, "silent"),
    ]


ages = st.one_of(st.integers(MINUTE, 2 * HOUR), st.integers(MINUTE, 40 * DAY), st.just(MINUTE))
kinds = st.sampled_from([*KINDS.values(), dfu])


@pytest.mark.rule("report-49")
@settings(max_examples=examples(50))
@given(
    stream=st.lists(st.tuples(st.integers(0, 40), kinds, ages), max_size=40),
    alive=st.booleans(),
)
def test_no_stream_of_old_reports_flips_a_device_of_a_gateway_whose_clock_is_right(
    stream: list[tuple[int, Callable[[int], Publish], int]],
    alive: bool,  # noqa: FBT001 # an example
) -> None:
    """Neither makes it look alive, nor keeps it so, nor makes one silent that is alive."""
    scene = PresenceHarness(A)
    scene.commit_and_collect(heartbeat(NOON, device=A))
    pulses = [HeartbeatSource(A, 5), *([HeartbeatSource(D)] if alive else [])]
    if alive:
        scene.commit_and_collect(heartbeat(NOON))
        scene.advance(300, *pulses)
    before = scene.is_connected(D)
    for wait, made, age in stream:
        scene.commit(made(scene.now - age))
        scene.advance(wait, *pulses)
    scene.advance(60, *pulses)
    changes = [each for each in scene.changes if summarize([each])[0][0] == D]
    if alive:
        assert (before, len(changes)) == (True, 1)
    else:
        assert (before, changes) == (False, [])


@pytest.mark.rule("report-49")
@settings(max_examples=examples(50))
@given(
    lag=st.integers(2, 90),
    speed=st.integers(3, 50),
    lags=st.lists(st.integers(-9, 9), min_size=1, max_size=5),
)
def test_what_is_played_again_faster_than_it_happened_never_looks_alive(
    lag: int, speed: int, lags: list[int]
) -> None:
    """Even when nothing else is heard: a gateway that was cut off for minutes or days sends what it kept."""
    scene = PresenceHarness(A)
    at = NOON - lag * MINUTE
    while scene.now - at >= MINUTE + 10 * SECOND:
        jitter = lags[scene.now // 5000 % len(lags)] * SECOND
        scene.commit_and_collect(*(heartbeat(at + jitter, device=each) for each in (D, E, A)))
        assert not scene.is_connected(D)
        scene.now += 5 * SECOND
        at += 5 * speed * SECOND
    assert scene.changes == []
