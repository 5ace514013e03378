"""Checks of what is in the database: rejected reports, backups, and gateways that never connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from meshfleet.db.samples import DAY_MS
from meshfleet.db.tables import device, device_state, gateway, reject
from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.backup.records import load_backup_times
from meshfleet.service.byte_format import format_bytes
from meshfleet.service.doctor.finding import Finding, Level
from meshfleet.service.gateways.store import IS_UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_MAX_BACKUP_DAYS: Final = 8
_DAILY_MS: Final = 26 * 3_600_000
"""Maximum age of the newest backup, and usual interval below it, if backups are daily."""

_BACKUP_COMMAND: Final = "meshfleet backup DIRECTORY"
_SHOWN: Final = 3
"""Maximum number of reasons or gateways in one line."""

_MAX_REASON_LENGTH: Final = 80


def check_rejects(connection: Connection, *, now: int) -> Iterator[Finding]:
    """Check whether reports of the last 24 hours were rejected."""
    count = func.count().label("count")
    query = (
        select(reject.c.reason, count)
        .where(reject.c.time > now - DAY_MS)
        .group_by(reject.c.reason)
        .order_by(count.desc(), reject.c.reason)
    )
    found = connection.execute(query).all()
    if not found:
        yield Finding(Level.OK, "rejects", "none in the last 24 hours")
        return
    reasons = [f"{number} x {reason[:_MAX_REASON_LENGTH]}" for reason, number in found[:_SHOWN]]
    others = len(found) - len(reasons)
    text = f"{sum(number for _, number in found)} in the last 24 hours: {'; '.join(reasons)}"
    command = 'curl -H "Authorization: Bearer $TOKEN" URL/api/v1/rejects'
    yield Finding(Level.WARN, "rejects", f"{text}; and {others} other reasons" if others else text, command)


def check_backups(connection: Connection, *, now: int) -> Iterator[Finding]:
    """Check the age of the newest backup with samples, by the rule of the alert BackupOld."""
    times = load_backup_times(connection)
    if times.newest is None:
        text = "no backup with samples was written and checked yet"
        yield Finding(Level.WARN, "backup", text, _BACKUP_COMMAND)
        return
    age = now - times.newest
    text = f"{age // DAY_MS} days ago, {format_bytes(times.size)}, with samples"
    if times.interval is not None and times.interval < _DAILY_MS < age:
        yield Finding(Level.WARN, "backup", f"{text}; before, they were daily", _BACKUP_COMMAND)
    elif age > _MAX_BACKUP_DAYS * DAY_MS:
        yield Finding(Level.WARN, "backup", text, _BACKUP_COMMAND)
    else:
        yield Finding(Level.OK, "backup", text)


def check_gateways(connection: Connection) -> Iterator[Finding]:
    """Check whether all claimed gateways have connected or reported at least once."""
    query = (
        select(gateway.c.device)
        .join(device, device.c.id == gateway.c.device)
        .outerjoin(device_state, device_state.c.device == gateway.c.device)
        .where(IS_UNSEEN)
        .order_by(gateway.c.device)
    )
    unseen = connection.execute(query).scalars().all()
    claimed = connection.execute(select(func.count()).select_from(gateway)).scalar_one()
    if not unseen:
        yield Finding(Level.OK, "gateways", f"{claimed} claimed, all seen")
        return
    macs = " ".join(mac_from_int(number) for number in unseen[:_SHOWN])
    more = " …" if len(unseen) > _SHOWN else ""
    text = f"{len(unseen)} of {claimed} claimed, never seen: {macs}{more}"
    yield Finding(Level.WARN, "gateways", text, "meshfleet gateways list")
