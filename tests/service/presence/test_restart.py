"""After a restart, devices stay connected unless they stay silent or their gateway stays disconnected."""

from __future__ import annotations

import pytest

from meshfleet.service.presence.store import ConnectedDevice, PresenceSnapshot
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    HOUR,
    MINUTE,
    SECOND,
    STEP,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

GRACE = 60
"""Seconds that gateways have to reconnect."""


def restart(*devices: tuple[str, str | None, int | None], external_broker: bool = False) -> PresenceHarness:
    """Restart with both gateways and these devices as connected, each with its gateway and interval."""
    rows = [
        ConnectedDevice(mac_to_number(device), mac_to_number(gateway) if gateway else None, interval)
        for device, gateway, interval in devices
    ]
    rows += [ConnectedDevice(mac_to_number(each), None, MINUTE) for each in (A, B)]
    snapshot = PresenceSnapshot({mac_to_number(A), mac_to_number(B)}, rows)
    return PresenceHarness(external_broker=external_broker, snapshot=snapshot)


@pytest.mark.rule("rest-51")
def test_a_restart_changes_no_connection_state() -> None:
    harness = restart((D, A, None), (E, B, None))
    assert harness.collect_changes() == []
    assert all(map(harness.is_connected, (A, B, D, E)))
    harness.connect(A, B)
    assert harness.commit_and_collect(heartbeat(harness.now), heartbeat(harness.now, device=A)) == []
    assert harness.advance(3000) == []


@pytest.mark.rule("rest-51", "rest-192")
def test_silence_is_counted_from_the_start_with_stored_intervals() -> None:
    harness = restart((D, A, 2 * MINUTE), (E, A, None))
    harness.connect(A, B)
    assert harness.advance(360 - STEP) == []
    assert summarize(harness.advance(3 * STEP)) == [(D, False, "silent")]
    assert harness.advance(3600 - 360 - 3 * STEP) == []
    assert summarize(harness.advance(3 * STEP)) == [(E, False, "silent")]


@pytest.mark.rule("rest-77", "rest-192")
def test_gateways_have_a_minute_to_reconnect() -> None:
    harness = restart((D, A, None), (E, B, None))
    harness.poll_gateways()
    assert harness.collect_changes() == []
    for _ in range(GRACE // STEP - 1):
        assert harness.advance(STEP) == []
        harness.poll_gateways()
    harness.connect(A)
    assert harness.collect_changes() == []
    harness.advance(STEP)
    harness.poll_gateways()
    harness.collect_changes()
    assert summarize(harness.changes) == [(B, False, "connection"), (E, False, "gateway")]
    assert harness.tracker.connected_gateway_count == 1


@pytest.mark.rule("rest-77")
def test_a_gateway_that_reconnects_and_disconnects_within_that_minute_is_disconnected() -> None:
    harness = restart((D, A, None))
    harness.connect(A)
    assert harness.advance(STEP) == []
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-77")
def test_a_clock_set_ahead_does_not_shorten_that_minute() -> None:
    """Set the clock after the start, as on a machine without a battery-backed clock."""
    harness = restart((D, A, None))
    harness.poll_gateways()
    harness.collect_changes()
    harness.now += 1000 * HOUR
    harness.poll_gateways()
    assert harness.collect_changes() == []
    harness.connect(A, B)
    assert harness.advance(600) == []


def test_a_clock_set_back_does_not_keep_gateways_connected_forever() -> None:
    harness = restart((D, A, None))
    harness.now -= 1000 * HOUR
    for _ in range(4 * GRACE // STEP):
        harness.poll_gateways()
        harness.advance(STEP)
    assert sorted(summarize(harness.changes)) == [
        (A, False, "connection"),
        (B, False, "connection"),
        (D, False, "gateway"),
    ]


@pytest.mark.rule("rest-51")
def test_a_device_that_moved_during_the_restart_does_not_disconnect_with_its_old_gateway() -> None:
    harness = restart((D, A, None))
    harness.connect(B)
    harness.commit_and_collect(temperature(harness.now, gateway=B))
    harness.advance(GRACE)
    harness.poll_gateways()
    harness.collect_changes()
    assert summarize(harness.changes) == [(A, False, "connection")]


def test_a_device_without_a_known_gateway_times_out() -> None:
    harness = restart((D, None, MINUTE))
    harness.connect(A, B)
    assert summarize(harness.advance(190)) == [(D, False, "silent")]
    assert harness.changes[0].gateway == 0


@pytest.mark.rule("rest-78")
def test_on_an_external_broker_gateways_time_out_with_their_devices() -> None:
    harness = restart((D, A, None), (E, B, None), external_broker=True)
    assert harness.advance(180 - STEP, HeartbeatSource(B, gateway=B)) == []
    assert summarize(harness.advance(3 * STEP, HeartbeatSource(B, gateway=B))) == [
        (A, False, "silent"),
        (D, False, "gateway"),
    ]


@pytest.mark.rule("rest-78")
def test_on_an_external_broker_a_gateway_is_not_kept_by_its_radio_at_another_one() -> None:
    """Restart with a gateway that belonged to the other one, as devices do."""
    snapshot = PresenceSnapshot(
        {mac_to_number(A), mac_to_number(B)},
        [ConnectedDevice(mac_to_number(each), mac_to_number(B), MINUTE) for each in (A, B)],
    )
    harness = PresenceHarness(external_broker=True, snapshot=snapshot)
    harness.advance(600, HeartbeatSource(A, gateway=B), HeartbeatSource(B, gateway=B))
    assert summarize(harness.changes) == [(A, False, "silent")]


def test_a_slow_start_disconnects_no_device() -> None:
    harness = restart((D, A, MINUTE))
    harness.now += 10 * MINUTE + SECOND
    assert harness.collect_changes() == []
    harness.connect(A, B)
    assert harness.advance(170) == []
