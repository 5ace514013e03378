"""Times on the wire: written in one spelling, read in all of ISO 8601, always UTC in whole milliseconds.

The protocol has no finer time than the millisecond, so what is finer is cut when it is read: two reports of
one sample, one written with three digits and one with seven, are the same sample (id-18 to id-23).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedTime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# 2020-11-04T10:07:20.585Z, 2020-W45-3T10:07, 2020-309T10
_EXTENDED = (
    r"(?P<year>\d{4})-(?:(?P<month>\d\d)-(?P<day>\d\d)|W(?P<week>\d\d)-(?P<weekday>\d)|(?P<ordinal>\d{3}))"
    r"[Tt ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d))?)?"
)
# 20201104T100720.585Z, 2020W453T1007, 2020309T10
_BASIC = (
    r"(?P<year>\d{4})(?:(?P<month>\d\d)(?P<day>\d\d)|W(?P<week>\d\d)(?P<weekday>\d)|(?P<ordinal>\d{3}))"
    r"[Tt ](?P<hour>\d\d)(?:(?P<minute>\d\d)(?P<second>\d\d)?)?"
)
_END = r"(?:[.,](?P<fraction>\d+))?(?P<zone>[Zz]|[+\u2212-]\d\d(?::?\d\d)?)?"
_PATTERNS = tuple(re.compile(form + _END, re.ASCII) for form in (_EXTENDED, _BASIC))

# More digits than anybody writes, and few enough to calculate with: a hostile fraction may have thousands.
_FRACTION_DIGITS = 100


def format_time(time: datetime) -> str:
    """Spell a time as we always do: UTC, exactly three fractional digits, `Z`."""
    if time.tzinfo is None:
        raise ValueError("a time without an offset: Python would take it for the time of this machine")
    try:
        return time.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    except OverflowError as exc:
        raise MalformedTime("time", "lies outside of the calendar") from exc


def parse_time(text: str, field: str = "time") -> datetime:
    """Read any date with time of ISO 8601; without an offset it is UTC."""
    found = next(filter(None, (pattern.fullmatch(text) for pattern in _PATTERNS)), None)
    if found is None:
        raise MalformedTime(field, f"{quote_input(text)} is not an ISO 8601 date and time")
    try:
        return _date(found) + _time_of_day(found) - _offset(found["zone"])
    except (ValueError, OverflowError) as exc:
        raise MalformedTime(field, f"{quote_input(text)} is not a time that exists") from exc


def parse_millis(text: str, field: str = "time") -> int:
    """The same in milliseconds since 1970."""
    return to_millis(parse_time(text, field))


def to_millis(time: datetime) -> int:
    """Milliseconds since 1970, the form in which times are stored and compared."""
    return (time - _EPOCH) // _MILLISECOND


def from_millis(millis: int) -> datetime:
    """Turn milliseconds since 1970 into a time."""
    return _EPOCH + millis * _MILLISECOND


def format_millis(millis: int) -> str:
    """Spell a time that is stored as we always do."""
    return format_time(from_millis(millis))


def _date(found: re.Match[str]) -> datetime:
    year = int(found["year"])
    if found["week"]:
        day = datetime.fromisocalendar(year, int(found["week"]), int(found["weekday"]))
    elif found["ordinal"]:
        day = datetime.fromordinal(date(year, 1, 1).toordinal() + int(found["ordinal"]) - 1)
        if day.year != year:
            raise ValueError
    else:
        day = datetime(year, int(found["month"]), int(found["day"]))  # noqa: DTZ001 # UTC follows
    return day.replace(tzinfo=UTC)


def _time_of_day(found: re.Match[str]) -> timedelta:
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    finest = next(
        unit for part, unit in (("second", 1000), ("minute", 60_000), ("hour", 3_600_000)) if found[part]
    )
    digits = (found["fraction"] or "0")[:_FRACTION_DIGITS]
    millis = int(digits) * finest // 10 ** len(digits)
    midnight = (hour, minute, second, millis) == (24, 0, 0, 0)
    leap_second = (minute, second) == (59, 60)
    if (hour > 23 and not midnight) or minute > 59 or (second > 59 and not leap_second):  # noqa: PLR2004 # a clock
        raise ValueError
    return timedelta(hours=hour, minutes=minute, seconds=second, milliseconds=millis)


def _offset(zone: str | None) -> timedelta:
    if zone is None or zone in "Zz":
        return timedelta()
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:  # noqa: PLR2004 # a clock
        raise ValueError
    size = timedelta(hours=hours, minutes=minutes)
    return size if zone[0] == "+" else -size
