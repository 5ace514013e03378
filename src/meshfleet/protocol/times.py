"""Parsing and formatting of times in messages. Times are UTC in whole milliseconds (id-18 to id-23).

Times are written in one format and accepted in all formats of ISO 8601. Digits beyond milliseconds are cut
off: otherwise two reports of one sample, with three and with seven digits, would be different samples.
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

# Only this many fractional digits are read: more than needed, and a hostile text may have thousands.
_FRACTION_DIGITS = 100


def format_time(time: datetime) -> str:
    """Format a time as UTC with exactly three fractional digits and `Z`."""
    if time.tzinfo is None:
        raise ValueError("the time has no UTC offset: Python would interpret it as local time")
    try:
        return time.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    except OverflowError as exc:
        raise MalformedTime("time", "is outside the years 1 to 9999") from exc


def parse_time(text: str, field: str = "time") -> datetime:
    """Parse any ISO 8601 date with time. A time without a UTC offset is taken as UTC."""
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _PATTERNS)), None)
    if match is None:
        raise MalformedTime(field, f"{quote_input(text)} is not an ISO 8601 date and time")
    try:
        return _parse_date(match) + _parse_time_of_day(match) - _parse_offset(match["zone"])
    except (ValueError, OverflowError) as exc:
        raise MalformedTime(field, f"{quote_input(text)} is not a valid date and time") from exc


def parse_millis(text: str, field: str = "time") -> int:
    """Parse any ISO 8601 date with time. Return the Unix time in milliseconds."""
    return to_millis(parse_time(text, field))


def to_millis(time: datetime) -> int:
    """Convert a time to Unix time in milliseconds, as stored in the database."""
    return (time - _EPOCH) // _MILLISECOND


def from_millis(millis: int) -> datetime:
    """Convert Unix time in milliseconds to a UTC datetime."""
    return _EPOCH + millis * _MILLISECOND


def format_millis(millis: int) -> str:
    """Format Unix time in milliseconds as an ISO 8601 string in UTC, like `format_time`."""
    return format_time(from_millis(millis))


def format_optional_millis(millis: int | None) -> str | None:
    """Format Unix time in milliseconds as an ISO 8601 string in UTC. Return None for None."""
    return None if millis is None else format_millis(millis)


def _parse_date(match: re.Match[str]) -> datetime:
    year = int(match["year"])
    if match["week"]:
        day = datetime.fromisocalendar(year, int(match["week"]), int(match["weekday"]))
    elif match["ordinal"]:
        day = datetime.fromordinal(date(year, 1, 1).toordinal() + int(match["ordinal"]) - 1)
        if day.year != year:
            raise ValueError
    else:
        day = datetime(year, int(match["month"]), int(match["day"]))  # noqa: DTZ001 # UTC follows
    return day.replace(tzinfo=UTC)


def _parse_time_of_day(match: re.Match[str]) -> timedelta:
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    unit_millis = next(
        millis_per_unit
        for part, millis_per_unit in (("second", 1000), ("minute", 60_000), ("hour", 3_600_000))
        if match[part]
    )
    digits = (match["fraction"] or "0")[:_FRACTION_DIGITS]
    millis = int(digits) * unit_millis // 10 ** len(digits)
    is_midnight = (hour, minute, second, millis) == (24, 0, 0, 0)
    is_leap_second = (minute, second) == (59, 60)
    if (hour > 23 and not is_midnight) or minute > 59 or (second > 59 and not is_leap_second):  # noqa: PLR2004 # units of a clock
        raise ValueError
    return timedelta(hours=hour, minutes=minute, seconds=second, milliseconds=millis)


def _parse_offset(zone: str | None) -> timedelta:
    if zone is None or zone in "Zz":
        return timedelta()
    hours, minutes = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
    if hours > 23 or minutes > 59:  # noqa: PLR2004 # units of a clock
        raise ValueError
    offset = timedelta(hours=hours, minutes=minutes)
    return offset if zone[0] == "+" else -offset
