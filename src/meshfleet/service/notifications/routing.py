"""Routes: which channels are told of an alarm, and when."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

from meshfleet.service.alarms.rules import Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshfleet.rest.channels import AlarmRoute, RouteHours

_SECOND_MS: Final = 1000
_FIRST_WAIT_MS: Final = 30 * _SECOND_MS
_CRITICAL_WAIT_MS: Final = 10 * _SECOND_MS
"""Time for which the first message to people is held, because faults rarely come alone."""
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Hold(StrEnum):
    """Reason for which a message to people is held."""

    GROUP = "group"
    """Other alarms may follow, and are told in the same message."""
    QUIET = "quiet"
    """Quiet hours."""
    DIGEST = "digest"


class RoutedAlarm(NamedTuple):
    """Properties of an alarm by which routes select it."""

    rule: str
    severity: Severity
    gateway: str | None
    labels: frozenset[str]


class Timing(NamedTuple):
    """Time at which people are told, and what is waited for until then."""

    due: int
    hold: Hold


def find_routes(routes: Iterable[AlarmRoute], found: RoutedAlarm) -> dict[str, AlarmRoute]:
    """Return the channels that are told of an alarm, each with the first route that leads to it."""
    channels: dict[str, AlarmRoute] = {}
    for route in routes:
        if not _matches(route, found):
            continue
        for each in route.channels:
            channels.setdefault(each, route)
        if not route.continues:
            break
    return channels


def _matches(route: AlarmRoute, found: RoutedAlarm) -> bool:
    match = route.match
    return (
        found.severity >= Severity[match.severity_at_least.name]
        and (not match.rules or found.rule in match.rules)
        and (not match.gateways or found.gateway in match.gateways)
        and (not match.labels or not found.labels.isdisjoint(match.labels))
    )


def compute_timing(
    route: AlarmRoute, severity: Severity, now: int, *, last_sent: int | None, is_end: bool
) -> Timing | None:
    """Return when people are told of an alarm; None if they are not told.

    `last_sent` is the time of the last message of the channel. `is_end` says that the alarm is over: that is
    told at once. Quiet hours never hold a critical alarm.
    """
    if route.digest is not None:
        return Timing(_find_next(route.digest, _DAYS, route.time_zone, now), Hold.DIGEST)
    hours = route.hours
    if (
        hours is not None
        and severity is not Severity.CRITICAL
        and not _is_within(hours, route.time_zone, now)
    ):
        if route.quiet == "drop":
            return None
        if route.quiet == "hold":
            return Timing(_find_next(hours.start, hours.days, route.time_zone, now), Hold.QUIET)
    if is_end:
        return Timing(now, Hold.GROUP)
    due = now + (_CRITICAL_WAIT_MS if severity is Severity.CRITICAL else _FIRST_WAIT_MS)
    if last_sent is not None:
        due = max(due, last_sent + route.group_seconds * _SECOND_MS)
    return Timing(due, Hold.GROUP)


def _is_within(hours: RouteHours, zone: str, now: int) -> bool:
    """Return whether a time is within hours, which may end on the day after they began."""
    local = _to_local(now, zone)
    start, end = time.fromisoformat(hours.start), time.fromisoformat(hours.end)
    for days_ago in (0, 1):
        day = (local - timedelta(days=days_ago)).date()
        if _DAYS[day.weekday()] not in hours.days:
            continue
        begin = datetime.combine(day, start, local.tzinfo)
        until = datetime.combine(day if end > start else day + timedelta(days=1), end, local.tzinfo)
        if begin.timestamp() <= now / _SECOND_MS < until.timestamp():
            return True
    return False


def _find_next(clock_time: str, days: Sequence[str], zone: str, now: int) -> int:
    """Return the next time at which a clock in a time zone shows a time of day, on one of some weekdays."""
    local = _to_local(now, zone)
    for days_ahead in range(8):
        day = local.date() + timedelta(days=days_ahead)
        moment = datetime.combine(day, time.fromisoformat(clock_time), local.tzinfo)
        at = int(moment.timestamp() * _SECOND_MS)
        if at > now and _DAYS[day.weekday()] in days:
            return at
    raise AssertionError("a week has each weekday")


def _to_local(now: int, zone: str) -> datetime:
    return datetime.fromtimestamp(now / _SECOND_MS, ZoneInfo(zone))
