"""Sentences of alarms: what happened, to what, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.rest.alarms import AlarmAction, AlarmState, AlarmSubject
from meshfleet.service.alarms.alarms import EndReason
from meshfleet.service.alarms.diagnosis import DeviceCause
from meshfleet.service.alarms.rules import Rule
from meshfleet.service.alarms.user_rules import alarm_text
from meshfleet.service.alarms.watches.registry import WATCHES
from meshfleet.service.alarms.watches.watch import WatchedAlarm
from meshfleet.service.alarms.wording import count, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.service.alarms.alarms import AlarmRecord

_DEVICE_CAUSES: Final[Mapping[str, str]] = {
    DeviceCause.BATTERY_EMPTY: "stopped with an empty battery",
    DeviceCause.WEAK_SIGNAL: "stopped after a very weak signal",
    DeviceCause.NOT_BACK: "did not come back with the gateway",
    DeviceCause.NO_WARNING: "stopped without a warning",
}


_Describe: TypeAlias = "Callable[[AlarmRecord, str, dict[str, Any]], str]"


class NamedSubject(NamedTuple):
    """Number and name of the device or gateway that an alarm is about."""

    kind: Literal["gateway", "device"]
    number: int
    name: str


class Description(NamedTuple):
    """Texts of an alarm."""

    sentence: str
    action: AlarmAction
    subject: AlarmSubject
    params: dict[str, Any]


def describe(record: AlarmRecord, subject: NamedSubject | None, now: int) -> Description:
    """Describe an alarm. `subject` is None for the whole fleet."""
    params = _collect_params(record)
    name = "" if subject is None else subject.name
    if record.end_reason is not None and record.end_reason in _END_SENTENCES:
        sentence = _END_SENTENCES[record.end_reason].format(name=name or "the fleet")
    elif (watch := WATCHES.get(record.rule)) is not None:
        sentence = watch.describe(_to_watched(record, name))
    else:
        sentence = _SENTENCES.get(record.rule, _describe_other)(record, name, params)
    if record.state != AlarmState.CLEARED and record.recovering_since is not None:
        well_for = format_duration(now - record.recovering_since)
        reason = ", because it came and went" if record.reopened else ""
        sentence += f" It has been well for {well_for} and is watched{reason}."
    return Description(sentence, _choose_action(record, subject), _build_subject(record, subject), params)


def _to_watched(record: AlarmRecord, name: str) -> WatchedAlarm:
    return WatchedAlarm(
        name=name,
        members=record.most_members if record.state == AlarmState.CLEARED else record.members,
        is_over=record.state == AlarmState.CLEARED,
        length=_format_length(record),
        facts=_load_facts(record),
    )


def _load_facts(record: AlarmRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {} if record.facts is None else msgspec.json.decode(record.facts)
    return facts


def _collect_params(record: AlarmRecord) -> dict[str, Any]:
    """Return the numbers of a sentence."""
    is_over = record.state == AlarmState.CLEARED
    params: dict[str, Any] = {"devices": record.most_affected if is_over else record.affected}
    if record.rule == Rule.GATEWAYS_LOST:
        params["gateways"] = record.most_members if is_over else record.members
    if record.gateway is not None:
        params["gateway"] = mac_from_int(record.gateway)
    if is_over:
        params["ended"] = record.end_reason
        params["back"] = record.back or 0
        params["missing"] = max(0, record.most_affected - (record.back or 0))
    return params | _load_facts(record)


_END_SENTENCES: Final[Mapping[str, str]] = {
    EndReason.MERGED: "Gateway {name} was offline, together with many others: they have an alarm in common.",
    EndReason.RELEASED: "Gateway {name} was offline when it was released.",
    EndReason.DELETED: "The devices of this alarm at {name} were deleted.",
    EndReason.OUT_OF_SCOPE: "The rule of this alarm is not for its devices any more.",
    EndReason.RULE_CHANGED: "The rule of this alarm was changed. What is still wrong opens an alarm again.",
    EndReason.RULE_DISABLED: "The rule of this alarm was disabled.",
    EndReason.RULE_DELETED: "The rule of this alarm was deleted.",
}


def _describe_fleet(record: AlarmRecord, _name: str, params: dict[str, Any]) -> str:
    gateways = count(params["gateways"], "gateway")
    if record.state == AlarmState.CLEARED:
        length = _format_length(record)
        return (
            f"{gateways} lost contact at the same time for {length}; most are back.{_describe_back(params)}"
        )
    devices = count(params["devices"], "device")
    where = "the network or this service, not the gateways"
    return f"{gateways} lost contact at the same time and cut off {devices}: {where}."


def _describe_gateway(record: AlarmRecord, name: str, params: dict[str, Any]) -> str:
    if record.state == AlarmState.CLEARED:
        return f"Gateway {name} is back after {_format_length(record)}.{_describe_back(params)}"
    if not params["devices"]:
        return f"Gateway {name} is offline. No device depends on it."
    verb = "is" if params["devices"] == 1 else "are"
    return f"Gateway {name} is offline. {count(params['devices'], 'device')} {verb} cut off with it."


def _describe_devices(record: AlarmRecord, name: str, params: dict[str, Any]) -> str:
    if record.state == AlarmState.CLEARED:
        verb = "reports" if record.most_members == 1 else "report"
        devices = count(record.most_members, "device")
        return f"{devices} behind {name} {verb} again after {_format_length(record)}."
    number = params["devices"] or record.members
    subject = name if record.members == 1 else f"{count(number, 'device')} behind {name}"
    return f"{subject} {_DEVICE_CAUSES.get(record.cause, 'stopped reporting')}."


def _describe_values(record: AlarmRecord, name: str, _params: dict[str, Any]) -> str:
    watched = _to_watched(record, name)
    return alarm_text.describe_values(
        watched.facts, members=watched.members, is_over=watched.is_over, length=watched.length
    )


def _describe_share(record: AlarmRecord, name: str, _params: dict[str, Any]) -> str:
    watched = _to_watched(record, name)
    return alarm_text.describe_share(watched.facts, is_over=watched.is_over, length=watched.length)


def _describe_other(record: AlarmRecord, name: str, _params: dict[str, Any]) -> str:
    """Describe an alarm of a rule of a later version, which was in use before."""
    return f"{name or 'The fleet'}: {record.rule} ({record.cause})."


_SENTENCES: Final[Mapping[str, _Describe]] = {
    Rule.GATEWAYS_LOST: _describe_fleet,
    Rule.GATEWAY_OFFLINE: _describe_gateway,
    Rule.DEVICE_OFFLINE: _describe_devices,
    Rule.MEASUREMENT: _describe_values,
    Rule.LABEL_OFFLINE: _describe_share,
}
_ACTIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], AlarmAction]]] = {
    Rule.MEASUREMENT: alarm_text.choose_value_action,
    Rule.LABEL_OFFLINE: alarm_text.choose_share_action,
}
"""Actions of rules of users."""


def _choose_action(record: AlarmRecord, subject: NamedSubject | None) -> AlarmAction:
    """Return what to do first about an alarm."""
    if (watch := WATCHES.get(record.rule)) is not None:
        return watch.choose_action(_load_facts(record))
    if (choose_action := _ACTIONS.get(record.rule)) is not None:
        return choose_action(_load_facts(record))
    if subject is None:
        return AlarmAction(code="check-network", text="Check the network of this service.", href="/gateways")
    mac = mac_from_int(subject.number)
    href = f"/devices/{to_device_id(mac)}" if subject.kind == "device" else f"/gateways/{mac}"
    if record.rule == Rule.GATEWAY_OFFLINE:
        return AlarmAction(code="check-gateway", text="Check its power and network.", href=href)
    if record.cause == DeviceCause.BATTERY_EMPTY:
        return AlarmAction(code="replace-battery", text="Replace the batteries.", href=href)
    return AlarmAction(code="check-devices", text="Check the devices at their places.", href=href)


def _describe_back(params: dict[str, Any]) -> str:
    """Return the part of a sentence that says how many devices are back."""
    devices, missing = params["devices"], params["missing"]
    if not devices:
        return ""
    if not missing:
        return " Its device is back." if devices == 1 else f" All {devices} devices are back."
    verb = "has" if missing == 1 else "have"
    return f" {params['back']} of {count(devices, 'device')} are back; {missing} {verb} not reported yet."


def _format_length(record: AlarmRecord) -> str:
    return format_duration((record.cleared_at or record.since) - record.since)


def _build_subject(record: AlarmRecord, subject: NamedSubject | None) -> AlarmSubject:
    if subject is not None:
        identity = to_device_id(mac_from_int(subject.number))
        return AlarmSubject(kind=subject.kind, id=identity, name=subject.name)
    kind, _, number = record.scope.partition(":")
    if kind == "channel":
        return AlarmSubject(kind="channel", id=f"channel-{number}", name=_load_facts(record).get("name"))
    if kind == "job":
        return AlarmSubject(kind="job", id=f"job-{number}", name=None)
    return AlarmSubject(kind="service" if kind == "service" else "fleet", id=None, name=None)
