"""Which reports show that a device is there: those of the last minute, of every kind, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.service.ingest.messages import A, B, D, E, dfu, heartbeat, link, prop, report, temperature
from tests.service.presence.scene import DAY, HOUR, MINUTE, NOON, SECOND, Pulse, Scene, brief
from tests.tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.wire.mqtt.packets import Publish

KINDS: dict[str, Callable[[int], Publish]] = {
    "heartbeat": heartbeat,
    "rssi": lambda at: link(at, -60),
    "rssi, unreachable": lambda at: link(at, -60, unreachable=True),
    "measurement": lambda at: report("measurement/8800", at, seq=1, value="0a00"),
    "measurement-decoded": temperature,
    "measurement-error": lambda at: report("measurement-error/8800", at, seq=1, error=8),
    "property": lambda at: report("property/8001", at, value="010203"),
    "property-decoded": lambda at: prop("unheard-of", at, 1),
    "event": lambda at: report("event/9000", at, seq=1, value="01"),
    "event-decoded": lambda at: report("event-decoded/unheard-of", at, seq=1, value=1),
}

every_kind = each_row("made", [pytest.param(made, id=kind) for kind, made in KINDS.items()])


@pytest.mark.rule("report-48")
@every_kind
def test_a_report_of_any_kind_is_a_sign_of_life(made: Callable[[int], Publish]) -> None:
    scene = Scene(A)
    assert brief(scene.see(made(NOON))) == [(D, True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@every_kind
@each_row("age", [MINUTE - 1, -MINUTE + 1, 0])
def test_it_is_one_for_less_than_a_minute(made: Callable[[int], Publish], age: int) -> None:
    scene = Scene(A)
    assert len(scene.see(made(NOON - age))) == 1


@pytest.mark.rule("report-48", "report-49")
@every_kind
@each_row("age", [MINUTE, 61 * SECOND, HOUR, 40 * DAY, -MINUTE, -HOUR, -400 * DAY])
def test_afterwards_it_is_none(made: Callable[[int], Publish], age: int) -> None:
    scene = Scene(A)
    assert scene.see(made(NOON - age)) == []
    assert not scene.has(D)


@pytest.mark.rule("report-48", "report-49")
@every_kind
def test_nor_does_it_keep_a_device_that_is_there(made: Callable[[int], Publish]) -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    assert scene.go_on(150) == []
    scene.take(made(scene.now - MINUTE))
    assert brief(scene.go_on(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48")
def test_a_device_in_dfu_mode_is_alive() -> None:
    scene = Scene(A)
    scene.see(heartbeat(NOON))
    scene.go_on(600, Pulse(D))
    for _ in range(20):
        scene.take(dfu(scene.now))
        assert scene.go_on(150) == []
    assert scene.has(D)
    scene.take(dfu(scene.now - MINUTE))
    assert brief(scene.go_on(60)) == [(D, False, "silent")]


@pytest.mark.rule("report-48", "report-49")
def test_of_a_batch_the_fresh_reports_count_wherever_they_are() -> None:
    for place in range(4):
        scene = Scene(A)
        batch = [temperature(NOON - HOUR - each * 30 * MINUTE, seq=each) for each in range(3)]
        batch.insert(place, temperature(NOON, seq=9))
        assert brief(scene.see(*batch)) == [(D, True, "heard")]


@pytest.mark.rule("report-49", "rest-51")
@each_row("is_last", [True, False])
def test_a_gateway_that_only_replays_is_not_the_one_that_hears_a_device(
    is_last: bool,  # noqa: FBT001 # a parameter
) -> None:
    scene = Scene(A, B)
    scene.see(temperature(NOON))
    scene.go_on(60)
    fresh = temperature(scene.now, seq=2)
    replayed = temperature(NOON - HOUR, gateway=B, seq=3)
    scene.see(*([fresh, replayed] if is_last else [replayed, fresh]))
    scene.disconnect(A)
    assert brief(scene.look()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("report-49")
def test_backfill_does_not_keep_a_silent_device_alive() -> None:
    """Its gateway hears others, and sends what this one kept, the newest first."""
    scene = Scene(A)
    scene.see(heartbeat(NOON), heartbeat(NOON, device=E))
    scene.go_on(600, Pulse(D), Pulse(E))
    for place in range(60):
        kept = scene.now - MINUTE - place * 10 * SECOND
        scene.take(*(temperature(kept - each * SECOND, seq=each) for each in range(3)))
        scene.go_on(5, Pulse(E, 5))
    assert [each for each in brief(scene.changes) if each[0] == D] == [
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
    scene = Scene(A)
    scene.see(heartbeat(NOON, device=A))
    pulses = [Pulse(A, 5), *([Pulse(D)] if alive else [])]
    if alive:
        scene.see(heartbeat(NOON))
        scene.go_on(300, *pulses)
    before = scene.has(D)
    for wait, made, age in stream:
        scene.take(made(scene.now - age))
        scene.go_on(wait, *pulses)
    scene.go_on(60, *pulses)
    changes = [each for each in scene.changes if brief([each])[0][0] == D]
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
    scene = Scene(A)
    at = NOON - lag * MINUTE
    while scene.now - at >= MINUTE + 10 * SECOND:
        jitter = lags[scene.now // 5000 % len(lags)] * SECOND
        scene.see(*(heartbeat(at + jitter, device=each) for each in (D, E, A)))
        assert not scene.has(D)
        scene.now += 5 * SECOND
        at += 5 * speed * SECOND
    assert scene.changes == []
