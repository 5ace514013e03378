"""Checks of rules that users write: each mistake is named with its place and what to do."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

import msgspec
from sqlalchemy import select

from meshfleet.db import bulk
from meshfleet.db.tables import foreign_name, label
from meshfleet.errors import Fault, InvalidRequest, NotNumeric, RuleTooWide, UnknownLabel, quote_name
from meshfleet.errors.protocol import MalformedInput, UnknownIdentifier
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.layouts import FloatLayout, NumberLayout
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import parse_model_number
from meshfleet.rest.alarm_rules import (
    MAX_SILENCE_SECONDS,
    MIN_SILENCE_SECONDS,
    RuleOperator,
    RuleScope,
)
from meshfleet.rest.alarms import AlarmSeverity
from meshfleet.rest.inputs import parse_label, parse_title
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules.definition import DEFAULT_SECONDS
from meshfleet.service.telemetry.identifiers import parse_any_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.rest.alarm_rules import NewAlarmRule, RuleCondition

MAX_SCOPE_DEVICES: Final = 200_000
"""Maximum number of devices that the labels and models of a rule select. They are held in memory."""

SELECT_LABELED: Final = (
    "SELECT DISTINCT device_label.device FROM device_label JOIN label ON label.id = device_label.label"
    " WHERE label.text IN numbers"
)
SELECT_OF_MODELS: Final = "SELECT id FROM device WHERE model IN numbers"
_NUMERIC: Final = frozenset({RuleOperator.ABOVE, RuleOperator.BELOW, RuleOperator.OUTSIDE})


def check_rule(connection: Connection, new: NewAlarmRule) -> NewAlarmRule:
    """Return a rule of a user with normalized texts and all defaults.

    Raise `InvalidRequest`, or one of its subclasses that says more.
    """
    faults: list[Fault] = []
    if new.name is None:
        faults.append(Fault("name", "is missing"))
    if new.thresholds:
        faults.append(Fault("thresholds", "are only for built-in rules"))
    if new.kind == Rule.MEASUREMENT:
        faults += _check_measurement_fields(new)
    elif new.kind == Rule.LABEL_OFFLINE:
        faults += _check_label_fields(new)
    else:
        faults.append(Fault("kind", "must be measurement or label-offline"))
    if faults:
        raise InvalidRequest(faults)
    try:
        checked = msgspec.structs.replace(
            new,
            name=parse_title(new.name or ""),
            severity=new.severity or AlarmSeverity.WARNING,
            for_seconds=DEFAULT_SECONDS if new.for_seconds is None else new.for_seconds,
            clear_seconds=DEFAULT_SECONDS if new.clear_seconds is None else new.clear_seconds,
            version=None,
        )
        if new.kind == Rule.LABEL_OFFLINE:
            return _check_label(connection, checked)
        return _check_measurement(connection, checked)
    except UnknownIdentifier:
        raise
    except MalformedInput as exc:
        raise InvalidRequest([Fault(exc.field, exc.reason)]) from None


def _check_measurement_fields(new: NewAlarmRule) -> list[Fault]:
    faults = [
        Fault(name, "is only for label-offline")
        for name, value in (("label", new.label), ("sharePercent", new.share_percent))
        if value is not None
    ]
    if new.when is None:
        faults.append(Fault("when", "is missing"))
    return faults


def _check_label_fields(new: NewAlarmRule) -> list[Fault]:
    faults = [
        Fault(name, "is only for measurement")
        for name, value in (("when", new.when), ("scope", None if new.scope.is_empty else new.scope))
        if value is not None
    ]
    faults += [
        Fault(name, "is missing")
        for name, value in (("label", new.label), ("sharePercent", new.share_percent))
        if value is None
    ]
    return faults


def _check_label(connection: Connection, new: NewAlarmRule) -> NewAlarmRule:
    text = parse_label(new.label or "", "label")
    _check_labels_exist(connection, "label", [text])
    _check_width(connection, [text], ())
    return msgspec.structs.replace(new, label=text)


def _check_measurement(connection: Connection, new: NewAlarmRule) -> NewAlarmRule:
    assert new.when is not None  # noqa: S101 # checked before
    scope = RuleScope(
        labels=[parse_label(each, "scope.labels") for each in new.scope.labels],
        except_labels=[parse_label(each, "scope.exceptLabels") for each in new.scope.except_labels],
        models=[parse_model_number(each, "scope.models") for each in new.scope.models],
    )
    when = _check_condition(connection, new.when)
    if when.operator is RuleOperator.SILENT_FOR and not (scope.labels or scope.models):
        reason = "must name the devices that should report: labels, models or both"
        raise InvalidRequest([Fault("scope", reason)])
    _check_labels_exist(connection, "scope.labels", scope.labels)
    _check_labels_exist(connection, "scope.exceptLabels", scope.except_labels)
    _check_width(connection, scope.labels, scope.models)
    _check_width(connection, scope.except_labels, ())
    return msgspec.structs.replace(new, when=when, scope=scope)


def _check_condition(connection: Connection, when: RuleCondition) -> RuleCondition:
    identifier = _check_identifier(connection, when.identifier)
    place = "when.value"
    if when.operator is RuleOperator.SILENT_FOR:
        if not _is_number(when.value) or not MIN_SILENCE_SECONDS <= float(when.value) <= MAX_SILENCE_SECONDS:
            raise InvalidRequest([Fault(place, "must be seconds: 60 to 2592000, which is 30 days")])
    elif when.operator in _NUMERIC:
        if not _may_be_number(identifier):
            reason = f"{when.operator} compares numbers; use equals or changes-to"
            raise NotNumeric([Fault("when.operator", f"{identifier} is no number: {reason}")])
        if not _is_number(when.value):
            raise NotNumeric([Fault(place, "must be a number")])
    faults = [*_find_limit_faults(when)]
    if faults:
        raise InvalidRequest(faults)
    return msgspec.structs.replace(when, identifier=identifier)


def _find_limit_faults(when: RuleCondition) -> list[Fault]:
    faults = []
    if when.operator is RuleOperator.OUTSIDE:
        if when.upper is None or not _is_number(when.upper) or when.upper <= float(when.value):
            faults.append(Fault("when.upper", "must be a number above `value`"))
    elif when.upper is not None:
        faults.append(Fault("when.upper", "is only for outside"))
    clear = when.clear_value
    if clear is None:
        return faults
    if when.operator not in {RuleOperator.ABOVE, RuleOperator.BELOW}:
        faults.append(Fault("when.clearValue", "is only for above and below"))
    elif not _is_number(clear) or (clear - float(when.value)) * _DIRECTIONS[when.operator] > 0:
        side = "below" if when.operator is RuleOperator.ABOVE else "above"
        faults.append(Fault("when.clearValue", f"must be {side} `value`, or equal"))
    return faults


_DIRECTIONS: Final = {RuleOperator.ABOVE: 1, RuleOperator.BELOW: -1}


def _check_identifier(connection: Connection, text: str) -> str:
    """Return the name of an identifier, or its hex id. Raise `UnknownIdentifier` if nothing reports it."""
    try:
        identifier = parse_any_identifier(text, "when.identifier")
    except MalformedInput as exc:
        raise UnknownIdentifier("when.identifier", exc.reason) from None
    entry = BUILTIN_CATALOGUE.find(identifier)
    if entry is not None and entry.layout is not None:
        return entry.name
    number = identifier_to_int(identifier)
    if entry is None and number < 0:
        is_reported = select(foreign_name.c.name).where(foreign_name.c.number == number)
        if connection.execute(is_reported).first() is not None:
            return identifier
    reason = "is not in the catalogue, and no device has reported it"
    if entry is not None or number >= 0:
        reason = "has no known values, only bytes"
    raise UnknownIdentifier("when.identifier", f"{quote_name(text)} {reason}")


def _may_be_number(identifier: str) -> bool:
    """Return whether values of an identifier can be numbers; those that are not in the catalogue may be."""
    entry = BUILTIN_CATALOGUE.find(identifier)
    return entry is None or isinstance(entry.layout, NumberLayout | FloatLayout)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and isfinite(value)


def _check_labels_exist(connection: Connection, place: str, texts: Sequence[str]) -> None:
    known = set(connection.execute(select(label.c.text).where(label.c.text.in_(texts))).scalars())
    missing = [each for each in texts if each not in known]
    if missing:
        reason = f"there is no label {quote_name(missing[0])}: attach it to a device first"
        raise UnknownLabel([Fault(place, reason)])


def _check_width(connection: Connection, labels: Sequence[str], models: Sequence[str]) -> None:
    numbers = [int(each, 16) for each in models]
    for query, keys in ((SELECT_LABELED, list(labels)), (SELECT_OF_MODELS, numbers)):
        if keys and len(bulk.query_in(connection, f"{query} LIMIT {MAX_SCOPE_DEVICES + 1}", keys)) > (
            MAX_SCOPE_DEVICES
        ):
            reason = f"more than {MAX_SCOPE_DEVICES:,} devices have these labels or models: name fewer"
            raise RuleTooWide([Fault("scope", reason)])
