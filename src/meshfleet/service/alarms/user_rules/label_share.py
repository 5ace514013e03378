"""Share of the devices of a label that are offline, judged like a value that is measured now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules.state_machine import Step

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.service.alarms.user_rules.tracker import WatchedRule

_INTERVAL_MS: Final = 60_000
_MS_PER_DEVICE: Final = 1
"""Time between two looks at a label: a minute, or more if it has more than 60,000 devices."""
SUBJECT: Final = 0
"""Subject of the conditions of rules for labels."""

SELECT_SHARE: Final = """
    SELECT count(*), coalesce(sum(CASE WHEN device.connected THEN 0 ELSE 1 END), 0)
    FROM device_label JOIN device ON device.id = device_label.device
    WHERE device_label.label = (SELECT id FROM label WHERE text = ?)
"""


class LabelShare(NamedTuple):
    """Number of devices with a label, and how many of them are offline."""

    total: int
    offline: int


def is_look_due(rule: WatchedRule, now: int) -> bool:
    """Return whether the devices of the label of a rule must be counted again."""
    if rule.rule.kind is not Rule.LABEL_OFFLINE:
        return False
    total = 0 if rule.share is None else rule.share.total
    pause = max(_INTERVAL_MS, total * _MS_PER_DEVICE)
    return rule.looked_at is None or not 0 <= now - rule.looked_at < pause


def count_devices(connection: Connection, label: str) -> LabelShare:
    """Count the devices with a label, through its index."""
    total, offline = bulk.query_rows(connection, SELECT_SHARE, (label,))[0]
    return LabelShare(total, int(offline))


def judge_share(rule: WatchedRule, share: LabelShare, now: int) -> None:
    """Judge the share of a label. Nothing is known of a label without devices."""
    has_changed = share != rule.share
    rule.looked_at, rule.share = now, share
    if not share.total:
        return
    rule.unverified.clear()
    percent = 100 * share.offline / share.total
    is_bad = bool(rule.threshold.is_bad(percent, rule.judgments.get(SUBJECT)))
    rule.step(SUBJECT, Step(now, percent, is_bad))
    if has_changed and SUBJECT in rule.judgments:
        rule.changes[SUBJECT] = None  # the sentence of the alarm has other numbers
