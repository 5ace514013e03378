"""Rows of rules: those of users, and built-in ones that were changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import delete, func, insert, select, update

from meshfleet.db.tables import alarm_rule
from meshfleet.errors import (
    BuiltinRule,
    Conflict,
    Fault,
    InvalidRequest,
    NotAllowed,
    NotFound,
    VersionConflict,
)
from meshfleet.protocol.times import format_millis
from meshfleet.rest.accounts import Role
from meshfleet.rest.alarm_rules import (
    MAX_LABEL_RULES,
    MAX_USER_RULES,
    AlarmRuleBody,
    AlarmRuleList,
    NewAlarmRule,
    RuleConditionView,
    RuleScopeView,
)
from meshfleet.service.alarms.builtin_rules import (
    BUILTIN_RULES,
    FIXED_RULES,
    RuleChange,
    describe_builtin,
    find_limits,
)
from meshfleet.service.alarms.rules import USER_RULES, Rule
from meshfleet.service.alarms.user_rules.checks import check_rule
from meshfleet.service.alarms.user_rules.definition import UserRule, decode_body, describe_rule
from meshfleet.service.audit import log as audit_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Row

    from meshfleet.service.actor import Actor

_USER_RULE_ID: Final = re.compile(r"rule-([1-9][0-9]{0,17})")


class ChangedRule(NamedTuple):
    """Version of a rule that is not evaluated yet."""

    id: int
    version: int
    is_deleted: bool


def list_rules(connection: Connection) -> AlarmRuleList:
    """List the built-in rules, then those of users in the order of their creation."""
    rows = connection.execute(select(alarm_rule).where(~alarm_rule.c.deleted).order_by(alarm_rule.c.id)).all()
    changed = {row.builtin: row for row in rows if row.builtin is not None}
    builtin = [_build_builtin(each, changed.get(str(each))) for each in BUILTIN_RULES]
    return AlarmRuleList(items=[*builtin, *(_build_user_rule(row) for row in rows if row.builtin is None)])


def load_rule(connection: Connection, identity: str) -> AlarmRuleBody:
    """Load a rule by its id in REST. Raise `NotFound` if it does not exist."""
    if identity in BUILTIN_RULES:
        return _build_builtin(Rule(identity), _find_builtin_row(connection, identity))
    return _build_user_rule(_load_user_row(connection, identity))


def create_rule(connection: Connection, new: NewAlarmRule, *, by: Actor, now: int) -> AlarmRuleBody:
    """Create a rule of a user. Raise `Conflict` if there are too many, and as `check_rule`."""
    checked = check_rule(connection, new)
    if connection.dialect.name == "postgresql":  # two rules at once are never both the last
        connection.exec_driver_sql("LOCK TABLE alarm_rule IN SHARE ROW EXCLUSIVE MODE")
    is_user_rule = alarm_rule.c.builtin.is_(None) & ~alarm_rule.c.deleted
    by_kind = select(alarm_rule.c.kind, func.count()).where(is_user_rule).group_by(alarm_rule.c.kind)
    counts: dict[str, int] = dict(map(tuple, connection.execute(by_kind)))
    if sum(counts.values()) >= MAX_USER_RULES:
        raise Conflict(f"there are {MAX_USER_RULES:,} rules, which is the maximum: delete one first")
    if checked.kind == Rule.LABEL_OFFLINE and counts.get(checked.kind, 0) >= MAX_LABEL_RULES:
        raise Conflict(f"there are {MAX_LABEL_RULES} rules of labels, which is the maximum: delete one first")
    values = {"kind": checked.kind, "enabled": checked.enabled, "body": _encode(checked)}
    row = connection.execute(
        insert(alarm_rule)
        .values(
            **values,
            version=1,
            applied_version=1,
            deleted=False,
            updated_at=now,
            updated_by=by.display_name,
        )
        .returning(alarm_rule)
    ).one()
    created = _build_user_rule(row)
    audit_log.record_change(
        connection, by, "alarm-rule.create", created.id, now=now, **_describe_change(created)
    )
    return created


def replace_rule(
    connection: Connection, identity: str, new: NewAlarmRule, *, by: Actor, now: int
) -> AlarmRuleBody:
    """Replace the settings of a rule. Its conditions end with the next evaluation.

    Raise `NotAllowed` if an operator changes a built-in rule, `VersionConflict` if it was changed meanwhile,
    and `InvalidRequest` if it would be of another kind, or as `check_rule`.
    """
    if identity in BUILTIN_RULES:
        return _replace_builtin(connection, Rule(identity), new, by=by, now=now)
    row = _load_user_row(connection, identity, lock=True)
    _check_version(row.version, new)
    if new.kind != row.kind:
        raise InvalidRequest([Fault("kind", f"must stay {row.kind}")])
    checked = check_rule(connection, new)
    _update(connection, row.id, by, now, enabled=checked.enabled, body=_encode(checked))
    changed = load_rule(connection, identity)
    audit_log.record_change(
        connection, by, "alarm-rule.change", identity, now=now, **_describe_change(changed)
    )
    return changed


def reset_rule(connection: Connection, identity: str, *, by: Actor, now: int) -> AlarmRuleBody:
    """Give a built-in rule its defaults. Raise `Conflict` for a rule of a user, which has none."""
    if identity not in BUILTIN_RULES:
        load_rule(connection, identity)
        raise Conflict(f"{identity} is a rule of a user: it has no defaults")
    row = _find_builtin_row(connection, identity, lock=True)
    if row is not None and (row.body != "{}" or not row.enabled):
        _update(connection, row.id, by, now, enabled=True, body="{}")
        audit_log.record_change(connection, by, "alarm-rule.reset", identity, now=now)
    return load_rule(connection, identity)


def delete_rule(connection: Connection, identity: str, *, by: Actor, now: int) -> None:
    """Delete a rule of a user. Its alarms end with the next evaluation. Raise `BuiltinRule`."""
    if identity in BUILTIN_RULES:
        raise BuiltinRule(f"{identity} is a built-in rule: disable it instead")
    row = _load_user_row(connection, identity, lock=True)
    deleted = _build_user_rule(row)
    _update(connection, row.id, by, now, deleted=True)
    audit_log.record_change(
        connection, by, "alarm-rule.delete", identity, now=now, **_describe_change(deleted)
    )


# For the evaluation


def find_revision(connection: Connection) -> tuple[int, int, int]:
    """Return numbers that differ after each change of rules."""
    columns = alarm_rule.c
    query = select(func.count(), func.max(columns.id), func.sum(columns.version))
    count, newest, versions = connection.execute(query).one()
    return count, newest or 0, int(versions or 0)


def load_user_rules(connection: Connection) -> list[UserRule]:
    """Load all rules of users, with those that were deleted and whose conditions have not ended."""
    query = select(alarm_rule).where(alarm_rule.c.builtin.is_(None)).order_by(alarm_rule.c.id)
    return [_to_user_rule(row) for row in connection.execute(query) if row.kind in USER_RULES]


def load_changes(connection: Connection) -> dict[Rule, RuleChange]:
    """Load the built-in rules that were changed."""
    rows = connection.execute(select(alarm_rule).where(alarm_rule.c.builtin.is_not(None)))
    return {Rule(row.builtin): _to_change(row) for row in rows if row.builtin in BUILTIN_RULES}


def find_changed(connection: Connection) -> list[ChangedRule]:
    """Return the rules that were changed since they were evaluated last."""
    columns = alarm_rule.c
    query = select(columns.id, columns.version, columns.deleted).where(
        columns.deleted | (columns.applied_version != columns.version)
    )
    return [ChangedRule(row.id, row.version, bool(row.deleted)) for row in connection.execute(query)]


def mark_applied(connection: Connection, changed: Iterable[ChangedRule]) -> None:
    """Record that the conditions of changed rules have ended. Remove the rows of deleted rules."""
    for each in changed:
        is_rule = alarm_rule.c.id == each.id
        if each.is_deleted:
            connection.execute(delete(alarm_rule).where(is_rule))
        else:
            connection.execute(update(alarm_rule).where(is_rule).values(applied_version=each.version))


# Rows


def _replace_builtin(
    connection: Connection, rule: Rule, new: NewAlarmRule, *, by: Actor, now: int
) -> AlarmRuleBody:
    _require_admin(by)
    row = _find_builtin_row(connection, rule, lock=True)
    _check_version(0 if row is None else row.version, new)
    body = _encode(_check_builtin(rule, new))
    if row is None:
        values = {"builtin": str(rule), "kind": str(rule), "enabled": new.enabled, "body": body}
        connection.execute(
            insert(alarm_rule).values(
                **values,
                version=1,
                applied_version=0,
                deleted=False,
                updated_at=now,
                updated_by=by.display_name,
            )
        )
    else:
        _update(connection, row.id, by, now, enabled=new.enabled, body=body)
    changed = load_rule(connection, rule)
    audit_log.record_change(
        connection, by, "alarm-rule.change", str(rule), now=now, **_describe_change(changed)
    )
    return changed


def _check_builtin(rule: Rule, new: NewAlarmRule) -> NewAlarmRule | None:
    """Return what is changed of a built-in rule; None for nothing. Raise `InvalidRequest`."""
    limits = find_limits(rule)
    names = {each.name: each for each in limits.thresholds}
    faults = [
        Fault(name, "cannot be changed of this rule")
        for name, value, is_fixed in (
            ("enabled", None if new.enabled else False, rule in FIXED_RULES),
            ("name", None if new.name in {None, BUILTIN_RULES[rule].title} else new.name, True),
            ("severity", new.severity, True),
            ("forSeconds", new.for_seconds, limits.for_seconds is None),
            ("clearSeconds", new.clear_seconds, limits.clear_seconds is None),
            ("when", new.when, True),
            ("scope", None if new.scope.is_empty else new.scope, True),
            ("label", new.label, True),
            ("sharePercent", new.share_percent, True),
        )
        if is_fixed and value is not None
    ]
    if new.kind != rule:
        faults.append(Fault("kind", f"must stay {rule}"))
    for name, value in new.thresholds.items():
        threshold = names.get(name)
        if threshold is None:
            known = ", ".join(names) or "none"
            faults.append(Fault("thresholds", f"of this rule are {known}"))
        elif not threshold.least <= value <= threshold.most or value != int(value):
            reason = f"must be a whole number from {threshold.least} to {threshold.most}"
            faults.append(Fault(f"thresholds.{name}", reason))
    if faults:
        raise InvalidRequest(faults)
    kept = NewAlarmRule(
        kind=str(rule),
        for_seconds=None if new.for_seconds == limits.for_seconds else new.for_seconds,
        clear_seconds=None if new.clear_seconds == limits.clear_seconds else new.clear_seconds,
        thresholds={
            name: int(value) for name, value in new.thresholds.items() if value != names[name].default
        },
    )
    return None if kept == NewAlarmRule(kind=str(rule)) else kept


def _require_admin(by: Actor) -> None:
    if not by.role.includes(Role.ADMIN):
        raise NotAllowed(f"built-in rules require the role {Role.ADMIN}; your role is {by.role}")


def _check_version(version: int, new: NewAlarmRule) -> None:
    if new.version is not None and new.version != version:
        raise VersionConflict(f"the rule has version {version}, not {new.version}: someone has changed it")


def _update(connection: Connection, number: int, by: Actor, now: int, **values: Any) -> None:
    statement = update(alarm_rule).where(alarm_rule.c.id == number)
    connection.execute(
        statement.values(
            version=alarm_rule.c.version + 1, updated_at=now, updated_by=by.display_name, **values
        )
    )


def _load_user_row(connection: Connection, identity: str, *, lock: bool = False) -> Row[Any]:
    found = _USER_RULE_ID.fullmatch(identity)
    query = select(alarm_rule).where(
        alarm_rule.c.id == (0 if found is None else int(found[1])),
        alarm_rule.c.builtin.is_(None),
        ~alarm_rule.c.deleted,
    )
    row = connection.execute(query.with_for_update() if lock else query).first()
    if row is None:
        raise NotFound("there is no rule with this id")
    return row


def _find_builtin_row(connection: Connection, identity: str, *, lock: bool = False) -> Row[Any] | None:
    query = select(alarm_rule).where(alarm_rule.c.builtin == str(identity))
    return connection.execute(query.with_for_update() if lock else query).first()


def _encode(body: NewAlarmRule | None) -> str:
    return "{}" if body is None else msgspec.json.encode(body).decode()


def _to_user_rule(row: Row[Any]) -> UserRule:
    return UserRule(
        id=row.id,
        kind=Rule(row.kind),
        body=decode_body(row.body),
        is_enabled=bool(row.enabled),
        version=row.version,
        applied_version=row.applied_version,
        is_deleted=bool(row.deleted),
    )


def _to_change(row: Row[Any]) -> RuleChange:
    body = NewAlarmRule(kind=row.kind) if row.body == "{}" else decode_body(row.body)
    return RuleChange(
        is_enabled=bool(row.enabled),
        for_seconds=body.for_seconds,
        clear_seconds=body.clear_seconds,
        thresholds=dict(body.thresholds),
        needs_end=row.applied_version != row.version,
    )


def _build_builtin(rule: Rule, row: Row[Any] | None) -> AlarmRuleBody:
    limits = find_limits(rule)
    change = None if row is None else _to_change(row)
    wait, back, thresholds = (None, None, {}) if change is None else change[1:4]
    return AlarmRuleBody(
        id=str(rule),
        builtin=True,
        kind=str(rule),
        name=BUILTIN_RULES[rule].title,
        enabled=change is None or change.is_enabled,
        severity=None,
        for_seconds=limits.for_seconds if wait is None else wait,
        clear_seconds=limits.clear_seconds if back is None else back,
        thresholds={each.name: each.default for each in limits.thresholds} | dict(thresholds),
        when=None,
        scope=None,
        group_by=None,
        label=None,
        share_percent=None,
        sentence=describe_builtin(rule, change),
        changed=row is not None and (row.body != "{}" or not row.enabled),
        version=0 if row is None else row.version,
        updated_by=None if row is None else row.updated_by,
        updated_at=None if row is None else format_millis(row.updated_at),
    )


def _build_user_rule(row: Row[Any]) -> AlarmRuleBody:
    body = decode_body(row.body)
    is_measurement = row.kind == Rule.MEASUREMENT
    when = None if body.when is None else RuleConditionView(**msgspec.structs.asdict(body.when))
    return AlarmRuleBody(
        id=f"rule-{row.id}",
        builtin=False,
        kind=row.kind,
        name=body.name or "",
        enabled=bool(row.enabled),
        severity=body.severity,
        for_seconds=body.for_seconds,
        clear_seconds=body.clear_seconds,
        thresholds={},
        when=when,
        scope=RuleScopeView(**msgspec.structs.asdict(body.scope)) if is_measurement else None,
        group_by=body.group_by if is_measurement else None,
        label=body.label,
        share_percent=body.share_percent,
        sentence=describe_rule(body, row.kind),
        changed=False,
        version=row.version,
        updated_by=row.updated_by,
        updated_at=format_millis(row.updated_at),
    )


def _describe_change(rule: AlarmRuleBody) -> dict[str, Any]:
    """Return what the audit log says of a rule."""
    return {"name": rule.name, "enabled": rule.enabled, "rule": rule.sentence}
