"""Unknown addresses: those of devices in DFU mode, and deleted devices."""

from __future__ import annotations

import pytest

from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from tests.service.ingest.ingest_harness import DAY, NOON, SECOND
from tests.service.ingest.messages import A, D, E, dfu, heartbeat, mac_to_number, temperature
from tests.service.presence.stored_presence_harness import StoredPresenceHarness, connect_with_devices

pytestmark = pytest.mark.anyio

DFU_ADDRESS = f"{mac_to_number(D) + 1:012x}"
"""Address of the device + 1, which it may use in DFU mode."""

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("report-47")
async def test_an_unknown_address_in_dfu_mode_is_not_stored(harness: StoredPresenceHarness) -> None:
    harness.connect_only(A)
    for _ in range(5):
        await harness.advance(dfu(harness.ingest_harness.now + SECOND, device=UNKNOWN), seconds=5)
    assert (harness.ingest_harness.device(UNKNOWN), harness.history(UNKNOWN)) == (None, [])
    assert harness.tracker.find_connected(mac_to_number(UNKNOWN)) is None
    assert mac_to_number(UNKNOWN) not in harness.tracker._last_seen.devices  # noqa: SLF001 # not in memory either


@pytest.mark.rule("report-46")
async def test_the_dfu_address_keeps_a_device_connected_and_reconnects_it(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    for _ in range(40):
        await harness.advance(heartbeat(harness.ingest_harness.now + 25 * SECOND), seconds=25)
    for _ in range(40):
        await harness.advance(dfu(harness.ingest_harness.now + 10 * SECOND, device=DFU_ADDRESS), seconds=10)
    assert harness.history_summary() == [(True, "heard")]
    await harness.idle(200)
    assert harness.history_summary() == [(True, "heard"), (False, "silent")]
    await harness.advance(dfu(harness.ingest_harness.now, device=DFU_ADDRESS))
    await harness.advance()
    assert harness.history_summary()[2:] == [(True, "heard")]
    assert (harness.ingest_harness.device(DFU_ADDRESS), harness.history(DFU_ADDRESS)) == (None, [])
    assert harness.agrees(A, D)


@pytest.mark.rule("report-46")
async def test_the_dfu_address_reconnects_a_device_after_a_restart(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    harness.connect_only()
    await harness.advance()
    await harness.restart()
    harness.connect_only(A)
    await harness.advance(dfu(harness.ingest_harness.now, device=DFU_ADDRESS))
    await harness.advance()
    assert harness.history_summary()[-1] == (True, "heard")
    assert harness.agrees(D)


@pytest.mark.rule("report-46")
async def test_a_device_with_the_dfu_address_takes_precedence(
    harness: StoredPresenceHarness,
) -> None:
    """Check a device that only the database knows, while the one with the lower address is connected."""
    await connect_with_devices(harness, A)
    harness.ingest_harness.database.write_now(
        registry.record_observations, [DeviceObservation(device=Mac(DFU_ADDRESS), at=NOON - DAY, heard=False)]
    )
    heard_at = harness.tracker.find_connected(mac_to_number(D)).heard_at  # type: ignore[union-attr] # the device is connected
    await harness.advance(dfu(harness.ingest_harness.now, device=DFU_ADDRESS))
    await harness.advance()
    assert harness.history_summary(DFU_ADDRESS) == [(True, "heard")]
    assert harness.tracker.find_connected(mac_to_number(D)).heard_at == heard_at  # type: ignore[union-attr] # the device is still connected


# --- Deleted devices ---


@pytest.mark.rule("rest-51")
async def test_a_deleted_device_that_reports_again_is_connected_again(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    harness.delete_device()
    await harness.advance(temperature(harness.ingest_harness.now + SECOND))
    assert harness.connected() == (True, harness.ingest_harness.now)
    assert harness.history_summary() == [(True, "heard"), (True, "heard")], "the history was deleted"
    assert harness.agrees(D, E)


async def test_a_deleted_device_is_removed_from_memory(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    harness.delete_device()
    harness.connect_only()
    await harness.advance()
    assert harness.history_summary() == [(True, "heard")]
    assert mac_to_number(D) not in harness.tracker._last_seen.devices  # noqa: SLF001 # internal state under test
    harness.connect_only(A)
    await harness.advance()
    assert harness.ingest_harness.device() is None
    await harness.advance(temperature(harness.ingest_harness.now))
    assert harness.connected()[0] is True
    assert harness.agrees(D)
