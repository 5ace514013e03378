"""Database tables, with equal columns on SQLite and PostgreSQL.

Times are Unix times in milliseconds. The id of a gateway or device is its MAC as a number, which sorts like
the MAC, is small in every index, and needs no mapping table. Strings by which rows are sorted are compared by
code point, so that both databases return the same order.
"""

from meshfleet.db.tables.accounts import account, api_key, audit, secret, session
from meshfleet.db.tables.alarms import (
    alarm,
    alarm_condition,
    alarm_event,
    alarm_progress,
    alarm_rule,
    alarm_seen,
    silence,
)
from meshfleet.db.tables.availability import availability, fleet_count
from meshfleet.db.tables.broker import (
    broker_message,
    broker_owner,
    broker_received,
    broker_retained,
    broker_session,
    broker_subscription,
)
from meshfleet.db.tables.columns import metadata
from meshfleet.db.tables.devices import connectivity, device, device_label, device_state, gateway, label
from meshfleet.db.tables.firmware import firmware, image_chunk
from meshfleet.db.tables.integrations import sample_log, sample_reader
from meshfleet.db.tables.jobs import (
    active_condition,
    evidence,
    execution,
    job,
    job_draft,
    job_engine,
    job_outbox,
    pace,
    tally,
    transition,
)
from meshfleet.db.tables.notifications import channel, channel_alarm, notification, notification_route
from meshfleet.db.tables.operations import backup, storage_size
from meshfleet.db.tables.positions import anchor_reading, calibration, survey_point, zone_visit
from meshfleet.db.tables.reports import foreign_name, hole, reading_journal, reject, series
from meshfleet.db.tables.requests import request
from meshfleet.db.tables.sites import floor, place, plan, plan_chunk, site, zone
from meshfleet.db.tables.topology import parent_change

__all__ = [
    "account",
    "active_condition",
    "alarm",
    "alarm_condition",
    "alarm_event",
    "alarm_progress",
    "alarm_rule",
    "alarm_seen",
    "anchor_reading",
    "api_key",
    "audit",
    "availability",
    "backup",
    "broker_message",
    "broker_owner",
    "broker_received",
    "broker_retained",
    "broker_session",
    "broker_subscription",
    "calibration",
    "channel",
    "channel_alarm",
    "connectivity",
    "device",
    "device_label",
    "device_state",
    "evidence",
    "execution",
    "firmware",
    "fleet_count",
    "floor",
    "foreign_name",
    "gateway",
    "hole",
    "image_chunk",
    "job",
    "job_draft",
    "job_engine",
    "job_outbox",
    "label",
    "metadata",
    "notification",
    "notification_route",
    "pace",
    "parent_change",
    "place",
    "plan",
    "plan_chunk",
    "reading_journal",
    "reject",
    "request",
    "sample_log",
    "sample_reader",
    "secret",
    "series",
    "session",
    "silence",
    "site",
    "storage_size",
    "survey_point",
    "tally",
    "transition",
    "zone",
    "zone_visit",
]
