"""Values that are missing although their devices are connected: time judges them, not samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.user_rules.state_machine import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.alarms.user_rules.tracker import WatchedRule

_INTERVAL_MS: Final = 30_000
_MAX_DEVICES: Final = 2_000
"""Maximum number of devices that one look asks the registry about."""

_SELECT_CONNECTED: Final = "SELECT id, connected_at FROM device WHERE connected AND id IN numbers"


def is_look_due(rule: WatchedRule, now: int) -> bool:
    """Return whether a rule must look for missing values again."""
    is_due = rule.looked_at is None or not 0 <= now - rule.looked_at < _INTERVAL_MS
    return rule.rule.is_for_silence and is_due


def find_silent_devices(rule: WatchedRule, now: int) -> list[int]:
    """Return devices without a value for too long that belong to no alarm yet, at most 2,000."""
    silent = []
    for device, since in rule.expected_since.items():
        judgment = rule.judgments.get(device)
        if now - max(since, rule.heard.get(device, 0)) < rule.longest_silence:
            continue
        if judgment is None or judgment.state is not ConditionState.ACTIVE:
            silent.append(device)
    return silent[:_MAX_DEVICES]


def load_connected(connection: Connection, devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return those of some devices that are connected, and since when."""
    return [(row[0], row[1]) for row in bulk.query_in(connection, _SELECT_CONNECTED, devices)]


def judge_silence(rule: WatchedRule, connected: Iterable[tuple[int, int]], now: int) -> None:
    """Judge silent devices, and those that were silent.

    Nothing is known of a device that is not connected, and its silence counts from its return on.
    """
    rule.looked_at = now
    rule.unverified.clear()
    for device in list(rule.judgments):
        heard_at = rule.heard.get(device)
        if heard_at is not None and now - heard_at < rule.longest_silence:
            rule.step(device, Step(now, None, is_bad=False))
    for device, connected_at in connected:
        if now - connected_at >= rule.longest_silence and rule.has_room(device):
            rule.step(device, Step(now, None, is_bad=True))
