"""Stateful test: the invariants of jobs hold for random events, and every job ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from meshfleet.errors import Conflict
from meshfleet.protocol.times import format_millis
from meshfleet.rest.job_requests import (
    Concurrency,
    Criterion,
    Gate,
    JobHealth,
    NewJob,
    Rate,
    Retry,
    Targets,
    Timeouts,
    Wave,
)
from tests.databases import open_sqlite
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import run_until_finished
from tests.service.jobs.execution.rows import LEGACY, MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import NetworkConditions, Simulation

MINUTE = 60_000

small_numbers = st.integers(0, 7)
minutes = st.sampled_from([2.0, 20.0, 300.0])
job_options: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    stage=st.booleans(),
    auto_apply=st.sampled_from([True, True, True, False]),
    method=st.sampled_from([None, "download", "broadcast", "nordic-dfu"]),
    waves=st.sampled_from([(), (Wave(count=1),), (Wave(count=2), Wave(percent=60))]),
    gate=st.builds(
        Gate,
        success_percent=st.sampled_from([0, 50, 100]),
        soak_minutes=st.sampled_from([0, 3]),
        pause=st.booleans(),
    ),
    concurrency=st.builds(
        Concurrency, per_job=st.sampled_from([None, 1, 3]), per_gateway=st.sampled_from([None, 1, 2])
    ),
    rate=st.sampled_from([None, Rate(per_minute=2), Rate(per_minute=600)]),
    abort=st.sampled_from(
        [
            (),
            (Criterion(percent=50, action="PAUSE"),),
            (Criterion(type="FAILED", percent=30, min_executed=2, action="CANCEL"),),
        ]
    ),
    retry=st.builds(Retry, max=st.integers(0, 3), backoff_seconds=st.sampled_from([0, 5, 60])),
    timeouts=st.builds(
        Timeouts,
        queue_minutes=minutes,
        step_minutes=st.sampled_from([1.0, 10.0]),
        total_minutes=st.none() | minutes,
    ),
    health=st.builds(JobHealth, heartbeats=st.integers(0, 3)),
    on_newer_job=st.sampled_from(["queue", "supersede", "reject"]),
    starts_in=st.sampled_from([None, None, None, 2, 90]),
    lasts=st.sampled_from([None, None, None, 5, 200]),
)
"""Options of a job request. `starts_in` and `lasts` are minutes after its creation."""


fates = st.sampled_from([UpdateFate.FINE, UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
networks = st.builds(
    NetworkConditions,
    lost=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    unanswered=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    slow=st.sampled_from([0.0, 0.3]),
    repeated=st.sampled_from([0.0, 0.5]),
)
times = st.sampled_from([1, 5, 20, 60, 120, 300])
hours = st.sampled_from([-9, -1, 0, 1, 9])


def build_job(options: dict[str, Any], wall: int, *, newer: bool, legacy: bool) -> NewJob:
    """Build a job request with options at a time. A legacy model supports only one update method."""
    model = LEGACY if legacy else MODEL
    fields = options | ({"method": None} if legacy else {})
    starts_in, lasts_minutes = fields.pop("starts_in"), fields.pop("lasts")
    start = wall + (starts_in or 0) * MINUTE
    return NewJob(
        name="all",
        firmware_id=firmware_id(int(newer), model),
        targets=Targets(all=True),
        start_at=None if starts_in is None else format_millis(start),
        deadline=None if lasts_minutes is None else format_millis(start + lasts_minutes * MINUTE),
        **fields,
    )


class JobStateMachine(RuleBasedStateMachine):
    """Simulation with random events."""

    template: ClassVar[Path]

    @initialize(
        seed=st.integers(0, 2**32),
        options=job_options,
        network=networks,
        fates=st.lists(fates, min_size=6, max_size=6),
        hours_ahead=hours,
    )
    def start_simulation(
        self,
        seed: int,
        options: dict[str, Any],
        network: NetworkConditions,
        fates: list[UpdateFate],
        hours_ahead: int,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp())
        path = self.directory / "meshfleet.sqlite"
        shutil.copy(self.template, path)
        self.simulation = Simulation(open_sqlite(path), seed)
        self.job_invariants = Invariants(self.simulation)
        self.simulation.network, self.simulation.ahead = network, 60 * hours_ahead * MINUTE
        for device, fate in zip(self.simulation.devices.values(), fates, strict=True):
            device.fate = fate
        self.simulation.create(build_job(options, self.simulation.wall, newer=False, legacy=False))

    # Commands of users

    @precondition(lambda self: len(self.simulation.jobs) < 4)
    @rule(
        options=job_options,
        newer=st.booleans(),
        legacy=st.sampled_from([False, False, True]),
        seconds_after=times,
    )
    def create(self, options: dict[str, Any], newer: bool, legacy: bool, seconds_after: int) -> None:  # noqa: FBT001 # hypothesis passes it by name
        try:
            self.simulation.create(build_job(options, self.simulation.wall, newer=newer, legacy=legacy))
        except Conflict:
            return
        self.simulation.run(seconds_after)

    @rule(
        index=small_numbers,
        command=st.sampled_from(["pause", "resume", "cancel", "apply", "withdraw"]),
        seconds_after=times,
    )
    def run_command(self, index: int, command: str, seconds_after: int) -> None:
        job = self.simulation.jobs[index % len(self.simulation.jobs)]
        if command == "withdraw":
            self.simulation.withdraw(job)
        else:
            self.simulation.run_command(job, command)
        self.simulation.run(seconds_after)

    @rule(hours_ahead=hours, seconds_after=times)
    def set_clock(self, hours_ahead: int, seconds_after: int) -> None:
        self.simulation.ahead = 60 * hours_ahead * MINUTE
        self.simulation.run(seconds_after)

    # Devices, gateways and network

    @rule(seconds=times)
    def wait(self, seconds: int) -> None:
        self.simulation.run(seconds)

    @rule(seconds=st.sampled_from([600, 3600]))
    def wait_long(self, seconds: int) -> None:
        self.simulation.run(seconds)

    @rule(index=small_numbers, fate=fates, seconds_after=times)
    def decide_fate(self, index: int, fate: UpdateFate, seconds_after: int) -> None:
        devices = list(self.simulation.devices.values())
        devices[index % len(devices)].fate = fate
        self.simulation.run(seconds_after)

    @rule(network=networks, seconds_after=times)
    def change_network(self, network: NetworkConditions, seconds_after: int) -> None:
        self.simulation.network = network
        self.simulation.run(seconds_after)

    @rule(index=small_numbers, connected=st.booleans(), seconds_after=times)
    def connect(self, index: int, connected: bool, seconds_after: int) -> None:  # noqa: FBT001 # hypothesis passes it by name
        numbers = [*self.simulation.devices, *self.simulation.gateways]
        self.simulation.set_connected(numbers[index % len(numbers)], connected=connected)
        self.simulation.run(seconds_after)

    @rule(index=small_numbers, seconds_after=times)
    def move(self, index: int, seconds_after: int) -> None:
        numbers = list(self.simulation.devices)
        number = numbers[index % len(numbers)]
        self.simulation.move(number, 3 - self.simulation.devices[number].gateway)
        self.simulation.run(seconds_after)

    @rule(index=small_numbers, seconds_after=times)
    def forget(self, index: int, seconds_after: int) -> None:
        numbers = list(self.simulation.devices)
        self.simulation.forget(numbers[index % len(numbers)])
        self.simulation.run(seconds_after)

    # Failures of the service

    @rule(releases_leases=st.booleans(), seconds_after=times)
    def kill(self, releases_leases: bool, seconds_after: int) -> None:  # noqa: FBT001 # hypothesis passes it by name
        self.simulation.kill(releases_leases=releases_leases)
        self.simulation.run(seconds_after)

    @rule(seconds=st.sampled_from([1, 60, 400, 4000]), seconds_after=times)
    def stop_service(self, seconds: int, seconds_after: int) -> None:
        self.simulation.stop_service(seconds)
        self.simulation.run(seconds_after)

    @rule(seconds=st.sampled_from([60, 400]))
    def hold_requests(self, seconds: int) -> None:
        self.simulation.holds_requests = True
        self.simulation.run(seconds)
        self.simulation.holds_requests = False

    @rule(index=st.integers(1, 6), seconds_after=times)
    def abort_transaction(self, index: int, seconds_after: int) -> None:
        self.simulation.abort_transaction(index)
        self.simulation.run(seconds_after)

    @invariant()
    def invariants_hold(self) -> None:
        if hasattr(self, "job_invariants"):
            self.job_invariants.check()

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        try:
            run_until_finished(self.simulation)
            self.job_invariants.check_end()
        finally:
            self.simulation.database.close()
            shutil.rmtree(self.directory)


@pytest.fixture(scope="module", autouse=True)
def _template(sqlite_template: Path) -> None:
    JobStateMachine.template = sqlite_template


@pytest.mark.parametrize(("runs", "steps"), [(3, 12), pytest.param(40, 25, marks=pytest.mark.part("fuzz"))])
def test_the_invariants_hold_for_random_events(runs: int, steps: int) -> None:
    run_state_machine_as_test(
        JobStateMachine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            phases=[Phase.generate],
        ),
    )
