"""The service was away, or was killed: no alarm about that, none lost and none twice."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.alarms import engine
from tests.service.alarms.alarm_harness import HOUR, MINUTE, STEP, AlarmHarness

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


async def restart_after(fleet: AlarmHarness, seconds: int) -> None:
    """Stop the service for some time, and start it again."""
    fleet.now += seconds * 1000
    fleet.presence.ingest_harness.now = fleet.now
    await fleet.presence.restart()


@pytest.mark.both_databases
async def test_a_service_that_was_away_for_an_hour_reports_only_what_is_still_wrong(
    fleet: AlarmHarness,
) -> None:
    gateway, devices = fleet.add_gateway(1, 20)
    fleet.add_gateway(2, 20)
    await fleet.run(4 * MINUTE)
    fleet.disconnected.add(gateway)
    fleet.switch_off(devices[:3])
    await fleet.run(4 * MINUTE)
    fleet.disconnected.clear()
    fleet.off.clear()
    await restart_after(fleet, HOUR)
    await fleet.run(9 * MINUTE)
    assert fleet.told() == []
    fleet.disconnected.add(gateway)
    await restart_after(fleet, HOUR)
    await fleet.run(9 * MINUTE)
    assert fleet.told() == [("gateway-offline", "opened")]


class _Killed(Exception):
    """Raised at the end of an evaluation, before its commit."""


async def run_storm(database: Database, directory: Path, kills: frozenset[int]) -> AlarmHarness:
    """Let a gateway fail and return with seven devices missing; the service is killed in some steps."""
    fleet = AlarmHarness(database, directory)
    gateway, devices = fleet.add_gateway(1, 40)
    fleet.add_gateway(2, 5)
    for number in range(50 * MINUTE // STEP):
        if number == 12 * MINUTE // STEP:
            fleet.disconnected.add(gateway)
        if number == 24 * MINUTE // STEP:
            fleet.disconnected.clear()
            fleet.switch_off(devices[:7])
        await fleet.step(evaluates=number not in kills)
        if number in kills:
            _evaluate_and_fail(fleet)
            await fleet.presence.restart()
    return fleet


def _evaluate_and_fail(fleet: AlarmHarness) -> None:
    """Evaluate the rules in a transaction that is never committed."""

    def fail(connection: object) -> None:
        engine.evaluate(connection, fleet.now, fleet.times)  # type: ignore[arg-type]
        raise _Killed

    with pytest.raises(_Killed):
        fleet.database.write_now(fail)


@pytest.mark.both_databases
async def test_twenty_kills_change_nothing(database: Database, tmp_path: Path) -> None:
    steps = range(11 * MINUTE // STEP, 40 * MINUTE // STEP)
    fleet = await run_storm(database, tmp_path, frozenset(Random(7).sample(steps, 20)))  # noqa: S311 # a fixed sequence
    try:
        assert fleet.told() == [
            ("gateway-offline", "opened"),
            ("gateway-offline", "cleared"),
            ("device-offline", "opened"),
        ]
        assert fleet.alarms()[-1].members == 7
    finally:
        fleet.close()
