"""Lets executions advance with what has happened: answers, reports, clocks."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.db.tables import is_active
from meshfleet.service.jobs.engine import loading, moving
from meshfleet.service.jobs.engine.moving import Made, Proof
from meshfleet.service.jobs.engine.paces import measure
from meshfleet.service.jobs.engine.slots import Slots, may_plan
from meshfleet.service.jobs.update.ending import explain_stop, finish, is_beyond_recall
from meshfleet.service.jobs.update.events import (
    Answered,
    Beat,
    Due,
    GatewayAway,
    GatewayBack,
    Gone,
    InDfu,
    Unclear,
    Unsent,
)
from meshfleet.service.jobs.update.machine import advance
from meshfleet.service.jobs.update.model import FIRST, Step
from meshfleet.service.jobs.update.reasons import Code
from meshfleet.service.jobs.update.states import CANCELABLE
from meshfleet.wire.codes import Status
from meshfleet.wire.products import Way
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.clock import Moment
    from meshfleet.service.jobs.changes import Changed
    from meshfleet.service.jobs.engine.loading import Known, Orders, Routes
    from meshfleet.service.jobs.update.events import Event
    from meshfleet.service.jobs.update.model import Execution, Move, Scene

    _Batches = dict[tuple[int, str, str], "_Alike"]

_log = logging.getLogger(__name__)

AT_ONCE: Final = 100
"""Executions that advance in one transaction."""

_SELECT: Final = f"SELECT {loading.COLUMNS},{loading.ABOUT} FROM execution e{loading.JOINED}"  # noqa: S608 # our own names

_IS_ACTIVE: Final = is_active("e.state")
_DUE: Final = f"{_SELECT} WHERE {_IS_ACTIVE} AND e.due <= ? ORDER BY e.due LIMIT {AT_ONCE}"
_DUE_DEVICES: Final = (
    f"SELECT e.device FROM execution e WHERE {_IS_ACTIVE} AND e.due <= ? ORDER BY e.due LIMIT {AT_ONCE}"  # noqa: S608 # our own names
)
_NAMED: Final = f"{_SELECT} WHERE e.device IN numbers AND {_IS_ACTIVE}"
_BATCH: Final = f"{_SELECT} WHERE e.job = ? AND e.batch = ? AND {_IS_ACTIVE}"
_MEMBERS: Final = (
    f"SELECT e.state, e.device, e.step FROM execution e WHERE e.job = ? AND e.batch = ? AND {_IS_ACTIVE}"  # noqa: S608 # our own names
)
_BEATS: Final = (
    "SELECT e.job, e.device, s.status, s.status_at FROM execution e"  # noqa: S608 # our own names
    " JOIN device_state s ON s.device = e.device"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND e.state = 'CONFIRMING' AND s.status IS NOT NULL"
    f" AND s.status_at > coalesce(e.beat_at, -1) LIMIT {AT_ONCE}"
)
_IN_DFU: Final = (
    "SELECT e.job, e.device, coalesce(s.radio_gateway, d.gateway), s.parent, s.rssi FROM execution e"  # noqa: S608 # our own names
    " JOIN device_state s ON s.device = e.device JOIN device d ON d.id = e.device"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND e.state = 'DISPATCHED' AND e.method = 'nordic-dfu'"
    f" AND e.step IN ('mode', 'look') AND e.ask IS NULL AND s.boot_mode = 'dfu'"
    f" ORDER BY e.due LIMIT {AT_ONCE}"
)
_REACHED: Final = (
    # What a gateway does for a device is asked of that gateway. All else is asked of one that hears the
    # device: the gateway that it belongs to, or the one through which the update began.
    "(coalesce(h.connected, false) OR (coalesce(g.connected, false)"
    " AND (e.method = 'download' OR e.state = 'CONFIRMING')))"
)
_MOVED_AWAY: Final = (
    "SELECT e.job, e.device, CASE WHEN d.id IS NULL THEN 'gone'"  # noqa: S608 # our own names
    " WHEN e.waiting = 'gateway-offline' THEN 'back'"
    f" ELSE 'away' END FROM execution e{loading.JOINED} LEFT JOIN device h ON h.id = e.gateway"
    f" WHERE {_IS_ACTIVE} AND {{among}} AND (d.id IS NULL"
    f" OR (e.waiting = 'gateway-offline' AND {_REACHED})"
    " OR (e.state <> 'STAGED' AND coalesce(e.step, '') <> 'check'"  # a check ends by its own short clock
    " AND coalesce(e.waiting, '') NOT IN ('canceling', 'gateway-offline')"
    f" AND coalesce(e.outage_left, 1) > 0 AND NOT {_REACHED})) LIMIT {AT_ONCE}"
)
"""Devices that are gone, and those whose gateway has gone or come back: in one pass over all that run."""
_ALL: Final = "e.due >= 0"
"""All active executions, by when they are due: SQLite would look at all executions there ever were."""
_SOME: Final = "e.device IN numbers"
_ABSENCES: Final[Mapping[str, Event]] = {"gone": Gone(), "away": GatewayAway(), "back": GatewayBack()}
_SHARED: Final = {
    Step.START: frozenset({ExecutionState.DISPATCHED}),
    Step.STATE: frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING}),
    Step.APPLY: frozenset({ExecutionState.STAGED}),
    Step.ABORT: CANCELABLE,
}
"""What one of a broadcast asks for all, and whom the answer concerns."""
_LOCK: Final = " FOR UPDATE OF e SKIP LOCKED"
_UNSENT: Final = (
    "SELECT id, device, attempt, step FROM job_outbox"  # noqa: S608 # our own names
    f" WHERE taken_until IS NULL AND job = ? AND step IN ('{Step.START}', '{Step.MODE}') LIMIT {AT_ONCE}"
)
"""The commands that begin updates of a job and were not taken to be sent."""
_LOCK_UNSENT: Final = " FOR UPDATE SKIP LOCKED"
_CLOSE: Final = "DELETE FROM job_outbox WHERE id IN numbers RETURNING id"
_CALL_BACK: Final = "DELETE FROM job_outbox WHERE id IN numbers AND taken_until IS NULL RETURNING id"
_WAIT: Final = " FOR UPDATE OF e"


class Reply(NamedTuple):
    """What came of a request of the outbox."""

    request: str
    job: int
    device: int
    attempt: int
    event: Answered | Unsent | Unclear


class _Alike(NamedTuple):
    """The members of a broadcast that are in one state."""

    ready: frozenset[int]
    """The devices but for those that are still asked for their version: these are not updated yet."""
    is_assembled: bool
    """Whether that is all of them."""


_NONE_ALIKE: Final = _Alike(frozenset(), is_assembled=True)


class Advanced(NamedTuple):
    """What a round has done."""

    changed: list[Changed]
    asks: int
    """How many requests are to be sent."""
    is_full: bool
    """Whether there may be more to do at once."""


def due_devices(connection: Connection, now: int) -> list[int]:
    """Return the devices at which `look` would look."""
    return [row[0] for row in bulk.query(connection, _DUE_DEVICES, (now,))]


def look(connection: Connection, orders: Orders, now: Moment, routes: Routes | None = None) -> Advanced:
    """Look at those whose time has come."""
    rows = bulk.query(connection, _DUE, (now.steady,), lock=_LOCK)
    found = [loading.known(row).routed(routes) for row in rows]
    untaken = _call_back(connection, [each.execution for each in found])
    return _advance(connection, orders, [(each, _due(each, untaken)) for each in found], now)


def _call_back(connection: Connection, executions: Sequence[Execution]) -> set[str]:
    """Take requests off the outbox that were due to be answered, and were not even taken to be sent."""
    asks = [x.ask for x in executions if x.ask is not None]
    return {row[0] for row in bulk.pick(connection, _CALL_BACK, asks)} if asks else set()


def _due(known: Known, untaken: Container[str]) -> Event:
    x = known.execution
    if known.about.device is None:
        return Gone()
    if x.step is not None and x.ask is not None and x.ask in untaken:
        return Unsent(x.step, "the service did not get to send it")
    return Due()


def devices_with_news(connection: Connection) -> list[int]:
    """Return the devices of which the registry knows something that `hear` would take over."""
    return sorted({device for _, device in _news(connection, None)})


def hear(
    connection: Connection,
    orders: Orders,
    devices: Sequence[int],
    now: Moment,
    routes: Routes | None = None,
) -> Advanced:
    """Take over what the registry knows of these by now: heartbeats, DFU mode, removals, gateways."""
    found = [each.routed(routes) for each in _find(connection, devices)]
    news = _news(connection, devices)
    happened = [
        (each, event)
        for each in found
        if (event := news.get((each.execution.job, each.execution.device))) is not None
    ]
    slots = Slots(connection)
    return _advance(connection, orders, _with_room(connection, orders, happened, slots), now, slots)


def _with_room(
    connection: Connection, orders: Orders, happened: Sequence[tuple[Known, Event]], slots: Slots
) -> list[tuple[Known, Event]]:
    """Tell devices in DFU mode whether the gateway that hears them has room, if it is not theirs yet."""
    elsewhere = {
        each.execution.device: event.gateway
        for each, event in happened
        if isinstance(event, InDfu) and event.gateway not in (None, each.execution.gateway)
    }
    if not elsewhere:
        return list(happened)
    decides = may_plan(connection)
    if decides:  # what is read without the lock may be out of date when `_HostChoice` gets it later
        slots.read(elsewhere.values())
    told: list[tuple[Known, Event]] = []
    for each, event in happened:
        x, gateway = each.execution, elsewhere.get(each.execution.device)
        if gateway is None or not isinstance(event, InDfu):
            told.append((each, event))
            continue
        limit = orders.body(connection, x.job).concurrency.per_gateway
        has_room = decides and slots.is_free(gateway, x.method, limit)
        if has_room:
            slots.take(gateway, x.method)
        told.append((each, event._replace(has_room=has_room)))
    return told


def _news(connection: Connection, devices: Sequence[int] | None) -> dict[tuple[int, int], Event]:
    """Return what is new of some devices, or of the first that are found."""

    def find(text: str) -> Sequence[Sequence[Any]]:
        if devices is None:
            return bulk.query(connection, text.format(among=_ALL), ())
        return bulk.pick(connection, text.format(among=_SOME), devices)

    absences = [(job, device, _ABSENCES[word]) for job, device, word in find(_MOVED_AWAY)]
    news: dict[tuple[int, int], Event] = {(job, device): event for job, device, event in absences}
    for job, device, status, at in find(_BEATS):
        news[job, device] = Beat(status, at)
    for job, device, gateway, parent, rssi in find(_IN_DFU):
        news[job, device] = InDfu(gateway, parent, rssi)
    # Of a device that is gone, nothing else matters.
    news.update({(job, device): event for job, device, event in absences if isinstance(event, Gone)})
    return news


def reply(
    connection: Connection,
    orders: Orders,
    replies: Sequence[Reply],
    now: Moment,
    routes: Routes | None = None,
) -> Advanced:
    """Take over what came of requests. What comes too late is kept, and moves nothing (rest-143)."""
    taken = _close(connection, [each.request for each in replies])
    devices = [each.device for each in replies]
    found = {each.execution.ask: each.routed(routes) for each in _find(connection, devices)}
    late: list[Reply] = []
    happened: list[tuple[Known, Event]] = []
    for each in replies:
        known = found.get(each.request)
        if known is None or each.request not in taken:
            late.append(each)
        else:
            taken.remove(each.request)  # the answer may have come right after it was given up
            happened.append((known, each.event))
            happened += _shared(connection, known, each.event)
    moving.keep(
        connection,
        [(each.job, each.device, each.attempt, _proof(each.event) or _unproved(each)) for each in late],
        now.wall,
    )
    return _advance(connection, orders, happened, now)


def take_back(
    connection: Connection, orders: Orders, job: int, now: Moment, routes: Routes | None = None
) -> Advanced:
    """Take back the commands of a canceled job that would begin updates and were not sent yet."""
    rows = bulk.query(connection, _UNSENT, (job,), lock=_LOCK_UNSENT)
    replies = [
        Reply(request, job, device, attempt, Unsent(Step(step), "the job was canceled before it was sent"))
        for request, device, attempt, step in rows
    ]
    if not replies:
        return Advanced([], 0, is_full=False)
    return reply(connection, orders, replies, now, routes)._replace(is_full=len(rows) >= AT_ONCE)


def _close(connection: Connection, requests: Sequence[str]) -> set[str]:
    """Take requests off the outbox; those that were there."""
    return {row[0] for row in bulk.pick(connection, _CLOSE, requests)}


def _shared(connection: Connection, known: Known, event: Event) -> list[tuple[Known, Event]]:
    """Return what others of the same broadcast learn: from an answer, or from a start that never left."""
    x = known.execution
    if x.method is not Way.BROADCAST or x.batch is None or not isinstance(event, Answered | Unsent):
        return []
    wanted = _SHARED.get(event.step, frozenset())
    if x.state not in wanted or not _concerns_all(event):
        return []
    others = (loading.known(row) for row in bulk.query(connection, _BATCH, (x.job, x.batch), lock=_WAIT))
    shared = event._replace(is_shared=True) if isinstance(event, Answered) else event
    return [
        (each, shared)
        for each in others
        if each.execution.device != x.device
        and each.execution.state in wanted
        and _learns(each.execution, event)
    ]


def _concerns_all(event: Answered | Unsent) -> bool:
    if isinstance(event, Unsent):
        return event.step is Step.START
    return event.step is not Step.ABORT or event.status == Status.OK


def _learns(x: Execution, event: Answered | Unsent) -> bool:
    """Whether what is told of a whole broadcast is news to one who takes part."""
    if x.ask is not None:
        return False
    if isinstance(event, Unsent):
        return x.step is Step.START and not x.tries
    if event.step is Step.ABORT:
        return not is_beyond_recall(x)
    return event.step is Step.APPLY or x.step not in (Step.OWN_STATE, Step.LOOK)


def _find(connection: Connection, devices: Sequence[int]) -> list[Known]:
    """The active executions of devices: each has one at most."""
    text = _NAMED if connection.dialect.name == "sqlite" else _NAMED + _WAIT
    return [loading.known(row) for row in bulk.pick(connection, text, sorted(set(devices)))]


def _advance(
    connection: Connection,
    orders: Orders,
    happened: Sequence[tuple[Known, Event]],
    now: Moment,
    slots: Slots | None = None,
) -> Advanced:
    # One event for each: what is left comes again.
    happened = list({each.execution.device: (each, event) for each, event in reversed(happened)}.values())
    said = orders.read(connection, {each.execution.job for each, _ in happened})
    scenes = loading.scenes(connection, said, [each for each, _ in happened])
    batches = _batches(connection, [each.execution for each, _ in happened])
    hosts = _HostChoice(connection, orders, Slots(connection) if slots is None else slots)
    made = []
    for (known, event), scene in zip(happened, scenes, strict=True):
        x = known.execution
        whole = _with_batch(scene, x, batches)
        move = _advanced(x, event, whole, now.steady)
        if move.execution is not x:
            made.append(hosts.apply(Made(x, move, _proof(event), scene.gateway)))
    changed = moving.write(connection, made, now)
    measure(connection, made, said, now.steady)
    asks = sum((each.move.ask is not None) + (each.move.parting is not None) for each in made)
    return Advanced(changed, asks, len(happened) >= AT_ONCE)


class _HostChoice:
    """The choice of the gateway through which an update begins again: another one only if that has room."""

    def __init__(self, connection: Connection, orders: Orders, slots: Slots) -> None:
        self._connection = connection
        self._orders = orders
        self._slots = slots

    def apply(self, made: Made) -> Made:
        """Return a move with the gateway that hosts it from now on.

        The command that begins an update makes its gateway the host: it is sent through a gateway with room,
        or stays with the one before.
        """
        ask, x = made.move.ask, made.move.execution
        is_first = ask is not None and ask.step in FIRST and not ask.at_gateway
        if not is_first or made.gateway in (None, x.gateway) or x.state is not ExecutionState.DISPATCHED:
            return made
        if not self._has_room(made.gateway, x):
            return made._replace(gateway=x.gateway)
        return made._replace(move=made.move._replace(execution=replace(x, gateway=made.gateway)))

    def _has_room(self, gateway: int, x: Execution) -> bool:
        if not may_plan(self._connection):
            return False
        limit = self._orders.body(self._connection, x.job).concurrency.per_gateway
        if not self._slots.is_free(gateway, x.method, limit):
            return False
        self._slots.take(gateway, x.method)
        return True


def _advanced(x: Execution, event: Event, scene: Scene, now: int) -> Move:
    """What becomes of an execution. One that we cannot handle ends: it must not keep all others waiting."""
    try:
        return explain_stop(advance(x, event, scene, now), scene.order)
    except Exception:  # noqa: BLE001 # whatever it is
        _log.exception("an execution of job-%d ends through a defect of ours", x.job)
        return finish(x, ExecutionState.FAILED, "something went wrong in the service", now, Code.DEFECT)


def _batches(connection: Connection, executions: Iterable[Execution]) -> _Batches:
    """Return who still takes part in broadcasts, by job, broadcast and state."""
    batches: _Batches = {}
    for job, batch in {(x.job, x.batch) for x in executions if x.batch is not None}:
        steps: defaultdict[str, dict[int, str | None]] = defaultdict(dict)
        for state, device, step in bulk.query(connection, _MEMBERS, (job, batch)):
            steps[state][device] = step
        for state, alike in steps.items():
            ready = frozenset(device for device, step in alike.items() if step != Step.LOOK)
            batches[job, batch, state] = _Alike(ready, is_assembled=len(ready) == len(alike))
    return batches


def _with_batch(scene: Scene, x: Execution, batches: _Batches) -> Scene:
    """Add those who are as far as this one to its scene."""
    if x.batch is None:
        return scene
    alike = batches.get((x.job, x.batch, x.state), _NONE_ALIKE)
    return replace(scene, batch=tuple(sorted(alike.ready | {x.device})), is_assembled=alike.is_assembled)


def _proof(event: Event) -> Proof | None:
    """What is kept of an event."""
    match event:
        case Answered(step, status, value):
            return Proof("response", {"step": str(step), "status": status, "value": value})
        case Beat(status, at):
            return Proof("heartbeat", {"status": status, "time": at})
        case InDfu():
            return Proof("dfu", {"gateway": event.gateway, "parent": event.parent, "rssi": event.rssi})
        case Unsent(step, reason) | Unclear(step, reason):
            return Proof("no-response", {"step": str(step), "reason": reason})
        case GatewayAway() | GatewayBack():
            return Proof("gateway", {"connected": isinstance(event, GatewayBack)})
        case _:
            return None


def _unproved(reply: Reply) -> Proof:
    return Proof("no-response", {"step": str(reply.event.step)})
