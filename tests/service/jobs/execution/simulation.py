"""A world on simulated time: devices and gateways, a registry that hears of them, and the engine of jobs.

It drives the functions of the engine on a real database, as a runner would, but one after the other and with
time as a plain number. Everything else follows from a seed.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import bindparam, delete, func, insert, select, update

from meshfleet.db.tables import device, device_state, firmware, gateway
from meshfleet.db.tables import job as jobs
from meshfleet.errors import Conflict
from meshfleet.protocol.ids import ModelNumber
from meshfleet.service.actor import SERVICE
from meshfleet.service.clock import Moment
from meshfleet.service.devices import states
from meshfleet.service.jobs import commands
from meshfleet.service.jobs.execution import downtime, execution_events, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import JobSpecCache
from meshfleet.service.jobs.notifications import ignore_changes
from meshfleet.service.jobs.planning import conflicts, firmware_lookup, job_drafts
from meshfleet.service.jobs.planning.conflicts import supersede_older_jobs
from meshfleet.service.jobs.planning.creation import assign_waves
from meshfleet.service.jobs.planning.eligibility import evaluate_targets
from meshfleet.service.jobs.planning.job_drafts import JobPlan
from meshfleet.service.jobs.planning.validation import validate_job
from meshfleet.service.jobs.updates import timeouts
from meshfleet.service.jobs.updates.model import RequestNotSent, RequestUnanswered, ResponseReceived
from tests.service.jobs.execution.rows import LEGACY, MODEL, NEW, NEWER, OLD, device_row, firmware_row
from tests.service.jobs.execution.simulated_devices import SECOND, SimulatedDevice, SimulatedGateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy import Connection, Update

    from meshfleet.db import Database
    from meshfleet.rest import NewJob
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.execution.outbox import OutboxRequest
    from meshfleet.service.jobs.execution.queries import GatewayRoutes

START: Final = 1_800_000_000_000
BEAT: Final = 60 * SECOND
ROUND: Final = 500
LEASE: Final = timeouts.RESPONSE_TIMEOUT + 30 * SECOND


_STATE: Final = update(device_state).where(device_state.c.device == bindparam("of"))
_IN_DFU: Final = _STATE.values(
    boot_mode="dfu", radio_gateway=bindparam("behind"), reported_at=bindparam("wall")
)
_BEAT: Final = _STATE.values(
    boot_mode=None, status=bindparam("now"), status_at=bindparam("wall"), reported_at=bindparam("wall")
).where(func.coalesce(device_state.c.status_at, 0) <= bindparam("wall"))  # as `states.update` asks
_VERSION: Final = update(device).where(device.c.id == bindparam("of")).values(firmware=bindparam("runs"))


class TransactionAborted(Exception):
    """A transaction ended in its middle."""


class InFlightRequest(NamedTuple):
    """A letter on its way, and what will become of it."""

    request: OutboxRequest
    arrives: int | None
    """None: never."""
    answered: int | None
    """When the answer is back; None: never."""
    given_up: int


class SentRequest(NamedTuple):
    """A letter as it was sent, and when."""

    request: OutboxRequest
    time: int


@dataclass
class NetworkConditions:
    """How good the air is, each as a share of the letters."""

    lost: float = 0.0
    unanswered: float = 0.0
    slow: float = 0.0
    doubled: float = 0.0


class Simulation:
    """All there is."""

    def __init__(self, database: Database, seed: int, *, gateways: int = 2, devices: int = 6) -> None:
        self.database = database
        self.now = START
        self._ahead = 0
        self.rng = Random(seed)  # noqa: S311 # no secret
        self.network = NetworkConditions()
        self.devices: dict[int, SimulatedDevice] = {}
        self.gateways: dict[int, SimulatedGateway] = {}
        self.jobs: list[int] = []
        self.log: list[SentRequest] = []
        """Every letter that left."""
        self.results: list[tuple[int, RequestResult]] = []
        """Every reply that was taken over, and when."""
        self.after_round: Callable[[], None] = lambda: None
        self.select: Callable[[Sequence[int]], GatewayRoutes] | None = None
        """Chooses the gateways of devices; None: the registry does."""
        self._spec_cache = JobSpecCache()
        self._on_way: list[InFlightRequest] = []
        self._arrived: dict[str, tuple[int, Any]] = {}
        self._replies: list[RequestResult] = []
        self._beaten: dict[int, int] = {}
        self._abort_after = 0
        self._noted_at = 0
        self.holds_requests = False
        """Whether letters lie about that nobody takes."""
        self.back: dict[int, int] = {}
        """When each gateway last came back from an outage; 0 stands for the service."""
        self.database.write_now(self._insert_registry, gateways, devices)

    @property
    def wall(self) -> int:
        """The time that people read."""
        return self.now + self.ahead

    @property
    def moment(self) -> Moment:
        """The time by both clocks."""
        return Moment(self.now, self.wall)

    @property
    def ahead(self) -> int:
        """By how much the clock that people read has been set forward."""
        return self._ahead

    @ahead.setter
    def ahead(self, ahead: int) -> None:
        self._ahead = ahead
        self.database.write_now(states.limit_state_times, self.wall)  # as ingest does when it notices

    # The registry

    def _insert_registry(self, connection: Connection, gateways: int, devices: int) -> None:
        self.gateways.update(
            {number: SimulatedGateway(number, self.devices) for number in range(1, gateways + 1)}
        )
        for place in range(devices):
            number = 0x1000 + 2 * place
            behind = place % gateways + 1
            self.devices[number] = SimulatedDevice(number, behind, LEGACY if place % 3 == 2 else MODEL, OLD)
        rows = [device_row(number, None, ModelNumber("2011")) for number in self.gateways]
        rows += [device_row(each.number, each.gateway, each.model) for each in self.devices.values()]
        connection.execute(insert(device), rows)
        connection.execute(insert(gateway), [{"device": number, "claimed_at": 0} for number in self.gateways])
        connection.execute(insert(device_state), [{"device": each, "rhythm": BEAT} for each in self.devices])
        for place, version in enumerate((NEW, NEWER)):
            for model in (MODEL, LEGACY):
                connection.execute(insert(firmware).values(firmware_row(place, model, version)))

    def set_connected(self, number: int, *, connected: bool) -> None:
        """A gateway, or a device, comes or goes as the registry sees it."""
        if number in self.gateways:
            if connected and not self.gateways[number].is_connected:
                self.back[number] = self.now
            self.gateways[number].is_connected = connected
        else:
            self.devices[number].is_off = not connected
        change = update(device).where(device.c.id == number).values(connected=connected)
        self.database.write_now(lambda connection: connection.execute(change))

    def forget(self, number: int) -> None:
        """A device is removed from the registry."""
        self.database.write_now(
            lambda connection: connection.execute(delete(device).where(device.c.id == number))
        )

    def move(self, number: int, behind: int) -> None:
        """A device is heard through another gateway from now on."""
        self.devices[number].gateway = behind
        change = update(device).where(device.c.id == number).values(gateway=behind)
        self.database.write_now(lambda connection: connection.execute(change))

    def _report(self) -> None:
        """Let the registry hear of those that tell something."""
        in_dfu: list[dict[str, Any]] = []
        beats: list[dict[str, Any]] = []
        versions: list[dict[str, Any]] = []
        for each in self.devices.values():
            each.settle(self.now)
            if each.dfu_since is not None and not each.is_off:
                in_dfu.append({"of": each.number, "behind": each.gateway, "wall": self.wall})
            elif self._is_time(each) and not each.is_mute and not each.is_away(self.now):
                self._beaten[each.number] = self.now
                beats.append({"of": each.number, "now": each.status, "wall": self.wall})
                versions.append({"of": each.number, "runs": each.reports or each.version})
        changes = ((_IN_DFU, in_dfu), (_BEAT, beats), (_VERSION, versions))
        if told := [(change, rows) for change, rows in changes if rows]:
            self.database.write_now(_tell, told)

    def _is_time(self, each: SimulatedDevice) -> bool:
        return self.now - self._beaten.get(each.number, 0) >= BEAT

    # Jobs

    def create(self, order: NewJob) -> int:
        """Make a job as the service does, but with a seed of ours."""
        read, write = self.database.read_now, self.database.write_now
        found = read(firmware_lookup.load_released_firmware, order)
        others = read(conflicts.find_conflicting_jobs)
        numbers = array("q", sorted(self.devices))
        sifted = asyncio.run(evaluate_targets(self.database, numbers, found.requirement, others.rejecting))
        if not len(sifted):
            raise Conflict("nobody is there")
        seed = self.rng.getrandbits(62)
        frozen = JobPlan(
            job=validate_job(order, self.wall),
            firmware=found,
            targets=sifted,
            waves=assign_waves(seed, sifted, order.waves),
            seed=seed,
            conflicting_jobs=others,
            by=SERVICE,
            idempotency_key=None,
            parent=None,
        )
        draft = write(job_drafts.insert_draft, self.wall)
        write(job_drafts.insert_executions, draft, job_drafts.build_executions(frozen, 0))
        published = write(job_drafts.publish_draft, draft, frozen, self.wall)
        asyncio.run(
            supersede_older_jobs(
                self.database, published.number, published.superseded_jobs, self.wall, ignore_changes
            )
        )
        self.jobs.append(published.number)
        return published.number

    def run_command(self, job: int, command: str) -> bool:
        """What people do; whether that was possible."""
        try:
            self.database.write_now(commands.COMMANDS[command], job, by=SERVICE, now=self.wall)
        except Conflict:
            return False
        return True

    def withdraw(self, job: int) -> None:
        """The firmware of a job is withdrawn, and all its jobs stop; it can be had again at once."""
        self.database.write_now(self._withdraw, job)

    def _withdraw(self, connection: Connection, job: int) -> None:
        found = connection.execute(select(jobs.c.firmware).where(jobs.c.id == job)).scalar_one()
        commands.cancel_jobs_of_firmware(connection, found, by=SERVICE, now=self.wall)

    # Time

    def run(
        self, seconds: float, *, until: Callable[[], bool] = lambda: False, rounds: int = 100_000
    ) -> None:
        """Let time pass, from one event to the next."""
        end = self.now + int(seconds * SECOND)
        while not until():
            rounds -= 1
            assert rounds >= 0, "it does not come to rest"
            self.round()
            following = min(end, max(self._next_event(), self.now + ROUND))
            if self.now >= end:
                return
            if following - self.now > downtime.ALIVE_INTERVAL_MS:
                self.database.write_now(_run_until, following)
            self.now = following

    def _next_event(self) -> int:
        times = [time for each in self._on_way for time in _times(each) if time > self.now]
        due, confirming = self.database.read_now(_next_times, self.now, self.ahead)
        times += due
        times += [self._beaten.get(number, 0) + BEAT for number in confirming]
        return min((time for time in times if time > self.now), default=2**62)

    def round(self) -> None:
        """Do what a runner does in a round, with what the world does meanwhile."""
        write = self.database.write_now
        self._report()
        if abs(self.now - self._noted_at) >= downtime.ALIVE_INTERVAL_MS:
            write(downtime.record_alive, self.now)
            self._noted_at = self.now
        self._take_answers()
        self._find_left()
        due = None
        if self.select is not None:
            due = self.select(self.database.read_now(execution_events.list_due_devices, self.now))
        self._repeat(lambda c: execution_events.advance_due_executions(c, self._spec_cache, self.moment, due))
        self._repeat(self._hear)
        for job in self.database.read_now(job_scheduler.list_open_jobs, 0):
            self._repeat(partial(self._step, job))
        if not self.holds_requests:
            self._send(write(outbox.lease_requests, 256, {}, until=self.now + LEASE).requests)
        self.after_round()

    def _step(self, job: int, connection: Connection) -> Any:
        done = job_scheduler.advance_job(connection, self._spec_cache, job, self.moment, self._routes(()))
        if done.unrouted:
            routes = self._routes(done.unrouted)
            return job_scheduler.advance_job(connection, self._spec_cache, job, self.moment, routes)
        return done

    def _hear(self, connection: Connection) -> Any:
        devices = execution_events.list_devices_with_news(connection)
        return execution_events.apply_registry_news(
            connection, self._spec_cache, devices, self.moment, self._routes(devices)
        )

    def _routes(self, devices: Sequence[int]) -> GatewayRoutes | None:
        return None if self.select is None else self.select(devices)

    def abort_transaction(self, place: int) -> None:
        """Let one of the next transactions break off just before its end."""
        self._abort_after = place

    def _repeat(self, work: Callable[[Connection], Any]) -> None:
        for _ in range(100):
            try:
                if not self.database.write_now(self._run_aborting, work).has_more:
                    return
            except TransactionAborted:
                return
        raise AssertionError("there is always more to do")

    def _run_aborting(self, connection: Connection, work: Callable[[Connection], Any]) -> Any:
        done = work(connection)
        self._abort_after -= 1
        if self._abort_after == 0:
            raise TransactionAborted
        return done

    # Letters

    def _send(self, letters: Iterable[OutboxRequest]) -> None:
        for letter in letters:
            self.log.append(SentRequest(letter, self.now))
            if not self.gateways[letter.gateway].is_connected:
                self._replies.append(
                    letter.build_result(RequestNotSent(letter.step, "the gateway is not connected"))
                )
                continue
            weather, way = self.network, self.rng.randint(100, 1500)
            slow = self.rng.choice([25, 45]) * SECOND if self.rng.random() < weather.slow else 0
            arrives = None if self.rng.random() < weather.lost else self.now + way + slow
            answered = None
            if arrives is not None and self.rng.random() >= weather.unanswered:
                answered = arrives + way
            self._on_way.append(
                InFlightRequest(letter, arrives, answered, self.now + timeouts.RESPONSE_TIMEOUT)
            )

    def _take_answers(self) -> None:
        """Let letters arrive, and take over what came of them."""
        replies, self._replies = self._replies, []
        for sent in sorted(self._on_way, key=lambda each: each.arrives or 2**62):
            letter = sent.request
            arrives = sent.arrives is not None and sent.arrives <= self.now
            if arrives and letter.id not in self._arrived:
                self._arrived[letter.id] = self.gateways[letter.gateway].answer(letter, sent.arrives or 0)
        for sent in self._on_way.copy():
            letter = sent.request
            if sent.answered is not None and sent.answered <= min(self.now, sent.given_up):
                status, value = self._arrived[letter.id]
                replies.append(letter.build_result(ResponseReceived(letter.step, status, value)))
            elif sent.given_up <= self.now:
                replies.append(letter.build_result(RequestUnanswered(letter.step, "nobody answered")))
                if sent.answered is not None and sent.answered > self.now:
                    self._on_way.append(sent._replace(given_up=2**62))
            else:
                continue
            self._on_way.remove(sent)
        if replies:
            self._take_over(replies)

    def _take_over(self, replies: list[RequestResult]) -> None:
        doubled = [each for each in replies if self.rng.random() < self.network.doubled]
        self.results += [(self.now, each) for each in replies]
        self._reply(replies)
        if doubled:
            self._reply(doubled)

    def _reply(self, replies: list[RequestResult]) -> None:
        routes = self._routes([each.device for each in replies])
        try:
            self.database.write_now(
                self._run_aborting,
                lambda c: execution_events.apply_results(c, self._spec_cache, replies, self.moment, routes),
            )
        except TransactionAborted:  # as a runner would: they are left behind, and found
            return

    def _find_left(self) -> None:
        left = self.database.read_now(outbox.list_abandoned_requests, self.now, 0)
        if left:
            self._take_over(left)

    def stop_service(self, seconds: float) -> None:
        """The service ends before it took what it had written, and is away for a while."""
        was, self.holds_requests = self.holds_requests, True
        self.round()
        self.kill(releases_leases=True)
        self.now += int(seconds * SECOND)
        self.back[0] = self.now
        self.holds_requests = was

    def kill(self, *, releases_leases: bool) -> None:
        """All that a runner had in memory is gone; a part of what it sent goes on without it.

        On SQLite whoever comes next `frees` what was left behind; else that waits for its lease.
        """
        self._replies = []
        going = [each for each in self._on_way if each.arrives is not None and self.rng.random() < 0.5]
        self._on_way = [each._replace(answered=None, given_up=2**62) for each in going]
        self._spec_cache = JobSpecCache()
        if releases_leases:
            self.database.write_now(outbox.release_leases)


def _run_until(connection: Connection, now: int) -> None:
    """Note that a runner was there all the time, though nothing happened."""
    connection.exec_driver_sql(f"UPDATE job_engine SET alive_at = {now}")  # noqa: S608 # a number


def _times(sent: InFlightRequest) -> list[int]:
    """When a letter is to be looked at: what arrives shows with its answer, if there is one."""
    seen = sent.arrives if sent.answered is None else sent.answered
    return [each for each in (seen, sent.given_up) if each is not None]


def _next_times(connection: Connection, now: int, ahead: int) -> tuple[list[int], list[int]]:
    """When something of the engine is due, of all that is still open; and the devices that confirm.

    What people said is due by their clock.
    """
    rows = connection.exec_driver_sql(
        "SELECT min(due) FROM execution WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'REJECTED',"  # noqa: S608 # numbers
        f" 'SKIPPED', 'CANCELED', 'REMOVED', 'SUPERSEDED') AND due > {now}"
        # What a step of a job made due is looked at in the next round.
        f" UNION ALL SELECT min({now + 1}) FROM execution WHERE due <= {now} AND state IN ('DISPATCHED',"
        " 'TRANSFERRING', 'VERIFYING', 'STAGED', 'APPLYING', 'CONFIRMING')"
        " UNION ALL SELECT min(expires) FROM execution WHERE state = 'QUEUED'"
        " UNION ALL SELECT min(taken_until) FROM job_outbox"
        f" UNION ALL SELECT min(soaks_until) FROM job WHERE finished_at IS NULL AND soaks_until > {now}"
        " UNION ALL SELECT min(queue_until) FROM job WHERE finished_at IS NULL"
        f" UNION ALL SELECT min(start_at) - {ahead} FROM job WHERE state = 'SCHEDULED'"
        f" UNION ALL SELECT min(deadline) - {ahead} FROM job WHERE finished_at IS NULL"
        " UNION ALL SELECT min(paced_until) + 60000 FROM job WHERE state = 'IN_PROGRESS' AND paced_until > 0"
    )
    confirming = connection.exec_driver_sql("SELECT device FROM execution WHERE state = 'CONFIRMING'")
    return [row[0] for row in rows if row[0] is not None], [row[0] for row in confirming]


def _tell(connection: Connection, told: Sequence[tuple[Update, list[dict[str, Any]]]]) -> None:
    for change, rows in told:
        connection.execute(change, rows)
