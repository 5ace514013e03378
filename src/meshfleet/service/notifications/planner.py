"""Planner: compares each changed alarm with what every channel was told, and writes the messages.

It looks at stored states, not at moments of change: a version of an alarm for which no messages were written
is looked at once, whatever happened between. Messages, the version, and what channels were told are written
in one transaction, so that a kill of the service neither loses nor repeats a message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import and_, delete, insert, or_, select, update

from meshfleet.db.tables import (
    alarm,
    alarm_condition,
    channel_alarm,
    device_label,
    label,
    notification,
    silence,
)
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmState
from meshfleet.rest.channels import AlarmRoute, ChannelKind, DeliveryState
from meshfleet.service.alarms import silence_overlay, views
from meshfleet.service.alarms.alarm_records import AlarmEventKind, AlarmRecord, EndReason, to_records
from meshfleet.service.alarms.alarms import add_event
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.notifications import outbox
from meshfleet.service.notifications import views as channel_views
from meshfleet.service.notifications.channels import load_channels
from meshfleet.service.notifications.messages import EventMessage, MessageKind
from meshfleet.service.notifications.routing import Hold, RoutedAlarm, Timing, compute_timing, find_routes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection, Row

    from meshfleet.service.notifications.channels import StoredChannel

_MINUTE_MS: Final = 60_000
_GROWTH_FACTOR: Final = 2
"""An open alarm is told again when it affects this many times as many devices as at the last message."""
_UPDATE_PAUSE_MS: Final = 15 * _MINUTE_MS
"""Shortest time between two messages about the growth of an alarm."""
_REPEAT_FACTOR: Final = 4
"""Messages are repeated once after the time of the route, and then after this many times as long."""
_MAX_ALARMS: Final = 1_000
"""Maximum number of alarms for which one transaction writes messages."""
_RECOVERING_PAUSE_MS: Final = 10 * _MINUTE_MS
_NOT_FOR_PEOPLE: Final = frozenset({MessageKind.ACKNOWLEDGED, MessageKind.UNACKNOWLEDGED})
_TOLD_AFTER_SILENCE: Final = frozenset({MessageKind.UPDATED, MessageKind.STILL_OPEN})
"""Kinds of messages whose news people have missed if they were held when the alarm was silenced."""
_UPDATES: Final = frozenset({MessageKind.STILL_OPEN, MessageKind.UNACKNOWLEDGED})
"""Kinds of messages that programs get as `alarm.updated`."""


class Plan(NamedTuple):
    """Result of writing messages."""

    changed: set[int]
    """Row ids of alarms whose silence has begun or ended."""
    has_more: bool


@dataclass(slots=True)
class ToldState:
    """State of an alarm in the last message of a channel: a row of the table `channel_alarm`."""

    channel: int
    alarm: int
    opened_at: int
    severity: int
    size: int
    new_members: int
    acknowledged_at: int | None
    route: str
    told_at: int
    repeats: int
    check_at: int | None


def needs_plan(connection: Connection, now: int) -> bool:
    """Return whether there may be messages to write."""
    columns = alarm.c
    queries = (
        select(columns.id).where(columns.announced_version != columns.version),
        select(columns.id).where(columns.silenced_until <= now),
        select(channel_alarm.c.alarm).where(channel_alarm.c.check_at <= now),
        select(silence.c.id).where(silence.c.check_at <= now),
    )
    return any(connection.execute(query.limit(1)).first() is not None for query in queries)


def write_messages(connection: Connection, now: int) -> Plan:
    """Write the messages about alarms that have changed, or whose time has come."""
    ended = _end_silences(connection, now)
    changed = _load_changed(connection)
    windows = silence_overlay.apply_silences(connection, ended | changed, now)
    others = ended | changed | windows.silenced | windows.uncovered
    due = set(_load_due(connection, now)) - others
    records = _load_records(connection, others | due)
    _Planner(connection, now, records, ended, windows.uncovered).run()
    return Plan(ended | windows.silenced | windows.uncovered, len(changed) >= _MAX_ALARMS)


def _end_silences(connection: Connection, now: int) -> set[int]:
    """End silences whose time has come. Return the alarms."""
    columns = alarm.c
    over = select(columns.id).where(columns.silenced_until <= now).limit(_MAX_ALARMS)
    statement = (
        update(alarm)
        .where(columns.id.in_(over.scalar_subquery()))
        .values(silenced_until=None, silenced_by=None, silence=None, version=columns.version + 1)
        .returning(columns.id, columns.state)
    )
    rows = connection.execute(statement).all()
    for row in rows:
        if row.state != AlarmState.CLEARED:
            add_event(connection, row.id, AlarmEventKind.UNSILENCED, now=now)
    return {row.id for row in rows}


def _load_changed(connection: Connection) -> set[int]:
    """Load the alarms with a version for which no messages were written."""
    columns = alarm.c
    query = select(columns.id).where(columns.announced_version != columns.version).order_by(columns.id)
    return set(connection.scalars(query.limit(_MAX_ALARMS)))


def _load_due(connection: Connection, now: int) -> list[int]:
    """Load the alarms that are to be looked at again, although they may not have changed."""
    columns = channel_alarm.c
    query = select(columns.alarm).where(columns.check_at <= now).order_by(columns.check_at)
    return list(dict.fromkeys(connection.scalars(query.limit(_MAX_ALARMS))))


def _load_records(connection: Connection, numbers: Collection[int]) -> list[AlarmRecord]:
    query = select(alarm).where(alarm.c.id.in_(sorted(numbers))).order_by(alarm.c.id).with_for_update()
    return to_records(connection.execute(query))


class _Planner:
    """Messages of one transaction."""

    def __init__(
        self,
        connection: Connection,
        now: int,
        records: Sequence[AlarmRecord],
        ended: Collection[int],
        uncovered: Collection[int],
    ) -> None:
        """Create for alarms at a time. `ended` are those whose silence is over.

        `uncovered` are those with a member that the maintenance window, which silenced them, does not cover.
        """
        self._connection = connection
        self._now = now
        self._records = records
        self._ended_silences = ended
        self._uncovered = uncovered
        self._channels = load_channels(connection, now)
        self._routes = channel_views.load_routes(connection).items
        self._told = _load_told(connection, [each.id for each in records])
        bodies = views.build_alarms(connection, records, now)
        self._bodies: Mapping[int, dict[str, Any]] = {
            record.id: msgspec.to_builtins(body) for record, body in zip(records, bodies, strict=True)
        }

    def run(self) -> None:
        """Write the messages about each alarm, and which version of it they are about."""
        for record in self._records:
            if record.state == AlarmState.CLEARED:
                self._announce_end(record)
            elif record.silenced_until is not None:
                self._keep_silent(record)
            else:
                self._announce(record)
            values: dict[str, Any] = {"announced_version": record.version}
            if record.state == AlarmState.CLEARED:
                values |= {"silenced_until": None, "silenced_by": None, "silence": None}
            self._connection.execute(update(alarm).where(alarm.c.id == record.id).values(**values))

    def _announce(self, record: AlarmRecord) -> None:
        """Tell channels that an alarm is open, or what is new of it."""
        routes = self._find_routes(record)
        for told in self._told.get(record.id, {}).values():
            each = self._channels.get(told.channel)
            route = routes.pop(told.channel, None) or self._find_route(told)
            if each is None or not each.is_enabled or route is None:
                self._save_check(told, None)
            else:
                self._tell_change(record, each, route, told)
        kind = self._choose_first_kind(record)
        for number, route in routes.items():
            each = self._channels.get(number)
            if kind is None or each is None or not each.is_enabled or _is_about(record, each):
                continue
            if self._tell(record, each, route, kind):
                self._save_told(record, each, route, repeats=0)

    def _announce_end(self, record: AlarmRecord) -> None:
        """Tell the channels that were told of an alarm that it is over."""
        for told in self._told.get(record.id, {}).values():
            each = self._channels.get(told.channel)
            if each is not None:
                # A route that was deleted meanwhile says nothing: those of today do.
                route = self._find_route(told) or self._find_routes(record).get(told.channel)
                self._tell_end(record, each, route)
        self._connection.execute(delete(channel_alarm).where(channel_alarm.c.alarm == record.id))

    def _keep_silent(self, record: AlarmRecord) -> None:
        """Hold back what people are not told yet of an alarm that is silenced."""
        for told in self._told.get(record.id, {}).values():
            each = self._channels.get(told.channel)
            self._save_check(told, None)
            if each is None or not each.is_for_people:
                continue
            held = self._load_held(each, record.id)
            outbox.fold_messages(self._connection, [row.id for row in held], self._now, carrier=None)
            kinds = {MessageKind(row.kind) for row in held}
            columns = channel_alarm.c
            is_told = and_(columns.channel == each.id, columns.alarm == record.id)
            if MessageKind.OPENED in kinds:
                self._connection.execute(delete(channel_alarm).where(is_told))
            elif kinds & _TOLD_AFTER_SILENCE:
                # Less severe than any alarm: it is told after the silence, also if a user ends it.
                self._connection.execute(update(channel_alarm).where(is_told).values(severity=0))

    def _find_routes(self, record: AlarmRecord) -> dict[int, AlarmRoute]:
        """Return the ids of the channels that are told of an alarm now, with their routes."""
        found = RoutedAlarm(
            record.rule,
            Severity(record.severity),
            None if record.gateway is None else mac_from_int(record.gateway),
            self._load_labels(record) if any(each.match.labels for each in self._routes) else frozenset(),
        )
        routes = find_routes(self._routes, found)
        return {number: routes[name] for number in self._channels if (name := f"channel-{number}") in routes}

    def _find_route(self, told: ToldState) -> AlarmRoute | None:
        """Return the route by which a channel was told; None if there is none with its name any more."""
        name = f"channel-{told.channel}"
        return next(
            (each for each in self._routes if each.name == told.route and name in each.channels), None
        )

    def _choose_first_kind(self, record: AlarmRecord) -> MessageKind | None:
        """Return the message for channels that were not told of an alarm; None if there is no news."""
        if record.state != AlarmState.OPEN or record.recovering_since is not None:
            return None
        if record.id in self._ended_silences:
            return MessageKind.STILL_OPEN
        return MessageKind.OPENED if record.announced_version != record.version else None

    def _tell_change(
        self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute, told: ToldState
    ) -> None:
        """Tell a channel of an open alarm that it was told of before, if there is something new."""
        kinds = self._find_news(record, each, route, told)
        wanted = [kind for kind in kinds if not (kind in _NOT_FOR_PEOPLE and each.is_for_people)]
        for kind in wanted:
            self._tell(record, each, route, kind)
        if not kinds:
            self._save_check(told, self._compute_check(record, each, route, told))
        elif not wanted:
            self._save_told(record, each, route, repeats=told.repeats, before=told)
        else:
            repeats = told.repeats + 1 if MessageKind.REPEATED in wanted else 0
            self._save_told(record, each, route, repeats=repeats)

    def _find_news(
        self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute, told: ToldState
    ) -> list[MessageKind]:
        """Return what is new of an open alarm since its last message: the most important, and who has it."""
        is_open = record.state == AlarmState.OPEN
        has_grown = _has_grown(record, told) and self._now >= told.told_at + _UPDATE_PAUSE_MS
        is_acknowledged = record.acknowledged_at is not None
        is_new_acknowledgment = is_acknowledged and record.acknowledged_at != told.acknowledged_at
        # Members are counted from the last acknowledgment on, which may not have been told yet.
        known_members = 0 if is_new_acknowledgment else told.new_members
        checks = (
            (MessageKind.OPENED, told.opened_at != record.opened_at),
            (MessageKind.STILL_OPEN, is_open and record.id in self._ended_silences),
            (MessageKind.UPDATED, is_open and record.id in self._uncovered),
            (MessageKind.UPDATED, record.severity > told.severity),
            (MessageKind.UPDATED, is_open and record.new_members > known_members),
            (MessageKind.UNACKNOWLEDGED, not is_acknowledged and told.acknowledged_at is not None),
            (MessageKind.UPDATED, is_open and has_grown),
            (MessageKind.REPEATED, self._is_repeat_due(record, each, route, told)),
        )
        news = next((kind for kind, applies in checks if applies), None)
        if not is_new_acknowledgment:
            return [] if news is None else [news]
        if news is None or news is MessageKind.REPEATED:
            return [MessageKind.ACKNOWLEDGED]
        # An acknowledgment before an update: a receiver must not take it for one of the new member.
        is_opening = news is MessageKind.OPENED
        return [news, MessageKind.ACKNOWLEDGED] if is_opening else [MessageKind.ACKNOWLEDGED, news]

    def _is_repeat_due(
        self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute, told: ToldState
    ) -> bool:
        due = _compute_repeat(each, route, told)
        return (
            due is not None
            and due <= self._now
            and record.state == AlarmState.OPEN
            and record.recovering_since is None
        )

    def _tell_end(self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute | None) -> None:
        """Tell a channel of the end of an alarm, unless it was not yet told of its beginning."""
        # A retained message must not stay at the broker when its alarm is over.
        is_told = route is None or route.cleared or each.kind is ChannelKind.MQTT
        if not each.is_for_people:
            # Programs keep an incident of their own open until they are told of its end, whatever the reason,
            # and if the channel is off now.
            if is_told:
                self._send_event(record, each, MessageKind.CLEARED)
            return
        held = self._load_held(each, record.id)
        opened = [row for row in held if row.kind == MessageKind.OPENED]
        # The end of an earlier opening that people were told of is told, whatever happened since.
        ends = [row for row in held if row.kind == MessageKind.CLEARED]
        is_silent = record.silenced_until is not None or record.end_reason == EndReason.MERGED
        if not is_silent and not ends and any(row.hold != Hold.GROUP for row in opened):
            return  # at the end of quiet hours, and in a digest, people are told how many came and went
        needless = held if is_silent else [row for row in held if row.kind != MessageKind.CLEARED]
        outbox.fold_messages(self._connection, [row.id for row in needless], self._now, carrier=None)
        if is_silent or opened or ends or not is_told or not each.is_enabled:
            return
        timing: Timing | None = Timing(self._now, Hold.GROUP)
        if route is not None:
            severity = Severity(record.severity)
            timing = compute_timing(route, severity, self._now, last_sent=None, is_end=True)
        if timing is not None:
            outbox.hold_message(
                self._connection,
                each,
                alarm=record.id,
                kind=MessageKind.CLEARED,
                timing=timing,
                now=self._now,
            )

    def _tell(self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute, kind: MessageKind) -> bool:
        """Write a message. Return False if the route drops it."""
        if not each.is_for_people:
            self._send_event(record, each, kind)
            return True
        timing = compute_timing(
            route, Severity(record.severity), self._now, last_sent=each.delivered_at, is_end=False
        )
        if timing is None:
            return False
        opened = next(
            (row for row in self._load_held(each, record.id) if row.kind == MessageKind.OPENED), None
        )
        if opened is None:
            outbox.hold_message(
                self._connection, each, alarm=record.id, kind=kind, timing=timing, now=self._now
            )
        elif timing.due < opened.due:
            # That message will tell the state of its time; an alarm that is critical now does not wait.
            columns = notification.c
            self._connection.execute(
                update(notification)
                .where(columns.id == opened.id)
                .values(due=timing.due, hold=str(timing.hold))
            )
        return True

    def _send_event(self, record: AlarmRecord, each: StoredChannel, kind: MessageKind) -> None:
        name = MessageKind.UPDATED if kind in _UPDATES else kind
        body = EventMessage(
            type=f"alarm.{name}", timestamp=format_millis(self._now), data=self._bodies[record.id]
        )
        outbox.add_event(self._connection, each, record.id, body, self._now)

    # What is stored

    def _load_held(self, each: StoredChannel, number: int) -> Sequence[Row[Any]]:
        columns = notification.c
        query = select(columns.id, columns.kind, columns.hold, columns.due).where(
            columns.channel == each.id, columns.alarm == number, columns.state == str(DeliveryState.HELD)
        )
        return list(self._connection.execute(query))

    def _load_labels(self, record: AlarmRecord) -> frozenset[str]:
        """Load the labels of the gateway of an alarm and of its members."""
        members = select(alarm_condition.c.subject).where(alarm_condition.c.alarm == record.id)
        columns = device_label.c
        query = (
            select(label.c.text)
            .join(device_label, columns.label == label.c.id)
            .where(or_(columns.device == record.gateway, columns.device.in_(members.scalar_subquery())))
        )
        return frozenset(self._connection.scalars(query.distinct()))

    def _save_told(
        self,
        record: AlarmRecord,
        each: StoredChannel,
        route: AlarmRoute,
        *,
        repeats: int,
        before: ToldState | None = None,
    ) -> None:
        """Store what a channel was told now; or, with the state `before`, what it need not be told."""
        state = ToldState(
            channel=each.id,
            alarm=record.id,
            opened_at=record.opened_at,
            severity=record.severity,
            size=_get_size(record) if before is None else before.size,
            new_members=record.new_members,
            acknowledged_at=record.acknowledged_at,
            route=route.name,
            told_at=self._now if before is None else before.told_at,
            repeats=repeats,
            check_at=None,
        )
        state.check_at = self._compute_check(record, each, route, state)
        columns = channel_alarm.c
        self._connection.execute(
            delete(channel_alarm).where(columns.channel == each.id, columns.alarm == record.id)
        )
        self._connection.execute(insert(channel_alarm).values(**asdict(state)))

    def _save_check(self, told: ToldState, check_at: int | None) -> None:
        """Store when an alarm of which nothing is told now is looked at again; None for its next change."""
        if check_at != told.check_at:
            columns = channel_alarm.c
            self._connection.execute(
                update(channel_alarm)
                .where(columns.channel == told.channel, columns.alarm == told.alarm)
                .values(check_at=check_at)
            )

    def _compute_check(
        self, record: AlarmRecord, each: StoredChannel, route: AlarmRoute, told: ToldState
    ) -> int | None:
        """Return when an alarm must be looked at again although it may not change; None if never."""
        if record.state != AlarmState.OPEN:
            return None
        times = [_compute_repeat(each, route, told)]
        if _has_grown(record, told):
            times.append(told.told_at + _UPDATE_PAUSE_MS)
        earliest = min((time for time in times if time is not None), default=None)
        if earliest is not None and earliest <= self._now:
            return self._now + _RECOVERING_PAUSE_MS
        return earliest


def _load_told(connection: Connection, numbers: Sequence[int]) -> dict[int, dict[int, ToldState]]:
    """Load what was told of alarms: by alarm, then by channel."""
    told: dict[int, dict[int, ToldState]] = {}
    for row in connection.execute(select(channel_alarm).where(channel_alarm.c.alarm.in_(numbers))):
        state = ToldState(**row._asdict())
        told.setdefault(state.alarm, {})[state.channel] = state
    return told


def _is_about(record: AlarmRecord, each: StoredChannel) -> bool:
    """Return whether an alarm says that a channel fails: it cannot tell that itself.

    A channel for which only some messages were given up works, and tells that.
    """
    is_own = record.rule == Rule.CHANNEL_FAILING and record.scope == f"channel:{each.id}"
    return is_own and record.cause != "given-up"


def _has_grown(record: AlarmRecord, told: ToldState) -> bool:
    return _get_size(record) >= _GROWTH_FACTOR * max(told.size, 1) and _get_size(record) > told.size


def _get_size(record: AlarmRecord) -> int:
    return max(record.members, record.affected)


def _compute_repeat(each: StoredChannel, route: AlarmRoute, told: ToldState) -> int | None:
    """Return when a message is repeated; None if it is not. Programs remember what they were told."""
    if route.repeat_seconds is None or not each.is_for_people:
        return None
    return told.told_at + route.repeat_seconds * 1000 * (_REPEAT_FACTOR if told.repeats else 1)
