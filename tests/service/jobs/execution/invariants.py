"""What is true of jobs and executions at any moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S
from meshfleet.rest import JobState, NewJob
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
_CLOCKS: Final = {"NOT_STARTED", "STALLED", "TOO_LONG", "NOT_APPLIED"}
_QUESTIONS: Final = {
    UpdateStep.STATE,
    UpdateStep.DEVICE_STATE,
    UpdateStep.RECHECK_VERSION,
    UpdateStep.CONFIRM_VERSION,
}
_WORDS: Final = {None, "canceling", *map(str, WaitReason)}


def _all(connection: Connection, text: str) -> list[Row[Any]]:
    return list(connection.exec_driver_sql(text))


def _since(connection: Connection, seen: int) -> list[list[Row[Any]]]:
    """Return what is under way, what has moved since a transition, and the jobs that are being canceled."""
    return [
        _all(
            connection,
            "SELECT job, device, gateway, method, batch, state, step FROM execution WHERE state IN"
            " ('DISPATCHED', 'TRANSFERRING', 'VERIFYING', 'STAGED', 'APPLYING', 'CONFIRMING')",
        ),
        _all(
            connection,
            "SELECT t.*, e.code, e.gateway, e.batch FROM transition t JOIN execution e ON e.job = t.job"  # noqa: S608 # a number
            f" AND e.device = t.device WHERE t.id > {seen} ORDER BY t.id",
        ),
        _all(connection, "SELECT id FROM job WHERE state = 'CANCELING'"),
    ]


class Invariants:
    """Watches a world: what was over stays as it was."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._over: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._orders: dict[int, NewJob] = {}
        self._targets: dict[int, str] = {}
        self._seen = 0
        self._logged = len(world.log)
        world.after_round = self.check_round

    def _read(self, text: str) -> list[Row[Any]]:
        return self._world.database.read_now(_all, text)

    def _order(self, job: int) -> NewJob:
        if job not in self._orders:
            row = self._read(
                f"SELECT j.body, f.version FROM job j JOIN firmware f ON f.id = j.firmware WHERE j.id = {job}"  # noqa: S608 # a number
            )[0]
            self._orders[job] = msgspec.json.decode(row.body, type=NewJob)
            self._targets[job] = row.version
        return self._orders[job]

    def check(self) -> None:
        """See to it that all laws hold."""
        executions = self._read("SELECT * FROM execution")
        self._check_rows(executions)
        self._check_tallies(executions)
        self._check_paths(executions)
        self._check_outbox(executions)
        self._check_requests()
        twice = [each for device in self._world.devices.values() for each in device.twice]
        assert not twice, f"updated again to what they ran already: {twice}"

    def check_round(self) -> None:
        """See to it that those laws hold that may be broken and kept again between two checks of all."""
        active, moved, canceling = self._world.database.read_now(_since, self._seen)
        self._check_limits(active)
        self._check_given_up(moved)
        self._check_starts({row.id for row in canceling})

    def _check_starts(self, canceling: set[int]) -> None:
        """I8: no update of a canceled job begins."""
        new, self._logged = self._world.log[self._logged :], len(self._world.log)
        begun = {
            each.request.job for each in new if each.request.step in (UpdateStep.START, UpdateStep.ENTER_DFU)
        }
        assert not begun & canceling, f"begun after the cancel: {begun & canceling}"

    def _check_given_up(self, moved: list[Row[Any]]) -> None:
        """Nobody is given up for a clock before it was asked, and after an outage it is asked again."""
        for row in moved:
            self._seen = row.id
            is_given_up = row.before != "QUEUED" and row.after in ("TIMED_OUT", "QUEUED")
            if is_given_up and row.code in _CLOCKS and self._has_left(row):
                back = max(self._world.back.get(0, 0), self._world.back.get(row.gateway, 0))
                asked = [each for each in self._requests(row) if each.request.step in _QUESTIONS]
                assert any(each.time >= back for each in asked), f"given up without a question: {row}"

    def _requests(self, row: Row[Any]) -> list[SentRequest]:
        """The letters of an attempt."""
        key = (row.job, row.device, row.attempt)
        return [
            each
            for each in self._world.log
            if (each.request.job, each.request.device, each.request.attempt) == key
        ]

    def _has_left(self, row: Row[Any]) -> bool:
        """Whether anything of this attempt may have reached its device, or its gateway for a broadcast."""
        told = {reply.request_id: reply.event for _, reply in self._world.results}
        letters = self._requests(row)
        if row.batch is not None:
            letters += [
                each
                for each in self._world.log
                if each.request.job == row.job
                and each.request.target == row.gateway
                and each.request.step is UpdateStep.START
            ]
        return any(not isinstance(told.get(each.request.id), RequestNotSent) for each in letters)

    def _check_limits(self, rows: list[Row[Any]]) -> None:
        """I2, I3: one active execution of a device, and no gateway has more than it may."""
        devices = Counter(row.device for row in rows)
        assert all(count == 1 for count in devices.values()), devices
        by_gateway = defaultdict(list)
        for row in rows:
            if (
                states.occupies_gateway(S(row.state), UpdateMethod(row.method))
                and row.step != UpdateStep.CHECK_REPORTED
            ):
                by_gateway[row.gateway].append(row)
        for gateway, there in by_gateway.items():
            slots = {(row.method, row.batch or row.device) for row in there}
            limits = [self._order(row.job).concurrency.per_gateway for row in there]
            if None not in limits:
                assert len(slots) <= max(each or 0 for each in limits), (gateway, slots)
            kinds = Counter(method for method, _ in slots)
            assert kinds["broadcast"] <= 1, (gateway, slots)
            assert kinds["nordic-dfu"] <= 1, (gateway, slots)
        under_way = Counter(row.job for row in rows if not self._order(row.job).stage)
        for job, count in under_way.items():  # all that keep an image may be told to start it at once
            limit = self._order(job).concurrency.per_job
            assert limit is None or count <= limit, (job, count)

    def _check_rows(self, executions: list[Row[Any]]) -> None:
        """I4, I7, and every state has a clock, every wait a word."""
        now = self._world.now
        for row in executions:
            order, state = self._order(row.job), S(row.state)
            assert row.attempt <= order.retry.max + 1, row
            assert row.waiting in _WORDS, row
            if state in states.TERMINAL_STATES:
                kept = self._over.setdefault((row.job, row.device), tuple(row))
                assert kept == tuple(row), f"{kept} became {row}"
                assert row.ask is None, row
            elif state in states.ACTIVE_STATES:
                assert row.expires is not None, row
                latest = now + timeouts.LOST_REQUEST_TIMEOUT if row.ask else _clock_end(row, order)
                assert row.due <= max(latest, now), row
                assert row.expires <= now + _WEEK, row
                assert row.outage_left is None or row.outage_left >= 0, row

    def _check_tallies(self, executions: list[Row[Any]]) -> None:
        """I5: counts are true, and so they make up all targets."""
        told = {
            (row.job, row.wave, row.state): row.count
            for row in self._read("SELECT job, wave, state, count FROM tally WHERE count <> 0")
        }
        assert told == Counter((row.job, row.wave, row.state) for row in executions)

    def _check_paths(self, executions: list[Row[Any]]) -> None:
        """I6, I8, I11: what happened is written down, and each step of it could happen."""
        jobs: dict[int, str] = {}
        begun: set[int] = set()
        times = {row.id: row for row in self._read("SELECT id, start_at, deadline FROM job")}
        paths: dict[tuple[int, int], Row[Any]] = {}
        for row in self._read("SELECT * FROM transition ORDER BY id"):
            if row.device is None:
                jobs[row.job] = row.after
                if row.after == JobState.IN_PROGRESS and row.job not in begun:
                    assert row.time >= (times[row.job].start_at or 0), (times[row.job], row)
                    begun.add(row.job)
                continue
            key = (row.job, row.device)
            last = paths.get(key)
            assert row.before == ("QUEUED" if last is None else last.after), (last, row)
            assert row.version == (1 if last is None else last.version + 1), (last, row)
            assert S(row.after) in states.EXECUTION_TRANSITIONS[S(row.before)], row
            if row.after == S.DISPATCHED:
                assert jobs[row.job] == JobState.IN_PROGRESS, (jobs[row.job], row)
                deadline = times[row.job].deadline
                assert deadline is None or row.time < deadline, (deadline, row)
            if row.after == S.SUCCEEDED:
                self._check_evidence(row)
            paths[key] = row
        for each in executions:
            last = paths.get((each.job, each.device))
            if each.wave >= 0 or last is not None:
                assert each.state == ("QUEUED" if last is None else last.after), (each, last)
            else:
                assert each.state in {S.QUEUED, S.SKIPPED, S.REJECTED}, each

    def _check_evidence(self, row: Row[Any]) -> None:
        (proof,) = self._read(f"SELECT * FROM evidence WHERE id = {row.evidence or 0}")  # noqa: S608 # a number
        assert (proof.job, proof.device, proof.attempt) == (row.job, row.device, row.attempt), (proof, row)
        content = msgspec.json.decode(proof.content)
        assert (content["step"], content["status"]) == ("version", 0), content
        self._order(row.job)
        assert str(parse_version(content["value"])) == self._targets[row.job], content

    def _check_outbox(self, executions: list[Row[Any]]) -> None:
        """Nothing waits to be sent that nobody waits for."""
        asks = {row.ask for row in executions if row.ask is not None}
        for row in self._read("SELECT * FROM job_outbox WHERE step <> 'parting'"):
            assert row.id in asks, f"nobody waits for {row}"

    def _check_requests(self) -> None:
        """I10: nothing is begun again in an attempt without a look, unless it is known not to have begun."""
        # Late answers come second, and are no news to the engine.
        told = {reply.request_id: reply.event for _, reply in reversed(self._world.results)}
        last: dict[tuple[int, int, int], str] = {}
        for letter, time in self._world.log:
            key = (letter.job, letter.device, letter.attempt)
            event = told.get(letter.id)
            if letter.step in (
                UpdateStep.STATE,
                UpdateStep.DEVICE_STATE,
                UpdateStep.RECHECK_VERSION,
            ) and isinstance(event, ResponseReceived):
                last.pop(key, None)
            if letter.step is UpdateStep.START:
                assert key not in last, (letter, time, last[key])
                if not _has_not_begun(event):
                    last[key] = f"{letter.id} {event}"

    def check_end(self) -> None:
        """I1, I12: everything has ended, and the outcome is right."""
        self.check()
        rows = self._read("SELECT * FROM job")
        assert {JobState(row.state) for row in rows} <= _FINISHED, [(row.id, row.state) for row in rows]
        for row in rows:
            mine = self._read(f"SELECT state FROM execution WHERE job = {row.id}")  # noqa: S608 # a number
            counts = Counter(S(each.state) for each in mine)
            assert set(counts) <= states.TERMINAL_STATES, counts
            assert row.outcome == compute_outcome(counts), (row, counts)
        for device in self._read(
            "SELECT e.device, f.version, e.updated_at FROM execution e JOIN job j ON j.id = e.job"
            " JOIN firmware f ON f.id = j.firmware WHERE e.state = 'SUCCEEDED'"
        ):
            begun = [version for _, version in self._world.devices[device.device].begun]
            assert device.version in begun, (device, begun)


def _clock_end(row: Row[Any], order: NewJob) -> int:
    """When an execution is looked at again at the latest."""
    if row.suspended_at is not None:
        left = order.timeouts.queue_minutes * 60_000 if row.outage_left is None else row.outage_left
        return int(row.suspended_at + left)
    return int(row.expires if row.final_until is None else row.final_until)


def _has_not_begun(event: ResponseReceived | RequestNotSent | RequestUnanswered | None) -> bool:
    if isinstance(event, RequestNotSent):
        return True
    refused = (Status.FAILED, Status.UNREACHABLE)
    return isinstance(event, ResponseReceived) and event.status in refused
