"""Tables of alarms: rules, their conditions, alarms with their events, and the progress of evaluation."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    text,
)

from meshfleet.db.tables.columns import RowId, metadata

alarm_rule = Table(
    "alarm_rule",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("builtin", Text, unique=True),
    Column("kind", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("body", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("applied_version", Integer, nullable=False),
    Column("deleted", Boolean, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("updated_by", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""Rules of users, and built-in rules that were changed. `body` is JSON.

`builtin` is the name of a built-in rule, NULL for a rule of a user. `applied_version` is the version with
which the rules were evaluated last: if it is another one, the conditions of the rule end. The row of a rule
that is `deleted` stays until they have ended.
"""

alarm_condition = Table(
    "alarm_condition",
    metadata,
    Column("rule", Text, primary_key=True),
    Column("subject", BigInteger, primary_key=True, autoincrement=False),
    Column("device", BigInteger, ForeignKey("device.id", ondelete="CASCADE"), index=True),
    Column("gateway", BigInteger, index=True),
    Column("state", Text, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("due", BigInteger, index=True),
    Column("cause", Text, nullable=False),
    Column("alarm", BigInteger, index=True),
    Column("opens", Integer, nullable=False),
    Column("remembered_until", BigInteger),
    Index(
        "ix_alarm_condition_parked",
        "subject",
        sqlite_where=text("cause = 'parked'"),
        postgresql_where=text("cause = 'parked'"),
    ),
)
"""Conditions that rules have found, now or in the last day: one row for each rule and subject.

`rule` is the name of a built-in rule, or kind and row id of a rule of a user, such as `measurement/7`.
`subject` is a device, a gateway, or 0 for the whole fleet. `device` is the device or gateway of which the
condition is, so that the row is deleted together with it; `gateway` is the gateway by which alarms of devices
are grouped. `since` is the time at which the present state of the subject began, `due` the time of the next
step by time alone; NULL if only a report can change the state. `opens` counts how often the condition became
active, until `remembered_until`, a day after it was well again.
"""

alarm = Table(
    "alarm",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("key", Text, nullable=False),
    Column("rule", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("severity", SmallInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("gateway", BigInteger),
    Column("since", BigInteger, nullable=False),
    Column("opened_at", BigInteger, nullable=False),
    Column("cleared_at", BigInteger),
    Column("members", Integer, nullable=False),
    Column("most_members", Integer, nullable=False),
    Column("affected", Integer, nullable=False),
    Column("most_affected", Integer, nullable=False),
    Column("back", Integer),
    Column("end_reason", Text),
    Column("recovering_since", BigInteger),
    Column("acknowledged_by", Text),
    Column("acknowledged_at", BigInteger),
    Column("new_members", Integer, nullable=False),
    Column("reopened", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("announced_version", Integer, nullable=False, server_default="0"),
    Column("silenced_until", BigInteger, index=True),
    Column("silenced_by", Text),
    Column("facts", Text),
    Column("silence", BigInteger),
    Index(
        "ix_alarm_open_key",
        "key",
        unique=True,
        sqlite_where=text("state <> 'cleared'"),
        postgresql_where=text("state <> 'cleared'"),
    ),
    Index(
        "ix_alarm_not_announced",
        "id",
        sqlite_where=text("announced_version <> version"),
        postgresql_where=text("announced_version <> version"),
    ),
    Index(
        "ix_alarm_silence",
        "silence",
        sqlite_where=text("silence IS NOT NULL"),
        postgresql_where=text("silence IS NOT NULL"),
    ),
    Index(None, "key", "cleared_at"),
    Index(None, "state", "severity", "id"),
    Index(None, "cleared_at"),
    sqlite_autoincrement=True,
)
"""Alarms: one cause each, with the conditions that the cause explains as members.

No two alarms that are not cleared have the same `key`. `since` is when the fault began, `opened_at` when it
had lasted long enough. `affected` counts the devices that are cut off now, and `back` those that reported
again when the alarm was cleared; `most_members` and `most_affected` are the most there were.
`end_reason` says why an alarm is over.
`recovering_since` is set while all members are well again and are only watched. `new_members` counts members
that joined after the acknowledgment. `announced_version` is the version for which its messages were
written. Until `silenced_until` nothing is sent; `silence` is the maintenance window that silences it. `facts`
is JSON with numbers and names for the sentence that the table does not have.
"""

alarm_event = Table(
    "alarm_event",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("alarm", BigInteger, ForeignKey("alarm.id", ondelete="CASCADE"), nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("actor", Text),
    Column("detail", Text, nullable=False),
    Index(None, "alarm", "id"),
    Index(
        "ix_alarm_event_news",
        "id",
        sqlite_where=text("kind IN ('opened', 'reopened', 'severity', 'cleared')"),
        postgresql_where=text("kind IN ('opened', 'reopened', 'severity', 'cleared')"),
    ),
    Index(
        "ix_alarm_event_opened",
        "time",
        sqlite_where=text("kind IN ('opened', 'reopened')"),
        postgresql_where=text("kind IN ('opened', 'reopened')"),
    ),
    sqlite_autoincrement=True,
)
"""Events of alarms, such as their opening and their acknowledgment. `detail` is JSON."""

silence = Table(
    "silence",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("body", Text, nullable=False),
    Column("starts_at", BigInteger, nullable=False),
    Column("ends_at", BigInteger, nullable=False),
    Column("check_at", BigInteger, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("version", Integer, nullable=False),
    sqlite_autoincrement=True,
)
"""Silences, which are maintenance windows: alarms whose members all are in their scope are not told.

`body` is the silence as it was requested over REST. It begins at `starts_at`, and is over for good at
`ends_at`. At `check_at` all alarms are looked at, because it begins or has changed; NULL if it does not begin
again.
"""

alarm_seen = Table(
    "alarm_seen",
    metadata,
    Column("username", Text, ForeignKey("account.username", ondelete="CASCADE"), primary_key=True),
    Column("event", BigInteger, nullable=False),
)
"""Last event of alarms that each user has seen, by its row id."""

alarm_progress = Table(
    "alarm_progress",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("evaluated_at", BigInteger, nullable=False),
    Column("quiet_until", BigInteger, nullable=False),
)
"""One row: how far the rules have read the history of connections (its row id), and when.

Before `quiet_until` no alarm opens or is cleared, because the service has just been away.
"""
