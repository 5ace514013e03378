"""Watches of the service itself: its database, broker, lag, disk, certificate and backups."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.errors.readiness import ReadinessCode
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.alarms.wording import format_duration
from meshfleet.service.byte_format import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HOUR_MS: Final = 60 * _MINUTE_MS
_SUBJECT: Final = 0
"""Subject of all rules about the service."""
SCOPE: Final = "service"


def _is_open(sight: Sight) -> bool:
    """Return whether the alarm of the rule is open, so that it ends only at a better value."""
    condition = sight.known.get(_SUBJECT)
    return condition is not None and condition.is_member


# --- Database ---


def _find_nothing(_sight: Sight) -> None:
    """Find nothing: an evaluation needs the database. See `notifications.provisional`."""


_DATABASE_REASONS: Final[Mapping[str, str]] = {
    ReadinessCode.DISK_FULL: " because its disk is full",
    ReadinessCode.DATABASE_LOCKED: " because another process keeps it locked",
}


def _describe_database(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"The database can be used again after {alarm.length}."
    reason = _DATABASE_REASONS.get(str(alarm.facts.get("code")), "")
    return f"The database cannot be used{reason}. Reports are not stored, and no other alarm opens."


def _choose_database_action(facts: Mapping[str, Any]) -> AlarmAction:
    if facts.get("code") == ReadinessCode.DISK_FULL:
        return AlarmAction(code="free-disk", text="Free space on the disk of the database.", href="/")
    return AlarmAction(
        code="check-database",
        text="Check the database. The log of the service names the reason.",
        href="/",
    )


# --- Broker and ingest ---

_LAG_SECONDS: Final = RuleThreshold("waitSeconds", 30, 5, 3600)
"""Reports that wait for more than 30 s wait too long; they do not any more below a third of it."""


def _find_broker(sight: Sight) -> Iterable[Fault] | None:
    if sight.service is None:
        return None
    since = sight.service.broker_failing_since
    if since is None:
        return ()
    return (Fault(_SUBJECT, since, "no-reports", SCOPE, Severity.CRITICAL),)


def _describe_broker(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"The MQTT broker delivers reports again after {alarm.length}."
    return "The MQTT broker does not deliver reports. Nothing is known about gateways and devices."


def _choose_broker_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="check-broker",
        text="Check the MQTT broker. The log of the service names the reason.",
        href="/gateways",
    )


def _find_lag(sight: Sight) -> Iterable[Fault] | None:
    if sight.service is None:
        return None
    lag = sight.service.ingest_lag
    limit = int(sight.thresholds[_LAG_SECONDS.name] * _SECOND_MS)
    if lag <= (limit // 3 if _is_open(sight) else limit):
        return ()
    # Counted from now: while the database was away, reports had to wait.
    return (Fault(_SUBJECT, sight.now, "slow-commits", SCOPE, Severity.CRITICAL, {"lag": lag}),)


def _describe_lag(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"Reports are stored in time again after {alarm.length}."
    return f"Reports wait for {format_duration(int(alarm.facts['lag']))} until they are stored."


def _choose_lag_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="check-load", text="Check the disk and the load of this machine and of the database.", href="/"
    )


# --- Disk ---

_LOW_PERCENT: Final = RuleThreshold("freePercent", 10, 3, 50)
_VERY_LOW_PERCENT: Final = 3
_LOW_BYTES, _VERY_LOW_BYTES = 2 << 30, 500 << 20
_ENOUGH_PERCENT: Final = 2
"""Part of the disk that must be free in addition before the alarm ends."""
_SOON_MS: Final = 7 * DAY_MS
_NOT_SOON_MS: Final = 9 * DAY_MS


def _find_disk(sight: Sight) -> Iterable[Fault] | None:
    service = sight.service
    if service is None or service.disk_free is None or service.disk_total is None:
        return None
    free, total, is_open = service.disk_free, service.disk_total, _is_open(sight)
    extra = total * _ENOUGH_PERCENT / 100 if is_open else 0
    is_low = free < max(total * sight.thresholds[_LOW_PERCENT.name] / 100, _LOW_BYTES) + extra
    is_very_low = free < max(total * _VERY_LOW_PERCENT / 100, _VERY_LOW_BYTES)
    full_at = service.disk_full_at
    is_filling = full_at is not None and full_at - sight.now < (_NOT_SOON_MS if is_open else _SOON_MS)
    if not is_low and not is_filling:
        return ()
    facts = {"free": free, "total": total, "fullAt": full_at if is_filling else None}
    severity = Severity.CRITICAL if is_very_low else Severity.WARNING
    return (Fault(_SUBJECT, sight.now, "low-space", SCOPE, severity, facts),)


def _describe_disk(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"The disk of the data has enough free space again after {alarm.length}."
    free, total, full_at = (alarm.facts[name] for name in ("free", "total", "fullAt"))
    share = 100 * free // total if total else 0
    text = f"The disk of the data has {format_bytes(free)} of free space ({share} %)."
    if full_at is None:
        return text
    return f"{text} If it fills as in the last week, it is full on {_format_day(full_at)}."


def _choose_disk_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="free-disk", text="Free space, or keep samples for a shorter time (retention).", href="/"
    )


# --- Certificate ---

_CERTIFICATE_DAYS: Final = {Severity.INFO: 21, Severity.WARNING: 14, Severity.CRITICAL: 3}
"""Days before the end of a certificate at which its alarm opens and becomes worse. Programs such as certbot
renew it 30 days before: only what they have not done for nine days needs attention."""


def _find_certificate(sight: Sight) -> Iterable[Fault] | None:
    if sight.service is None:
        return None
    ends_at = sight.service.certificate_ends_at
    if ends_at is None:
        return ()
    reached = [each for each, days in _CERTIFICATE_DAYS.items() if ends_at - sight.now <= days * DAY_MS]
    if not reached:
        return ()
    since = ends_at - _CERTIFICATE_DAYS[Severity.INFO] * DAY_MS
    return (Fault(_SUBJECT, since, "ends-soon", SCOPE, max(reached), {"endsAt": ends_at}),)


def _describe_certificate(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return "The TLS certificate is replaced."
    # Also true when it has ended: the sentence of an alarm stays the same.
    return (
        f"The TLS certificate is valid until {_format_day(alarm.facts['endsAt'])}."
        " After that, gateways and browsers cannot connect."
    )


def _choose_certificate_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="renew-certificate",
        text="Replace the files of the certificate. They are loaded without a restart.",
        href="/",
    )


# --- Backups ---

_OLD_BACKUP_DAYS: Final = RuleThreshold("days", 8, 1, 365)
_SELECT_BACKUP: Final = "SELECT max(finished_at) FROM backup WHERE has_samples"


def _find_backup(sight: Sight) -> Iterable[Fault]:
    finished_at = bulk.query_rows(sight.connection, _SELECT_BACKUP, ())[0][0]
    allowed = int(sight.thresholds[_OLD_BACKUP_DAYS.name] * DAY_MS)
    if finished_at is None or sight.now - finished_at <= allowed:
        return ()  # who never made one makes them in another way, or needs none
    since = finished_at + allowed
    return (Fault(_SUBJECT, since, "no-backup", SCOPE, Severity.INFO, {"finishedAt": finished_at}),)


def _describe_backup(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return "A backup was made."
    return f"The last backup is of {_format_day(alarm.facts['finishedAt'])}."


def _choose_backup_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="make-backup", text="Make a backup (meshfleet backup), and check what makes them.", href="/"
    )


def _format_day(time: int) -> str:
    """Format a day of UTC, such as `3 December 2026`."""
    day = datetime.fromtimestamp(time / _SECOND_MS, UTC)
    return f"{day.day} {day:%B %Y}"


DATABASE: Final = Watch(
    Rule.DATABASE,
    interval=DAY_MS,
    wait=_MINUTE_MS,
    back=0,
    find=_find_nothing,
    describe=_describe_database,
    choose_action=_choose_database_action,
)
BROKER: Final = Watch(
    Rule.BROKER,
    interval=10_000,
    wait=_MINUTE_MS,
    back=_MINUTE_MS,
    find=_find_broker,
    describe=_describe_broker,
    choose_action=_choose_broker_action,
)
INGEST_LAG: Final = Watch(
    Rule.INGEST_LAG,
    interval=20_000,
    wait=5 * _MINUTE_MS,
    back=_MINUTE_MS,
    find=_find_lag,
    describe=_describe_lag,
    choose_action=_choose_lag_action,
    thresholds=(_LAG_SECONDS,),
)
DISK: Final = Watch(
    Rule.DISK,
    interval=30_000,
    wait=5 * _MINUTE_MS,
    back=0,
    find=_find_disk,
    describe=_describe_disk,
    choose_action=_choose_disk_action,
    thresholds=(_LOW_PERCENT,),
)
CERTIFICATE: Final = Watch(
    Rule.CERTIFICATE,
    interval=_HOUR_MS,
    wait=0,
    back=0,
    find=_find_certificate,
    describe=_describe_certificate,
    choose_action=_choose_certificate_action,
)
BACKUP_OLD: Final = Watch(
    Rule.BACKUP_OLD,
    interval=_HOUR_MS,
    wait=0,
    back=0,
    find=_find_backup,
    describe=_describe_backup,
    choose_action=_choose_backup_action,
    thresholds=(_OLD_BACKUP_DAYS,),
)
