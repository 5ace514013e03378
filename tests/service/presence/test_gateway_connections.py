"""On the embedded broker, a gateway is connected while its MQTT connection is, together with its devices."""

from __future__ import annotations

import pytest

from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.presence_harness import (
    HOUR,
    MINUTE,
    NOON,
    SECOND,
    HeartbeatSource,
    PresenceHarness,
    summarize,
)

C = "02005e000003"


def start_with_devices(*gateways: str, size: int = 5) -> tuple[PresenceHarness, list[str]]:
    """Create devices that the first gateway has seen once; they time out after an hour."""
    harness = PresenceHarness(*gateways)
    devices = [f"c0ffee00{each:04x}" for each in range(size)]
    harness.commit_and_collect(*(heartbeat(NOON, device=each, gateway=gateways[0]) for each in devices))
    harness.changes.clear()
    return harness, devices


@pytest.mark.rule("rest-77")
def test_a_gateway_is_connected_while_its_mqtt_connection_is() -> None:
    harness = PresenceHarness()
    harness.connect(A)
    (change,) = harness.collect_changes()
    assert change == (mac_to_number(A), True, NOON, "connection", mac_to_number(A))
    assert harness.tracker.connected_gateway_count == 1
    assert harness.advance(7200) == [], "reports are not required"
    harness.disconnect(A)
    (change,) = harness.collect_changes()
    assert change == (mac_to_number(A), False, harness.now, "connection", mac_to_number(A))
    assert harness.tracker.connected_gateway_count == 0


@pytest.mark.rule("rest-77")
def test_a_reconnection_between_two_polls_is_not_a_change() -> None:
    harness, _ = start_with_devices(A)
    for _ in range(5):
        harness.disconnect(A)
        harness.connect(A)
        assert harness.collect_changes() == []


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_devices_disconnect_and_reconnect_with_their_gateway() -> None:
    harness, devices = start_with_devices(A)
    harness.disconnect(A)
    disconnected = harness.collect_changes()
    assert summarize(disconnected)[0] == (A, False, "connection")
    assert sorted(summarize(disconnected)[1:]) == [(each, False, "gateway") for each in devices]
    assert {each.gateway for each in disconnected} == {mac_to_number(A)}
    harness.advance(3000)
    harness.connect(A)
    connected = harness.collect_changes()
    assert summarize(connected)[0] == (A, True, "connection")
    assert sorted(summarize(connected)[1:]) == [(each, True, "gateway") for each in devices]
    assert {each.gateway for each in connected} == {mac_to_number(A)}


@pytest.mark.rule("rest-51", "rest-77")
def test_devices_that_are_silent_meanwhile_stay_disconnected_until_they_report() -> None:
    harness, _ = start_with_devices(A, size=1)
    harness.advance(600, HeartbeatSource(D), HeartbeatSource(E, 300))
    harness.disconnect(A)
    harness.collect_changes()
    harness.advance(170)
    harness.connect(A)
    harness.collect_changes()
    assert (harness.is_connected(D), harness.is_connected(E)) == (True, True)
    harness.disconnect(A)
    harness.collect_changes()
    harness.advance(20)
    harness.connect(A)
    harness.collect_changes()
    assert (harness.is_connected(D), harness.is_connected(E)) == (False, True)
    assert summarize(harness.commit_and_collect(temperature(harness.now))) == [(D, True, "heard")]


@pytest.mark.rule("rest-51")
def test_reconnecting_with_its_gateway_does_not_restart_the_timeout_of_a_device() -> None:
    harness, (device,) = start_with_devices(A, size=1)
    for _ in range(5):
        harness.advance(600)
        harness.disconnect(A)
        harness.collect_changes()
        harness.connect(A)
        harness.collect_changes()
    assert harness.is_connected(device)
    assert summarize(harness.advance(610)) == [(device, False, "silent")]


@pytest.mark.rule("rest-51", "rest-77", "rest-191")
def test_a_device_stays_connected_through_another_gateway() -> None:
    harness, _ = start_with_devices(A, B, size=0)
    harness.commit_and_collect(
        heartbeat(NOON, device=D), heartbeat(NOON + 1, device=D, gateway=B), heartbeat(NOON, device=E)
    )
    harness.commit_and_collect(heartbeat(NOON + 2, device=D))
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection"), (E, False, "gateway")]
    harness.disconnect(B)
    assert summarize(harness.collect_changes()) == [(B, False, "connection"), (D, False, "gateway")]
    harness.connect(A)
    assert summarize(harness.collect_changes()) == [(A, True, "connection"), (E, True, "gateway")]
    harness.connect(B)
    assert summarize(harness.collect_changes()) == [(B, True, "connection"), (D, True, "gateway")]


@pytest.mark.rule("rest-51")
def test_a_device_disconnects_once_if_both_gateways_disconnect() -> None:
    harness, _ = start_with_devices(A, B, size=0)
    harness.commit_and_collect(heartbeat(NOON), heartbeat(NOON + 1, gateway=B))
    harness.disconnect(A, B)
    disconnected = summarize(harness.collect_changes())
    assert len(disconnected) == 3
    assert (D, False, "gateway") in disconnected


@pytest.mark.rule("rest-51")
def test_a_gateway_that_saw_a_device_long_ago_does_not_keep_it_connected() -> None:
    harness, _ = start_with_devices(A, B, size=0)
    harness.commit_and_collect(heartbeat(NOON, gateway=B))
    harness.advance(5)
    harness.advance(1800, HeartbeatSource(D))
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection"), (D, False, "gateway")]


@pytest.mark.rule("rest-51", "rest-52")
@pytest.mark.parametrize("gateways", [(A, B), (A, B, C)])
def test_a_device_that_changes_gateways_every_minute_stays_connected(gateways: tuple[str, ...]) -> None:
    harness = PresenceHarness(*gateways)
    for minute in range(120):
        harness.commit(heartbeat(harness.now, gateway=gateways[minute % len(gateways)]))
        harness.advance(60)
    assert summarize(harness.changes) == [(D, True, "heard")]
    assert harness.interval(D) == MINUTE


@pytest.mark.rule("rest-51")
def test_a_device_stays_connected_while_its_gateways_take_turns() -> None:
    harness = PresenceHarness(A, B)
    harness.commit(heartbeat(NOON, gateway=B))
    harness.commit_and_collect(heartbeat(NOON + 1, gateway=A))
    harness.changes.clear()
    for minute in range(20):
        connected_gateway, disconnected_gateway = (A, B) if minute % 2 else (B, A)
        harness.commit(
            heartbeat(harness.now, gateway=disconnected_gateway),
            heartbeat(harness.now + 1, gateway=connected_gateway),
        )
        harness.disconnect(disconnected_gateway)
        harness.advance(30)
        harness.connect(disconnected_gateway)
        harness.advance(30)
    assert D not in {each for each, _, _ in summarize(harness.changes)}


@pytest.mark.rule("rest-51", "rest-77")
def test_reports_of_a_disconnected_gateway_do_not_connect_devices() -> None:
    harness, (device,) = start_with_devices(A, size=1)
    harness.disconnect(A)
    harness.collect_changes()
    harness.now += 2 * SECOND
    assert (
        harness.commit_and_collect(
            temperature(harness.now, device=device), temperature(harness.now, device=E)
        )
        == []
    )
    harness.connect(A)
    connected = summarize(harness.collect_changes())
    assert connected[0] == (A, True, "connection")
    assert sorted(connected[1:]) == [(device, True, "gateway"), (E, True, "gateway")]


@pytest.mark.rule("rest-51", "rest-77")
def test_a_new_device_does_not_connect_if_its_gateway_disconnects() -> None:
    """Let both happen between two flushes."""
    harness = PresenceHarness(A)
    harness.commit(heartbeat(NOON))
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection")]
    assert not harness.is_connected(D)


@pytest.mark.rule("rest-77")
def test_a_new_gateway_connects_once_with_its_connection() -> None:
    harness = PresenceHarness()
    assert harness.commit_and_collect(heartbeat(NOON, device=A), heartbeat(NOON)) == [], (
        "the connection is not known yet"
    )
    harness.connect(A)
    harness.commit(heartbeat(NOON, device=A))
    connected = summarize(harness.collect_changes())
    assert connected[0] == (A, True, "connection")
    assert connected[1:] == [(D, True, "gateway")]


@pytest.mark.rule("rest-77")
def test_a_gateway_without_a_connection_is_not_connected_by_its_radio() -> None:
    harness = PresenceHarness(A, B)
    harness.disconnect(B)
    harness.collect_changes()
    harness.changes.clear()
    assert harness.advance(600, HeartbeatSource(B, gateway=A)) == []
    assert not harness.is_connected(B)


@pytest.mark.rule("rest-77")
def test_a_gateway_behind_another_does_not_disconnect_with_it() -> None:
    harness = PresenceHarness(A, B)
    harness.advance(600, HeartbeatSource(B, gateway=A))
    harness.changes.clear()
    harness.disconnect(A)
    assert summarize(harness.collect_changes()) == [(A, False, "connection")]
    assert harness.advance(2 * HOUR // SECOND) == []


def test_silent_devices_disconnect_while_their_gateway_is_connected() -> None:
    harness, devices = start_with_devices(A)
    harness.advance(3700)
    assert sorted(summarize(harness.changes)) == [(each, False, "silent") for each in devices]


@pytest.mark.rule("rest-51")
def test_a_device_that_reconnects_with_its_gateway_times_out_on_time() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON))
    harness.advance(600, HeartbeatSource(D))
    harness.disconnect(A)
    harness.advance(170)
    harness.connect(A)
    harness.collect_changes()
    assert harness.is_connected(D)
    assert summarize(harness.advance(20)) == [(D, False, "silent")]


def test_changes_of_many_gateways_are_spread_over_several_flushes() -> None:
    """Check that each gateway changes with all of its devices."""
    macs = [f"02005e{each:06x}" for each in range(1, 15)]
    harness = PresenceHarness(*macs)
    devices = {mac: [f"0a{mac[6:]}{each:04x}" for each in range(800)] for mac in macs}
    for mac in macs:
        harness.commit(*(heartbeat(harness.now, device=each, gateway=mac) for each in devices[mac]))
    while harness.collect_changes():
        pass
    assert all(harness.is_connected(each) for mac in macs for each in devices[mac])
    harness.disconnect(*macs)
    flush_sizes = []
    while new := harness.collect_changes():
        flush_sizes.append(len(new))
        harness.poll_gateways()
    assert sum(flush_sizes) == 14 * 801
    assert len(flush_sizes) > 1
    assert all(count % 801 == 0 for count in flush_sizes)
    harness.connect(*macs)
    connected_count = 0
    while new := harness.collect_changes():
        connected_count += len(new)
        harness.poll_gateways()
    assert connected_count == 14 * 801


def test_a_device_that_becomes_a_gateway_connects_once() -> None:
    harness = PresenceHarness()
    harness.commit(heartbeat(NOON, device=B, gateway=A))
    harness.connect(A, B)
    assert sorted(summarize(harness.collect_changes())) == [(A, True, "connection"), (B, True, "connection")]


def test_a_device_that_becomes_a_gateway_does_not_disconnect_with_its_former_gateway() -> None:
    harness = PresenceHarness(A)
    harness.commit_and_collect(heartbeat(NOON, device=B, gateway=A))
    harness.disconnect(A)
    harness.connect(B)
    assert sorted(summarize(harness.collect_changes())) == [(A, False, "connection"), (B, True, "connection")]
