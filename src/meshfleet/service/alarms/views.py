"""Alarms as REST shows them: lists, members, events, and what needs attention."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import and_, case, exists, func, or_, select, tuple_

from meshfleet.db import bulk
from meshfleet.db.tables import (
    alarm,
    alarm_condition,
    alarm_event,
    channel,
    device,
    notification_route,
)
from meshfleet.errors import NotFound
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import (
    Acknowledgment,
    Alarm,
    AlarmCause,
    AlarmEvent,
    AlarmMember,
    AlarmSeverity,
    AlarmState,
    AlarmStateFilter,
    Attention,
    AttentionCounts,
    HiddenAlarms,
    UnreadAlarms,
    Verdict,
)
from meshfleet.rest.channels import ChannelKind
from meshfleet.service.alarms import progress
from meshfleet.service.alarms.alarm_records import AlarmRecord, to_records
from meshfleet.service.alarms.alarms import MEMBER_RULES
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import DEVICE_RULES, GATEWAY_RULES, Severity
from meshfleet.service.alarms.sentences import NamedSubject, describe
from meshfleet.service.alarms.wording import count
from meshfleet.service.devices.fleet_count import load_count

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

ALARM_ID: Final = re.compile(r"alarm-([1-9][0-9]{0,17})")
"""Id of an alarm in REST, such as `alarm-12`; the group of the pattern is the row id."""
MAX_ATTENTION_ITEMS: Final = 50
"""Maximum number of alarms in the answer to "what needs attention"."""
_UNKNOWN_MS: Final = 2 * 60_000
"""Milliseconds without an evaluation after which nothing is known about the fleet."""

_UNFINISHED: Final = (str(AlarmState.OPEN), str(AlarmState.ACKNOWLEDGED))

_SELECT_NAMES: Final = "SELECT id, name FROM device WHERE id IN numbers"
# A cross join: SQLite would read all devices first, and look up which of them are gateways.
_COUNT_GATEWAYS: Final = (
    "SELECT count(*), coalesce(sum(CASE WHEN device.connected THEN 1 ELSE 0 END), 0)"
    " FROM gateway CROSS JOIN device WHERE device.id = gateway.device"
)
_SELECT_MEMBERS: Final = (
    "SELECT alarm, min(subject) FROM alarm_condition"
    " WHERE alarm IN numbers AND device IS NOT NULL"
    " AND (rule IN ('device-offline', 'device-unstable', 'samples-lost', 'battery-low')"
    " OR substr(rule, 1, 12) = 'measurement/')"
    " GROUP BY alarm HAVING count(*) = 1"
)


def parse_alarm_id(text: str) -> int | None:
    """Return the row id of an alarm such as `alarm-12`; None if this is not the id of an alarm."""
    found = ALARM_ID.fullmatch(text)
    return None if found is None else int(found[1])


class AlarmListing(msgspec.Struct, frozen=True, kw_only=True):
    """Query of alarms; a page token is valid only for an equal query."""

    states: tuple[str, ...]
    severities: tuple[int, ...] = ()
    rule: str | None = None
    gateway: int | None = None
    device: int | None = None
    since: int | None = None
    until: int | None = None


class AlarmPosition(NamedTuple):
    """Position in a list of alarms."""

    severity: int
    id: int


class ListedAlarm(NamedTuple):
    """Alarm with its position in a list."""

    position: AlarmPosition
    body: Alarm


def list_alarms(  # noqa: PLR0913 # keyword-only after the query
    connection: Connection,
    query: AlarmListing,
    *,
    after: AlarmPosition | None,
    limit: int,
    now: int,
    with_silenced: bool = True,
) -> list[ListedAlarm]:
    """List up to `limit` alarms, the most severe first, and among these the newest first.

    The state `silenced` stands for alarms that are not over, and silenced now.
    """
    columns = alarm.c
    is_silenced = columns.silenced_until > now
    has_state: ColumnElement[bool] = columns.state.in_(query.states)
    if AlarmStateFilter.SILENCED in query.states:
        has_state = or_(has_state, and_(columns.state.in_(_UNFINISHED), is_silenced))
    statement = (
        select(alarm)
        .where(has_state if with_silenced else and_(has_state, _is_not_silenced(now)))
        .order_by(columns.severity.desc(), columns.id.desc())
        .limit(limit)
    )
    if query.severities:
        statement = statement.where(columns.severity.in_(query.severities))
    if query.rule is not None:
        statement = statement.where(columns.rule == query.rule)
    if query.gateway is not None:
        statement = statement.where(columns.gateway == query.gateway)
    if query.device is not None:
        members = select(alarm_condition.c.alarm).where(alarm_condition.c.subject == query.device)
        statement = statement.where(columns.id.in_(members.scalar_subquery()))
    if query.since is not None:
        statement = statement.where(columns.opened_at >= query.since)
    if query.until is not None:
        statement = statement.where(columns.opened_at < query.until)
    if after is not None:
        statement = statement.where(tuple_(columns.severity, columns.id) < tuple_(*after))
    records = to_records(connection.execute(statement))
    bodies = build_alarms(connection, records, now)
    return [
        ListedAlarm(AlarmPosition(record.severity, record.id), body)
        for record, body in zip(records, bodies, strict=True)
    ]


def load_alarm(connection: Connection, number: int, *, now: int) -> Alarm:
    """Load an alarm. Raise `NotFound` if there is none with this number."""
    return build_alarms(connection, [load_record(connection, number)], now)[0]


def load_record(connection: Connection, number: int) -> AlarmRecord:
    """Load the row of an alarm. Raise `NotFound` if there is none with this number."""
    records = to_records(connection.execute(select(alarm).where(alarm.c.id == number)))
    if not records:
        raise NotFound(f"alarm-{number} does not exist")
    return records[0]


def load_alarms(connection: Connection, numbers: Collection[int], *, now: int) -> list[Alarm]:
    """Load alarms by their numbers, except for those that do not exist."""
    records = to_records(connection.execute(select(alarm).where(alarm.c.id.in_(sorted(numbers)))))
    return build_alarms(connection, records, now)


def list_members(
    connection: Connection, number: int, *, after: int, limit: int
) -> list[tuple[int, AlarmMember]]:
    """List up to `limit` members of an alarm with their numbers, those after a number."""
    record = load_record(connection, number)
    if record.rule not in DEVICE_RULES | GATEWAY_RULES:
        return []
    columns = alarm_condition.c
    is_member = columns.alarm == number
    if (rule := MEMBER_RULES.get(record.rule)) is not None:
        is_member &= columns.rule == str(rule)
    query = (
        select(columns.subject, device.c.name, columns.since, columns.state)
        .join(device, device.c.id == columns.subject)
        .where(is_member, columns.subject > after)
        .where(columns.state.in_([ConditionState.ACTIVE, ConditionState.CLEARING]))
        .order_by(columns.subject)
        .limit(limit)
    )
    return [
        (
            row.subject,
            AlarmMember(
                id=to_device_id(mac_from_int(row.subject)),
                name=row.name,
                since=format_millis(row.since),
                state=row.state,
            ),
        )
        for row in connection.execute(query)
    ]


def list_events(
    connection: Connection, number: int, *, before: int | None, limit: int
) -> list[tuple[int, AlarmEvent]]:
    """List up to `limit` events of an alarm with their row ids, the newest first."""
    load_record(connection, number)
    columns = alarm_event.c
    query = select(alarm_event).where(columns.alarm == number).order_by(columns.id.desc()).limit(limit)
    if before is not None:
        query = query.where(columns.id < before)
    return [
        (
            row.id,
            AlarmEvent(
                time=format_millis(row.time),
                kind=row.kind,
                actor=row.actor,
                detail=msgspec.json.decode(row.detail),
            ),
        )
        for row in connection.execute(query)
    ]


def build_attention(connection: Connection, now: int, unread: UnreadAlarms | None = None) -> Attention:
    """Say what needs attention now. Alarms that are silenced do not. `unread` is what a user has not seen."""
    counts = _count_connected(connection)
    listed = _list_urgent(connection, now)
    items = [each.body for each in listed]
    numbers, hidden = _count_unfinished(connection, now)
    evaluated = progress.load_progress(connection)
    is_known = evaluated is not None and now - evaluated.evaluated_at <= _UNKNOWN_MS
    is_settled = evaluated is not None and evaluated.evaluated_at >= evaluated.quiet_until
    return Attention(
        verdict=_build_verdict(counts, numbers, is_known=is_known, is_settled=is_settled),
        checked_at=format_millis(now if evaluated is None else evaluated.evaluated_at),
        counts=counts,
        items=items,
        more=sum(numbers.values()) - len(items),
        hidden=hidden,
        unread=unread,
        channels_configured=_has_channels(connection),
    )


def _list_urgent(connection: Connection, now: int) -> list[ListedAlarm]:
    """List the most severe alarms that are not over; one state at a time, as the index has this order."""
    found = [
        each
        for state in _UNFINISHED
        for each in list_alarms(
            connection,
            AlarmListing(states=(state,)),
            after=None,
            limit=MAX_ATTENTION_ITEMS,
            now=now,
            with_silenced=False,
        )
    ]
    return sorted(found, key=lambda each: each.position, reverse=True)[:MAX_ATTENTION_ITEMS]


def _count_unfinished(connection: Connection, now: int) -> tuple[Counter[tuple[str, int]], HiddenAlarms]:
    """Count the alarms that are not over by state and severity, and those left out as they are silenced.

    Each query needs only its index: there may be ten thousand alarms.
    """
    columns = alarm.c
    group = (columns.state, columns.severity)
    query = select(*group, func.count()).where(columns.state.in_(_UNFINISHED)).group_by(*group)
    numbers = Counter({(state, severity): number for state, severity, number in connection.execute(query)})
    silenced = Counter(
        {
            (state, severity): number
            for state, severity, number in connection.execute(query.where(columns.silenced_until > now))
        }
    )
    silences = 0
    if silenced:
        # Each alarm that a user has silenced is a silence of its own.
        own = case((columns.silence.is_(None), -columns.id), else_=columns.silence)
        is_silenced = and_(columns.state.in_(_UNFINISHED), columns.silenced_until > now)
        silences = connection.execute(select(func.count(own.distinct())).where(is_silenced)).scalar_one()
    return numbers - silenced, HiddenAlarms(silenced=silenced.total(), silences=silences)


def _is_not_silenced(now: int) -> ColumnElement[bool]:
    return or_(alarm.c.silenced_until.is_(None), alarm.c.silenced_until <= now)


def _has_channels(connection: Connection) -> bool:
    """Return whether alarms are sent anywhere. A watchdog is not told of alarms."""
    is_told = and_(channel.c.enabled, channel.c.kind != str(ChannelKind.WATCHDOG))
    query = select(and_(exists().where(is_told), exists(select(notification_route.c.position))))
    return bool(connection.execute(query).scalar())


def build_alarms(connection: Connection, records: Sequence[AlarmRecord], now: int) -> list[Alarm]:
    """Build the REST bodies of alarms, with the present names of what they are about."""
    subjects = _load_subjects(connection, records)
    return [build_alarm(each, subjects.get(each.id), now) for each in records]


def _load_subjects(connection: Connection, records: Sequence[AlarmRecord]) -> dict[int, NamedSubject]:
    """Find what alarms are about: an extender, or one device if there is only one, else the gateway."""
    members = bulk.query_in(connection, _SELECT_MEMBERS, [each.id for each in records if each.members == 1])
    single: dict[int, int] = dict(map(tuple, members))
    single |= {each.id: each.relay for each in records if each.relay is not None}
    numbers = {*single.values(), *(each.gateway for each in records if each.gateway is not None)}
    names: dict[int, str] = dict(map(tuple, bulk.query_in(connection, _SELECT_NAMES, sorted(numbers))))
    subjects = {}
    for each in records:
        number = single.get(each.id, each.gateway)
        if number is not None:
            name = names.get(number, mac_from_int(number))
            subjects[each.id] = NamedSubject("device" if each.id in single else "gateway", number, name)
    return subjects


def build_alarm(record: AlarmRecord, subject: NamedSubject | None, now: int) -> Alarm:
    """Build the REST body of an alarm about a device or gateway, or about something else (None)."""
    text = describe(record, subject, now)
    is_silenced = record.silenced_until is not None and record.silenced_until > now
    silenced_until = record.silenced_until if is_silenced else None
    return Alarm(
        id=f"alarm-{record.id}",
        key=record.key,
        rule=record.rule,
        severity=AlarmSeverity(Severity(record.severity).name.lower()),
        state=AlarmState(record.state),
        sentence=text.sentence,
        cause=AlarmCause(code=record.cause, params=text.params),
        action=text.action,
        subject=text.subject,
        since=format_millis(record.since),
        opened_at=format_millis(record.opened_at),
        cleared_at=_format_optional(record.cleared_at),
        recovering_since=_format_optional(record.recovering_since),
        member_count=record.members,
        affected_devices=record.affected,
        peak_affected=record.most_affected,
        acknowledged=None
        if record.acknowledged_by is None or record.acknowledged_at is None
        else Acknowledgment(by=record.acknowledged_by, at=format_millis(record.acknowledged_at)),
        new_since_acknowledged=record.new_members,
        reopened=record.reopened,
        version=record.version,
        silenced_until=_format_optional(silenced_until),
        silenced_by=None if silenced_until is None else record.silenced_by,
    )


def _format_optional(time: int | None) -> str | None:
    return None if time is None else format_millis(time)


def _count_connected(connection: Connection) -> AttentionCounts:
    fleet = load_count(connection)
    gateways, connected = bulk.query_rows(connection, _COUNT_GATEWAYS, ())[0]
    return AttentionCounts(
        devices=fleet.devices,
        connected=fleet.connected,
        gateways=gateways,
        gateways_connected=int(connected),
    )


def _build_verdict(
    counts: AttentionCounts, numbers: Mapping[tuple[str, int], int], *, is_known: bool, is_settled: bool
) -> Verdict:
    if not counts.gateways:
        return Verdict(tone="unknown", sentence="No gateway is set up yet. Claim the first one.")
    urgent = {
        state: sum(number for (each, severity), number in numbers.items() if each == state and severity > 1)
        for state in (AlarmState.OPEN, AlarmState.ACKNOWLEDGED)
    }
    if not is_known or not (is_settled or urgent[AlarmState.OPEN]):
        return Verdict(tone="unknown", sentence="The state of the fleet is not known yet.")
    online = _describe_online(counts)
    if urgent[AlarmState.OPEN]:
        verb = "needs" if urgent[AlarmState.OPEN] == 1 else "need"
        is_critical = numbers.get((AlarmState.OPEN, Severity.CRITICAL))
        things = "1 thing" if urgent[AlarmState.OPEN] == 1 else f"{urgent[AlarmState.OPEN]:,} things"
        sentence = f"{online} {things} {verb} you."
        return Verdict(tone="critical" if is_critical else "warning", sentence=sentence)
    if urgent[AlarmState.ACKNOWLEDGED]:
        verb = "is" if urgent[AlarmState.ACKNOWLEDGED] == 1 else "are"
        sentence = f"{online} {count(urgent[AlarmState.ACKNOWLEDGED], 'alarm')} {verb} acknowledged."
        return Verdict(tone="warning", sentence=sentence)
    return Verdict(tone="ok", sentence=online)


def _describe_online(counts: AttentionCounts) -> str:
    if counts.devices == 1:
        return f"The only device is {'online' if counts.connected else 'offline'}."
    if counts.connected == counts.devices:
        return f"All {counts.devices:,} devices are online."
    if not counts.connected:
        return f"None of {counts.devices:,} devices is online."
    verb = "is" if counts.connected == 1 else "are"
    return f"{counts.connected:,} of {counts.devices:,} devices {verb} online."
