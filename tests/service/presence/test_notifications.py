"""Notifications of the subscriber, and metrics."""

from __future__ import annotations

from functools import partial

import pytest

from meshfleet.service.metric_table import add_presence_metrics
from tests.service.ingest.ingest_harness import SECOND
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number
from tests.service.metric_values import read_added_metrics
from tests.service.presence.stored_presence_harness import StoredPresenceHarness, connect_with_devices

pytestmark = pytest.mark.anyio


@pytest.mark.rule("rest-77", "rest-191")
async def test_a_gateway_change_is_notified_once_with_its_devices(
    sqlite_harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(sqlite_harness, A)
    assert sqlite_harness.subscriber.gateways == [(mac_to_number(A), 0)]
    assert sqlite_harness.subscriber.devices == [[mac_to_number(A)], [mac_to_number(D), mac_to_number(E)]]
    sqlite_harness.connect_only()
    await sqlite_harness.advance()
    sqlite_harness.connect_only(A)
    await sqlite_harness.advance()
    assert sqlite_harness.subscriber.gateways[1:] == [(mac_to_number(A), 2), (mac_to_number(A), 2)]
    assert sqlite_harness.subscriber.companions[1:] == [[mac_to_number(D), mac_to_number(E)]] * 2
    assert sqlite_harness.subscriber.devices[2:] == [[mac_to_number(A)], [mac_to_number(A)]]
    await sqlite_harness.idle(60)
    assert len(sqlite_harness.subscriber.gateways) == 3


async def test_devices_of_a_deleted_gateway_are_notified(
    sqlite_harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(sqlite_harness, A)
    sqlite_harness.delete_device(A)
    sqlite_harness.connect_only()
    await sqlite_harness.advance()
    assert sqlite_harness.subscriber.gateways[1:] == [(mac_to_number(A), 2)]
    assert sqlite_harness.history_summary()[-1] == (False, "gateway")


async def test_nothing_is_notified_without_changes(sqlite_harness: StoredPresenceHarness) -> None:
    await connect_with_devices(sqlite_harness, A)
    notified_before = (list(sqlite_harness.subscriber.devices), list(sqlite_harness.subscriber.gateways))
    for _ in range(5):
        sqlite_harness.connect_only(A)
        await sqlite_harness.advance(heartbeat(sqlite_harness.ingest_harness.now + SECOND))
    assert (sqlite_harness.subscriber.devices, sqlite_harness.subscriber.gateways) == notified_before


async def test_metrics_count_stored_changes(sqlite_harness: StoredPresenceHarness) -> None:
    await connect_with_devices(sqlite_harness, A, B)
    sqlite_harness.connect_only(B)
    await sqlite_harness.advance()
    now = sqlite_harness.ingest_harness.now
    for gateway, ahead in {A: 7 * SECOND, B: -9500}.items():
        sqlite_harness.tracker.clocks.measure_offset(mac_to_number(gateway), now, now, now + ahead)
    metrics = read_added_metrics(partial(add_presence_metrics, tracker=sqlite_harness.tracker))
    metric_name = "meshfleet_connectivity_changes_total"
    assert metrics[metric_name, "heard"] == 2
    assert metrics[metric_name, "gateway"] == 2
    assert metrics[metric_name, "connection"] == 3
    assert metrics["meshfleet_gateways_connected",] == 1
    assert metrics["meshfleet_clocks_wrong",] == 2
    assert metrics["meshfleet_clock_offset_max_seconds",] == 9.5
