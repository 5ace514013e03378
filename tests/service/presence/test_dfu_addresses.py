"""Addresses that nobody knows, any more or at all: those of devices in DFU mode, and forgotten ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from tests.service.ingest.ingest_harness import DAY, NOON, SECOND
from tests.service.ingest.messages import A, D, E, dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.stored_presence_harness import connect_with_devices

if TYPE_CHECKING:
    from tests.service.presence.stored_presence_harness import StoredPresenceHarness

pytestmark = pytest.mark.anyio

ABOVE = f"{mac_to_number(D) + 1:012x}"
"""The address behind that of the device."""

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("report-47")
async def test_an_unknown_address_in_dfu_mode_leaves_nothing(watched: StoredPresenceHarness) -> None:
    watched.connect_only(A)
    for _ in range(5):
        await watched.advance(dfu(watched.ingest_harness.now + SECOND, device=UNKNOWN), seconds=5)
    assert (watched.ingest_harness.device(UNKNOWN), watched.history(UNKNOWN)) == (None, [])
    assert watched.tracker.find_connected(mac_to_number(UNKNOWN)) is None
    assert mac_to_number(UNKNOWN) not in watched.tracker._last_seen.devices  # noqa: SLF001 # nothing in memory either


@pytest.mark.rule("report-46")
async def test_the_address_behind_keeps_a_device_connected_and_brings_it_back(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    for _ in range(40):
        await watched.advance(heartbeat(watched.ingest_harness.now + 25 * SECOND), seconds=25)
    for _ in range(40):
        await watched.advance(dfu(watched.ingest_harness.now + 10 * SECOND, device=ABOVE), seconds=10)
    assert watched.history_summary() == [(True, "heard")]
    await watched.idle(200)
    assert watched.history_summary() == [(True, "heard"), (False, "silent")]
    await watched.advance(dfu(watched.ingest_harness.now, device=ABOVE))
    await watched.advance()
    assert watched.history_summary()[2:] == [(True, "heard")]
    assert (watched.ingest_harness.device(ABOVE), watched.history(ABOVE)) == (None, [])
    assert watched.agrees(A, D)


@pytest.mark.rule("report-46")
async def test_it_does_so_after_a_start_which_remembers_only_who_is_connected(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    watched.connect_only()
    await watched.advance()
    await watched.restart()
    watched.connect_only(A)
    await watched.advance(dfu(watched.ingest_harness.now, device=ABOVE))
    await watched.advance()
    assert watched.history_summary()[-1] == (True, "heard")
    assert watched.agrees(D)


@pytest.mark.rule("report-46")
async def test_a_device_that_has_the_address_behind_is_the_one_that_is_heard(
    watched: StoredPresenceHarness,
) -> None:
    """Though only the database knows it, and the one below is connected."""
    await connect_with_devices(watched, A)
    watched.ingest_harness.database.write_now(
        registry.record_observations, [DeviceObservation(device=Mac(ABOVE), at=NOON - DAY, heard=False)]
    )
    at = watched.tracker.find_connected(mac_to_number(D)).heard_at  # type: ignore[union-attr] # it is connected
    await watched.advance(dfu(watched.ingest_harness.now, device=ABOVE))
    await watched.advance()
    assert watched.history_summary(ABOVE) == [(True, "heard")]
    assert watched.tracker.find_connected(mac_to_number(D)).heard_at == at  # type: ignore[union-attr] # it still is


# --- Devices that are forgotten ---


@pytest.mark.rule("rest-51")
async def test_a_forgotten_device_that_is_heard_again_is_connected_again(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    watched.delete_device()
    await watched.advance(temperature(watched.ingest_harness.now + SECOND))
    assert watched.connected() == (True, watched.ingest_harness.now)
    assert watched.history_summary() == [(True, "heard"), (True, "heard")], "its history stays"
    assert watched.agrees(D, E)


async def test_a_forgotten_device_that_is_not_heard_again_leaves_memory(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    watched.delete_device()
    watched.connect_only()
    await watched.advance()
    assert watched.history_summary() == [(True, "heard")]
    assert mac_to_number(D) not in watched.tracker._last_seen.devices  # noqa: SLF001 # what this is about
    watched.connect_only(A)
    await watched.advance()
    assert watched.ingest_harness.device() is None
    await watched.advance(temperature(watched.ingest_harness.now))
    assert watched.connected()[0] is True
    assert watched.agrees(D)
