"""Watches of what comes and goes: connections of gateways, and devices behind gateways that are stable.

They find what the rules of outages cannot see, because each outage is too short. A short loss is looked at
only while it is new: see the queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.conditions import ConditionState
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, Watch
from meshfleet.service.alarms.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS

# Gateways

_MIN_LOSSES: Final = 6
"""A gateway is unstable from so many losses of its connection within an hour on."""
_CALM_MS: Final = 2 * _HOUR_MS
"""A gateway is stable again after this time with at most one loss."""
_MIN_COMMON: Final = 3
_COMMON_PERCENT: Final = 20
"""If at least three gateways, and a fifth of all, are unstable, they have the network or this service in
common: one alarm."""
_COMMON_CAUSE: Final = "uplink-unstable"
_GATHERING_MS: Final = 2 * _MINUTE_MS
"""Time in which gateways with a common cause become unstable one after the other."""
_MAX_ROWS: Final = 200
"""Newest changes of a gateway or device that are counted: a look must not read the whole history."""

# Only gateways that were just lost, or are just back, can have become unstable: those with these conditions.
# Usually that is none of 5,000. After an outage of all, it is all for 10 minutes: 12 rows each, and 0.7 s if
# all are unstable. The oldest of six losses tells whether there were as many in the last hour.
_SELECT_RECENT_GATEWAYS: Final = f"""
    SELECT alarm_condition.subject,
        (SELECT connectivity.time FROM connectivity
            WHERE connectivity.device = alarm_condition.subject AND NOT connectivity.connected
            ORDER BY connectivity.id DESC LIMIT 1 OFFSET {_MIN_LOSSES - 1})
    FROM alarm_condition
    WHERE alarm_condition.rule IN ('gateway-offline', 'gateway-return') AND alarm_condition.state = 'pending'
"""  # noqa: S608 # constants only
_COUNT_GATEWAY_LOSSES: Final = f"""
    SELECT gateway.device,
        (SELECT count(*) FROM (SELECT connectivity.time, connectivity.connected FROM connectivity
                WHERE connectivity.device = gateway.device ORDER BY connectivity.id DESC LIMIT {_MAX_ROWS}
            ) AS newest WHERE newest.time > :since AND NOT newest.connected)
    FROM gateway WHERE gateway.device IN numbers
"""  # noqa: S608 # constants only
_COUNT_GATEWAYS: Final = "SELECT count(*) FROM gateway"


def _find_gateways(sight: Sight) -> Iterator[Fault]:
    rows = bulk.query_rows(sight.connection, _SELECT_RECENT_GATEWAYS, ())
    recent = {number for number, sixth in rows if sixth is not None and sixth > sight.now - _HOUR_MS}
    numbers = sorted(recent | sight.known.keys())
    if not numbers:
        return
    in_hour = _count_losses(sight, numbers, _HOUR_MS)
    at_fault = [number for number, each in sight.known.items() if each.is_at_fault]
    restless = {number for number, losses in _count_losses(sight, at_fault, _CALM_MS).items() if losses > 1}
    unstable = [each for each, losses in in_hour.items() if losses >= _MIN_LOSSES or each in restless]
    total = bulk.query_rows(sight.connection, _COUNT_GATEWAYS, ())[0][0]
    is_common = len(unstable) >= _MIN_COMMON and 100 * len(unstable) >= _COMMON_PERCENT * total
    in_common_alarm = {number for number, each in sight.known.items() if each.cause == _COMMON_CAUSE}
    for each in unstable:
        fault = Fault(
            each,
            since=sight.now,
            cause="connection-unstable",
            scope=f"gw:{each:012x}",
            severity=Severity.WARNING,
            facts={"losses": in_hour[each], "gateway": mac_from_int(each)},
            device=each,
            gateway=each,
            # While it calms down, the sentence says how bad it was.
            updates_facts=in_hour[each] >= _MIN_LOSSES and not is_common and each not in in_common_alarm,
        )
        if is_common:
            facts = {"losses": in_hour[each], "gateway": None}
            fault = fault._replace(cause=_COMMON_CAUSE, scope="fleet", facts=facts, gateway=None)
        yield fault


def _count_losses(sight: Sight, gateways: list[int], duration: int) -> dict[int, int]:
    """Count the losses of gateways that are claimed in the time before now."""
    rows = bulk.query_in(sight.connection, _COUNT_GATEWAY_LOSSES, gateways, since=sight.now - duration)
    return dict(map(tuple, rows))


def _describe_gateway(alarm: WatchedAlarm) -> str:
    if alarm.facts["gateway"] is None:
        gateways = count(alarm.members, "gateway")
        if alarm.is_over:
            return f"{gateways} that lost their connections again and again did not for 2 h."
        verb, their = ("loses", "its connection") if alarm.members == 1 else ("lose", "their connections")
        where = "the network or this service, not the gateways"
        return f"{gateways} {verb} {their} again and again: {where}."
    if alarm.is_over:
        return f"Gateway {alarm.name} has not lost its connection again for 2 h."
    return f"Gateway {alarm.name} lost its connection {alarm.facts['losses']} times within an hour."


def _choose_gateway_action(facts: Mapping[str, Any]) -> AlarmAction:
    if facts["gateway"] is None:
        return AlarmAction(code="check-network", text="Check the network of this service.", href="/gateways")
    return AlarmAction(
        code="check-uplink",
        text="Check its uplink and its power supply.",
        href=f"/gateways/{facts['gateway']}",
    )


# Devices

_MIN_DEVICE_LOSSES: Final = 3
"""A device is unstable from so many losses within a day on, so from six changes on."""
_NEW_MS: Final = 10 * _MINUTE_MS
_NEW_ROWS: Final = 5_000
"""The newest changes, of the last ten minutes and at most so many: whose devices may have become unstable."""
_FIXED_MODELS: Final = (0x0018, 0x0040, 0x0043, 0x0050)
"""Models that are mounted at a place: sensors of rooms and doors, and extenders. What people or things carry
comes and goes by its nature."""

# The newest 5,000 changes are read, by the primary key, however many devices there are.
# If there are more changes between two looks, a device that is unstable is found at one of its next losses.
# Losses together with the gateway have another cause than `silent`.
_SELECT_RECENT_DEVICES: Final = f"""
    SELECT DISTINCT newest.device
    FROM (SELECT device, time, connected, cause FROM connectivity
            ORDER BY id DESC LIMIT {_NEW_ROWS}) AS newest
    JOIN device ON device.id = newest.device
    WHERE newest.time > ? AND NOT newest.connected AND newest.cause = 'silent'
        AND device.model IN ({", ".join(map(str, _FIXED_MODELS))})
"""  # noqa: S608 # constants only
_COUNT_DEVICE_LOSSES: Final = f"""
    SELECT device.id, device.gateway,
        (SELECT count(*) FROM (SELECT connectivity.time, connectivity.connected, connectivity.cause
                FROM connectivity WHERE connectivity.device = device.id
                ORDER BY connectivity.id DESC LIMIT {_MAX_ROWS}
            ) AS newest WHERE newest.time > :since AND NOT newest.connected AND newest.cause = 'silent'),
        EXISTS (SELECT 1 FROM alarm_condition
            WHERE alarm_condition.rule IN ('gateway-unstable', 'gateway-offline')
                AND alarm_condition.subject = device.gateway AND alarm_condition.state <> 'quiet')
    FROM device LEFT JOIN gateway ON gateway.device = device.id
    WHERE device.id IN numbers AND device.gateway IS NOT NULL AND gateway.device IS NULL
"""  # noqa: S608 # constants only


class _DeviceLosses(NamedTuple):
    """Losses of a device within a day, without those of its gateway."""

    device: int
    gateway: int
    losses: int
    is_gateway_unstable: bool


def _find_devices(sight: Sight) -> Iterator[Fault]:
    rows = bulk.query_rows(sight.connection, _SELECT_RECENT_DEVICES, (sight.now - _NEW_MS,))
    numbers = sorted({row[0] for row in rows} | sight.known.keys())
    if not numbers:
        return
    counted = bulk.query_in(sight.connection, _COUNT_DEVICE_LOSSES, numbers, since=sight.now - DAY_MS)
    unstable = []
    for each in map(_DeviceLosses._make, counted):
        condition = sight.known.get(each.device)
        if condition is not None and condition.state is ConditionState.ACTIVE:
            if each.losses:  # a single one keeps the alarm open, whatever the gateway does now
                unstable.append(each._replace(gateway=condition.gateway or each.gateway))
        elif each.losses >= _MIN_DEVICE_LOSSES and not each.is_gateway_unstable:
            unstable.append(each)
    most: dict[int, int] = {}
    for each in unstable:
        most[each.gateway] = max(each.losses, most.get(each.gateway, 0))
    for each in unstable:
        yield Fault(
            each.device,
            since=sight.now,
            cause="comes-and-goes",
            scope=f"gw:{each.gateway:012x}",
            severity=Severity.INFO,
            facts={"losses": most[each.gateway], "gateway": mac_from_int(each.gateway)},
            device=each.device,
            gateway=each.gateway,
            updates_facts=most[each.gateway] >= _MIN_DEVICE_LOSSES,
        )


def _describe_device(alarm: WatchedAlarm) -> str:
    is_single = alarm.members == 1
    devices = f"{count(alarm.members, 'device')} behind {alarm.name}"
    if alarm.is_over:
        return f"{devices} {'has' if is_single else 'have'} not been silent again for a day."
    losses = alarm.facts["losses"]
    if is_single:
        return f"{alarm.name} comes and goes: it was silent {losses} times within a day."
    return f"{devices} come and go: silent up to {losses} times within a day."


def _choose_device_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="improve-signal",
        text="Look at their signal; move them, or add an extender.",
        href=f"/gateways/{facts['gateway']}",
    )


UNSTABLE_GATEWAYS: Final = Watch(
    Rule.GATEWAY_UNSTABLE,
    interval=20_000,
    wait=_GATHERING_MS,
    back=0,
    find=_find_gateways,
    describe=_describe_gateway,
    choose_action=_choose_gateway_action,
)
UNSTABLE_DEVICES: Final = Watch(
    Rule.DEVICE_UNSTABLE,
    interval=20_000,
    wait=_GATHERING_MS,
    back=0,
    find=_find_devices,
    describe=_describe_device,
    choose_action=_choose_device_action,
)
