"""Lets executions begin: looks at those whose turn it is, and either begins or says what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import is_active
from meshfleet.service.jobs.engine import loading, moving
from meshfleet.service.jobs.engine.moving import Made
from meshfleet.service.jobs.engine.slots import Slots
from meshfleet.service.jobs.fitness import MisfitCode, misfit, version_of
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.service.jobs.update import clocks
from meshfleet.service.jobs.update.drivers.broadcast import LARGEST
from meshfleet.service.jobs.update.ending import finish, remove
from meshfleet.service.jobs.update.model import Move, Step
from meshfleet.service.jobs.update.reasons import UNSEEN, Code
from meshfleet.service.jobs.update.starting import dispatch
from meshfleet.service.jobs.update.version_check import skip_unasked
from meshfleet.service.jobs.waiting import Waiting
from meshfleet.wire.ids import Version
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState as S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.changes import Changed
    from meshfleet.service.jobs.engine.loading import Known, Routes
    from meshfleet.service.jobs.fitness import Facts, Misfit, Need
    from meshfleet.service.jobs.update.model import Execution, Order, Scene

AT_ONCE: Final = 100
"""Executions that are looked at in one transaction."""

_AGAIN: Final = 30_000
"""Milliseconds after which one that has to wait is looked at again."""

_AWAY: Final = {
    Waiting.DEVICE_OFFLINE: "it is not connected",
    Waiting.GATEWAY_OFFLINE: "its gateway is not connected",
}

_LOOKS: Final = 200
"""So many are looked at again in a second, if all of a long queue have to wait."""

_FROM: Final = f"SELECT {loading.COLUMNS},{loading.ABOUT}, a.job FROM execution e{loading.JOINED}"  # noqa: S608 # our own names
_ELSEWHERE: Final = f" LEFT JOIN execution a ON a.device = e.device AND {is_active('a.state')}"
_QUEUED: Final = (
    f"{_FROM}{_ELSEWHERE} WHERE e.job = ? AND e.state = 'QUEUED' AND e.wave = ? AND e.due <= ?"
    " ORDER BY e.due LIMIT ?"
)
_BEHIND: Final = (
    f"SELECT {loading.COLUMNS},{loading.ABOUT}, a.job FROM device d CROSS JOIN execution e"  # noqa: S608 # our own names
    f"{loading.BESIDE}{_ELSEWHERE} WHERE d.gateway = ? AND e.job = ? AND e.device = d.id"
    " AND e.state = 'QUEUED' AND e.wave BETWEEN 0 AND ? AND (e.due <= ? OR e.waiting = 'gateway-busy')"
    " ORDER BY e.wave, e.due LIMIT ?"
)
"""From the devices of the gateway on, in this order: SQLite would walk along the whole queue."""
_LOCK: Final = " FOR UPDATE OF e SKIP LOCKED"
_TAKERS: Final = (
    # From the few jobs that are open on, in this order.
    "SELECT e.device, min(e.job) FROM job j CROSS JOIN execution e WHERE j.finished_at IS NULL"
    " AND (j.created_at, j.id) > (SELECT created_at, id FROM job WHERE id = {job})"
    " AND e.job = j.id AND e.device IN numbers AND e.wave >= 0 GROUP BY e.device"
)


class Turn(NamedTuple):
    """A job whose executions may begin."""

    order: Order
    need: Need
    per_gateway: int | None
    wave: int
    """The last one that has begun."""
    room: int
    """How many may begin."""
    together: int
    """How many may begin together with one of these: what goes beyond the rate is waited for afterwards."""
    queued: int
    """How many wait, so that not too many are looked at."""
    gives_up: bool
    """Whether newer jobs take its devices over."""


class Begun(NamedTuple):
    """What came of a turn."""

    begun: int
    changed: list[Changed]
    asks: int
    is_full: bool
    """Whether there are more to look at."""
    unrouted: list[int]
    """Devices that could begin, but for which no gateway was selected yet."""


class _Candidate(NamedTuple):
    known: Known
    elsewhere: int | None
    """A job that updates the device at this moment."""


def begin(
    connection: Connection, turn: Turn, waves: Sequence[int], now: Moment, routes: Routes | None = None
) -> Begun:
    """Let as many begin as may, and tell what the others wait for.

    With `routes`, only devices begin that are in it. To select a gateway the sample store is read, so that is
    done for those alone that could begin: call again with routes for the `unrouted`.
    """
    found = [
        each._replace(known=each.known.routed(routes))
        for each in _candidates(connection, turn, waves, now.steady)
    ]
    said = {turn.order.job: (turn.order, turn.need)}
    scenes = loading.scenes(connection, said, [each.known for each in found])
    deciding = _Deciding(connection, turn, found, now.steady, routes)
    for candidate, scene in zip(found, scenes, strict=True):
        if deciding.begun + len(deciding.unrouted) >= turn.room:
            break
        deciding.decide(candidate, scene)
    changed = moving.write(connection, deciding.made, now)
    asks = sum(each.move.ask is not None for each in deciding.made)
    return Begun(deciding.begun, changed, asks, len(found) >= AT_ONCE, deciding.unrouted)


def _candidates(connection: Connection, turn: Turn, waves: Sequence[int], now: int) -> list[_Candidate]:
    found: list[_Candidate] = []
    for wave in waves:
        values = (turn.order.job, wave, now, AT_ONCE - len(found))
        rows = bulk.query(connection, _QUEUED, values, lock=_LOCK)
        found += [_Candidate(loading.known(row), row[-1]) for row in rows]
        if len(found) >= AT_ONCE:
            break
    return found


class _Deciding:
    """Decides about one after the other: with each that begins there is less room for the next."""

    def __init__(
        self,
        connection: Connection,
        turn: Turn,
        found: Sequence[_Candidate],
        now: int,
        routes: Routes | None,
    ) -> None:
        self._routes = routes
        self.unrouted: list[int] = []
        self._connection = connection
        self._turn = turn
        self._now = now
        self._slots = Slots(connection)
        self._slots.read(each.known.about.gateway for each in found)
        self._takers = _takers(connection, turn, [each.known for each in found])
        self._together: set[int] = set()
        """Devices that have begun together with another."""
        self.made: list[Made] = []
        self.begun = 0

    def decide(self, candidate: _Candidate, scene: Scene) -> None:
        """Let one begin, alone or with others; or end it; or let it wait."""
        x, about = candidate.known
        if x.device in self._together:
            return
        if about.device is None:
            self.made.append(Made(x, remove(x, self._now)))
            return
        if (taker := self._takers.get(x.device)) is not None:
            self.made.append(
                Made(x, finish(x, S.SUPERSEDED, f"job-{taker} took it over", self._now, Code.NEWER_JOB))
            )
            return
        wrong = misfit(_facts(candidate.known, self._turn.need), self._turn.need)
        is_there = wrong is not None and wrong.code is MisfitCode.ALREADY_THERE
        # One that was in no wave because of its reports is asked, whatever it reports by now.
        is_reported = x.attempt == 1 and (is_there or (wrong is None and x.wave == LEFT_OUT))
        looks = is_there or _may_be_there(x)
        if wrong is not None and not is_there:
            self._skip(candidate.known, wrong)
        elif self._needs_route(candidate):
            self.unrouted.append(x.device)
        elif (obstacle := self._obstacle(candidate)) is not None:
            self._wait_or_skip(candidate.known, obstacle, is_reported=is_reported)
        elif x.method is Way.BROADCAST and not looks and not is_reported:
            self._begin_together(candidate, scene)
        else:
            x = _as_known(candidate.known, self._turn.need)
            self._begin(x, dispatch(x, scene, self._now, is_there=looks, is_reported=is_reported), scene)

    def _wait_or_skip(self, known: Known, obstacle: Waiting, *, is_reported: bool) -> None:
        """Let one wait; but one that reports the target version does not keep a job open until it returns."""
        x, about = known
        if not is_reported or obstacle not in _AWAY:
            self._wait(x, obstacle, about.gateway)
        elif x.moved_at is None:
            self._wait(replace(x, moved_at=self._now), obstacle, about.gateway)
        elif self._now < x.moved_at + clocks.UNREACHED:
            self._wait(x, obstacle, about.gateway)
        else:
            why = _AWAY[obstacle]
            self.made.append(Made(x, skip_unasked(x, self._turn.need.version, why, self._now)))

    def _skip(self, known: Known, wrong: Misfit) -> None:
        x = _as_known(known, self._turn.need)
        move = finish(x, S.SKIPPED, wrong.reason, self._now)
        self.made.append(Made(x, move._replace(execution=replace(move.execution, code=str(wrong.code)))))

    def _needs_route(self, candidate: _Candidate) -> bool:
        """Whether a gateway must be selected before this one is decided.

        The gateway to which a connected device belongs may be away: then another one hears the device.
        """
        x, about = candidate.known
        if self._routes is None or x.device in self._routes:
            return False
        obstacle = self._obstacle(candidate)
        return obstacle is None or (obstacle is Waiting.GATEWAY_OFFLINE and bool(about.connected))

    def _obstacle(self, candidate: _Candidate) -> Waiting | None:
        """What keeps one from beginning."""
        x, about = candidate.known
        if candidate.elsewhere is not None:
            return Waiting.EARLIER_JOB
        if about.gateway is None:
            return Waiting.DEVICE_OFFLINE
        if not about.gateway_connected:
            return Waiting.GATEWAY_OFFLINE
        if not about.connected:
            return Waiting.DEVICE_OFFLINE
        is_free = self._slots.is_free(about.gateway, x.method, self._turn.per_gateway)
        return None if is_free else Waiting.GATEWAY_BUSY

    def _wait(self, x: Execution, obstacle: Waiting, gateway: int | None) -> None:
        """Look at it again later; in a long queue much later, for there are many to look at."""
        pause = max(_AGAIN, self._turn.queued * 1000 // _LOOKS)
        waits = replace(x, waiting=str(obstacle), due=self._now + pause, gateway=gateway or x.gateway)
        self.made.append(Made(x, Move(waits)))

    def _begin(self, x: Execution, move: Move, scene: Scene) -> None:
        if move.execution.step is not Step.CHECK:
            self._slots.take(scene.gateway, x.method)
        self.made.append(Made(x, move))
        self.begun += 1

    def _begin_together(self, candidate: _Candidate, scene: Scene) -> None:
        """Begin a broadcast for all behind one gateway that can take part."""
        leader = candidate.known.execution
        others = self._others(leader, scene.gateway)
        batch = f"{leader.device:012x}-{self._now:x}"
        devices = tuple(sorted([leader.device, *(each.execution.device for each in others)]))
        self._together.update(devices)
        for known in [candidate.known, *others]:
            x, about = known
            own = replace(scene, batch=devices, status=about.status, beat_at=about.beat_at)
            leads = x.device == devices[0]  # as `Scene.leads` has it from now on
            x = _as_known(known, self._turn.need)
            self._begin(x, dispatch(replace(x, batch=batch), own, self._now, leads=leads), scene)

    def _others(self, leader: Execution, gateway: int) -> list[Known]:
        """Who can take part besides the one that leads."""
        most = min(LARGEST, self._turn.together - self.begun)
        values = (gateway, leader.job, self._turn.wave, self._now, most)
        rows = bulk.query(self._connection, _BEHIND, values, lock=_LOCK)
        found = [loading.known(row) for row in rows if row[-1] is None]
        taken = _takers(self._connection, self._turn, found).keys() | {leader.device}
        fit = [each for each in found if each.execution.device not in taken and self._takes_part(each)]
        return fit[: most - 1]

    def _takes_part(self, known: Known) -> bool:
        x, about = known
        is_free = x.device not in self._together and bool(about.connected) and not _may_be_there(x)
        return is_free and misfit(_facts(known, self._turn.need), self._turn.need) is None


def _takers(connection: Connection, turn: Turn, found: Sequence[Known]) -> dict[int, int]:
    """Devices that a newer job has taken over meanwhile, and which."""
    if not found or not turn.gives_up:
        return {}
    devices = sorted(each.execution.device for each in found)
    rows = bulk.pick(connection, _TAKERS.format(job=turn.order.job), devices)
    return {row[0]: row[1] for row in rows}


def _facts(known: Known, need: Need) -> Facts:
    """Return what is known of a device. If it was asked and contradicted its reports, its answer counts."""
    x, about = known
    if x.code != Code.MISREPORTED or x.from_version is None or version_of(about.facts) != need.version:
        return about.facts
    read = Version.parse(x.from_version)
    return about.facts._replace(firmware=".".join(map(str, read[:3])), beta=read.beta)


def _as_known(known: Known, need: Need) -> Execution:
    """Let an execution say from which version this attempt begins, as far as that is known.

    If it is the target already, an attempt before this one may have brought it.
    """
    runs = version_of(_facts(known, need))
    x = known.execution
    return (
        x if runs is None or (runs == need.version and x.attempt > 1) else replace(x, from_version=str(runs))
    )


def _may_be_there(x: Execution) -> bool:
    """Whether an attempt before this one may have brought the version, though nobody saw it."""
    return x.attempt > 1 and x.code in UNSEEN
