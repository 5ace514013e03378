"""Silences: maintenance windows that users create, change and delete, and how REST shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import alarm, silence
from meshfleet.errors import Conflict, Fault, InvalidRequest, NotFound, quote_input
from meshfleet.errors.protocol import MalformedInput, MalformedText
from meshfleet.protocol.times import format_millis, format_optional_millis, parse_millis
from meshfleet.rest.alarms import AlarmRule
from meshfleet.rest.inputs import parse_label
from meshfleet.rest.silences import (
    MAX_SILENCE_DAYS,
    MAX_SILENCES,
    NewSilence,
    Repetition,
    Silence,
    SilenceList,
    SilenceScopeView,
    SilenceState,
)
from meshfleet.service.alarms.rules import DAY_MS
from meshfleet.service.alarms.silence_windows import Occurrence, SilenceTimes
from meshfleet.service.audit import log as audit_log
from meshfleet.service.time_zones import list_time_zones

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor

_MIN_MS: Final = 60_000
_MAX_LENGTHS: Final = {Repetition.DAILY: DAY_MS, Repetition.WEEKLY: 7 * DAY_MS}
_KEPT_MS: Final = 30 * DAY_MS
"""Time for which silences that are over are listed."""

_decode = msgspec.json.Decoder(NewSilence).decode


def create_silence(connection: Connection, new: NewSilence, *, by: Actor, now: int) -> Silence:
    """Create a silence. Raise `InvalidRequest` that names all wrong fields, or `Conflict` if many exist."""
    new, times = _parse(new, now)
    connection.execute(delete(silence).where(silence.c.ends_at < now - _KEPT_MS))
    if connection.execute(select(func.count()).select_from(silence)).scalar_one() >= MAX_SILENCES:
        raise Conflict(f"there are {MAX_SILENCES} silences, which is the maximum: delete one first")
    values = _to_values(new, times, now) | {"created_at": now, "created_by": by.display_name, "version": 1}
    statement = insert(silence).values(values).returning(silence.c.id)
    number: int = connection.execute(statement).scalar_one()
    return _record(connection, number, "silence.create", by=by, now=now)


def replace_silence(connection: Connection, number: int, new: NewSilence, *, by: Actor, now: int) -> Silence:
    """Replace a silence. Alarms that it does not silence any more are told. Raise as `create_silence`."""
    _lock(connection, number)
    new, times = _parse(new, now)
    values = _to_values(new, times, now) | {"version": silence.c.version + 1}
    connection.execute(update(silence).where(silence.c.id == number).values(values))
    return _record(connection, number, "silence.change", by=by, now=now)


def delete_silence(connection: Connection, number: int, *, by: Actor, now: int) -> None:
    """Delete a silence. Alarms that it silences are told that they are still open."""
    _lock(connection, number)
    _record(connection, number, "silence.delete", by=by, now=now)
    connection.execute(update(alarm).where(alarm.c.silence == number).values(silenced_until=now))
    connection.execute(delete(silence).where(silence.c.id == number))


def load_silence(connection: Connection, number: int, *, now: int) -> Silence:
    """Load a silence. Raise `NotFound` if there is none with this number."""
    row = connection.execute(select(silence).where(silence.c.id == number)).first()
    if row is None:
        raise NotFound(f"silence-{number} does not exist")
    return _build(row, _count_alarms(connection, now), now)


def list_silences(connection: Connection, *, now: int) -> SilenceList:
    """List all silences by their beginning."""
    rows = connection.execute(select(silence).order_by(silence.c.starts_at, silence.c.id)).all()
    counts = _count_alarms(connection, now)
    return SilenceList(items=[_build(row, counts, now) for row in rows])


def load_times(body: NewSilence) -> SilenceTimes:
    """Return the times of a stored silence."""
    return SilenceTimes(
        Occurrence(parse_millis(body.starts_at), parse_millis(body.until)),
        body.repeat,
        None if body.repeat_until is None else parse_millis(body.repeat_until),
        body.time_zone,
    )


def decode_silence(text: str) -> NewSilence:
    """Return a silence as it is stored."""
    return _decode(text)


def _lock(connection: Connection, number: int) -> None:
    query = select(silence.c.id).where(silence.c.id == number).with_for_update()
    if connection.execute(query).first() is None:
        raise NotFound(f"silence-{number} does not exist")


def _record(connection: Connection, number: int, action: str, *, by: Actor, now: int) -> Silence:
    """Write a row of the audit log about a silence. Return the silence."""
    shown = load_silence(connection, number, now=now)
    detail = {"from": shown.starts_at, "until": shown.repeat_until or shown.until, "note": shown.note}
    audit_log.record_change(connection, by, action, shown.id, now=now, **detail)
    return shown


def _to_values(new: NewSilence, times: SilenceTimes, now: int) -> dict[str, Any]:
    """Return the columns of a silence. All alarms are looked at soon."""
    return {
        "body": msgspec.json.encode(new).decode(),
        "starts_at": times.first.start,
        "ends_at": times.ends_at,
        "check_at": now,
    }


def _count_alarms(connection: Connection, now: int) -> dict[int, int]:
    columns = alarm.c
    query = select(columns.silence, func.count()).where(
        columns.silence.is_not(None), columns.silenced_until > now
    )
    return dict(map(tuple, connection.execute(query.group_by(columns.silence))))


def _build(row: Row[Any], counts: dict[int, int], now: int) -> Silence:
    body = decode_silence(row.body)
    times = load_times(body)
    active, next_start = times.find_active(now), times.find_next_start(now)
    state = SilenceState.OVER if next_start is None else SilenceState.PENDING
    return Silence(
        id=f"silence-{row.id}",
        scope=SilenceScopeView(**msgspec.structs.asdict(body.scope)),
        starts_at=body.starts_at,
        until=body.until,
        repeat=body.repeat,
        repeat_until=body.repeat_until,
        time_zone=body.time_zone,
        note=body.note,
        state=state if active is None else SilenceState.ACTIVE,
        active_until=format_optional_millis(None if active is None else active.end),
        next_from=format_optional_millis(next_start),
        alarms=counts.get(row.id, 0),
        created_at=format_millis(row.created_at),
        created_by=row.created_by,
        version=row.version,
    )


# Requests.


def _parse(new: NewSilence, now: int) -> tuple[NewSilence, SilenceTimes]:
    """Return a silence with normalized texts, and its times. Raise `InvalidRequest`."""
    faults: list[Fault] = []
    start, end, repeat_until = (
        _read_time(text, name, faults)
        for text, name in ((new.starts_at, "from"), (new.until, "until"), (new.repeat_until, "repeatUntil"))
    )
    if new.time_zone not in list_time_zones():
        reason = f"{quote_input(new.time_zone)} is not a time zone such as Europe/Zurich"
        faults.append(Fault("timeZone", reason))
    faults += _find_scope_faults(new)
    labels = [_read_label(each, number, faults) for number, each in enumerate(new.scope.labels)]
    if not faults and start is not None and end is not None:
        faults += _find_time_faults(new.repeat, start, end, repeat_until, now)
    if faults or start is None or end is None:
        raise InvalidRequest(faults)
    parsed = msgspec.structs.replace(
        new,
        scope=msgspec.structs.replace(new.scope, labels=labels),
        starts_at=format_millis(start),
        until=format_millis(end),
        repeat_until=format_optional_millis(repeat_until),
        note=new.note.strip(),
    )
    return parsed, load_times(parsed)


def _read_time(text: str | None, name: str, faults: list[Fault]) -> int | None:
    if text is None:
        return None
    try:
        return parse_millis(text)
    except MalformedInput as exc:
        faults.append(Fault(name, exc.reason))
        return None


def _read_label(text: str, number: int, faults: list[Fault]) -> str:
    try:
        return parse_label(text)
    except MalformedText as exc:
        faults.append(Fault(f"scope.labels[{number}]", exc.reason))
        return text


def _find_scope_faults(new: NewSilence) -> Iterable[Fault]:
    scope = new.scope
    if not (scope.devices or scope.gateways or scope.labels or scope.rules):
        yield Fault("scope", "must name devices, gateways, labels or rules: not all alarms can be silenced")
    known = [str(each) for each in AlarmRule]
    for number, each in enumerate(scope.rules):
        if each not in known:
            yield Fault(f"scope.rules[{number}]", f"{quote_input(each)} is not one of {', '.join(known)}")


def _find_time_faults(
    repeat: Repetition | None, start: int, end: int, repeat_until: int | None, now: int
) -> Iterable[Fault]:
    longest = MAX_SILENCE_DAYS * DAY_MS if repeat is None else _MAX_LENGTHS[repeat]
    last = end if repeat_until is None else repeat_until
    if end - start < _MIN_MS:
        yield Fault("until", "must be at least a minute after `from`")
    elif end - start > longest:
        yield Fault("until", f"must be at most {longest // DAY_MS} days after `from`")
    elif last <= now:
        yield Fault("until" if repeat_until is None else "repeatUntil", "must be in the future")
    if repeat is None and repeat_until is not None:
        yield Fault("repeatUntil", "is only for silences that repeat themselves")
    if repeat is not None and repeat_until is None:
        yield Fault("repeatUntil", "is required for a silence that repeats itself")
    if repeat_until is not None and not end <= repeat_until <= start + MAX_SILENCE_DAYS * DAY_MS:
        yield Fault("repeatUntil", f"must be after `until`, and at most {MAX_SILENCE_DAYS} days after `from`")
