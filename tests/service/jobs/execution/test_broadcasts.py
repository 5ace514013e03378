"""Many devices in one broadcast: the gateway is told and asked once for all, and nobody is updated twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import Concurrency, NewJob, Retry, Targets
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.reasons import STOPPED_TEXT
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulation import NetworkConditions, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from tests.service.jobs.execution.simulated_devices import Answer, SimulatedDevice

DEVICES = 36
"""Of which two thirds are of the model."""
MEANT = 24
MANY, MANY_MEANT = 159, 106
"""More than advance in one transaction."""
HOUR = 3600


def order(**values: Any) -> NewJob:
    usual: dict[str, Any] = {"method": UpdateMethod.BROADCAST, "retry": Retry(max=1)}
    return NewJob(
        name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **(usual | values)
    )


def meant(world: Simulation) -> list[SimulatedDevice]:
    return [each for each in world.devices.values() if each.model == MODEL]


def ends(world: Simulation) -> Counter[tuple[str, str | None]]:
    rows = world.database.read_now(
        lambda connection: connection.exec_driver_sql(
            "SELECT state, reason FROM execution WHERE wave >= 0"
        ).fetchall()
    )
    return Counter((row[0], row[1]) for row in rows)


def sent(world: Simulation) -> Counter[UpdateStep]:
    return Counter(each.request.step for each in world.log)


def to_gateways(world: Simulation, since: int = 0) -> Counter[UpdateStep]:
    return Counter(each.request.step for each in world.log[since:] if each.request.target in world.gateways)


def lose_the_first_command(world: Simulation) -> None:
    world.network = NetworkConditions(lost=1.0)
    world.round()
    world.now += 2000
    world.network = NetworkConditions()


@pytest.mark.parametrize("forgets", [False, True])
def test_who_has_missed_a_broadcast_does_not_let_the_others_be_updated_again(
    sqlite_database: Database, *, forgets: bool
) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=9)
    world.gateways[1].forgets = forgets
    world.create(order())
    sleeper = meant(world)[3]
    sleeper.is_off = True  # the registry does not know
    world.network = NetworkConditions(unanswered=1.0)  # the answer to the first command gets lost
    world.round()
    world.now += 2000
    world.network = NetworkConditions()
    world.run(50)
    sleeper.is_off = False
    world.run(HOUR)

    assert ends(world) == {("SUCCEEDED", None): 6}
    assert [len(each.begun) for each in meant(world)] == [1] * 6
    assert [each.twice for each in meant(world)] == [[]] * 6


def test_the_gateway_is_asked_once_for_all(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    world.create(order())
    world.run(20)
    asked = to_gateways(world)
    assert asked[UpdateStep.START] == 1
    assert 0 < asked[UpdateStep.STATE] <= 10, "one poll after the other, not one for each device"


def test_a_command_that_failed_is_sent_again_by_one(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    answers = [Status.FAILED]

    def fail_once(command: str, obey: Callable[[], Answer]) -> Answer:
        return (answers.pop(), None) if answers and command == "start-firmware-broadcast" else obey()

    world.gateways[1].command_hook = fail_once
    world.create(order())
    world.run(HOUR)
    assert to_gateways(world)[UpdateStep.START] == 2
    assert ends(world) == {("SUCCEEDED", None): MEANT}


def test_a_canceled_broadcast_is_aborted_once(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = world.create(order())
    world.run(15)
    world.run_command(job, "cancel")
    world.run(1)
    world.run(60)
    assert ends(world) == {("CANCELED", STOPPED_TEXT): MEANT}
    assert sent(world)[UpdateStep.ABORT] == 1


def test_a_gateway_that_says_it_was_aborted_is_not_told_again(sqlite_database: Database) -> None:
    """The answer to the first word got lost: the second finds nothing to abort."""
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)

    def deny(command: str, obey: Callable[[], Answer]) -> Answer:
        answer = obey()
        return (Status.FAILED, None) if command == "firmware-broadcast-control" else answer

    world.gateways[1].command_hook = deny
    job = world.create(order())
    world.run(15)
    world.run_command(job, "cancel")
    world.run(1)
    world.run(60)
    assert ends(world) == {("CANCELED", STOPPED_TEXT): MEANT}
    assert sent(world)[UpdateStep.ABORT] == 1


def test_what_is_staged_is_started_for_all_with_one_word(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = world.create(order(stage=True))
    world.run(300)
    assert ends(world) == {("STAGED", None): MEANT}
    world.run_command(job, "apply")
    world.run(1)
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): MEANT}
    assert sent(world)[UpdateStep.APPLY] == 1


def staged(database: Database, devices: int = DEVICES) -> tuple[Simulation, int]:
    world = Simulation(database, 1, gateways=1, devices=devices)
    job = world.create(order(stage=True, retry=Retry(max=0), concurrency=Concurrency(per_job=1000)))
    world.run(600)
    assert {state for state, _ in ends(world)} == {"STAGED"}
    return world, job


def test_the_answer_to_the_word_to_start_got_lost(sqlite_database: Database) -> None:
    world, job = staged(sqlite_database, MANY)
    world.network = NetworkConditions(unanswered=1.0)
    world.run_command(job, "apply")
    world.run(1)
    world.run(2)
    world.network = NetworkConditions()
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): MANY_MEANT}
    assert to_gateways(world)[UpdateStep.APPLY] <= 3


def test_who_has_missed_the_word_to_start_is_told_by_itself(sqlite_database: Database) -> None:
    world, job = staged(sqlite_database)
    sleeper = meant(world)[3]
    sleeper.is_off = True  # the registry does not know
    world.run_command(job, "apply")
    world.run(1)
    world.run(10)
    sleeper.is_off = False
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): MEANT}
    assert to_gateways(world)[UpdateStep.APPLY] == 1


def test_a_gateway_that_is_away_is_asked_by_one(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    world.create(order())
    world.run(10)
    before = len(world.log)
    world.network = NetworkConditions(lost=1.0)
    world.run(240)
    assert 0 < to_gateways(world, before)[UpdateStep.STATE] <= 20
    world.network = NetworkConditions()
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): MEANT}


def test_a_broadcast_that_never_began_is_begun_again_when_all_have_told_their_version(
    sqlite_database: Database,
) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=MANY)
    world.create(order(retry=Retry(max=0), concurrency=Concurrency(per_job=1000)))
    lose_the_first_command(world)
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): MANY_MEANT}
    assert to_gateways(world)[UpdateStep.START] == 2


def test_a_broadcast_that_never_began_is_canceled_at_once(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = world.create(order())
    lose_the_first_command(world)
    world.run_command(job, "cancel")
    world.run(60)
    assert ends(world) == {("CANCELED", "canceled while no update was in progress"): MEANT}
    assert to_gateways(world)[UpdateStep.ABORT] == 1


def test_who_speaks_next_asks_before_it_begins(sqlite_database: Database) -> None:
    """The one that had spoken was removed while its second command was on its way."""
    world = Simulation(sqlite_database, 1, gateways=1, devices=9)
    world.create(order(retry=Retry(max=0)))
    lose_the_first_command(world)
    world.run(200, until=lambda: sent(world)[UpdateStep.START] == 2)
    world.forget(next(each.request.device for each in world.log if each.request.step is UpdateStep.START))
    world.run(HOUR)
    assert [len(each.begun) for each in meant(world)] == [1] * 6
    assert [each.twice for each in meant(world)] == [[]] * 6


def test_nobody_hears_the_gateway_for_a_while_after_the_second_command(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=9)
    world.create(order(retry=Retry(max=0)))
    lose_the_first_command(world)
    world.network = NetworkConditions(unanswered=0.0)
    world.run(200, until=lambda: sent(world)[UpdateStep.START] == 2)
    world.network = NetworkConditions(unanswered=1.0)
    world.run(97)
    world.network = NetworkConditions()
    world.run(HOUR)
    assert [len(each.begun) for each in meant(world)] == [1] * 6
    assert [each.twice for each in meant(world)] == [[]] * 6


def test_who_has_got_too_far_is_not_canceled_with_the_others(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    for each in meant(world):
        each.verify = 30_000
    job = world.create(order(retry=Retry(max=0)))
    world.run(20)
    world.run(400, until=lambda: any(state == "VERIFYING" for state, _ in ends(world)))
    quick = meant(world)[-1]
    assert quick.update is not None
    quick.update.began -= 30_000
    quick.settle(world.now)
    world.run_command(job, "cancel")
    world.run(HOUR)
    assert ends(world) == {
        ("CANCELED", STOPPED_TEXT): MEANT - 1,
        ("SUCCEEDED", None): 1,
    }
    assert Counter(each.version for each in meant(world)) == {"1.0.0": MEANT - 1, "1.1.0": 1}


def test_a_device_in_dfu_mode_that_cannot_be_reached_is_begun_with_growing_pauses(
    sqlite_database: Database,
) -> None:
    world = Simulation(sqlite_database, 1, gateways=1, devices=3)
    world.gateways[1].command_hook = lambda command, obey: (
        (Status.TIMEOUT, None) if command == "start-nordic-dfu" else obey()
    )
    world.create(order(method=UpdateMethod.NORDIC_DFU, retry=Retry(max=0)))
    world.run(HOUR)
    assert 0 < sent(world)[UpdateStep.START] <= 12 * 2
    assert {state for state, _ in ends(world)} == {"TIMED_OUT"}


def test_a_device_in_dfu_mode_waits_for_room_at_the_gateway_that_hears_it(sqlite_database: Database) -> None:
    world = Simulation(sqlite_database, 1, gateways=2, devices=6)
    laws = Invariants(world)
    world.create(order(method=UpdateMethod.NORDIC_DFU, concurrency=Concurrency(per_gateway=1)))
    world.run(1)
    rows = world.database.read_now(
        lambda connection: connection.exec_driver_sql(
            "SELECT device FROM execution WHERE state = 'DISPATCHED' AND gateway = 2"
        ).fetchall()
    )
    assert rows, "there is one to move"
    for row in rows:
        world.move(row[0], 1)
    world.after_round = laws.check
    world.run(HOUR)
    assert ends(world) == {("SUCCEEDED", None): 4}
