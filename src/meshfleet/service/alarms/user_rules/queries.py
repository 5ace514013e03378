"""Queries of rules of users: devices that they are for, their samples, and what is stored of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.db.samples import SampleQuery
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import DAY_MS
from meshfleet.service.alarms.user_rules.checks import MAX_SCOPE_DEVICES, SELECT_LABELED, SELECT_OF_MODELS
from meshfleet.service.alarms.user_rules.state_machine import Judgment
from meshfleet.service.alarms.user_rules.tracker import VALUE_KINDS, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.alarms.user_rules.definition import UserRule

HISTORY_MS: Final = 7 * DAY_MS
"""Age of samples that are looked at."""
_MAX_AHEAD_MS: Final = 600_000
"""Time by which a sample may be ahead of the clock of the service."""

_SELECT_STORED: Final = """
    SELECT subject, state, since, opens, remembered_until FROM alarm_condition WHERE rule = ?
"""
_SELECT_ACTIONS: Final = "SELECT DISTINCT action FROM audit WHERE id > ? AND id <= ?"
_SELECT_NEWEST: Final = "SELECT coalesce(max(id), 0) FROM audit"
_SCOPE_ACTIONS: Final = frozenset({"device.label", "device.unlabel", "label.remove", "device.remove"})
"""Changes after which a rule may be for other devices."""


def load_scope(connection: Connection, rule: UserRule) -> Scope:
    """Load the devices that a rule is for, through the indexes of labels and models."""
    scope = rule.body.scope
    members: set[int] | None = None
    if scope.labels:
        members = _load_devices(connection, SELECT_LABELED, list(scope.labels))
    if scope.models:
        of_models = _load_devices(connection, SELECT_OF_MODELS, [int(each, 16) for each in scope.models])
        members = of_models if members is None else members & of_models
    excluded = _load_devices(connection, SELECT_LABELED, list(scope.except_labels))
    return Scope(None if members is None else frozenset(members), frozenset(excluded))


def load_judgments(connection: Connection, rule: UserRule) -> dict[int, Judgment]:
    """Load the stored judgments of a rule. Their values are not stored: the next sample brings one."""
    rows = bulk.query_rows(connection, _SELECT_STORED, (rule.condition_rule,))
    return {
        subject: Judgment(
            ConditionState(state),
            since=since,
            seen=since,
            value=None,
            peak=None,
            opens=opens,
            remembered_until=remembered_until,
        )
        for subject, state, since, opens, remembered_until in rows
    }


def find_newest_change(connection: Connection) -> int:
    """Return the row id of the newest change in the audit log."""
    return int(bulk.query_rows(connection, _SELECT_NEWEST, ())[0][0])


def has_scope_changed(connection: Connection, after: int, until: int) -> bool:
    """Return whether labels were attached, removed or deleted, or devices deleted, in a range of changes."""
    rows = bulk.query_rows(connection, _SELECT_ACTIONS, (after, until))
    return not _SCOPE_ACTIONS.isdisjoint(row[0] for row in rows)


def build_query(device: int, rule: UserRule, now: int, *, newest_first: bool = True) -> SampleQuery:
    """Return the query of the values of a device in the last week that a rule compares."""
    return SampleQuery(
        device=device,
        kinds=VALUE_KINDS,
        identifier=rule.identifier,
        since=now - HISTORY_MS,
        until=now + _MAX_AHEAD_MS,
        newest_first=newest_first,
    )


def _load_devices(connection: Connection, query: str, keys: Sequence[int] | Sequence[str]) -> set[int]:
    if not keys:
        return set()
    rows: Iterable[Sequence[int]] = bulk.query_in(connection, f"{query} LIMIT {MAX_SCOPE_DEVICES}", keys)
    return {row[0] for row in rows}
