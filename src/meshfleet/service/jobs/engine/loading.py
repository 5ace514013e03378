"""Reads executions together with all that decides about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.db.tables import execution
from meshfleet.service.jobs.fitness import Facts, Need
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.model import Execution, Order, Scene, Step
from meshfleet.wire.decoders import decoder_of
from meshfleet.wire.ids import Version, model_number
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState, JobState, KeptJob, StopCause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.wire.rest import NewJob

    Routes = Mapping[int, int | None]
    """The gateway that was selected for each device; None: no connected gateway has heard it.

    Devices that are not in it, and those with None, are asked through the gateway that they belong to."""

_MINUTE: Final = 60_000
_SECOND: Final = 1000

COLUMNS: Final = ", ".join(f"e.{column.name}" for column in execution.columns)
_FIELDS: Final = tuple(column.name for column in execution.columns)
_COUNT: Final = len(_FIELDS)

ABOUT: Final = (
    " d.id, d.model, d.hardware, d.firmware, d.beta, d.connected,"
    " CASE WHEN w.device IS NULL THEN d.gateway ELSE d.id END, g.connected, s.status, s.status_at, s.rhythm"
)
"""What the registry knows of a device."""

BESIDE: Final = (
    " LEFT JOIN gateway w ON w.device = e.device"
    " LEFT JOIN device g ON g.id = CASE WHEN w.device IS NULL THEN d.gateway ELSE d.id END"
    " LEFT JOIN device_state s ON s.device = e.device"
)
JOINED: Final = f" LEFT JOIN device d ON d.id = e.device{BESIDE}"

_JOBS: Final = (
    "SELECT j.id, j.state, j.stop_cause, j.waves, j.applied_at,"
    " f.model, f.version, f.size, f.hardware, f.min_version,"
    " (SELECT sum(t.count) FROM tally t WHERE t.job = j.id AND t.state = 'TRANSFERRING')"
    " FROM job j JOIN firmware f ON f.id = j.firmware WHERE j.id IN numbers"
)
_BODIES: Final = "SELECT id, body FROM job WHERE id IN numbers"
_PACES: Final = "SELECT gateway, method, rate FROM pace WHERE gateway IN numbers"

_REMEMBERED: Final = 256


class About(NamedTuple):
    """What the registry knows of a device."""

    device: int | None
    """None: nothing."""
    model: int
    hardware: str
    firmware: str
    beta: int
    connected: bool
    gateway: int | None
    gateway_connected: bool | None
    status: int | None
    beat_at: int | None
    rhythm: int | None

    @property
    def facts(self) -> Facts:
        """What decides whether a firmware fits it."""
        return Facts(self.model, self.hardware, self.firmware, self.beta)


class Known(NamedTuple):
    """An execution, and its device."""

    execution: Execution
    about: About

    def routed(self, routes: Routes | None) -> Known:
        """Let its device be asked through the gateway that was selected for it, if one was."""
        gateway = None if routes is None else routes.get(self.execution.device)
        if gateway is None:
            return self
        return self._replace(about=self.about._replace(gateway=gateway, gateway_connected=True))


class Orders:
    """What jobs say. Their bodies never change, so they are remembered."""

    def __init__(self) -> None:
        self._bodies: dict[int, NewJob] = {}

    def body(self, connection: Connection, job: int) -> NewJob:
        """The order of a job, as it was made."""
        return self._all(connection, [job])[job]

    def read(self, connection: Connection, jobs: Iterable[int]) -> dict[int, tuple[Order, Need]]:
        """What jobs say about each of their devices, at this moment."""
        numbers = sorted(set(jobs))
        bodies = self._all(connection, numbers)
        return {row[0]: _order(bodies[row[0]], row) for row in bulk.pick(connection, _JOBS, numbers)}

    def _all(self, connection: Connection, numbers: Sequence[int]) -> dict[int, NewJob]:
        bodies = self._bodies
        missing = [each for each in numbers if each not in bodies]
        if missing:
            read = {
                number: decoder_of(KeptJob).decode(body)
                for number, body in bulk.pick(connection, _BODIES, missing)
            }
            # Others may read at the same time, in other threads: the old one stays as it is.
            kept = {} if len(bodies) >= _REMEMBERED else bodies
            self._bodies = kept | read
            bodies = bodies | read
        return {each: bodies[each] for each in numbers}


def _order(body: NewJob, row: Sequence[Any]) -> tuple[Order, Need]:
    (
        number,
        state,
        stop_cause,
        waves,
        applied_at,
        model,
        version,
        size,
        hardware,
        min_version,
        transferring,
    ) = row
    total = body.timeouts.total_minutes
    order = Order(
        job=number,
        model=model_number(model),
        version=Version.parse(version),
        size=size,
        stage=body.stage,
        is_applied=applied_at is not None,
        is_canceling=state == JobState.CANCELING,
        stop_cause=None if stop_cause is None else StopCause(stop_cause),
        last_wave=len(msgspec.json.decode(waves)) - 1,
        transferring=int(transferring or 0),
        heartbeats=body.health.heartbeats,
        retries=body.retry.max,
        backoff=int(body.retry.backoff_seconds * _SECOND),
        queue=int(body.timeouts.queue_minutes * _MINUTE),
        step=int(body.timeouts.step_minutes * _MINUTE),
        total=None if total is None else int(total * _MINUTE),
    )
    need = Need(
        model,
        order.version,
        frozenset(msgspec.json.decode(hardware, type=list[str])),
        None if min_version is None else Version.parse(min_version),
        body.allow_downgrade,
        body.method,
    )
    return order, need


def known(row: Sequence[Any]) -> Known:
    """Read a row of `COLUMNS` and `ABOUT`."""
    return Known(read(row[:_COUNT]), About(*row[_COUNT : _COUNT + len(About._fields)]))


def read(row: Sequence[Any]) -> Execution:
    """Read a row of `COLUMNS`."""
    values = dict(zip(_FIELDS, row, strict=True))
    values["state"] = ExecutionState(values["state"])
    values["method"] = Way(values["method"])
    values["step"] = None if values["step"] is None else Step(values["step"])
    values["is_read"] = bool(values["is_read"])
    return Execution(**values)


def scenes(
    connection: Connection, orders: Mapping[int, tuple[Order, Need]], found: Sequence[Known]
) -> list[Scene]:
    """The scene of each of these."""
    gateways = sorted({each.about.gateway for each in found if each.about.gateway is not None})
    paces = {(gateway, method): rate for gateway, method, rate in bulk.pick(connection, _PACES, gateways)}
    return [_scene(orders[each.execution.job][0], each, paces) for each in found]


def _scene(order: Order, each: Known, paces: Mapping[tuple[int, str], float]) -> Scene:
    x, about = each
    gateway = about.gateway if about.gateway is not None else x.gateway or 0
    return Scene(
        order=order,
        gateway=gateway,
        rate=paces.get((gateway, str(x.method)), clocks.RATES[x.method]),
        rhythm=about.rhythm,
        status=about.status,
        beat_at=about.beat_at,
    )
