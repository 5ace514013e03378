"""Tests of broadcasts: one member sends the requests for all, and no device is updated twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import Concurrency, NewJob, Retry, Targets, Timeouts
from meshfleet.service.jobs.updates.model import UpdateStep
from meshfleet.service.jobs.updates.reasons import STOPPED_TEXT
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulation import NetworkConditions, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from tests.service.jobs.execution.simulated_devices import SimulatedDevice, StatusAndValue

DEVICES = 36
"""Two thirds of these devices are of the model."""
TARGET_COUNT = 24
MANY_DEVICES, MANY_TARGETS = 159, 106
"""More devices than advance in one transaction."""
HOUR = 3600


def build_job(**values: Any) -> NewJob:
    defaults: dict[str, Any] = {"method": UpdateMethod.BROADCAST, "retry": Retry(max=1)}
    return NewJob(
        name="all", firmware_id=firmware_id(0, MODEL), targets=Targets(all=True), **(defaults | values)
    )


def list_targets(simulation: Simulation) -> list[SimulatedDevice]:
    return [each for each in simulation.devices.values() if each.model == MODEL]


def count_results(simulation: Simulation) -> Counter[tuple[str, str | None]]:
    rows = simulation.database.read_now(
        lambda connection: connection.exec_driver_sql(
            "SELECT state, reason FROM execution WHERE wave >= 0"
        ).fetchall()
    )
    return Counter((row[0], row[1]) for row in rows)


def count_requests(simulation: Simulation) -> Counter[UpdateStep]:
    return Counter(each.request.step for each in simulation.log)


def count_gateway_requests(simulation: Simulation, since: int = 0) -> Counter[UpdateStep]:
    return Counter(
        each.request.step for each in simulation.log[since:] if each.request.target in simulation.gateways
    )


def lose_first_command(simulation: Simulation) -> None:
    simulation.network = NetworkConditions(lost=1.0)
    simulation.round()
    simulation.now += 2000
    simulation.network = NetworkConditions()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_device_that_missed_a_broadcast_does_not_cause_a_second_update_of_the_others(
    sqlite_database: Database, *, forgets: bool
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=9)
    simulation.gateways[1].forgets = forgets
    simulation.create(build_job())
    offline_device = list_targets(simulation)[3]
    offline_device.is_off = True  # the registry still shows it as connected
    simulation.network = NetworkConditions(unanswered=1.0)  # the response to the start is lost
    simulation.round()
    simulation.now += 2000
    simulation.network = NetworkConditions()
    simulation.run(50)
    offline_device.is_off = False
    simulation.run(HOUR)

    assert count_results(simulation) == {("SUCCEEDED", None): 6}
    assert [len(each.started) for each in list_targets(simulation)] == [1] * 6
    assert [each.repeated for each in list_targets(simulation)] == [[]] * 6


def test_one_member_queries_the_gateway_for_the_whole_broadcast(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    simulation.create(build_job())
    simulation.run(20)
    counts = count_gateway_requests(simulation)
    assert counts[UpdateStep.START] == 1
    assert 0 < counts[UpdateStep.STATE] <= 10, "one poll after another, not one for each device"


def test_a_failed_start_is_repeated_by_one_member(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    statuses = [Status.FAILED]

    def fail_once(command: str, handle: Callable[[], StatusAndValue]) -> StatusAndValue:
        return (statuses.pop(), None) if statuses and command == "start-firmware-broadcast" else handle()

    simulation.gateways[1].command_hook = fail_once
    simulation.create(build_job())
    simulation.run(HOUR)
    assert count_gateway_requests(simulation)[UpdateStep.START] == 2
    assert count_results(simulation) == {("SUCCEEDED", None): TARGET_COUNT}


def test_a_canceled_broadcast_gets_one_abort_request(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = simulation.create(build_job())
    simulation.run(15)
    simulation.run_command(job, "cancel")
    simulation.run(1)
    simulation.run(60)
    assert count_results(simulation) == {("CANCELED", STOPPED_TEXT): TARGET_COUNT}
    assert count_requests(simulation)[UpdateStep.ABORT] == 1


def test_a_broadcast_that_reports_its_abort_is_not_aborted_again(sqlite_database: Database) -> None:
    """Lose the result of an abort: a second request finds nothing to abort."""
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)

    def report_failure(command: str, handle: Callable[[], StatusAndValue]) -> StatusAndValue:
        response = handle()
        return (Status.FAILED, None) if command == "firmware-broadcast-control" else response

    simulation.gateways[1].command_hook = report_failure
    job = simulation.create(build_job())
    simulation.run(15)
    simulation.run_command(job, "cancel")
    simulation.run(1)
    simulation.run(60)
    assert count_results(simulation) == {("CANCELED", STOPPED_TEXT): TARGET_COUNT}
    assert count_requests(simulation)[UpdateStep.ABORT] == 1


def test_one_request_applies_a_staged_broadcast(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = simulation.create(build_job(stage=True))
    simulation.run(300)
    assert count_results(simulation) == {("STAGED", None): TARGET_COUNT}
    simulation.run_command(job, "apply")
    simulation.run(1)
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): TARGET_COUNT}
    assert count_requests(simulation)[UpdateStep.APPLY] == 1


def create_staged_job(database: Database, devices: int = DEVICES) -> tuple[Simulation, int]:
    simulation = Simulation(database, 1, gateways=1, devices=devices)
    job = simulation.create(build_job(stage=True, retry=Retry(max=0), concurrency=Concurrency(per_job=1000)))
    simulation.run(600)
    assert {state for state, _ in count_results(simulation)} == {"STAGED"}
    return simulation, job


def test_a_broadcast_succeeds_when_the_response_to_apply_is_lost(sqlite_database: Database) -> None:
    simulation, job = create_staged_job(sqlite_database, MANY_DEVICES)
    simulation.network = NetworkConditions(unanswered=1.0)
    simulation.run_command(job, "apply")
    simulation.run(1)
    simulation.run(2)
    simulation.network = NetworkConditions()
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): MANY_TARGETS}
    assert count_gateway_requests(simulation)[UpdateStep.APPLY] <= 3


def test_a_device_that_missed_the_apply_request_gets_its_own(sqlite_database: Database) -> None:
    simulation, job = create_staged_job(sqlite_database)
    offline_device = list_targets(simulation)[3]
    offline_device.is_off = True  # the registry still shows it as connected
    simulation.run_command(job, "apply")
    simulation.run(1)
    simulation.run(10)
    offline_device.is_off = False
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): TARGET_COUNT}
    assert count_gateway_requests(simulation)[UpdateStep.APPLY] == 1


def test_one_member_queries_an_unreachable_gateway(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    simulation.create(build_job())
    simulation.run(10)
    before = len(simulation.log)
    simulation.network = NetworkConditions(lost=1.0)
    simulation.run(240)
    assert 0 < count_gateway_requests(simulation, before)[UpdateStep.STATE] <= 20
    simulation.network = NetworkConditions()
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): TARGET_COUNT}


def test_a_broadcast_whose_start_was_lost_starts_again_after_all_versions_were_read(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=MANY_DEVICES)
    simulation.create(build_job(retry=Retry(max=0), concurrency=Concurrency(per_job=1000)))
    lose_first_command(simulation)
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): MANY_TARGETS}
    assert count_gateway_requests(simulation)[UpdateStep.START] == 2


def test_a_broadcast_whose_start_was_lost_is_canceled_at_once(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    job = simulation.create(build_job())
    lose_first_command(simulation)
    simulation.run_command(job, "cancel")
    simulation.run(60)
    assert count_results(simulation) == {
        ("CANCELED", "canceled while no update was in progress"): TARGET_COUNT
    }
    assert count_gateway_requests(simulation)[UpdateStep.ABORT] == 1


def test_a_new_leader_queries_the_state_before_it_starts(sqlite_database: Database) -> None:
    """Remove the leader while its second start command is in flight."""
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=9)
    simulation.create(build_job(retry=Retry(max=0)))
    lose_first_command(simulation)
    simulation.run(200, until=lambda: count_requests(simulation)[UpdateStep.START] == 2)
    simulation.forget(
        next(each.request.device for each in simulation.log if each.request.step is UpdateStep.START)
    )
    simulation.run(HOUR)
    assert [len(each.started) for each in list_targets(simulation)] == [1] * 6
    assert [each.repeated for each in list_targets(simulation)] == [[]] * 6


@pytest.mark.parametrize("held_at", [620, 650, 680])
def test_a_broadcast_is_not_started_again_when_a_last_query_was_not_sent(
    sqlite_database: Database, held_at: int
) -> None:
    # While requests cannot be sent, the deadline of the start is put off.
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=9)
    simulation.create(build_job(timeouts=Timeouts(step_minutes=10)))
    simulation.network = NetworkConditions(unanswered=1.0)
    simulation.run(held_at)
    simulation.holds_requests = True
    simulation.run(60)
    simulation.holds_requests = False
    simulation.run(60)
    assert count_requests(simulation)[UpdateStep.START] == 1
    Invariants(simulation).check()


def test_no_device_is_updated_twice_when_responses_are_lost_after_the_second_start(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=9)
    simulation.create(build_job(retry=Retry(max=0)))
    lose_first_command(simulation)
    simulation.network = NetworkConditions(unanswered=0.0)
    simulation.run(200, until=lambda: count_requests(simulation)[UpdateStep.START] == 2)
    simulation.network = NetworkConditions(unanswered=1.0)
    simulation.run(97)
    simulation.network = NetworkConditions()
    simulation.run(HOUR)
    assert [len(each.started) for each in list_targets(simulation)] == [1] * 6
    assert [each.repeated for each in list_targets(simulation)] == [[]] * 6


def test_a_device_that_is_past_aborting_is_not_canceled_with_the_others(sqlite_database: Database) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=DEVICES)
    for each in list_targets(simulation):
        each.verify = 30_000
    job = simulation.create(build_job(retry=Retry(max=0)))
    simulation.run(20)
    simulation.run(400, until=lambda: any(state == "VERIFYING" for state, _ in count_results(simulation)))
    fast_device = list_targets(simulation)[-1]
    assert fast_device.update is not None
    fast_device.update.started_at -= 30_000
    fast_device.settle(simulation.now)
    simulation.run_command(job, "cancel")
    simulation.run(HOUR)
    assert count_results(simulation) == {
        ("CANCELED", STOPPED_TEXT): TARGET_COUNT - 1,
        ("SUCCEEDED", None): 1,
    }
    assert Counter(each.version for each in list_targets(simulation)) == {
        "1.0.0": TARGET_COUNT - 1,
        "1.1.0": 1,
    }


def test_the_start_of_an_unreachable_device_in_dfu_mode_is_repeated_with_growing_delays(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=1, devices=3)
    simulation.gateways[1].command_hook = lambda command, handle: (
        (Status.TIMEOUT, None) if command == "start-nordic-dfu" else handle()
    )
    simulation.create(build_job(method=UpdateMethod.NORDIC_DFU, retry=Retry(max=0)))
    simulation.run(HOUR)
    assert 0 < count_requests(simulation)[UpdateStep.START] <= 12 * 2
    assert {state for state, _ in count_results(simulation)} == {"TIMED_OUT"}


def test_a_device_in_dfu_mode_waits_for_a_slot_of_the_gateway_that_receives_it(
    sqlite_database: Database,
) -> None:
    simulation = Simulation(sqlite_database, 1, gateways=2, devices=6)
    invariants = Invariants(simulation)
    simulation.create(build_job(method=UpdateMethod.NORDIC_DFU, concurrency=Concurrency(per_gateway=1)))
    simulation.run(1)
    rows = simulation.database.read_now(
        lambda connection: connection.exec_driver_sql(
            "SELECT device FROM execution WHERE state = 'DISPATCHED' AND gateway = 2"
        ).fetchall()
    )
    assert rows, "there is a device to move"
    for row in rows:
        simulation.move(row[0], 1)
    simulation.after_round = invariants.check
    simulation.run(HOUR)
    assert count_results(simulation) == {("SUCCEEDED", None): 4}
