"""What is found out is in the registry and in the history, whatever happens to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from meshfleet.db.tables import connectivity, device
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Sighting
from meshfleet.service.presence import store
from meshfleet.service.presence.model import Cause, Change
from meshfleet.wire.ids import Mac
from tests.service.ingest.intake import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import A, B, D, E, heartbeat, number, temperature
from tests.service.presence.watched import settled

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.presence.watched import Watched

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]

UNKNOWN = "c0ffee00ffff"


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
async def test_registry_history_and_memory_say_the_same(watched: Watched) -> None:
    await settled(watched, A)
    came = NOON + 4 * SECOND
    assert watched.connected() == (True, came)
    assert watched.history() == [(True, "heard", came, A)]
    assert watched.history(A) == [(True, "connection", NOON + 2 * SECOND, A)]
    watched.arrive()
    await watched.go_on()
    went = came + 2 * SECOND
    assert (watched.connected(), watched.connected(A)) == ((False, went), (False, went))
    assert watched.history()[1:] == [(False, "gateway", went, A)]
    assert watched.history(A)[1:] == [(False, "connection", went, A)]
    assert watched.agrees(A, D, E)
    await watched.idle(120)
    assert watched.connected() == (False, went)


@pytest.mark.rule("rest-51")
async def test_a_device_is_connected_by_what_it_measures_from_the_first_sample_on(in_file: Watched) -> None:
    await settled(in_file, A)
    await in_file.go_on(temperature(NOON, device=UNKNOWN))
    assert in_file.brief(UNKNOWN) == [(True, "heard")]


@pytest.mark.rule("report-48", "report-49")
@pytest.mark.parametrize("minutes", [-400 * 1440, -300, -5, 1, 5, 300, 50 * 1440])
async def test_neither_what_is_old_nor_what_is_ahead_connects_a_device_that_is_new(
    in_file: Watched, minutes: int
) -> None:
    in_file.arrive(A)
    in_file.intake.now += 2 * SECOND
    await in_file.intake.settle(temperature(in_file.intake.now - minutes * MINUTE))
    assert in_file.intake.device() is not None
    assert (in_file.connected()[0], in_file.history()) == (False, [])


@pytest.mark.rule("rest-51")
async def test_a_silent_device_is_not_connected_from_the_moment_that_it_is_missed(watched: Watched) -> None:
    await settled(watched, A)
    for _ in range(8):
        await watched.go_on(heartbeat(watched.intake.now + 20 * SECOND), seconds=20)
        await watched.go_on(seconds=20)
        await watched.go_on(heartbeat(watched.intake.now + 20 * SECOND), seconds=20)
    await watched.idle(200)
    assert watched.brief() == [(True, "heard"), (False, "silent")]
    assert watched.connected() == (False, watched.history()[-1][2])
    assert watched.agrees(D, E)


# --- A database that fails ---


@pytest.mark.rule("rest-51", "rest-77", "rest-189")
@pytest.mark.parametrize("failures", [1, 3])
async def test_what_could_not_be_written_is_written_once_with_the_next_try(
    watched: Watched, failures: int
) -> None:
    await settled(watched, A, B)
    watched.arrive(B)
    watched.intake.store.failures = failures
    watched.intake.now += 2 * SECOND
    went = watched.intake.now
    for _ in range(failures):
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await watched.intake.ingest.flush()
        assert (watched.connected()[0], len(watched.history()), watched.audience.gateways[2:]) == (
            True,
            1,
            [],
        )
        watched.intake.now += 2 * SECOND
    await watched.go_on()
    assert watched.history()[1:] == [(False, "gateway", went, A)]
    assert watched.history(A)[1:] == [(False, "connection", went, A)]
    assert watched.audience.gateways[2:] == [(number(A), 2)]
    assert watched.agrees(A, B, D, E)


@pytest.mark.rule("rest-51")
async def test_nobody_is_silent_because_the_database_was_away(watched: Watched) -> None:
    await settled(watched, A)
    watched.intake.store.failures = 20
    for _ in range(20):
        watched.intake.now += 600 * SECOND
        with pytest.raises((OperationalError, DatabaseUnavailable)):
            await watched.intake.ingest.flush()
    await watched.go_on()
    await watched.go_on()
    assert (watched.brief(), watched.brief(E)) == ([(True, "heard")], [(True, "heard")])


async def test_a_device_that_came_and_went_before_anything_could_be_written_is_away(watched: Watched) -> None:
    await settled(watched, A)
    watched.intake.store.failures = 1
    watched.intake.now += 2 * SECOND
    with pytest.raises((OperationalError, DatabaseUnavailable)):
        await watched.intake.settle(temperature(watched.intake.now, device=UNKNOWN))
    await watched.intake.take(temperature(watched.intake.now, device=UNKNOWN))
    watched.arrive()
    await watched.go_on()
    assert watched.connected(UNKNOWN)[0] is False
    assert watched.history(UNKNOWN) == []
    assert watched.agrees(A, D, E, UNKNOWN)


@pytest.mark.rule("rest-189")
def test_changes_of_one_device_in_one_transaction_are_all_history_and_the_last_one_counts(
    database: Database,
) -> None:
    mac = number(D)
    database.write_now(registry.observe, [Sighting(device=Mac(D), at=NOON)])
    changes = [
        Change.went(mac, NOON + 1, Cause.SILENT, 1),
        Change.came(mac, NOON + 2, Cause.HEARD, 1),
        Change.came(mac, NOON + 3, Cause.GATEWAY, 1),
        Change.went(mac, NOON + 4, Cause.SILENT, 1),
        Change.came(mac, NOON + 5, Cause.HEARD, 1),
        Change.went(mac, NOON + 6, Cause.GATEWAY, 1),
        Change.went(7, NOON + 6, Cause.GATEWAY, 1),
    ]
    result = database.write_now(store.write, changes)
    assert [each.at - NOON for each in result.written] == [2, 4, 5, 6]
    assert result.unknown == {7}
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
async def test_a_start_goes_on_with_what_was_connected_and_with_rhythms(watched: Watched) -> None:
    await settled(watched, A)
    for _ in range(40):
        await watched.go_on(heartbeat(watched.intake.now + 25 * SECOND), seconds=25)
    assert watched.rhythm() == MINUTE, "the shortest that there is"
    before = watched.history()
    await watched.restart()
    rhythm = watched.presence.believes_in(number(D))
    assert rhythm is not None
    assert (rhythm.interval, rhythm.gateway) == (MINUTE, number(A))
    watched.arrive(A)
    await watched.go_on()
    assert watched.history() == before
    await watched.idle(200)
    assert watched.brief()[-1] == (False, "silent")
    assert watched.brief(E) == [(True, "heard")]


@pytest.mark.rule("rest-77")
async def test_a_gateway_that_does_not_come_back_after_a_start_takes_its_devices_with_it(
    watched: Watched,
) -> None:
    await settled(watched, A)
    watched.intake.database.write_now(
        lambda connection: connection.exec_driver_sql(
            f"INSERT INTO gateway (device, claimed_at) VALUES ({number(A)}, 1)"  # noqa: S608 # a number
        )
    )
    await watched.restart()
    for _ in range(5):
        watched.arrive()
        await watched.go_on(seconds=10)
    assert watched.connected()[0] is True
    watched.arrive()
    await watched.go_on(seconds=10)
    assert (watched.brief(A)[-1], watched.brief()[-1]) == ((False, "connection"), (False, "gateway"))
    assert watched.audience.gateways == [(number(A), 2)]


# --- Retention ---


@pytest.mark.rule("rest-189")
async def test_history_is_kept_as_long_as_is_wanted(watched: Watched) -> None:
    watched.retention = DAY
    watched.begin()
    await settled(watched, A)
    old = [(number(UNKNOWN), NOON - DAY + place, True, "heard", None) for place in range(-3000, 20_000, 100)]
    watched.intake.database.write_now(
        lambda connection: connection.execute(
            connectivity.insert(),
            [dict(zip(("device", "time", "connected", "cause", "gateway"), row, strict=True)) for row in old],
        )
    )
    await watched.go_on()
    oldest = watched.intake.rows(select(func.min(connectivity.c.time)))[0][0]
    assert oldest == watched.intake.now - DAY
    assert len(watched.history(D)) == 1


async def test_history_that_is_kept_for_ever_is(in_file: Watched) -> None:
    await settled(in_file, A)
    in_file.intake.now += 4000 * DAY
    await in_file.go_on()
    assert in_file.brief()[0] == (True, "heard")
