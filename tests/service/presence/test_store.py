"""Presence in the registry and in the history, also when the database fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from meshfleet.db.tables import connectivity, device
from meshfleet.errors import DatabaseUnavailable
from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.presence import store
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, E, heartbeat, mac_to_number, temperature
from tests.service.presence.stored_presence_harness import StoredPresenceHarness, connect_with_devices

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
async def test_registry_history_and_memory_agree(harness: StoredPresenceHarness) -> None:
    await connect_with_devices(harness, A)
    connected_at = NOON + 4 * SECOND
    assert harness.connected() == (True, connected_at)
    assert harness.history() == [(True, "heard", connected_at, A)]
    assert harness.history(A) == [(True, "connection", NOON + 2 * SECOND, A)]
    harness.connect_only()
    await harness.advance()
    disconnected_at = connected_at + 2 * SECOND
    assert (harness.connected(), harness.connected(A)) == ((False, disconnected_at), (False, disconnected_at))
    assert harness.history()[1:] == [(False, "gateway", disconnected_at, A)]
    assert harness.history(A)[1:] == [(False, "connection", disconnected_at, A)]
    assert harness.agrees(A, D, E)
    await harness.idle(120)
    assert harness.connected() == (False, disconnected_at)


@pytest.mark.rule("rest-51")
async def test_a_device_connects_with_its_first_sample(
    sqlite_harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(sqlite_harness, A)
    await sqlite_harness.advance(temperature(NOON, device=UNKNOWN))
    assert sqlite_harness.history_summary(UNKNOWN) == [(True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@pytest.mark.parametrize("minutes", [-400 * 1440, -300, -5, 1, 5, 300, 50 * 1440])
async def test_old_and_future_reports_do_not_connect_a_new_device(
    sqlite_harness: StoredPresenceHarness, minutes: int
) -> None:
    sqlite_harness.connect_only(A)
    sqlite_harness.ingest_harness.now += 2 * SECOND
    await sqlite_harness.ingest_harness.commit_flushed(
        temperature(sqlite_harness.ingest_harness.now - minutes * MINUTE)
    )
    assert sqlite_harness.ingest_harness.device() is not None
    assert (sqlite_harness.connected()[0], sqlite_harness.history()) == (False, [])


@pytest.mark.rule("rest-51")
async def test_a_silent_device_is_stored_as_disconnected_when_it_is_detected(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    for _ in range(8):
        await harness.advance(heartbeat(harness.ingest_harness.now + 20 * SECOND), seconds=20)
        await harness.advance(seconds=20)
        await harness.advance(heartbeat(harness.ingest_harness.now + 20 * SECOND), seconds=20)
    await harness.idle(200)
    assert harness.history_summary() == [(True, "heard"), (False, "silent")]
    assert harness.connected() == (False, harness.history()[-1][2])
    assert harness.agrees(D, E)


# --- Database failures ---


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
@pytest.mark.parametrize("failures", [1, 3])
async def test_changes_are_stored_once_after_failed_attempts(
    harness: StoredPresenceHarness, failures: int
) -> None:
    await connect_with_devices(harness, A, B)
    harness.connect_only(B)
    harness.ingest_harness.store.failures = failures
    harness.ingest_harness.now += 2 * SECOND
    disconnected_at = harness.ingest_harness.now
    for _ in range(failures):
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await harness.ingest_harness.ingest.flush()
        assert (harness.connected()[0], len(harness.history()), harness.subscriber.gateways[2:]) == (
            True,
            1,
            [],
        )
        harness.ingest_harness.now += 2 * SECOND
    await harness.advance()
    assert harness.history()[1:] == [(False, "gateway", disconnected_at, A)]
    assert harness.history(A)[1:] == [(False, "connection", disconnected_at, A)]
    assert harness.subscriber.gateways[2:] == [(mac_to_number(A), 2)]
    assert harness.agrees(A, B, D, E)


@pytest.mark.rule("rest-51")
async def test_a_database_outage_disconnects_no_device(harness: StoredPresenceHarness) -> None:
    await connect_with_devices(harness, A)
    harness.ingest_harness.store.failures = 20
    for _ in range(20):
        harness.ingest_harness.now += 600 * SECOND
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await harness.ingest_harness.ingest.flush()
    await harness.advance()
    await harness.advance()
    assert (harness.history_summary(), harness.history_summary(E)) == ([(True, "heard")], [(True, "heard")])


async def test_a_device_that_connects_and_disconnects_during_an_outage_is_disconnected(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    harness.ingest_harness.store.failures = 1
    harness.ingest_harness.now += 2 * SECOND
    with pytest.raises((OperationalError, DatabaseUnavailable)):
        await harness.ingest_harness.commit_flushed(temperature(harness.ingest_harness.now, device=UNKNOWN))
    await harness.ingest_harness.commit(temperature(harness.ingest_harness.now, device=UNKNOWN))
    harness.connect_only()
    await harness.advance()
    assert harness.connected(UNKNOWN)[0] is False
    assert harness.history(UNKNOWN) == []
    assert harness.agrees(A, D, E, UNKNOWN)


@pytest.mark.rule("rest-189")
def test_all_changes_of_a_device_in_one_flush_are_in_the_history(
    database: Database,
) -> None:
    mac = mac_to_number(D)
    database.write_now(registry.record_observations, [DeviceObservation(device=Mac(D), at=NOON)])
    changes = [
        PresenceChange.to_disconnected(mac, NOON + 1, PresenceCause.SILENT, 1),
        PresenceChange.to_connected(mac, NOON + 2, PresenceCause.HEARD, 1),
        PresenceChange.to_connected(mac, NOON + 3, PresenceCause.GATEWAY, 1),
        PresenceChange.to_disconnected(mac, NOON + 4, PresenceCause.SILENT, 1),
        PresenceChange.to_connected(mac, NOON + 5, PresenceCause.HEARD, 1),
        PresenceChange.to_disconnected(mac, NOON + 6, PresenceCause.GATEWAY, 1),
        PresenceChange.to_disconnected(7, NOON + 6, PresenceCause.GATEWAY, 1),
    ]
    result = database.write_now(store.update_presence, changes)
    assert [each.at - NOON for each in result.written] == [2, 4, 5, 6]
    assert result.unknown_devices == {7}
    rows = database.read_now(lambda connection: list(connection.execute(select(connectivity))))
    assert [(row.device, row.connected, row.time - NOON) for row in rows] == [
        (mac, True, 2),
        (mac, False, 4),
        (mac, True, 5),
        (mac, False, 6),
    ]
    (row,) = database.read_now(lambda connection: list(connection.execute(select(device))))
    assert (row.connected, row.connected_at) == (False, NOON + 6)


# --- Restarts ---


@pytest.mark.rule("rest-51", "rest-52")
async def test_a_restart_restores_connected_devices_and_their_intervals(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    for _ in range(40):
        await harness.advance(heartbeat(harness.ingest_harness.now + 25 * SECOND), seconds=25)
    assert harness.stored_interval() == MINUTE, "the shortest possible interval"
    history_before = harness.history()
    await harness.restart()
    last_seen = harness.tracker.find_connected(mac_to_number(D))
    assert last_seen is not None
    assert (last_seen.interval, last_seen.gateway) == (MINUTE, mac_to_number(A))
    harness.connect_only(A)
    await harness.advance()
    assert harness.history() == history_before
    await harness.idle(200)
    assert harness.history_summary()[-1] == (False, "silent")
    assert harness.history_summary(E) == [(True, "heard")]


@pytest.mark.rule("rest-77")
async def test_a_gateway_that_does_not_reconnect_after_a_restart_disconnects_with_its_devices(
    harness: StoredPresenceHarness,
) -> None:
    await connect_with_devices(harness, A)
    harness.ingest_harness.database.write_now(
        lambda connection: connection.exec_driver_sql(
            f"INSERT INTO gateway (device, claimed_at) VALUES ({mac_to_number(A)}, 1)"  # noqa: S608 # the value is a number
        )
    )
    await harness.restart()
    for _ in range(5):
        harness.connect_only()
        await harness.advance(seconds=10)
    assert harness.connected()[0] is True
    harness.connect_only()
    await harness.advance(seconds=10)
    assert (harness.history_summary(A)[-1], harness.history_summary()[-1]) == (
        (False, "connection"),
        (False, "gateway"),
    )
    assert harness.subscriber.gateways == [(mac_to_number(A), 2)]


# --- Retention ---


@pytest.mark.rule("rest-189")
async def test_history_beyond_the_retention_is_deleted(harness: StoredPresenceHarness) -> None:
    harness.retention = DAY
    harness.start()
    await connect_with_devices(harness, A)
    old = [
        (mac_to_number(UNKNOWN), NOON - DAY + offset, True, "heard", None)
        for offset in range(-3000, 20_000, 100)
    ]
    harness.ingest_harness.database.write_now(
        lambda connection: connection.execute(
            connectivity.insert(),
            [dict(zip(("device", "time", "connected", "cause", "gateway"), row, strict=True)) for row in old],
        )
    )
    await harness.advance()
    oldest = harness.ingest_harness.select_rows(select(func.min(connectivity.c.time)))[0][0]
    assert oldest == harness.ingest_harness.now - DAY
    assert len(harness.history(D)) == 1


async def test_history_without_a_retention_is_kept_forever(sqlite_harness: StoredPresenceHarness) -> None:
    await connect_with_devices(sqlite_harness, A)
    sqlite_harness.ingest_harness.now += 4000 * DAY
    await sqlite_harness.advance()
    assert sqlite_harness.history_summary()[0] == (True, "heard")
