"""Watch of gateways that send reports which cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.ingest.rejects import MAX_REJECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_MINUTE_MS: Final = 60_000
_WINDOW_MS: Final = 10 * _MINUTE_MS
_MAX_USUAL: Final = RuleThreshold("reports", 10, 1, 1000)
"""Rejected reports of a gateway in ten minutes from which on more are an alarm. Healthy gateways have none.

How many reports a gateway sends is counted only in memory, and only for two minutes: so no share is compared.
"""
_CALM_MS: Final = 30 * _MINUTE_MS
_FULL_PERCENT: Final = 90
"""Part of the stored rejected reports from which on those of the last ten minutes may not all be stored: then
gateways are not told apart any more."""

_MAX_REASON_CHARACTERS: Final = 80
_MAX_CAUSE_CHARACTERS: Final = 40

# The newest rows, backward by the primary key until they are older than half an hour: usually none, at most
# the 10,000 that are stored (50 to 150 ms). Ingest stores at most 30 per gateway and minute, without payloads
# above 1 KiB. Gateways that are not claimed do not count.
_SELECT: Final = """
    SELECT reject.gateway, reject.reason, count(*), sum(CASE WHEN reject.time > ? THEN 1 ELSE 0 END)
    FROM reject JOIN gateway ON gateway.device = reject.gateway
    WHERE reject.time > ? AND reject.id > coalesce(
        (SELECT older.id FROM reject AS older WHERE older.time <= ? ORDER BY older.id DESC LIMIT 1), 0)
    GROUP BY reject.gateway, reject.reason
"""


def _find(sight: Sight) -> Iterator[Fault]:
    calm_since = sight.now - _CALM_MS
    rows = bulk.query_rows(sight.connection, _SELECT, (sight.now - _WINDOW_MS, calm_since, calm_since))
    reasons: dict[int, Counter[str]] = {}
    numbers: Counter[int] = Counter()
    for gateway, reason, number, number_in_window in rows:
        reasons.setdefault(gateway, Counter())[reason] += number
        numbers[gateway] += int(number_in_window)
    if 100 * numbers.total() >= _FULL_PERCENT * MAX_REJECTS:
        yield from _find_in_fleet(sight, len(reasons))
        return
    for gateway, by_reason in reasons.items():
        condition = sight.known.get(gateway)
        if numbers[gateway] <= sight.thresholds[_MAX_USUAL.name] and (
            condition is None or not condition.is_member
        ):
            continue
        reason = min(by_reason, key=lambda each, counts=by_reason: (-counts[each], each))  # type: ignore[misc]
        yield Fault(
            gateway,
            since=sight.now,
            cause=_build_cause(reason),
            scope=f"gw:{gateway:012x}",
            severity=Severity.WARNING,
            facts={
                "rejects": numbers[gateway],
                "reason": _shorten(reason),
                "gateway": mac_from_int(gateway),
            },
            device=gateway,
            gateway=gateway,
        )


def _find_in_fleet(sight: Sight, gateways: int) -> Iterator[Fault]:
    """Yield one fault of the fleet, and keep what is known about gateways as it is."""
    fleet = Fault(
        0,
        since=sight.now,
        cause="many",
        scope="fleet",
        severity=Severity.WARNING,
        facts={"gateways": gateways, "gateway": None},
    )
    yield fleet
    for number, condition in sight.known.items():
        if number and condition.is_at_fault:
            yield fleet._replace(number=number, is_certain=False)


def _build_cause(reason: str) -> str:
    """Return a short code for a reason: without quoted input and numbers, which differ in each report."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "", reason.lower())
    return re.sub(r"[^a-z]+", "-", text)[:_MAX_CAUSE_CHARACTERS].strip("-") or "unreadable"


def _shorten(reason: str) -> str:
    """Return the beginning of a reason in one line. It may quote what a gateway has sent."""
    text = " ".join("".join(each if each.isprintable() else " " for each in reason).split())
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[: _MAX_REASON_CHARACTERS - 1] + "…"


def _describe(alarm: WatchedAlarm) -> str:
    if alarm.facts["gateway"] is None:
        if alarm.is_over:
            return f"Gateways sent very many unreadable reports for {alarm.length}."
        return f"{alarm.facts['gateways']} gateways send very many unreadable reports."
    if alarm.is_over:
        return f"Gateway {alarm.name} has sent no unreadable reports for 30 min."
    rejects, reason = alarm.facts["rejects"], alarm.facts["reason"]
    return f"Gateway {alarm.name} sends unreadable reports: {rejects} in 10 min ({reason})."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    gateway = facts["gateway"]
    return AlarmAction(
        code="check-rejects",
        text="Look at the rejected reports, and update the gateway.",
        href="/gateways" if gateway is None else f"/gateways/{gateway}",
    )


REJECTS: Final = Watch(
    Rule.REJECTS_RISING,
    interval=20_000,
    wait=0,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
    thresholds=(_MAX_USUAL,),
)
