"""Simulation of devices, gateways, the registry and the job runner on simulated time.

It calls the functions of job execution on a real database like a runner, but one after another and with time
as a plain number. Everything else follows from a seed.
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
from meshfleet.service.clock import ClockReading
from meshfleet.service.devices import states
from meshfleet.service.jobs import commands
from meshfleet.service.jobs.execution import downtime, execution_events, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import JobSpecCache
from meshfleet.service.jobs.notifications import ignore_changes
from meshfleet.service.jobs.planning import conflicts, firmware_lookup, job_drafts
from meshfleet.service.jobs.planning.conflicts import take_over_queued_devices
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
    from meshfleet.rest.job_requests import NewJob
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.execution.outbox import OutboxRequest
    from meshfleet.service.jobs.execution.queries import GatewayRoutes

START: Final = 1_800_000_000_000
BEAT: Final = 60 * SECOND
ROUND: Final = 500
LEASE: Final = timeouts.RESPONSE_TIMEOUT + 30 * SECOND


_UPDATE_STATE: Final = update(device_state).where(device_state.c.device == bindparam("device_id"))
_UPDATE_DFU_MODE: Final = _UPDATE_STATE.values(
    boot_mode="dfu", radio_gateway=bindparam("gateway_id"), reported_at=bindparam("wall")
)
_UPDATE_HEARTBEAT: Final = _UPDATE_STATE.values(
    boot_mode=None, status=bindparam("new_status"), status_at=bindparam("wall"), reported_at=bindparam("wall")
).where(func.coalesce(device_state.c.status_at, 0) <= bindparam("wall"))  # the same condition as in `states`
_UPDATE_VERSION: Final = (
    update(device).where(device.c.id == bindparam("device_id")).values(firmware=bindparam("running"))
)


class TransactionAborted(Exception):
    """A transaction was aborted before its end."""


class InFlightRequest(NamedTuple):
    """Request in flight, with its future."""

    request: OutboxRequest
    arrives_at: int | None
    """Time of its arrival at the gateway; None if it is lost."""
    responded_at: int | None
    """Time at which the response arrives; None if it is lost."""
    times_out_at: int


class SentRequest(NamedTuple):
    """Sent request with its time."""

    request: OutboxRequest
    time: int


@dataclass
class NetworkConditions:
    """Quality of the network: fractions of requests that are lost, unanswered, slow, or reported twice."""

    lost: float = 0.0
    unanswered: float = 0.0
    slow: float = 0.0
    repeated: float = 0.0


class Simulation:
    """Simulated fleet with its jobs."""

    def __init__(self, database: Database, seed: int, *, gateways: int = 2, devices: int = 6) -> None:
        self.database = database
        self.now = START
        self._ahead = 0
        self.rng = Random(seed)  # noqa: S311 # not used for secrets
        self.network = NetworkConditions()
        self.devices: dict[int, SimulatedDevice] = {}
        self.gateways: dict[int, SimulatedGateway] = {}
        self.jobs: list[int] = []
        self.log: list[SentRequest] = []
        """All sent requests."""
        self.results: list[tuple[int, RequestResult]] = []
        """All processed results with their times."""
        self.after_round: Callable[[], None] = lambda: None
        self.select: Callable[[Sequence[int]], GatewayRoutes] | None = None
        """Selects the gateways of devices; None uses the gateways in the registry."""
        self._spec_cache = JobSpecCache()
        self._in_flight: list[InFlightRequest] = []
        self._handled: dict[str, tuple[int, Any]] = {}
        self._pending_results: list[RequestResult] = []
        self._last_heartbeat: dict[int, int] = {}
        self._abort_after = 0
        self._alive_at = 0
        self.holds_requests = False
        """Whether requests stay in the outbox without being sent."""
        self.back: dict[int, int] = {}
        """Time at which each gateway last returned from an outage; key 0 is the service."""
        self.database.write_now(self._insert_registry, gateways, devices)

    @property
    def wall(self) -> int:
        """Time of the wall clock."""
        return self.now + self.ahead

    @property
    def moment(self) -> ClockReading:
        """Time of both clocks."""
        return ClockReading(self.now, self.wall)

    @property
    def ahead(self) -> int:
        """Milliseconds by which the wall clock was set forward."""
        return self._ahead

    @ahead.setter
    def ahead(self, ahead: int) -> None:
        self._ahead = ahead
        self.database.write_now(states.limit_state_times, self.wall)  # as ingest does

    # The registry

    def _insert_registry(self, connection: Connection, gateways: int, devices: int) -> None:
        self.gateways.update(
            {number: SimulatedGateway(number, self.devices) for number in range(1, gateways + 1)}
        )
        for index in range(devices):
            number = 0x1000 + 2 * index
            gateway_number = index % gateways + 1
            self.devices[number] = SimulatedDevice(
                number, gateway_number, LEGACY if index % 3 == 2 else MODEL, OLD
            )
        rows = [device_row(number, None, ModelNumber("2011")) for number in self.gateways]
        rows += [device_row(each.number, each.gateway, each.model) for each in self.devices.values()]
        connection.execute(insert(device), rows)
        connection.execute(insert(gateway), [{"device": number, "claimed_at": 0} for number in self.gateways])
        connection.execute(insert(device_state), [{"device": each, "rhythm": BEAT} for each in self.devices])
        for index, version in enumerate((NEW, NEWER)):
            for model in (MODEL, LEGACY):
                connection.execute(insert(firmware).values(firmware_row(index, model, version)))

    def set_connected(self, number: int, *, connected: bool) -> None:
        """Connect or disconnect a gateway or device in the registry."""
        if number in self.gateways:
            if connected and not self.gateways[number].is_connected:
                self.back[number] = self.now
            self.gateways[number].is_connected = connected
        else:
            self.devices[number].is_off = not connected
        statement = update(device).where(device.c.id == number).values(connected=connected)
        self.database.write_now(lambda connection: connection.execute(statement))

    def forget(self, number: int) -> None:
        """Remove a device from the registry."""
        self.database.write_now(
            lambda connection: connection.execute(delete(device).where(device.c.id == number))
        )

    def move(self, number: int, gateway_number: int) -> None:
        """Move a device to another gateway."""
        self.devices[number].gateway = gateway_number
        statement = update(device).where(device.c.id == number).values(gateway=gateway_number)
        self.database.write_now(lambda connection: connection.execute(statement))

    def _report(self) -> None:
        """Write reports of devices to the registry: DFU mode, heartheartbeat_rows and version_rows."""
        dfu_rows: list[dict[str, Any]] = []
        heartbeat_rows: list[dict[str, Any]] = []
        version_rows: list[dict[str, Any]] = []
        for each in self.devices.values():
            each.settle(self.now)
            if each.dfu_since is not None and not each.is_off:
                dfu_rows.append({"device_id": each.number, "gateway_id": each.gateway, "wall": self.wall})
            elif self._is_heartbeat_due(each) and not each.is_mute and not each.is_away(self.now):
                self._last_heartbeat[each.number] = self.now
                heartbeat_rows.append(
                    {"device_id": each.number, "new_status": each.status, "wall": self.wall}
                )
                version_rows.append({"device_id": each.number, "running": each.reports or each.version})
        changes = (
            (_UPDATE_DFU_MODE, dfu_rows),
            (_UPDATE_HEARTBEAT, heartbeat_rows),
            (_UPDATE_VERSION, version_rows),
        )
        if updates := [(statement, rows) for statement, rows in changes if rows]:
            self.database.write_now(_write_updates, updates)

    def _is_heartbeat_due(self, each: SimulatedDevice) -> bool:
        return self.now - self._last_heartbeat.get(each.number, 0) >= BEAT

    # Jobs

    def create(self, body: NewJob) -> int:
        """Create a job like the service, but with a seed of the simulation."""
        read, write = self.database.read_now, self.database.write_now
        released = read(firmware_lookup.load_released_firmware, body)
        conflicting_jobs = read(conflicts.find_conflicting_jobs)
        numbers = array("q", sorted(self.devices))
        resolved = asyncio.run(
            evaluate_targets(self.database, numbers, released.requirement, conflicting_jobs.rejecting)
        )
        if not len(resolved):
            raise Conflict("there are no devices")
        seed = self.rng.getrandbits(62)
        plan = JobPlan(
            job=validate_job(body, self.wall),
            firmware=released,
            targets=resolved,
            waves=assign_waves(seed, resolved, body.waves),
            seed=seed,
            conflicting_jobs=conflicting_jobs,
            by=SERVICE,
            idempotency_key=None,
            parent=None,
        )
        draft = write(job_drafts.insert_draft, self.wall)
        write(job_drafts.insert_executions, draft, job_drafts.build_executions(plan, 0))
        published = write(job_drafts.publish_draft, draft, plan, self.wall)
        asyncio.run(
            take_over_queued_devices(
                self.database, published.number, published.superseded_jobs, self.wall, ignore_changes
            )
        )
        self.jobs.append(published.number)
        return published.number

    def run_command(self, job: int, command: str) -> bool:
        """Run a command of a user. Return False if the state of the job does not allow it."""
        try:
            self.database.write_now(getattr(commands, f"{command}_job"), job, by=SERVICE, now=self.wall)
        except Conflict:
            return False
        return True

    def withdraw(self, job: int) -> None:
        """Cancel all jobs of the firmware of a job, as if it was withdrawn; it stays released."""
        self.database.write_now(self._withdraw, job)

    def _withdraw(self, connection: Connection, job: int) -> None:
        firmware_id = connection.execute(select(jobs.c.firmware).where(jobs.c.id == job)).scalar_one()
        commands.cancel_jobs_of_firmware(connection, firmware_id, by=SERVICE, now=self.wall)

    # Time

    def run(
        self, seconds: float, *, until: Callable[[], bool] = lambda: False, rounds: int = 100_000
    ) -> None:
        """Advance the time from event to event, for some seconds or until a condition holds."""
        end = self.now + int(seconds * SECOND)
        while not until():
            rounds -= 1
            assert rounds >= 0, "the simulation does not come to rest"
            self.round()
            next_time = min(end, max(self._next_event(), self.now + ROUND))
            if self.now >= end:
                return
            if next_time - self.now > downtime.ALIVE_INTERVAL_MS:
                self.database.write_now(_run_until, next_time)
            self.now = next_time

    def _next_event(self) -> int:
        times = [time for each in self._in_flight for time in _list_event_times(each) if time > self.now]
        due, confirming = self.database.read_now(_load_next_times, self.now, self.ahead)
        times += due
        times += [self._last_heartbeat.get(number, 0) + BEAT for number in confirming]
        return min((time for time in times if time > self.now), default=2**62)

    def round(self) -> None:
        """Run one round of the runner, with the reports and responses of the devices."""
        write = self.database.write_now
        self._report()
        if abs(self.now - self._alive_at) >= downtime.ALIVE_INTERVAL_MS:
            write(downtime.record_alive, self.now)
            self._alive_at = self.now
        self._deliver()
        self._process_abandoned()
        due = None
        if self.select is not None:
            due = self.select(self.database.read_now(execution_events.list_due_devices, self.now))
        self._repeat(lambda c: execution_events.advance_due_executions(c, self._spec_cache, self.moment, due))
        self._repeat(self._apply_news)
        for job in self.database.read_now(job_scheduler.list_open_jobs, 0):
            self._repeat(partial(self._advance_job, job))
        if not self.holds_requests:
            self._send(write(outbox.lease_requests, 256, {}, until=self.now + LEASE).requests)
        self.after_round()

    def _advance_job(self, job: int, connection: Connection) -> Any:
        result = job_scheduler.advance_job(connection, self._spec_cache, job, self.moment, self._routes(()))
        if result.unrouted:
            routes = self._routes(result.unrouted)
            return job_scheduler.advance_job(connection, self._spec_cache, job, self.moment, routes)
        return result

    def _apply_news(self, connection: Connection) -> Any:
        devices = execution_events.list_changed_devices(connection)
        return execution_events.apply_registry_changes(
            connection, self._spec_cache, devices, self.moment, self._routes(devices)
        )

    def _routes(self, devices: Sequence[int]) -> GatewayRoutes | None:
        return None if self.select is None else self.select(devices)

    def abort_transaction(self, index: int) -> None:
        """Abort one of the next transactions just before its end."""
        self._abort_after = index

    def _repeat(self, work: Callable[[Connection], Any]) -> None:
        for _ in range(100):
            try:
                if not self.database.write_now(self._run_aborting, work).has_more:
                    return
            except TransactionAborted:
                return
        raise AssertionError("the work never ends")

    def _run_aborting(self, connection: Connection, work: Callable[[Connection], Any]) -> Any:
        result = work(connection)
        self._abort_after -= 1
        if self._abort_after == 0:
            raise TransactionAborted
        return result

    # Requests

    def _send(self, requests: Iterable[OutboxRequest]) -> None:
        for request in requests:
            self.log.append(SentRequest(request, self.now))
            if not self.gateways[request.gateway].is_connected:
                self._pending_results.append(
                    request.build_result(RequestNotSent(request.step, "the gateway is not connected"))
                )
                continue
            network, latency = self.network, self.rng.randint(100, 1500)
            slow = self.rng.choice([25, 45]) * SECOND if self.rng.random() < network.slow else 0
            arrives_at = None if self.rng.random() < network.lost else self.now + latency + slow
            responded_at = None
            if arrives_at is not None and self.rng.random() >= network.unanswered:
                responded_at = arrives_at + latency
            self._in_flight.append(
                InFlightRequest(request, arrives_at, responded_at, self.now + timeouts.RESPONSE_TIMEOUT)
            )

    def _deliver(self) -> None:
        """Deliver requests to gateways, and process responses and timeouts."""
        results, self._pending_results = self._pending_results, []
        for in_flight in sorted(self._in_flight, key=lambda each: each.arrives_at or 2**62):
            request = in_flight.request
            has_arrived = in_flight.arrives_at is not None and in_flight.arrives_at <= self.now
            if has_arrived and request.id not in self._handled:
                self._handled[request.id] = self.gateways[request.gateway].handle(
                    request, in_flight.arrives_at or 0
                )
        for in_flight in self._in_flight.copy():
            request = in_flight.request
            if in_flight.responded_at is not None and in_flight.responded_at <= min(
                self.now, in_flight.times_out_at
            ):
                status, value = self._handled[request.id]
                results.append(request.build_result(ResponseReceived(request.step, status, value)))
            elif in_flight.times_out_at <= self.now:
                results.append(request.build_result(RequestUnanswered(request.step, "no response")))
                if in_flight.responded_at is not None and in_flight.responded_at > self.now:
                    self._in_flight.append(in_flight._replace(times_out_at=2**62))
            else:
                continue
            self._in_flight.remove(in_flight)
        if results:
            self._process_results(results)

    def _process_results(self, results: list[RequestResult]) -> None:
        repeated = [each for each in results if self.rng.random() < self.network.repeated]
        self.results += [(self.now, each) for each in results]
        self._apply_results(results)
        if repeated:
            self._apply_results(repeated)

    def _apply_results(self, results: list[RequestResult]) -> None:
        routes = self._routes([each.device for each in results])
        try:
            self.database.write_now(
                self._run_aborting,
                lambda c: execution_events.apply_results(c, self._spec_cache, results, self.moment, routes),
            )
        except TransactionAborted:  # the requests stay in the outbox and are found as abandoned
            return

    def _process_abandoned(self) -> None:
        abandoned = self.database.read_now(outbox.list_abandoned_requests, self.now, 0)
        if abandoned:
            self._process_results(abandoned)

    def stop_service(self, seconds: float) -> None:
        """Stop the service before it sends its stored requests, and start it after some seconds."""
        held_before, self.holds_requests = self.holds_requests, True
        self.round()
        self.kill(releases_leases=True)
        self.now += int(seconds * SECOND)
        if seconds * SECOND >= downtime.DOWNTIME_THRESHOLD_MS:
            self.back[0] = self.now
        self.holds_requests = held_before

    def kill(self, *, releases_leases: bool) -> None:
        """Kill the runner: its memory is lost, and some of its requests still arrive.

        With `releases_leases`, as on SQLite, the next runner finds its requests at once; otherwise it waits
        until the leases expire.
        """
        self._pending_results = []
        surviving = [
            each for each in self._in_flight if each.arrives_at is not None and self.rng.random() < 0.5
        ]
        self._in_flight = [each._replace(responded_at=None, times_out_at=2**62) for each in surviving]
        self._spec_cache = JobSpecCache()
        if releases_leases:
            self.database.write_now(outbox.expire_leases)


def _run_until(connection: Connection, now: int) -> None:
    """Record that a runner was alive although nothing happened."""
    connection.exec_driver_sql(f"UPDATE job_engine SET alive_at = {now}")  # noqa: S608 # contains only a number


def _list_event_times(in_flight: InFlightRequest) -> list[int]:
    """Return the times at which a request must be processed."""
    visible_at = in_flight.arrives_at if in_flight.responded_at is None else in_flight.responded_at
    return [each for each in (visible_at, in_flight.times_out_at) if each is not None]


def _load_next_times(connection: Connection, now: int, ahead: int) -> tuple[list[int], list[int]]:
    """Return the next times at which executions and jobs are due, and the devices in confirmation.

    Start times and deadlines are converted from the wall clock.
    """
    rows = connection.exec_driver_sql(
        "SELECT min(due) FROM execution WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'REJECTED',"  # noqa: S608 # contains only numbers
        f" 'SKIPPED', 'CANCELED', 'REMOVED', 'SUPERSEDED') AND due > {now}"
        # Executions that a step of a job made due are processed in the next round.
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


def _write_updates(connection: Connection, updates: Sequence[tuple[Update, list[dict[str, Any]]]]) -> None:
    for statement, rows in updates:
        connection.execute(statement, rows)
