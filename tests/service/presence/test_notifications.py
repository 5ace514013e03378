"""Who is told what changed, and what Prometheus is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.presence.metrics import PresenceMetrics
from tests.service.ingest.ingest_harness import SECOND
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number
from tests.service.presence.stored_presence_harness import connect_with_devices

if TYPE_CHECKING:
    from tests.service.presence.stored_presence_harness import StoredPresenceHarness

pytestmark = pytest.mark.anyio


@pytest.mark.rule("rest-77", "rest-191")
async def test_the_audience_hears_of_a_gateway_once_with_the_number_of_its_devices(
    in_file: StoredPresenceHarness,
) -> None:
    await connect_with_devices(in_file, A)
    assert in_file.subscriber.gateways == [(mac_to_number(A), 0)]
    assert in_file.subscriber.devices == [[mac_to_number(A)], [mac_to_number(D), mac_to_number(E)]]
    in_file.connect_only()
    await in_file.advance()
    in_file.connect_only(A)
    await in_file.advance()
    assert in_file.subscriber.gateways[1:] == [(mac_to_number(A), 2), (mac_to_number(A), 2)]
    assert in_file.subscriber.companions[1:] == [[mac_to_number(D), mac_to_number(E)]] * 2
    assert in_file.subscriber.devices[2:] == [[mac_to_number(A)], [mac_to_number(A)]]
    await in_file.idle(60)
    assert len(in_file.subscriber.gateways) == 3


async def test_it_hears_of_devices_whose_gateway_nobody_knows_any_more(
    in_file: StoredPresenceHarness,
) -> None:
    await connect_with_devices(in_file, A)
    in_file.delete_device(A)
    in_file.connect_only()
    await in_file.advance()
    assert in_file.subscriber.gateways[1:] == [(mac_to_number(A), 2)]
    assert in_file.history_summary()[-1] == (False, "gateway")


async def test_it_hears_nothing_when_nothing_changed(in_file: StoredPresenceHarness) -> None:
    await connect_with_devices(in_file, A)
    before = (list(in_file.subscriber.devices), list(in_file.subscriber.gateways))
    for _ in range(5):
        in_file.connect_only(A)
        await in_file.advance(heartbeat(in_file.ingest_harness.now + SECOND))
    assert (in_file.subscriber.devices, in_file.subscriber.gateways) == before


async def test_figures_count_what_was_written(in_file: StoredPresenceHarness) -> None:
    await connect_with_devices(in_file, A, B)
    in_file.connect_only(B)
    await in_file.advance()
    now = in_file.ingest_harness.now
    for gateway, ahead in {A: 7 * SECOND, B: -9500}.items():
        in_file.tracker.clocks.measure(mac_to_number(gateway), now, now, now + ahead)
    shown = {
        (sample.name, sample.labels.get("cause")): sample.value
        for metric in PresenceMetrics(in_file.tracker).collect()
        for sample in metric.samples
    }
    changed = "meshfleet_connectivity_changes_total"
    assert shown[changed, "heard"] == 2
    assert shown[changed, "gateway"] == 2
    assert shown[changed, "connection"] == 3
    assert shown["meshfleet_gateways_connected", None] == 1
    assert shown["meshfleet_clocks_wrong", None] == 2
    assert shown["meshfleet_clock_offset_max_seconds", None] == 9.5
