"""What is found out is in the registry and in the history, whatever happens to the database."""

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
from tests.service.presence.stored_presence_harness import connect_with_devices

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.presence.stored_presence_harness import StoredPresenceHarness

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
async def test_registry_history_and_memory_say_the_same(watched: StoredPresenceHarness) -> None:
    await connect_with_devices(watched, A)
    came = NOON + 4 * SECOND
    assert watched.connected() == (True, came)
    assert watched.history() == [(True, "heard", came, A)]
    assert watched.history(A) == [(True, "connection", NOON + 2 * SECOND, A)]
    watched.connect_only()
    await watched.advance()
    went = came + 2 * SECOND
    assert (watched.connected(), watched.connected(A)) == ((False, went), (False, went))
    assert watched.history()[1:] == [(False, "gateway", went, A)]
    assert watched.history(A)[1:] == [(False, "connection", went, A)]
    assert watched.agrees(A, D, E)
    await watched.idle(120)
    assert watched.connected() == (False, went)


@pytest.mark.rule("rest-51")
async def test_a_device_is_connected_by_what_it_measures_from_the_first_sample_on(
    in_file: StoredPresenceHarness,
) -> None:
    await connect_with_devices(in_file, A)
    await in_file.advance(temperature(NOON, device=UNKNOWN))
    assert in_file.history_summary(UNKNOWN) == [(True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@pytest.mark.parametrize("minutes", [-400 * 1440, -300, -5, 1, 5, 300, 50 * 1440])
async def test_neither_what_is_old_nor_what_is_ahead_connects_a_device_that_is_new(
    in_file: StoredPresenceHarness, minutes: int
) -> None:
    in_file.connect_only(A)
    in_file.ingest_harness.now += 2 * SECOND
    await in_file.ingest_harness.commit_flushed(temperature(in_file.ingest_harness.now - minutes * MINUTE))
    assert in_file.ingest_harness.device() is not None
    assert (in_file.connected()[0], in_file.history()) == (False, [])


@pytest.mark.rule("rest-51")
async def test_a_silent_device_is_not_connected_from_the_moment_that_it_is_missed(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    for _ in range(8):
        await watched.advance(heartbeat(watched.ingest_harness.now + 20 * SECOND), seconds=20)
        await watched.advance(seconds=20)
        await watched.advance(heartbeat(watched.ingest_harness.now + 20 * SECOND), seconds=20)
    await watched.idle(200)
    assert watched.history_summary() == [(True, "heard"), (False, "silent")]
    assert watched.connected() == (False, watched.history()[-1][2])
    assert watched.agrees(D, E)


# --- A database that fails ---


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
@pytest.mark.parametrize("failures", [1, 3])
async def test_what_could_not_be_written_is_written_once_with_the_next_try(
    watched: StoredPresenceHarness, failures: int
) -> None:
    await connect_with_devices(watched, A, B)
    watched.connect_only(B)
    watched.ingest_harness.store.failures = failures
    watched.ingest_harness.now += 2 * SECOND
    went = watched.ingest_harness.now
    for _ in range(failures):
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await watched.ingest_harness.ingest.flush()
        assert (watched.connected()[0], len(watched.history()), watched.subscriber.gateways[2:]) == (
            True,
            1,
            [],
        )
        watched.ingest_harness.now += 2 * SECOND
    await watched.advance()
    assert watched.history()[1:] == [(False, "gateway", went, A)]
    assert watched.history(A)[1:] == [(False, "connection", went, A)]
    assert watched.subscriber.gateways[2:] == [(mac_to_number(A), 2)]
    assert watched.agrees(A, B, D, E)


@pytest.mark.rule("rest-51")
async def test_nobody_is_silent_because_the_database_was_away(watched: StoredPresenceHarness) -> None:
    await connect_with_devices(watched, A)
    watched.ingest_harness.store.failures = 20
    for _ in range(20):
        watched.ingest_harness.now += 600 * SECOND
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await watched.ingest_harness.ingest.flush()
    await watched.advance()
    await watched.advance()
    assert (watched.history_summary(), watched.history_summary(E)) == ([(True, "heard")], [(True, "heard")])


async def test_a_device_that_came_and_went_before_anything_could_be_written_is_away(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    watched.ingest_harness.store.failures = 1
    watched.ingest_harness.now += 2 * SECOND
    with pytest.raises((OperationalError, DatabaseUnavailable)):
        await watched.ingest_harness.commit_flushed(temperature(watched.ingest_harness.now, device=UNKNOWN))
    await watched.ingest_harness.commit(temperature(watched.ingest_harness.now, device=UNKNOWN))
    watched.connect_only()
    await watched.advance()
    assert watched.connected(UNKNOWN)[0] is False
    assert watched.history(UNKNOWN) == []
    assert watched.agrees(A, D, E, UNKNOWN)


@pytest.mark.rule("rest-189")
def test_changes_of_one_device_in_one_transaction_are_all_history_and_the_last_one_counts(
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
async def test_a_start_goes_on_with_what_was_connected_and_with_rhythms(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    for _ in range(40):
        await watched.advance(heartbeat(watched.ingest_harness.now + 25 * SECOND), seconds=25)
    assert watched.stored_interval() == MINUTE, "the shortest that there is"
    before = watched.history()
    await watched.restart()
    rhythm = watched.tracker.find_connected(mac_to_number(D))
    assert rhythm is not None
    assert (rhythm.interval, rhythm.gateway) == (MINUTE, mac_to_number(A))
    watched.connect_only(A)
    await watched.advance()
    assert watched.history() == before
    await watched.idle(200)
    assert watched.history_summary()[-1] == (False, "silent")
    assert watched.history_summary(E) == [(True, "heard")]


@pytest.mark.rule("rest-77")
async def test_a_gateway_that_does_not_come_back_after_a_start_takes_its_devices_with_it(
    watched: StoredPresenceHarness,
) -> None:
    await connect_with_devices(watched, A)
    watched.ingest_harness.database.write_now(
        lambda connection: connection.exec_driver_sql(
            f"INSERT INTO gateway (device, claimed_at) VALUES ({mac_to_number(A)}, 1)"  # noqa: S608 # a number
        )
    )
    await watched.restart()
    for _ in range(5):
        watched.connect_only()
        await watched.advance(seconds=10)
    assert watched.connected()[0] is True
    watched.connect_only()
    await watched.advance(seconds=10)
    assert (watched.history_summary(A)[-1], watched.history_summary()[-1]) == (
        (False, "connection"),
        (False, "gateway"),
    )
    assert watched.subscriber.gateways == [(mac_to_number(A), 2)]


# --- Retention ---


@pytest.mark.rule("rest-189")
async def test_history_is_kept_as_long_as_is_wanted(watched: StoredPresenceHarness) -> None:
    watched.retention = DAY
    watched.start()
    await connect_with_devices(watched, A)
    old = [
        (mac_to_number(UNKNOWN), NOON - DAY + place, True, "heard", None)
        for place in range(-3000, 20_000, 100)
    ]
    watched.ingest_harness.database.write_now(
        lambda connection: connection.execute(
            connectivity.insert(),
            [dict(zip(("device", "time", "connected", "cause", "gateway"), row, strict=True)) for row in old],
        )
    )
    await watched.advance()
    oldest = watched.ingest_harness.select_rows(select(func.min(connectivity.c.time)))[0][0]
    assert oldest == watched.ingest_harness.now - DAY
    assert len(watched.history(D)) == 1


async def test_history_that_is_kept_for_ever_is(in_file: StoredPresenceHarness) -> None:
    await connect_with_devices(in_file, A)
    in_file.ingest_harness.now += 4000 * DAY
    await in_file.advance()
    assert in_file.history_summary()[0] == (True, "heard")
