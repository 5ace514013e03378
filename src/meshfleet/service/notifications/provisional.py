"""Provisional message: tells people and programs that the database is away, which no stored message can.

While the database works, what such a message needs is kept in memory: the channels to which the routes lead,
and the number of the alarm, which no other alarm gets. If the database has failed for a minute, each of these
channels is told directly, once. When the database is back, the alarm is written with its history. Those that
were told of it are told of its end like that of any other alarm. A restart of the service forgets all that.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, insert, select, update

from meshfleet.db.tables import alarm, alarm_event, channel_alarm
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmState
from meshfleet.rest.channels import ChannelKind
from meshfleet.service.alarms import views
from meshfleet.service.alarms.alarm_records import AlarmEventKind, AlarmRecord, EndReason, to_records
from meshfleet.service.alarms.alarms import AlarmGroup, add_event
from meshfleet.service.alarms.rules import DEFAULT_TIMES, Rule, Severity
from meshfleet.service.alarms.watches.service import DATABASE, SCOPE
from meshfleet.service.notifications import composer
from meshfleet.service.notifications import views as channel_views
from meshfleet.service.notifications.channels import load_channels
from meshfleet.service.notifications.delivery import Outcome, OutgoingMessage
from meshfleet.service.notifications.messages import EventMessage, HumanMessage, MessageKind
from meshfleet.service.notifications.planner import ToldState
from meshfleet.service.notifications.routing import RoutedAlarm, find_routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.rest.alarms import Alarm
    from meshfleet.service.clock import Now
    from meshfleet.service.notifications.channels import StoredChannel
    from meshfleet.service.notifications.delivery import Deliverer

_log = logging.getLogger(__name__)

_REFRESH_MS: Final = 10_000
"""Milliseconds between two looks at channels and routes."""
_GROUP: Final = AlarmGroup(Rule.DATABASE, "unavailable", None, SCOPE)


class _Prepared(NamedTuple):
    """Facts that are kept in memory while the database works."""

    channels: Sequence[StoredChannel] = ()
    """Channels to which the routes lead for this alarm."""
    number: int | None = None
    """Number that the next alarm of this rule will have; None if it is not to be told to any channel."""
    last: AlarmRecord | None = None
    """The last alarm of this rule: it is opened again if it ended less than a day ago."""


@dataclass(slots=True)
class _Outage:
    """Time in which the database fails."""

    since: int
    record: AlarmRecord | None = None
    """The alarm; None until the database has failed for long enough."""
    told: dict[int, int] = field(default_factory=dict)
    """Time at which channels were told, by their ids."""
    failed: list[int] = field(default_factory=list)
    """Ids of channels to which the message could not be delivered."""


class ProvisionalMessages:
    """Tells channels of a database that is away, and writes the alarm when it is back."""

    def __init__(
        self,
        database: Database,
        deliverers: Mapping[ChannelKind, Deliverer],
        *,
        check_ownership: Callable[[Connection], None],
        now: Now,
    ) -> None:
        """Create with a deliverer for each kind of channel. `check_ownership` is called before each write."""
        self._database = database
        self._deliverers = deliverers
        self._check_ownership = check_ownership
        self._now = now
        self._prepared = _Prepared()
        self._prepared_at: int | None = None
        self._outage: _Outage | None = None

    async def prepare(self) -> None:
        """Load what a message would need, now and then. Call this after the database was used."""
        self._outage, now = None, self._now()
        if self._prepared_at is not None and 0 <= now - self._prepared_at < _REFRESH_MS:
            return
        loaded = await self._database.read(_load, now)
        number = self._prepared.number
        if number is None and loaded.channels:
            number = await self._database.write(self._reserve_number)
        self._prepared, self._prepared_at = loaded._replace(number=number), now

    async def report_failure(self, problem: ReadinessProblem, since: int) -> None:
        """Report that the database fails now. Tell the channels if it has failed for long enough.

        `since` is the time at which the look began that failed.
        """
        now = self._now()
        outage = self._outage
        if outage is None or (outage.record is None and now < outage.since):  # the clock was set back
            outage = self._outage = _Outage(since)
        if outage.record is None and now - outage.since >= DATABASE.wait:
            outage.record = _build_record(self._prepared, outage.since, now, str(problem.code))
            await self._tell(outage, outage.record)

    async def write_alarm(self) -> int | None:
        """Write the alarm if there is one. Return its row id. Raise `DatabaseUnavailable` if that fails."""
        outage = self._outage
        if outage is None or outage.record is None:
            return None
        number = await self._database.write(self._write_alarm, outage, outage.record, self._now())
        # The number is used, unless an earlier alarm was opened again; `prepare` loads the last alarm.
        kept = None if number == self._prepared.number else self._prepared.number
        self._prepared, self._prepared_at = self._prepared._replace(number=kept), None
        self._outage = None
        return number

    # Messages

    async def _tell(self, outage: _Outage, record: AlarmRecord) -> None:
        """Send the message to each channel once."""
        channels = self._prepared.channels
        _log.warning("the database is away: %d channels are told directly", len(channels))
        body = views.build_alarm(record, None, record.opened_at)
        await asyncio.gather(*(self._send(each, body, outage) for each in channels))

    async def _send(self, each: StoredChannel, body: Alarm, outage: _Outage) -> None:
        now = self._now()
        message = OutgoingMessage(
            f"msg_provisional_{each.id}_{now}", now, _build_message(each, body, now), thread=body.id
        )
        result = await self._deliverers[each.kind].deliver(each, message)
        if result.outcome is Outcome.DELIVERED:
            outage.told[each.id] = now
        else:
            outage.failed.append(each.id)
            _log.warning("%r could not be told that the database is away: %s", each.name, result.problem)

    # In transactions

    def _reserve_number(self, connection: Connection) -> int:
        """Reserve the number of an alarm: a deleted row leaves a gap, which no later alarm fills."""
        self._check_ownership(connection)
        values = _to_row(_build_record(_Prepared(), 0, 0, "")) | {"key": f"{_GROUP.key}/reserved"}
        number = connection.execute(insert(alarm).values(**values).returning(alarm.c.id)).scalar_one()
        connection.execute(delete(alarm).where(alarm.c.id == number))
        return int(number)

    def _write_alarm(self, connection: Connection, outage: _Outage, record: AlarmRecord, now: int) -> int:
        """Write an alarm that is over, with its history, and who was told of it. Return its row id."""
        self._check_ownership(connection)
        number = _write_row(connection, record, now)
        if record.reopened:
            add_event(
                connection, number, AlarmEventKind.REOPENED, now=record.opened_at, times=record.reopened
            )
        else:
            add_event(connection, number, AlarmEventKind.OPENED, now=record.opened_at)
        connection.execute(delete(channel_alarm).where(channel_alarm.c.alarm == number))
        for each in load_channels(connection, now).values():
            if (told_at := outage.told.get(each.id)) is not None:
                _write_told(connection, number, each, record, told_at)
            elif each.id in outage.failed:
                _add_delivery(connection, number, AlarmEventKind.NOT_DELIVERED, each, record.opened_at)
        reason = str(EndReason.WELL)
        add_event(connection, number, AlarmEventKind.CLEARED, now=now, reason=reason, affected=0, back=0)
        return number


def _load(connection: Connection, now: int) -> _Prepared:
    """Load the channels that are told of the alarm, and the last alarm."""
    found = RoutedAlarm(str(_GROUP.rule), Severity.CRITICAL, None, frozenset())
    routed = find_routes(channel_views.load_routes(connection).items, found)
    channels = [
        each
        for each in load_channels(connection, now).values()
        if f"channel-{each.id}" in routed and each.is_enabled and each.kind is not ChannelKind.WATCHDOG
    ]
    columns = alarm.c
    query = select(alarm).where(columns.key == _GROUP.key).order_by(columns.cleared_at.desc()).limit(1)
    return _Prepared(channels, last=next(iter(to_records(connection.execute(query))), None))


def _build_record(prepared: _Prepared, since: int, now: int, code: str) -> AlarmRecord:
    """Build the row of the alarm as it would be if it could be written now."""
    last = prepared.last
    if last is not None and (last.cleared_at is None or last.cleared_at <= now - DEFAULT_TIMES.reopen):
        last = None
    return AlarmRecord(
        id=last.id if last is not None else prepared.number or 0,
        key=_GROUP.key,
        rule=str(_GROUP.rule),
        cause=_GROUP.cause,
        severity=int(Severity.CRITICAL),
        state=AlarmState.OPEN,
        gateway=None,
        since=since,
        opened_at=now,
        cleared_at=None,
        members=1,
        most_members=1,
        affected=0,
        most_affected=0,
        back=None,
        end_reason=None,
        recovering_since=None,
        acknowledged_by=None,
        acknowledged_at=None,
        new_members=0,
        reopened=0 if last is None else last.reopened + 1,
        version=1 if last is None else last.version + 1,
        facts=msgspec.json.encode({"code": code}).decode(),
    )


def _build_message(each: StoredChannel, body: Alarm, now: int) -> EventMessage | HumanMessage:
    if each.is_for_people:
        return HumanMessage(entries=[composer.build_entry(body, MessageKind.OPENED)], kind=MessageKind.OPENED)
    return EventMessage(
        type=f"alarm.{MessageKind.OPENED}",
        timestamp=format_millis(now),
        data=msgspec.to_builtins(body) | {"provisional": True},
    )


def _write_row(connection: Connection, record: AlarmRecord, now: int) -> int:
    """Write the row of an alarm that is over. Return its id."""
    columns = alarm.c
    over = {
        "state": str(AlarmState.CLEARED),
        "cleared_at": now,
        "end_reason": str(EndReason.WELL),
        "back": 0,
        "members": 0,
        "version": record.version + 1,
    }
    values = _to_row(record) | over
    if record.reopened:
        statement = update(alarm).where(columns.id == record.id).values(**values).returning(columns.id)
        if connection.execute(statement).first() is not None:
            return record.id
    identity = {"id": record.id} if record.id else {}
    inserted = connection.execute(insert(alarm).values(**identity, **values).returning(columns.id))
    return int(inserted.scalar_one())


def _to_row(record: AlarmRecord) -> dict[str, Any]:
    """Return the columns of a record without its id."""
    values = asdict(record)
    del values["id"]
    return values | {"state": str(record.state)}


def _write_told(
    connection: Connection, number: int, each: StoredChannel, record: AlarmRecord, told_at: int
) -> None:
    """Write that a channel was told of an alarm, so that it is told of its end."""
    state = ToldState(
        channel=each.id,
        alarm=number,
        opened_at=record.opened_at,
        severity=record.severity,
        size=1,
        new_members=0,
        acknowledged_at=None,
        route="",
        told_at=told_at,
        repeats=0,
        check_at=None,
    )
    connection.execute(insert(channel_alarm).values(**asdict(state)))
    _add_delivery(connection, number, AlarmEventKind.NOTIFIED, each, told_at)


def _add_delivery(
    connection: Connection, number: int, kind: AlarmEventKind, each: StoredChannel, time: int
) -> None:
    """Add the event of an alarm that a message was delivered, or was not."""
    detail = msgspec.json.encode({"channel": each.name, "kind": str(MessageKind.OPENED)}).decode()
    values = {"alarm": number, "time": time, "kind": str(kind), "actor": None, "detail": detail}
    connection.execute(insert(alarm_event).values(**values))
