"""Sentences of alarms: what happened, to what, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.rest.alarms import AlarmAction, AlarmState, AlarmSubject, Certainty
from meshfleet.service.alarms.alarm_records import EndReason
from meshfleet.service.alarms.diagnosis import DeviceCause
from meshfleet.service.alarms.rules import BURST_CAUSE, UNKNOWN_CAUSE, Rule
from meshfleet.service.alarms.user_rules import alarm_text
from meshfleet.service.alarms.watches.registry import WATCHES
from meshfleet.service.alarms.watches.watch import WatchedAlarm
from meshfleet.service.alarms.wording import count, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.service.alarms.alarm_records import AlarmRecord

_DEVICE_CAUSES: Final[Mapping[str, str]] = {
    DeviceCause.BATTERY_EMPTY: "stopped with an empty battery",
    DeviceCause.WEAK_SIGNAL: "stopped after a very weak signal",
    DeviceCause.NOT_BACK: "did not come back with the gateway",
    DeviceCause.NO_WARNING: "stopped without a warning",
    UNKNOWN_CAUSE: "stopped although it answers: the cause is unknown",
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
    if record.end_reason is not None and (ending := _find_ending(record)) is not None:
        sentence = ending.format(name=name or "the fleet")
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
        facts=record.load_facts(),
    )


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
    return params | record.load_facts()


_END_SENTENCES: Final[Mapping[str, str]] = {
    EndReason.MERGED: "The silence of {name} has a cause in common with that of others: see their alarm.",
    EndReason.RELEASED: "Gateway {name} was offline when it was released.",
    EndReason.PARKED: "This alarm at {name} is over because its devices are parked now.",
    EndReason.DELETED: "The devices of this alarm at {name} were deleted.",
    EndReason.OUT_OF_SCOPE: "The rule of this alarm is not for its devices any more.",
    EndReason.RULE_CHANGED: "The rule of this alarm was changed. What is still wrong opens an alarm again.",
    EndReason.RULE_DISABLED: "The rule of this alarm was disabled.",
    EndReason.RULE_DELETED: "The rule of this alarm was deleted.",
}
_RULE_END_SENTENCES: Final[Mapping[tuple[str, str], str]] = {
    (Rule.GATEWAY_OFFLINE, EndReason.MERGED): (
        "Gateway {name} was offline, together with many others: they have an alarm in common."
    ),
    (Rule.RELAY_LOST, EndReason.MERGED): (
        "Extender {name} is cut off by another one that is lost: see the alarm of that one."
    ),
    (Rule.RELAY_LOST, EndReason.RELEASED): "Extender {name} was silent until it became a gateway.",
    (Rule.RELAY_LOST, EndReason.DELETED): "Extender {name} was silent when it was deleted.",
}


def _find_ending(record: AlarmRecord) -> str | None:
    """Return the sentence of an alarm that is over for another reason than that all is well."""
    reason = str(record.end_reason)
    return _RULE_END_SENTENCES.get((record.rule, reason), _END_SENTENCES.get(reason))


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


def _describe_relay(record: AlarmRecord, name: str, params: dict[str, Any]) -> str:
    if record.state == AlarmState.CLEARED:
        return f"Extender {name} is back after {_format_length(record)}.{_describe_back(params)}"
    number, moved = params["devices"], params.get("moved", 0)
    silent = "is probably lost" if params.get("certainty") == Certainty.LIKELY else "is silent"
    if not number:
        rest = "no device is cut off with it" if not moved else _describe_moved(moved, is_all=True)
        return f"Extender {name} {silent}; {rest}."
    verb = "is" if number == 1 else "are"
    others = f", {_describe_moved(moved, is_all=False)}" if moved else ""
    devices = f"{count(number, 'device')} behind it {verb} cut off{others}"
    return f"Extender {name} {silent}; {devices}.{_describe_trait(params)}"


def _describe_moved(moved: int, *, is_all: bool) -> str:
    """Say how many devices found another way when their extender was lost."""
    if not is_all:
        return f"{moved} found another way"
    return (
        "its device found another way" if moved == 1 else f"all {moved} devices behind it found another way"
    )


def _describe_trait(params: dict[str, Any]) -> str:
    """Say what the devices have in common that most others behind their gateway do not have."""
    who = "All" if params.get("all") else "Almost all"
    if params.get("label") is not None:
        return f" {who} carry the label {params['label']}."
    if params.get("model") is not None:
        return f" {who} are of the model {params['model']}."
    return ""


def _describe_devices(record: AlarmRecord, name: str, params: dict[str, Any]) -> str:
    behind = f"extender {name}" if record.relay is not None else name
    if record.state == AlarmState.CLEARED:
        verb = "reports" if record.most_members == 1 else "report"
        devices = count(record.most_members, "device")
        return f"{devices} behind {behind} {verb} again after {_format_length(record)}."
    is_single = record.members == 1 and record.relay is None
    number = params["devices"] or record.members
    subject = name if is_single else f"{count(number, 'device')} behind {behind}"
    if record.cause == BURST_CAUSE:
        within = format_duration(max(int(params.get("spread", 0)), 60_000))
        what = f"stopped within {within} without a common extender: interference, or a power cut?"
        return f"{subject} {what}{_describe_trait(params)}"
    return f"{subject} {_DEVICE_CAUSES.get(record.cause, 'stopped reporting')}.{_describe_trait(params)}"


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
    Rule.RELAY_LOST: _describe_relay,
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
        return watch.choose_action(record.load_facts())
    if (choose_action := _ACTIONS.get(record.rule)) is not None:
        return choose_action(record.load_facts())
    if subject is None:
        return AlarmAction(code="check-network", text="Check the network of this service.", href="/gateways")
    mac = mac_from_int(subject.number)
    href = f"/devices/{to_device_id(mac)}" if subject.kind == "device" else f"/gateways/{mac}"
    code, text = "check-devices", "Check the devices at their places."
    if record.rule == Rule.GATEWAY_OFFLINE:
        code, text = "check-gateway", "Check its power and network."
    elif record.rule == Rule.RELAY_LOST:
        code, text = "check-relay", "Go there and check its power."
    elif record.cause == DeviceCause.BATTERY_EMPTY:
        code, text = "replace-battery", "Replace the batteries."
    return AlarmAction(code=code, text=text, href=href)


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
        return AlarmSubject(kind="channel", id=f"channel-{number}", name=record.load_facts().get("name"))
    if kind == "job":
        return AlarmSubject(kind="job", id=f"job-{number}", name=None)
    return AlarmSubject(kind="service" if kind == "service" else "fleet", id=None, name=None)
