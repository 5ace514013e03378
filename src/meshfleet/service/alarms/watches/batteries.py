"""Watch of batteries that are low, before they are empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int, to_device_id
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import LOW_BATTERY, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.conditions import Condition
    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_LOW: Final = RuleThreshold("lowPercent", 15, 1, 15)
_CHARGED: Final = RuleThreshold("chargedPercent", 25, 16, 100)
"""A battery that was low, at 15 % or less, is not low any more from 25 % on, as when it is replaced.

Low can be less, but not more: the index holds no other levels.
"""

# An index holds only the rows of this condition. So a look costs as much as there are low batteries, and one
# query by key for known conditions. With 10,000 low batteries that is 0.15 s every five minutes, and 0.4 s
# with the comparison of their conditions.
_IS_LOW: Final = "device_state.battery <= 15"
_COLUMNS: Final = (
    "device.id, device.name, device.gateway, device.connected, device_state.battery, device_state.battery_at"
)
_HAS_LEVEL: Final = (
    "device_state.battery IS NOT NULL AND device_state.battery_at IS NOT NULL AND device.gateway IS NOT NULL"
)
SELECT_LOW: Final = (
    f"SELECT {_COLUMNS} FROM device_state JOIN device ON device.id = device_state.device"  # noqa: S608
    f" WHERE {_IS_LOW} AND device_state.battery_at IS NOT NULL"
    " AND device.connected AND device.gateway IS NOT NULL"
)
_SELECT_KNOWN: Final = (
    f"SELECT {_COLUMNS} FROM device_state JOIN device ON device.id = device_state.device"  # noqa: S608
    f" WHERE device_state.device IN numbers AND {_HAS_LEVEL}"
)


class _Battery(NamedTuple):
    """Battery of a device, as it was reported last."""

    device: int
    name: str
    gateway: int
    is_connected: bool
    level: int
    reported_at: int


def _find(sight: Sight) -> Iterator[Fault]:
    known = sight.known
    rows = [
        *bulk.query_rows(sight.connection, SELECT_LOW, ()),
        *bulk.query_in(sight.connection, _SELECT_KNOWN, sorted(known)),
    ]
    batteries_by_device = {row[0]: _Battery(*row) for row in rows}
    for each in known.values():
        if each.subject.number not in batteries_by_device and each.is_at_fault:
            yield _keep(each)
    certain: dict[int, list[_Battery]] = {}
    for battery in batteries_by_device.values():
        condition = known.get(battery.device)
        if not _is_low(battery, condition, sight.thresholds):
            continue
        if _is_certain(battery, condition):
            gateway = battery.gateway if condition is None else condition.gateway or battery.gateway
            certain.setdefault(gateway, []).append(battery)
        else:
            yield _build_fault(battery, battery.gateway, battery)._replace(is_certain=False)
    for gateway, batteries in certain.items():
        lowest = min(batteries, key=lambda each: (each.level, each.device))
        for battery in batteries:
            yield _build_fault(battery, gateway, lowest)


def _is_low(battery: _Battery, condition: Condition | None, thresholds: Mapping[str, float]) -> bool:
    """Return whether a battery is low, or whether that is not known now and it was low before."""
    low = thresholds[_LOW.name]
    if condition is None or condition.state is ConditionState.CLEARING:
        return battery.level <= low
    if not battery.is_connected:
        return True
    return battery.level < thresholds[_CHARGED.name] if condition.is_member else battery.level <= low


def _is_certain(battery: _Battery, condition: Condition | None) -> bool:
    """Return whether a level is known now, and was low in two reports: a single one may be a bad reading."""
    if condition is None or not battery.is_connected or condition.state is ConditionState.CLEARING:
        return False
    return condition.state is ConditionState.ACTIVE or battery.reported_at > condition.since


def _keep(condition: Condition) -> Fault:
    """Return a fault that keeps a condition as it is: no level is known of its device."""
    return Fault(
        condition.subject.number,
        since=condition.since,
        cause="low",
        scope="",
        severity=Severity.INFO,
        device=condition.device,
        gateway=condition.gateway,
        is_certain=False,
    )


def _build_fault(battery: _Battery, gateway: int, lowest: _Battery) -> Fault:
    """Return the fault of a battery. `lowest` is the lowest one behind the gateway, for the sentence."""
    return Fault(
        battery.device,
        since=battery.reported_at,
        cause="low",
        scope=f"gw:{gateway:012x}",
        severity=Severity.WARNING if battery.level <= LOW_BATTERY else Severity.INFO,
        facts={
            "level": lowest.level,
            "name": lowest.name,
            "device": to_device_id(mac_from_int(lowest.device)),
        },
        device=battery.device,
        gateway=gateway,
        updates_facts=battery is lowest,
    )


def _describe(alarm: WatchedAlarm) -> str:
    name, level = alarm.facts["name"], alarm.facts["level"]
    if alarm.is_over:
        batteries = f"{alarm.members} low batteries behind {alarm.name} were"
        if alarm.members == 1:
            batteries = f"The battery of {name} was"
        return f"{batteries} replaced or charged after {alarm.length}."
    if alarm.members == 1:
        return f"The battery of {name} is at {level} %."
    return f"{alarm.members} batteries behind {alarm.name} are low; the lowest, of {name}, is at {level} %."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="replace-battery", text="Replace low batteries soon.", href=f"/devices/{facts['device']}"
    )


BATTERIES: Final = Watch(
    Rule.BATTERY_LOW,
    interval=5 * 60_000,
    wait=0,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
    thresholds=(_LOW, _CHARGED),
)
