"""Invariants of jobs and executions that must hold at any moment of a simulation."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import NewJob
from meshfleet.rest.jobs import ExecutionState, JobState
from meshfleet.service.jobs.job_states import compute_outcome
from meshfleet.service.jobs.updates import states, timeouts
from meshfleet.service.jobs.updates.drivers import parse_version
from meshfleet.service.jobs.updates.model import (
    RequestNotSent,
    RequestUnanswered,
    ResponseReceived,
    UpdateStep,
)
from meshfleet.service.jobs.wait_reasons import WaitReason

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from tests.service.jobs.execution.simulation import SentRequest, Simulation

_WEEK: Final = 7 * 24 * 3600 * 1000
_FINISHED: Final = {JobState.CANCELED, JobState.COMPLETED}
_TIMEOUT_CODES: Final = {"NOT_STARTED", "STALLED", "TOO_LONG", "NOT_APPLIED"}
_QUERY_STEPS: Final = {
    UpdateStep.STATE,
    UpdateStep.DEVICE_STATE,
    UpdateStep.RECHECK_VERSION,
    UpdateStep.CONFIRM_VERSION,
}
_WAITING_VALUES: Final = {None, "canceling", *map(str, WaitReason)}


def _load_all(connection: Connection, text: str) -> list[Row[Any]]:
    return list(connection.exec_driver_sql(text))


def _load_since(connection: Connection, last_transition: int) -> list[list[Row[Any]]]:
    """Load active executions, transitions since the last one, and jobs that are being canceled."""
    return [
        _load_all(
            connection,
            "SELECT job, device, gateway, method, batch, state, step FROM execution WHERE state IN"
            " ('DISPATCHED', 'TRANSFERRING', 'VERIFYING', 'STAGED', 'APPLYING', 'CONFIRMING')",
        ),
        _load_all(
            connection,
            "SELECT t.*, e.code, e.gateway, e.batch FROM transition t JOIN execution e ON e.job = t.job"  # noqa: S608 # contains only a number
            f" AND e.device = t.device WHERE t.id > {last_transition} ORDER BY t.id",
        ),
        _load_all(connection, "SELECT id FROM job WHERE state = 'CANCELING'"),
    ]


class Invariants:
    """Checker of the invariants of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._ended_rows: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._bodies: dict[int, NewJob] = {}
        self._targets: dict[int, str] = {}
        self._last_transition = 0
        self._checked_requests = len(simulation.log)
        simulation.after_round = self.check_round

    def _read(self, text: str) -> list[Row[Any]]:
        return self._simulation.database.read_now(_load_all, text)

    def _load_body(self, job: int) -> NewJob:
        if job not in self._bodies:
            row = self._read(
                f"SELECT j.body, f.version FROM job j JOIN firmware f ON f.id = j.firmware WHERE j.id = {job}"  # noqa: S608 # contains only a number
            )[0]
            self._bodies[job] = msgspec.json.decode(row.body, type=NewJob)
            self._targets[job] = row.version
        return self._bodies[job]

    def check(self) -> None:
        """Check all invariants."""
        executions = self._read("SELECT * FROM execution")
        self._check_rows(executions)
        self._check_tallies(executions)
        self._check_paths(executions)
        self._check_outbox(executions)
        self._check_requests()
        repeated = [each for device in self._simulation.devices.values() for each in device.repeated]
        assert not repeated, f"updated again to a version they already ran: {repeated}"

    def check_round(self) -> None:
        """Check the invariants that could be violated only for a short time between two full checks."""
        active, transitions, canceling = self._simulation.database.read_now(
            _load_since, self._last_transition
        )
        self._check_limits(active)
        self._check_timeouts(transitions)
        self._check_starts({row.id for row in canceling})

    def _check_starts(self, canceling: set[int]) -> None:
        """I8: no update of a canceled job starts."""
        new, self._checked_requests = (
            self._simulation.log[self._checked_requests :],
            len(self._simulation.log),
        )
        started = {
            each.request.job for each in new if each.request.step in (UpdateStep.START, UpdateStep.ENTER_DFU)
        }
        assert not started & canceling, f"started after the cancel: {started & canceling}"

    def _check_timeouts(self, transitions: list[Row[Any]]) -> None:
        """Check that no execution times out before a query was sent, and after an outage another one."""
        for row in transitions:
            self._last_transition = row.id
            has_timed_out = row.before != "QUEUED" and row.after in ("TIMED_OUT", "QUEUED")
            if has_timed_out and row.code in _TIMEOUT_CODES and self._was_sent(row):
                back_at = max(self._simulation.back.get(0, 0), self._simulation.back.get(row.gateway, 0))
                queries = [each for each in self._list_requests(row) if each.request.step in _QUERY_STEPS]
                assert any(each.time >= back_at for each in queries), f"timed out without a query: {row}"

    def _list_requests(self, row: Row[Any]) -> list[SentRequest]:
        """Return the requests of an attempt."""
        key = (row.job, row.device, row.attempt)
        return [
            each
            for each in self._simulation.log
            if (each.request.job, each.request.device, each.request.attempt) == key
        ]

    def _was_sent(self, row: Row[Any]) -> bool:
        """Return whether a request of this attempt, or the start of its broadcast, may have been sent."""
        events = {result.request_id: result.event for _, result in self._simulation.results}
        requests = self._list_requests(row)
        if row.batch is not None:
            requests += [
                each
                for each in self._simulation.log
                if each.request.job == row.job
                and each.request.target == row.gateway
                and each.request.step is UpdateStep.START
            ]
        return any(not isinstance(events.get(each.request.id), RequestNotSent) for each in requests)

    def _check_limits(self, rows: list[Row[Any]]) -> None:
        """I2, I3: a device has one active execution, and no gateway exceeds its limit."""
        devices = Counter(row.device for row in rows)
        assert all(count == 1 for count in devices.values()), devices
        by_gateway = defaultdict(list)
        for row in rows:
            if (
                states.occupies_gateway(ExecutionState(row.state), UpdateMethod(row.method))
                and row.step != UpdateStep.CHECK_REPORTED
            ):
                by_gateway[row.gateway].append(row)
        for gateway, group in by_gateway.items():
            slots = {(row.method, row.batch or row.device) for row in group}
            limits = [self._load_body(row.job).concurrency.per_gateway for row in group]
            if None not in limits:
                assert len(slots) <= max(each or 0 for each in limits), (gateway, slots)
            kinds = Counter(method for method, _ in slots)
            assert kinds["broadcast"] <= 1, (gateway, slots)
            assert kinds["nordic-dfu"] <= 1, (gateway, slots)
        active_counts = Counter(row.job for row in rows if not self._load_body(row.job).stage)
        for job, count in active_counts.items():  # all staged devices may be applied at once
            limit = self._load_body(job).concurrency.per_job
            assert limit is None or count <= limit, (job, count)

    def _check_rows(self, executions: list[Row[Any]]) -> None:
        """I4, I7: ended executions never change, and every state has a deadline and a valid wait reason."""
        now = self._simulation.now
        for row in executions:
            body, state = self._load_body(row.job), ExecutionState(row.state)
            assert row.attempt <= body.retry.max + 1, row
            assert row.waiting in _WAITING_VALUES, row
            if state in states.TERMINAL_STATES:
                ended_row = self._ended_rows.setdefault((row.job, row.device), tuple(row))
                assert ended_row == tuple(row), f"{ended_row} became {row}"
                assert row.ask is None, row
            elif state in states.ACTIVE_STATES:
                assert row.expires is not None, row
                latest = now + timeouts.LOST_REQUEST_TIMEOUT if row.ask else _find_deadline(row, body)
                assert row.due <= max(latest, now), row
                assert row.expires <= now + _WEEK, row
                assert row.outage_left is None or row.outage_left >= 0, row

    def _check_tallies(self, executions: list[Row[Any]]) -> None:
        """I5: the tallies equal the counts of the executions."""
        tallies = {
            (row.job, row.wave, row.state): row.count
            for row in self._read("SELECT job, wave, state, count FROM tally WHERE count <> 0")
        }
        assert tallies == Counter((row.job, row.wave, row.state) for row in executions)

    def _check_paths(self, executions: list[Row[Any]]) -> None:
        """I6, I8, I11: every transition is recorded and allowed."""
        jobs: dict[int, str] = {}
        started: set[int] = set()
        times = {row.id: row for row in self._read("SELECT id, start_at, deadline FROM job")}
        paths: dict[tuple[int, int], Row[Any]] = {}
        for row in self._read("SELECT * FROM transition ORDER BY id"):
            if row.device is None:
                jobs[row.job] = row.after
                if row.after == JobState.IN_PROGRESS and row.job not in started:
                    assert row.time >= (times[row.job].start_at or 0), (times[row.job], row)
                    started.add(row.job)
                continue
            key = (row.job, row.device)
            last = paths.get(key)
            assert row.before == ("QUEUED" if last is None else last.after), (last, row)
            assert row.version == (1 if last is None else last.version + 1), (last, row)
            assert ExecutionState(row.after) in states.EXECUTION_TRANSITIONS[ExecutionState(row.before)], row
            if row.after == ExecutionState.DISPATCHED:
                assert jobs[row.job] == JobState.IN_PROGRESS, (jobs[row.job], row)
                deadline = times[row.job].deadline
                assert deadline is None or row.time < deadline, (deadline, row)
            if row.after == ExecutionState.SUCCEEDED:
                self._check_evidence(row)
            paths[key] = row
        for each in executions:
            last = paths.get((each.job, each.device))
            if each.wave >= 0 or last is not None:
                assert each.state == ("QUEUED" if last is None else last.after), (each, last)
            else:
                assert each.state in {
                    ExecutionState.QUEUED,
                    ExecutionState.SKIPPED,
                    ExecutionState.REJECTED,
                }, each

    def _check_evidence(self, row: Row[Any]) -> None:
        (proof,) = self._read(f"SELECT * FROM evidence WHERE id = {row.evidence or 0}")  # noqa: S608 # contains only a number
        assert (proof.job, proof.device, proof.attempt) == (row.job, row.device, row.attempt), (proof, row)
        content = msgspec.json.decode(proof.content)
        assert (content["step"], content["status"]) == ("version", 0), content
        self._load_body(row.job)
        assert str(parse_version(content["value"])) == self._targets[row.job], content

    def _check_outbox(self, executions: list[Row[Any]]) -> None:
        """Check that every request in the outbox is awaited by an execution."""
        pending_ids = {row.ask for row in executions if row.ask is not None}
        for row in self._read("SELECT * FROM job_outbox WHERE step <> 'parting'"):
            assert row.id in pending_ids, f"no execution waits for {row}"

    def _check_requests(self) -> None:
        """I10: a start is repeated in an attempt only after a query, or if it is known to have failed."""
        # Of two results of a request the first counts; the second is a late response.
        events = {result.request_id: result.event for _, result in reversed(self._simulation.results)}
        last: dict[tuple[int, int, int], str] = {}
        for request, time in self._simulation.log:
            key = (request.job, request.device, request.attempt)
            event = events.get(request.id)
            if request.step in (
                UpdateStep.STATE,
                UpdateStep.DEVICE_STATE,
                UpdateStep.RECHECK_VERSION,
            ) and isinstance(event, ResponseReceived):
                last.pop(key, None)
            if request.step is UpdateStep.START:
                assert key not in last, (request, time, last[key])
                if not _has_not_started(event):
                    last[key] = f"{request.id} {event}"

    def check_end(self) -> None:
        """I1, I12: all jobs have ended with the right outcome."""
        self.check()
        rows = self._read("SELECT * FROM job")
        assert {JobState(row.state) for row in rows} <= _FINISHED, [(row.id, row.state) for row in rows]
        for row in rows:
            executions = self._read(f"SELECT state FROM execution WHERE job = {row.id}")  # noqa: S608 # contains only a number
            counts = Counter(ExecutionState(each.state) for each in executions)
            assert set(counts) <= states.TERMINAL_STATES, counts
            assert row.outcome == compute_outcome(counts), (row, counts)
        for device in self._read(
            "SELECT e.device, f.version, e.updated_at FROM execution e JOIN job j ON j.id = e.job"
            " JOIN firmware f ON f.id = j.firmware WHERE e.state = 'SUCCEEDED'"
        ):
            started = [version for _, version in self._simulation.devices[device.device].started]
            assert device.version in started, (device, started)


def _find_deadline(row: Row[Any], body: NewJob) -> int:
    """Return the latest time at which an execution must be due."""
    if row.suspended_at is not None:
        remaining = body.timeouts.queue_minutes * 60_000 if row.outage_left is None else row.outage_left
        return int(row.suspended_at + remaining)
    return int(row.expires if row.final_until is None else row.final_until)


def _has_not_started(event: ResponseReceived | RequestNotSent | RequestUnanswered | None) -> bool:
    if isinstance(event, RequestNotSent):
        return True
    not_started = (Status.FAILED, Status.UNREACHABLE)
    return isinstance(event, ResponseReceived) and event.status in not_started
