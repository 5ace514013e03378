"""Requests of jobs on their way: written with the state that they belong to, sent after that, and only once.

Whoever sends one says first until when it waits for the answer. If that time passes and nobody took the
answer over, the sender has ended, and nobody knows whether it had sent the request: whoever finds it says so.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.service.jobs.engine.advancing import Reply
from meshfleet.service.jobs.update.events import Unclear
from meshfleet.service.jobs.update.model import Step
from meshfleet.wire.codes import Operation
from meshfleet.wire.rest import JobState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.wire.topics import AnyIdentifier

_COLUMNS: Final = "id, job, device, attempt, step, gateway, target, operation, identifier, value"
_NEW: Final = (
    f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until IS NULL AND NOT (gateway IN numbers)"  # noqa: S608 # our own names
    # No update of a canceled job begins; the next step of the job takes these back.
    f" AND NOT (step IN ('{Step.START}', '{Step.MODE}')"
    f" AND EXISTS (SELECT 1 FROM job j WHERE j.id = job_outbox.job AND j.state = '{JobState.CANCELING}'))"
    " LIMIT {most}"
)
_LEFT: Final = f"SELECT {_COLUMNS} FROM job_outbox WHERE taken_until <= ? LIMIT ?"  # noqa: S608 # our own names
_LOCK: Final = " FOR UPDATE SKIP LOCKED"
_TAKE: Final = "UPDATE job_outbox SET taken_until = ? WHERE id = ?"
_FREE: Final = "UPDATE job_outbox SET taken_until = 0 WHERE taken_until IS NOT NULL"

AT_ONCE: Final = 256

AT_GATEWAY: Final = 100
"""Letters on their way to one gateway: one that is silent must not keep all others waiting."""


class Letter(NamedTuple):
    """A request to be sent."""

    id: str
    job: int
    device: int
    attempt: int
    step: Step
    gateway: int
    target: int
    operation: Operation
    identifier: AnyIdentifier
    value: Any

    def reply(self, event: Any) -> Reply:
        """What came of it."""
        return Reply(self.id, self.job, self.device, self.attempt, event)


class Taken(NamedTuple):
    """Letters to be sent now."""

    letters: list[Letter]
    is_full: bool
    """Whether there may be more."""


def take(connection: Connection, most: int, at_gateways: Mapping[int, int], *, until: int) -> Taken:
    """Take letters to be sent, of which nobody else gets any; we wait for their answers until that time.

    `at_gateways` tells how many of ours are on their way to which gateway.
    """
    full = [gateway for gateway, count in at_gateways.items() if count >= AT_GATEWAY]
    text = _NEW.format(most=most) + ("" if connection.dialect.name == "sqlite" else _LOCK)
    found = [_letter(row) for row in bulk.pick(connection, text, full)]
    counts, letters = Counter(at_gateways), []
    for each in found:
        counts[each.gateway] += 1
        if counts[each.gateway] <= AT_GATEWAY:
            letters.append(each)
    bulk.execute(connection, _TAKE, [(until, each.id) for each in letters])
    return Taken(letters, is_full=len(found) == most)


def left_behind(connection: Connection, now: int, ours: int) -> list[Reply]:
    """Letters whose senders have ended. Others may find the same: `advancing.reply` takes each over once.

    So many of them may be our own, after a suspension of the machine, and must not crowd out the others.
    """
    rows = bulk.query(connection, _LEFT, (now, AT_ONCE + ours))
    return [
        each.reply(Unclear(each.step, "the service ended before an answer came", is_cut=True))
        for each in map(_letter, rows)
    ]


def free(connection: Connection) -> None:
    """All senders have ended: this is the only program here, and it has just begun."""
    bulk.execute(connection, _FREE, [()])


def _letter(row: Sequence[Any]) -> Letter:
    number, job, device, attempt, step, gateway, target, operation, identifier, value = row
    return Letter(
        number,
        job,
        device,
        attempt,
        Step(step),
        gateway,
        target,
        Operation(operation),
        identifier,
        None if value is None else msgspec.json.decode(value),
    )
