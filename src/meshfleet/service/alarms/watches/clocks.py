"""Watches of clocks: of gateways, and of this machine, if most gateways seem wrong by the same amount."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.alarms.wording import format_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_SECOND_MS: Final = 1000
_MINUTE_MS: Final = 60 * _SECOND_MS
_HALF_HOUR_MS: Final = 30 * _MINUTE_MS
_WRONG_MS: Final = _MINUTE_MS
_WRONG_SECONDS: Final = RuleThreshold("wrongSeconds", 60, 30, 86_400)
"""A clock that was wrong by more than this is right again below half of it."""
_DISBELIEVED_MS: Final = 9 * _MINUTE_MS
"""From ten minutes on, reports from the future are not believed any more."""
_TIME_ZONE_MS: Final = 2 * _MINUTE_MS
"""Distance from whole half hours within which an offset looks like a wrong time zone."""
_SAME_MS: Final = 30 * _SECOND_MS
_MIN_GATEWAYS: Final = 3
"""If at least three gateways, and half of all, are wrong by the same amount, this machine's clock is."""

# The offset of a gateway without a connection is an old one: its clock may have been set meanwhile.
_SELECT: Final = """
    SELECT gateway.device, gateway.clock_offset FROM gateway JOIN device ON device.id = gateway.device
    WHERE gateway.clock_offset IS NOT NULL AND device.connected
"""


def _load_offsets(sight: Sight) -> dict[int, int]:
    """Load the offsets of the clocks of gateways that are connected."""
    return dict(map(tuple, bulk.query_rows(sight.connection, _SELECT, ())))


_SELECT_CLAIMED: Final = "SELECT device FROM gateway WHERE device IN numbers"


def _find_common_offset(offsets: Mapping[int, int]) -> int | None:
    """Return the offset that most gateways have in common; None if there is none, or it is small."""
    wrong = [each for each in offsets.values() if abs(each) > _WRONG_MS]
    if len(wrong) < _MIN_GATEWAYS:
        return None
    common = int(median(wrong))
    same = sum(abs(each - common) <= _SAME_MS for each in wrong)
    return common if same >= _MIN_GATEWAYS and 2 * same >= len(offsets) else None


def _find_gateways(sight: Sight) -> Iterator[Fault]:
    offsets = _load_offsets(sight)
    common = _find_common_offset(offsets)
    wrong = int(sight.thresholds[_WRONG_SECONDS.name] * _SECOND_MS)
    for number, offset in offsets.items():
        condition = sight.known.get(number)
        limit = wrong // 2 if condition is not None and condition.is_member else wrong
        is_common = common is not None and abs(offset - common) <= _SAME_MS
        if abs(offset) > limit and not is_common:
            yield _build_fault(number, offset, sight.now)
    known = sight.known
    unknown = [number for number, each in known.items() if number not in offsets and each.is_at_fault]
    for (number,) in bulk.query_in(sight.connection, _SELECT_CLAIMED, sorted(unknown)):
        yield _build_fault(number, 0, known[number].since)._replace(is_certain=False)


def _build_fault(number: int, offset: int, since: int) -> Fault:
    return Fault(
        number,
        since=since,
        cause="time-zone" if _is_time_zone(offset) else "offset",
        scope=f"gw:{number:012x}",
        severity=Severity.CRITICAL if offset > _DISBELIEVED_MS else Severity.WARNING,
        facts={"offset": offset, "gateway": mac_from_int(number)},
        device=number,
        gateway=number,
    )


def _find_service(sight: Sight) -> Iterable[Fault] | None:
    offsets = _load_offsets(sight)
    if not offsets:
        return None  # no gateway is connected, so nothing is known
    common = _find_common_offset(offsets)
    if common is None:
        return ()
    facts = {"offset": -common}
    return (Fault(0, sight.now, "offset", "service", Severity.CRITICAL, facts),)


def _is_time_zone(offset: int) -> bool:
    distance = abs(offset) % _HALF_HOUR_MS
    return abs(offset) >= _HALF_HOUR_MS - _TIME_ZONE_MS and (
        min(distance, _HALF_HOUR_MS - distance) <= _TIME_ZONE_MS
    )


def _format_offset(offset: int) -> str:
    return f"{format_span(abs(offset))} {'ahead' if offset > 0 else 'behind'}"


def _describe_gateway(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"The clock of gateway {alarm.name} is right again after {alarm.length}."
    offset = int(alarm.facts["offset"])
    hint = " It looks like a wrong time zone." if _is_time_zone(offset) else ""
    return f"The clock of gateway {alarm.name} is {_format_offset(offset)}.{hint}"


def _describe_service(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return f"The clock of this service is right again after {alarm.length}."
    return f"The clock of this service seems to be {_format_offset(int(alarm.facts['offset']))}."


def _choose_gateway_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="set-clock", text="Set its time server and its time zone.", href=f"/gateways/{facts['gateway']}"
    )


def _choose_service_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="set-service-clock", text="Set the clock of this machine by a time server.", href="/gateways"
    )


GATEWAY_CLOCKS: Final = Watch(
    Rule.GATEWAY_CLOCK,
    interval=20_000,
    wait=5 * _MINUTE_MS,
    back=0,
    find=_find_gateways,
    describe=_describe_gateway,
    choose_action=_choose_gateway_action,
    thresholds=(_WRONG_SECONDS,),
)
SERVICE_CLOCK: Final = Watch(
    Rule.SERVICE_CLOCK,
    interval=20_000,
    wait=5 * _MINUTE_MS,
    back=0,
    find=_find_service,
    describe=_describe_service,
    choose_action=_choose_service_action,
)
