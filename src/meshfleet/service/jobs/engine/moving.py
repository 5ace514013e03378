"""Writes what became of executions: states, traces, counts and outgoing requests, in one transaction."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from meshfleet.db import bulk
from meshfleet.db.tables import evidence, execution, job_outbox, tally, transition
from meshfleet.service.jobs.changes import Changed
from meshfleet.service.jobs.engine import lines
from meshfleet.service.jobs.update import states

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Table

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.update.model import Ask, Execution, Move

ENGINE: Final = "meshfleet"
"""Who moved what nobody else did."""

_CHANGE: Final = "UPDATE SET " + ", ".join(
    f"{column.name} = excluded.{column.name}" for column in execution.columns if not column.primary_key
)
_KNOWN: Final = "SELECT id FROM job WHERE id IN numbers"
_COUNT: Final = "UPDATE SET count = tally.count + excluded.count"

_encode = msgspec.json.Encoder().encode


class Proof(NamedTuple):
    """What caused a move: a report or a response."""

    kind: str
    content: Any


class Made(NamedTuple):
    """A move, of what and why."""

    before: Execution
    move: Move
    proof: Proof | None = None
    gateway: int | None = None
    """Through which its requests go; None: the one that it has."""

    @property
    def changes_state(self) -> bool:
        """Whether it is in another state than before, or in another attempt."""
        after = self.move.execution
        return after.state is not self.before.state


def write(connection: Connection, made: Sequence[Made], now: Moment) -> list[Changed]:
    """Write moves. Nobody else may have changed these executions since they were read."""
    outgoing = [row for each in made for row in _requests(each)]
    asks = {(row[1], row[2]): row[0] for row in outgoing if row[4] != "parting"}
    rows = [_row(each, asks, now.wall) for each in made if each.move.execution is not each.before]
    bulk.upsert(connection, execution, rows, otherwise=_CHANGE)
    _call_back(connection, made)
    _add(connection, job_outbox, outgoing)
    moved = [each for each in made if each.changes_state]
    for each in moved:
        states.check(each.before.state, each.move.execution.state)
    lines.let_next(connection, _freed(made), now.steady)
    count(connection, _deltas(moved))
    _trace(connection, made, now.wall)
    return [Changed(each.before.job, each.before.device, each.move.execution.gateway) for each in moved]


def _add(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add rows in one statement: between two, SQLite's driver would wait for Python's lock."""
    bulk.upsert(connection, table, rows, otherwise="NOTHING")


def count(connection: Connection, deltas: Counter[tuple[int, int, str]]) -> None:
    """Correct the counts of jobs, by job, wave and state."""
    rows = [(*key, change) for key, change in sorted(deltas.items()) if change]
    bulk.upsert(connection, tally, rows, otherwise=_COUNT)


def keep(connection: Connection, rows: Iterable[tuple[int, int, int, Proof]], wall: int) -> None:
    """Keep evidence that moved nothing: job, device, attempt, and what it was.

    That of deleted jobs is dropped.
    """
    rows = list(rows)
    if not rows:
        return
    jobs = {row[0] for row in bulk.pick(connection, _KNOWN, sorted({row[0] for row in rows}))}
    rows = [row for row in rows if row[0] in jobs]
    numbers = bulk.reserve(connection, evidence, len(rows))
    _add(
        connection,
        evidence,
        [
            (number, job, device, attempt, wall, proof.kind, _encode(proof.content).decode())
            for number, (job, device, attempt, proof) in zip(numbers, rows, strict=True)
        ],
    )


def _call_back(connection: Connection, made: Iterable[Made]) -> None:
    """Take requests off the outbox that nobody waits for any more: they would be sent out of turn."""
    lost = [each.before.ask for each in made if each.proof is None and each.before.ask is not None]
    bulk.execute(connection, "DELETE FROM job_outbox WHERE id = ?", [(each,) for each in lost])


def _row(made: Made, asks: dict[tuple[int, int], str], wall: int) -> tuple[Any, ...]:
    x = made.move.execution
    if made.move.ask is not None:
        x = replace(x, ask=asks[x.job, x.device])
    if made.changes_state:
        started_at = wall if x.started_at is None and x.state in states.ACTIVE else x.started_at
        x = replace(x, started_at=started_at, updated_at=wall, version=x.version + 1)
    return astuple(x)


def _requests(made: Made) -> list[tuple[Any, ...]]:
    """Rows of the outbox."""
    x, asks = made.move.execution, (made.move.ask, made.move.parting)
    return [_request(made, x, ask) for ask in asks if ask is not None]


def _request(made: Made, x: Execution, ask: Ask) -> tuple[Any, ...]:
    gateway = made.before.gateway if x.gateway is None else x.gateway
    through = gateway if ask.at_gateway or made.gateway is None else made.gateway
    return (
        secrets.token_hex(12),
        x.job,
        x.device,
        made.before.attempt if ask is made.move.parting else x.attempt,
        str(ask.step),
        through,
        through if ask.at_gateway else x.device,
        str(ask.operation),
        ask.identifier,
        None if ask.value is None else _encode(ask.value).decode(),
        None,
    )


def _deltas(moved: Iterable[Made]) -> Counter[tuple[int, int, str]]:
    deltas: Counter[tuple[int, int, str]] = Counter()
    for before, move, *_ in moved:
        deltas[before.job, before.wave, str(before.state)] -= 1
        deltas[before.job, move.execution.wave, str(move.execution.state)] += 1
    return deltas


def _trace(connection: Connection, made: Sequence[Made], wall: int) -> None:
    """Write a transition for each other state, and what caused it."""
    proved = [each for each in made if each.proof is not None and each.move.is_evidence]
    numbers = dict(zip(map(id, proved), bulk.reserve(connection, evidence, len(proved)), strict=True))
    _add(connection, evidence, [_evidence(numbers[id(each)], each, wall) for each in proved])
    moved = [each for each in made if each.changes_state]
    rows = zip(bulk.reserve(connection, transition, len(moved)), moved, strict=True)
    _add(
        connection,
        transition,
        [_transition(number, each, numbers.get(id(each)), wall) for number, each in rows],
    )


def _evidence(number: int, made: Made, wall: int) -> tuple[Any, ...]:
    x, proof = made.before, made.proof
    content = None if proof is None else proof.content
    return (
        number,
        x.job,
        x.device,
        x.attempt,
        wall,
        "" if proof is None else proof.kind,
        _encode(content).decode(),
    )


def _transition(number: int, made: Made, proof: int | None, wall: int) -> tuple[Any, ...]:
    before, after = made.before, made.move.execution
    return (
        number,
        before.job,
        before.device,
        wall,
        str(before.state),
        str(after.state),
        before.attempt,
        before.version + 1,
        ENGINE,
        made.move.cause,
        proof,
    )


def _freed(made: Iterable[Made]) -> list[int]:
    """Gateways at which there may be room for another update."""
    return sorted(
        {
            each.before.gateway
            for each in made
            if each.before.gateway is not None and _is_at(each.before) and not _stays(each)
        }
    )


def _is_at(x: Execution) -> bool:
    return states.is_at_gateway(x.state, x.method)


def _stays(made: Made) -> bool:
    after = made.move.execution
    return _is_at(after) and after.gateway == made.before.gateway
