"""Whatever happens, in whatever order: the laws of jobs hold, and everything comes to an end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
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
from meshfleet.rest import (
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

some = st.integers(0, 7)
minutes = st.sampled_from([2.0, 20.0, 300.0])
orders: st.SearchStrategy[dict[str, Any]] = st.builds(
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
"""All that an order can say; `starts_in` and `lasts` are minutes from when it is made."""


fates = st.sampled_from([UpdateFate.FINE, UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
weathers = st.builds(
    NetworkConditions,
    lost=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    unanswered=st.sampled_from([0.0, 0.1, 0.3, 1.0]),
    slow=st.sampled_from([0.0, 0.3]),
    doubled=st.sampled_from([0.0, 0.5]),
)
times = st.sampled_from([1, 5, 20, 60, 120, 300])
hours = st.sampled_from([-9, -1, 0, 1, 9])


def order_of(options: dict[str, Any], wall: int, *, newer: bool, legacy: bool) -> NewJob:
    """An order with these options, made at this time; a legacy model knows one way only."""
    model = LEGACY if legacy else MODEL
    chosen = options | ({"method": None} if legacy else {})
    starts_in, lasts = chosen.pop("starts_in"), chosen.pop("lasts")
    start = wall + (starts_in or 0) * MINUTE
    return NewJob(
        name="all",
        firmware_id=firmware_id(int(newer), model),
        targets=Targets(all=True),
        start_at=None if starts_in is None else format_millis(start),
        deadline=None if lasts is None else format_millis(start + lasts * MINUTE),
        **chosen,
    )


class Fleet(RuleBasedStateMachine):
    """A world in which anything may happen."""

    template: ClassVar[Path]

    @initialize(
        seed=st.integers(0, 2**32),
        options=orders,
        weather=weathers,
        fates=st.lists(fates, min_size=6, max_size=6),
        ahead=hours,
    )
    def begin(
        self,
        seed: int,
        options: dict[str, Any],
        weather: NetworkConditions,
        fates: list[UpdateFate],
        ahead: int,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "meshfleet.sqlite"
        shutil.copy(self.template, path)
        self.world = Simulation(open_sqlite(path), seed)
        self.laws = Invariants(self.world)
        self.world.network, self.world.ahead = weather, 60 * ahead * MINUTE
        for device, fate in zip(self.world.devices.values(), fates, strict=True):
            device.fate = fate
        self.world.create(order_of(options, self.world.wall, newer=False, legacy=False))

    # People

    @precondition(lambda self: len(self.world.jobs) < 4)
    @rule(options=orders, newer=st.booleans(), legacy=st.sampled_from([False, False, True]), then=times)
    def create(self, options: dict[str, Any], newer: bool, legacy: bool, then: int) -> None:  # noqa: FBT001 # an example
        try:
            self.world.create(order_of(options, self.world.wall, newer=newer, legacy=legacy))
        except Conflict:
            return
        self.world.run(then)

    @rule(place=some, deed=st.sampled_from(["pause", "resume", "cancel", "apply", "withdraw"]), then=times)
    def steer(self, place: int, deed: str, then: int) -> None:
        job = self.world.jobs[place % len(self.world.jobs)]
        if deed == "withdraw":
            self.world.withdraw(job)
        else:
            self.world.run_command(job, deed)
        self.world.run(then)

    @rule(ahead=hours, then=times)
    def set_clock(self, ahead: int, then: int) -> None:
        self.world.ahead = 60 * ahead * MINUTE
        self.world.run(then)

    # The world

    @rule(seconds=times)
    def wait(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule(seconds=st.sampled_from([600, 3600]))
    def wait_long(self, seconds: int) -> None:
        self.world.run(seconds)

    @rule(place=some, fate=fates, then=times)
    def decide_fate(self, place: int, fate: UpdateFate, then: int) -> None:
        devices = list(self.world.devices.values())
        devices[place % len(devices)].fate = fate
        self.world.run(then)

    @rule(weather=weathers, then=times)
    def change_weather(self, weather: NetworkConditions, then: int) -> None:
        self.world.network = weather
        self.world.run(then)

    @rule(place=some, connected=st.booleans(), then=times)
    def connect(self, place: int, connected: bool, then: int) -> None:  # noqa: FBT001 # an example
        numbers = [*self.world.devices, *self.world.gateways]
        self.world.set_connected(numbers[place % len(numbers)], connected=connected)
        self.world.run(then)

    @rule(place=some, then=times)
    def move(self, place: int, then: int) -> None:
        numbers = list(self.world.devices)
        number = numbers[place % len(numbers)]
        self.world.move(number, 3 - self.world.devices[number].gateway)
        self.world.run(then)

    @rule(place=some, then=times)
    def forget(self, place: int, then: int) -> None:
        numbers = list(self.world.devices)
        self.world.forget(numbers[place % len(numbers)])
        self.world.run(then)

    # Failures of our own

    @rule(frees=st.booleans(), then=times)
    def kill(self, frees: bool, then: int) -> None:  # noqa: FBT001 # an example
        self.world.kill(releases_leases=frees)
        self.world.run(then)

    @rule(seconds=st.sampled_from([1, 60, 400, 4000]), then=times)
    def be_away(self, seconds: int, then: int) -> None:
        self.world.stop_service(seconds)
        self.world.run(then)

    @rule(seconds=st.sampled_from([60, 400]))
    def hold_letters(self, seconds: int) -> None:
        self.world.holds_requests = True
        self.world.run(seconds)
        self.world.holds_requests = False

    @rule(place=st.integers(1, 6), then=times)
    def tear(self, place: int, then: int) -> None:
        self.world.abort_transaction(place)
        self.world.run(then)

    @invariant()
    def laws_hold(self) -> None:
        if hasattr(self, "laws"):
            self.laws.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            run_until_finished(self.world)
            self.laws.check_end()
        finally:
            self.world.database.close()
            shutil.rmtree(self.folder)


@pytest.fixture(scope="module", autouse=True)
def _template(sqlite_template: Path) -> None:
    Fleet.template = sqlite_template


@pytest.mark.parametrize(("runs", "steps"), [(3, 12), pytest.param(40, 25, marks=pytest.mark.part("fuzz"))])
def test_the_laws_hold_whatever_happens(runs: int, steps: int) -> None:
    run_state_machine_as_test(
        Fleet,
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            print_blob=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
