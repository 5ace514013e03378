"""Extenders that are lost: one alarm for the topmost one, whatever its children report."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.alarms import engine
from tests.service.alarms.alarm_harness import MINUTE, STEP
from tests.service.alarms.mesh_harness import MeshHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

TWO_LEVELS = (("", 2), ("0", 9), ("0.0", 5))
"""An extender and another device at the gateway; 14 devices behind the extender, 5 of them behind another."""


@pytest.fixture
def mesh(database: Database, tmp_path: Path) -> Iterator[MeshHarness]:
    harness = MeshHarness(database, tmp_path)
    yield harness
    harness.close()


@pytest.mark.rule("rest-282")
async def test_an_extender_with_two_levels_behind_it_is_one_alarm(mesh: MeshHarness) -> None:
    _, devices = mesh.add_tree(1, *TWO_LEVELS)
    extender = devices[""][0]
    await mesh.run(6 * MINUTE)
    mesh.switch_off([extender])
    await mesh.run(16 * MINUTE)
    assert mesh.summarize() == [("relay-lost", "relay-silent", "open", 14)]
    (alarm,) = mesh.show()
    assert alarm.subject.id == f"bmac-{extender}"
    assert alarm.sentence.endswith(" is silent; 14 devices behind it are cut off.")
    assert (alarm.severity, alarm.member_count, alarm.cause.params["certainty"]) == ("warning", 15, "certain")
    mesh.off.clear()
    await mesh.run(8 * MINUTE)
    assert mesh.told() == [("relay-lost", "opened"), ("relay-lost", "cleared")]
    assert mesh.show()[0].sentence.endswith(" All 14 devices are back.")
    assert mesh.probed == []


async def test_a_slow_extender_is_found_by_a_probe(mesh: MeshHarness) -> None:
    _, devices = mesh.add_tree(1, *TWO_LEVELS)
    extender = devices[""][0]
    mesh.slow.add(extender)
    await mesh.run(6 * MINUTE)
    mesh.switch_off([extender])
    await mesh.run(16 * MINUTE)
    assert mesh.summarize() == [("relay-lost", "relay-silent", "open", 14)]
    assert mesh.probed == [extender]
    assert mesh.told() == [("relay-lost", "opened")]


async def test_devices_that_find_another_way_are_no_alarm(mesh: MeshHarness) -> None:
    _, devices = mesh.add_tree(1, ("", 3), ("0", 14))
    lost, other, _ = devices[""]
    await mesh.run(6 * MINUTE)
    mesh.switch_off([lost])
    await mesh.run(4 * MINUTE)
    mesh.parents |= dict.fromkeys(devices["0"], other)
    await mesh.run(12 * MINUTE)
    assert mesh.summarize() == [("relay-lost", "relay-silent", "open", 0)]
    (alarm,) = mesh.show()
    assert alarm.sentence.endswith(" is silent; all 14 devices behind it found another way.")
    assert mesh.told() == [("relay-lost", "opened")]


class _Killed(Exception):
    """Raised at the end of an evaluation, before its commit."""


async def lose_extender(database: Database, directory: Path, kills: frozenset[int]) -> MeshHarness:
    """Let an extender fail and return with three devices missing; the service is killed in some steps."""
    mesh = MeshHarness(database, directory)
    _, devices = mesh.add_tree(1, *TWO_LEVELS)
    for number in range(38 * MINUTE // STEP):
        if number == 6 * MINUTE // STEP:
            mesh.switch_off(devices[""][:1])
        if number == 21 * MINUTE // STEP:
            mesh.off.clear()
            mesh.switch_off(devices["0"][-3:])
        await mesh.step(evaluates=number not in kills)
        if number in kills:
            _evaluate_and_fail(mesh)
            await mesh.restart()
    return mesh


def _evaluate_and_fail(mesh: MeshHarness) -> None:
    def fail(connection: object) -> None:
        engine.evaluate(connection, mesh.now, mesh.times)  # type: ignore[arg-type]
        raise _Killed

    with pytest.raises(_Killed):
        mesh.database.write_now(fail)


async def test_twenty_kills_change_nothing_about_a_lost_extender(database: Database, tmp_path: Path) -> None:
    # A restart counts silence from its own time: so the kills begin when all are known to be silent.
    steps = range(10 * MINUTE // STEP, 34 * MINUTE // STEP)
    chosen = frozenset(Random(3).sample(steps, 20))  # noqa: S311 # a fixed sequence
    mesh = await lose_extender(database, tmp_path, chosen)
    try:
        assert mesh.told() == [
            ("relay-lost", "opened"),
            ("relay-lost", "cleared"),
            ("device-offline", "opened"),
        ]
        assert [each.most_affected for each in mesh.alarms()] == [14, 3]
        assert mesh.show()[0].sentence.endswith(" 11 of 14 devices are back; 3 have not reported yet.")
        assert set(mesh.count_member_alarms().values()) == {1}
    finally:
        mesh.close()
