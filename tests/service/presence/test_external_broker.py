"""On an external broker, a gateway is connected while its reports arrive within three of its intervals."""

from __future__ import annotations

import pytest

from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    DAY,
    HOUR,
    NOON,
    SECOND,
    STEP,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)


def start_with_reports(*sources: HeartbeatSource, seconds: int = 600) -> PresenceHarness:
    """Create a harness in which some sources have reported for a while."""
    harness = PresenceHarness(external_broker=True)
    harness.advance(seconds, *sources)
    harness.changes.clear()
    return harness


@pytest.mark.rule("rest-78")
def test_a_gateway_connects_with_the_first_report_through_it() -> None:
    harness = PresenceHarness(external_broker=True)
    changes = harness.commit_and_collect(temperature(NOON))
    assert changes[0] == (mac_to_number(A), True, NOON, "heard", mac_to_number(A))
    assert summarize(changes[1:]) == [(D, True, "gateway")]
    assert harness.tracker.connected_gateway_count == 1


@pytest.mark.rule("rest-78")
def test_reports_of_its_devices_keep_a_gateway_connected() -> None:
    harness = start_with_reports(HeartbeatSource(A), HeartbeatSource(D))
    assert harness.advance(1200, HeartbeatSource(D, 150), HeartbeatSource(E, 150)) == [
        (mac_to_number(E), True, NOON + 750 * SECOND, "heard", mac_to_number(A))
    ]
    assert harness.is_connected(A)


@pytest.mark.rule("rest-51", "rest-78")
@each_row("every", [60, 300])
def test_a_gateway_disconnects_after_three_intervals_with_all_its_devices(every: int) -> None:
    devices = [f"c0ffee00{each:04x}" for each in range(20)]
    sources = [HeartbeatSource(A, every), *(HeartbeatSource(each, 60) for each in devices)]
    harness = start_with_reports(*sources, seconds=4 * every)
    # The last reports arrive one after the other, that of the gateway itself first.
    harness.commit(heartbeat(harness.now, device=A))
    for each in devices:
        harness.now += 2 * SECOND
        harness.commit_and_collect(heartbeat(harness.now, device=each))
    assert harness.changes == []
    harness.advance(3 * every - STEP)
    silent_devices = [each for each in summarize(harness.changes) if each[2] == "silent"]
    harness.advance(3 * STEP)
    changes = summarize(harness.changes)
    assert (A, False, "silent") in changes
    assert not any(harness.is_connected(each) for each in [A, *devices])
    if every == 60:
        assert silent_devices == []
        assert sorted(changes) == sorted(
            [(A, False, "silent"), *((each, False, "gateway") for each in devices)]
        )


@pytest.mark.rule("rest-78")
def test_a_gateway_reconnects_with_its_devices_that_are_not_silent() -> None:
    harness = start_with_reports(
        HeartbeatSource(A), HeartbeatSource(D), HeartbeatSource(E, 1200), seconds=4 * 1200
    )
    harness.advance(200)
    assert sorted(summarize(harness.changes)) == [
        (A, False, "silent"),
        (D, False, "gateway"),
        (E, False, "gateway"),
    ]
    harness.advance(300)
    assert summarize(harness.commit_and_collect(heartbeat(harness.now, device=A))) == [
        (A, True, "heard"),
        (E, True, "gateway"),
    ]
    assert summarize(harness.commit_and_collect(heartbeat(harness.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_silent_device_disconnects_alone_while_its_gateway_reports() -> None:
    harness = start_with_reports(HeartbeatSource(A), HeartbeatSource(D), HeartbeatSource(E))
    assert summarize(harness.advance(185 + STEP, HeartbeatSource(A), HeartbeatSource(E))) == [
        (D, False, "silent")
    ]


@pytest.mark.rule("rest-51", "rest-78")
def test_a_gateway_with_a_late_heartbeat_does_not_hide_silent_devices() -> None:
    harness = start_with_reports(HeartbeatSource(A), HeartbeatSource(D))
    harness.advance(170)
    harness.commit(heartbeat(harness.now, device=A))
    assert summarize(harness.advance(30, HeartbeatSource(A, 10))) == [(D, False, "silent")]
    assert harness.is_connected(A)


@pytest.mark.rule("report-49", "rest-78")
@each_row("age", [60, 3600, 40 * DAY // SECOND, -60, -3600, -40 * DAY // SECOND])
def test_old_reports_do_not_connect_a_gateway(age: int) -> None:
    harness = PresenceHarness(external_broker=True)
    time = NOON - age * SECOND
    for build in (temperature, heartbeat, dfu):
        assert harness.commit_and_collect(build(time)) == []
    assert (
        harness.commit_and_collect(temperature(time), temperature(NOON, seq=2, gateway=B)) == harness.changes
    )
    assert sorted(summarize(harness.changes)) == [(B, True, "heard"), (D, True, "gateway")]


@pytest.mark.rule("rest-78")
def test_a_gateway_is_not_connected_by_its_radio_at_another_gateway() -> None:
    harness = start_with_reports(
        HeartbeatSource(A), HeartbeatSource(B, gateway=B), HeartbeatSource(D, gateway=B)
    )
    harness.advance(300, HeartbeatSource(A), HeartbeatSource(B, gateway=A))
    assert sorted(summarize(harness.changes)) == [(B, False, "silent"), (D, False, "gateway")]
    assert harness.advance(600, HeartbeatSource(A), HeartbeatSource(B, gateway=A)) == []
    assert not harness.is_connected(B)


@pytest.mark.rule("rest-78")
def test_a_device_becomes_a_gateway_with_its_first_report() -> None:
    """Another gateway saw its radio before it sent reports."""
    harness = start_with_reports(HeartbeatSource(A), HeartbeatSource(B, gateway=A))
    assert harness.is_connected(B)
    harness.advance(60, HeartbeatSource(D, 5, gateway=B), HeartbeatSource(A))
    assert harness.tracker.connected_gateway_count == 2
    assert harness.is_connected(D)
    harness.advance(7200, HeartbeatSource(A))
    assert not harness.is_connected(B)


@pytest.mark.rule("rest-51")
def test_a_device_of_a_silent_gateway_stays_connected_through_another_one() -> None:
    harness = start_with_reports(
        HeartbeatSource(A), HeartbeatSource(B, gateway=B), HeartbeatSource(D), HeartbeatSource(D, gateway=B)
    )
    harness.advance(600, HeartbeatSource(B, gateway=B), HeartbeatSource(D, gateway=B))
    assert summarize(harness.changes) == [(A, False, "silent")]


@pytest.mark.rule("rest-78")
def test_a_suspension_of_the_service_disconnects_no_device() -> None:
    harness = start_with_reports(HeartbeatSource(A), HeartbeatSource(D))
    harness.now += 10 * HOUR
    assert harness.collect_changes() == []
    assert harness.advance(600, HeartbeatSource(A), HeartbeatSource(D)) == []
