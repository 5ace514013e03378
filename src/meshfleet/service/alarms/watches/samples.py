"""Watch of samples that are missing for good."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, Watch
from meshfleet.service.alarms.wording import count
from meshfleet.service.backfill.series import MAX_UNFILLED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_MAX_GAPS: Final = 10_000
"""Number of gaps of a day from which their devices are not told apart any more: one alarm for the fleet.

The query reads some more, because gaps of deleted devices do not count.
"""
_WAIT_MS: Final = 10 * 60_000
"""Time in which a device without numbered samples shows itself: its gaps are given up one after the other."""

# An index holds only lost gaps, by the time of their loss: a look reads those of the last day, at most 11,000
# (10,000 take 80 to 90 ms), however many devices there are. Gaps of series that are not checked any more are
# no loss: the device seems not to number its samples (ack-16).
SELECT_LOST: Final = f"""
    SELECT lost.device, device.gateway, count(*), min(lost.lost_at),
        sum(CASE WHEN series.unfilled < {MAX_UNFILLED} THEN 1 ELSE 0 END)
    FROM (SELECT device, kind, identifier, lost_at FROM hole
            WHERE lost_at > ? ORDER BY lost_at DESC LIMIT {_MAX_GAPS + _MAX_GAPS // 10}) AS lost
    JOIN device ON device.id = lost.device
    LEFT JOIN series ON series.device = lost.device AND series.kind = lost.kind
        AND series.identifier = lost.identifier
    WHERE device.gateway IS NOT NULL
    GROUP BY lost.device, device.gateway
"""  # noqa: S608 # constants only


class _Loss(NamedTuple):
    """Gaps of a device that were given up in the last day."""

    device: int
    gateway: int
    gaps: int
    first_at: int
    gaps_of_numbered: int
    """Gaps of series that are still checked for gaps."""


def _find(sight: Sight) -> Iterator[Fault]:
    rows = bulk.query_rows(sight.connection, SELECT_LOST, (sight.now - DAY_MS,))
    found = [_Loss(*row) for row in rows]
    if sum(each.gaps for each in found) >= _MAX_GAPS:
        yield from _find_in_fleet(sight)
        return
    losses = []
    for each in found:
        condition = sight.known.get(each.device)
        if condition is not None and condition.is_member:
            losses.append(each._replace(gateway=condition.gateway or each.gateway))
        elif each.gaps_of_numbered:
            losses.append(each)
    gaps: Counter[int] = Counter()
    for each in losses:
        gaps[each.gateway] += each.gaps
    for each in losses:
        yield Fault(
            each.device,
            since=each.first_at,
            cause="not-filled",
            scope=f"gw:{each.gateway:012x}",
            severity=Severity.WARNING,
            facts={"gaps": gaps[each.gateway], "gateway": mac_from_int(each.gateway)},
            device=each.device,
            gateway=each.gateway,
            updates_facts=True,
        )


def _find_in_fleet(sight: Sight) -> Iterator[Fault]:
    """Yield one fault of the fleet, and keep what is known about devices as it is."""
    fleet = Fault(
        0,
        since=sight.now - _WAIT_MS,
        cause="not-filled",
        scope="fleet",
        severity=Severity.WARNING,
        facts={"gaps": _MAX_GAPS, "gateway": None},
    )
    yield fleet
    for number, condition in sight.known.items():
        if number and condition.is_at_fault:
            yield fleet._replace(number=number, is_certain=False)


def _describe(alarm: WatchedAlarm) -> str:
    if alarm.facts["gateway"] is None:
        if alarm.is_over:
            return f"Fewer than {_MAX_GAPS:,} gaps in samples are given up in a day again."
        return f"{_MAX_GAPS:,} gaps or more in the samples of the fleet could not be filled within a day."
    devices = f"{count(alarm.members, 'device')} behind {alarm.name}"
    if alarm.is_over:
        return f"No gap in the samples of {devices} was given up in the last day."
    where = alarm.name if alarm.members == 1 else devices
    return f"{count(alarm.facts['gaps'], 'gap')} in the samples of {where} could not be filled."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    gateway = facts["gateway"]
    return AlarmAction(
        code="check-samples",
        text="Look at the gaps of the devices, and at how well the gateway receives them.",
        href="/gateways" if gateway is None else f"/gateways/{gateway}",
    )


LOST_SAMPLES: Final = Watch(
    Rule.SAMPLES_LOST,
    interval=60_000,
    wait=_WAIT_MS,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
)
