"""Silences applied to alarms: which maintenance window silences which alarm now.

An alarm is silenced if all its members are in the scope of one window. A member elsewhere ends that: it may
have another cause. How an alarm is silenced is stored on the alarm, as if a user had silenced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import and_, case, exists, func, not_, or_, select, update

from meshfleet.db.tables import alarm, alarm_condition, device_label, label, silence
from meshfleet.protocol.ids import Mac, mac_to_int, parse_device_id, to_mac
from meshfleet.protocol.times import format_millis
from meshfleet.rest.alarms import AlarmState
from meshfleet.service.alarms.alarm_records import AlarmEventKind
from meshfleet.service.alarms.alarms import MEMBER_RULES, add_event
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.silence_commands import decode_silence, load_times

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement, Connection

    from meshfleet.rest.silences import SilenceScope

_MEMBER_STATES: Final = (str(ConditionState.ACTIVE), str(ConditionState.CLEARING))


class _ActiveSilence(NamedTuple):
    """Silence that holds now."""

    id: int
    until: int
    scope: SilenceScope


class SilencedChanges(NamedTuple):
    """Alarms whose silence has changed."""

    silenced: set[int]
    uncovered: set[int]
    """Alarms that are not silenced any more, because of a member elsewhere, or because the scope changed."""


def apply_silences(connection: Connection, numbers: Collection[int], now: int) -> SilencedChanges:
    """Silence alarms that are in the scope of a silence, and end that of those that are not any more.

    Looks at the alarms `numbers`, or at all if a silence begins or has changed. Alarms that a user has
    silenced stay so.
    """
    if _take_checks(connection, now):
        is_looked_at: ColumnElement[bool] = alarm.c.state != str(AlarmState.CLEARED)
    elif numbers:
        is_looked_at = alarm.c.id.in_(sorted(numbers))
    else:
        return SilencedChanges(set(), set())
    columns = alarm.c
    by_user = and_(columns.silence.is_(None), columns.silenced_until.is_not(None))
    is_looked_at = and_(is_looked_at, columns.state != str(AlarmState.CLEARED), not_(by_user))
    chosen: dict[int, _ActiveSilence] = {}
    for each in _load_active(connection, now):  # the one that ends last
        for number in _find_covered(connection, each, is_looked_at):
            chosen[number] = each
    before = {
        row.id: (row.silence, row.silenced_until)
        for row in connection.execute(
            select(columns.id, columns.silence, columns.silenced_until).where(
                is_looked_at, or_(columns.silence.is_not(None), columns.id.in_(sorted(chosen)))
            )
        )
    }
    for number, found in chosen.items():
        if before.get(number) != (found.id, found.until):
            _silence(connection, number, found, now, is_new=before[number][0] != found.id)
    uncovered = {number for number, (own, _) in before.items() if own is not None and number not in chosen}
    for number in uncovered:
        _change(connection, number, silence=None, silenced_until=None, silenced_by=None)
        add_event(connection, number, AlarmEventKind.UNSILENCED, now=now)
    changed = {number for number, each in chosen.items() if before[number] != (each.id, each.until)}
    return SilencedChanges(changed, uncovered)


def _take_checks(connection: Connection, now: int) -> bool:
    """Return whether a silence begins or has changed, and store when each begins next."""
    columns = silence.c
    rows = connection.execute(select(columns.id, columns.body).where(columns.check_at <= now)).all()
    for row in rows:
        next_start = load_times(decode_silence(row.body)).find_next_start(now)
        connection.execute(update(silence).where(columns.id == row.id).values(check_at=next_start))
    return bool(rows)


def _load_active(connection: Connection, now: int) -> list[_ActiveSilence]:
    """Load the silences that hold now, the one that ends last at the end."""
    columns = silence.c
    query = select(columns.id, columns.body).where(columns.starts_at <= now, columns.ends_at > now)
    found = []
    for row in connection.execute(query):
        body = decode_silence(row.body)
        active = load_times(body).find_active(now)
        if active is not None:
            found.append(_ActiveSilence(row.id, active.end, body.scope))
    return sorted(found, key=lambda each: (each.until, each.id))


def _find_covered(
    connection: Connection, each: _ActiveSilence, is_looked_at: ColumnElement[bool]
) -> list[int]:
    """Return the alarms whose members are all in the scope of a silence."""
    query = select(alarm.c.id).where(is_looked_at)
    if each.scope.rules:
        query = query.where(alarm.c.rule.in_(sorted(each.scope.rules)))
    if each.scope.devices or each.scope.gateways or each.scope.labels:
        columns = alarm_condition.c
        # What members have in common, such as a lost extender, is no member. Others have the rule of a user.
        member_rule = case(
            *((alarm.c.rule == str(rule), str(member)) for rule, member in MEMBER_RULES.items()),
            else_=columns.rule,
        )
        is_member = and_(
            columns.alarm == alarm.c.id, columns.rule == member_rule, columns.state.in_(_MEMBER_STATES)
        )
        members = select(columns.subject).where(is_member)
        query = query.where(
            members.exists(), not_(members.where(not_(_build_place_condition(each.scope))).exists())
        )
    return list(connection.scalars(query))


def _build_place_condition(scope: SilenceScope) -> ColumnElement[bool]:
    """Return the condition that a member is at one of the places of a scope."""
    columns = alarm_condition.c
    # Never NULL, which would be neither true nor false.
    device, gateway = func.coalesce(columns.device, 0), func.coalesce(columns.gateway, 0)
    devices = [mac_to_int(to_mac(parse_device_id(each))) for each in scope.devices]
    gateways = [mac_to_int(Mac(each)) for each in scope.gateways]
    carried = (
        select(device_label.c.device)
        .join(label, label.c.id == device_label.c.label)
        .where(device_label.c.device.in_((device, gateway)), label.c.text.in_(sorted(scope.labels)))
    )
    return or_(device.in_(devices), device.in_(gateways), gateway.in_(gateways), exists(carried))


def _silence(connection: Connection, number: int, each: _ActiveSilence, now: int, *, is_new: bool) -> None:
    name = f"silence-{each.id}"
    _change(connection, number, silence=each.id, silenced_until=each.until, silenced_by=name)
    if is_new:
        detail = {"silence": name, "until": format_millis(each.until)}
        add_event(connection, number, AlarmEventKind.SILENCED, now=now, **detail)


def _change(connection: Connection, number: int, **values: object) -> None:
    statement = update(alarm).where(alarm.c.id == number)
    connection.execute(statement.values(version=alarm.c.version + 1, **values))
