"""Watch of gateways that were claimed, but have never connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from meshfleet.db.tables import device, device_state, gateway
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, RuleThreshold, Watch
from meshfleet.service.alarms.wording import format_duration
from meshfleet.service.gateways.store import IS_UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_HOURS: Final = RuleThreshold("hours", 24, 1, 720)
_HOUR_MS: Final = 3_600_000

_SELECT: Final = (
    select(gateway.c.device, gateway.c.claimed_at, device.c.name)
    .join(device, device.c.id == gateway.c.device)
    .outerjoin(device_state, device_state.c.device == gateway.c.device)
    .where(IS_UNSEEN)
    .order_by(gateway.c.claimed_at, gateway.c.device)
)


def _find(sight: Sight) -> Iterator[Fault]:
    """Yield the gateways. This reads all gateways, two rows each, once a minute."""
    hours = int(sight.thresholds[_HOURS.name])
    claimed_before = sight.now - hours * _HOUR_MS
    rows = sight.connection.execute(_SELECT.where(gateway.c.claimed_at <= claimed_before)).all()
    for number, claimed_at, _ in rows:
        yield Fault(
            number,
            since=claimed_at,
            cause="never-connected",
            # All in one alarm: many are claimed together, long before they are installed.
            scope="fleet",
            severity=Severity.INFO,
            facts={"name": rows[0].name, "gateway": mac_from_int(rows[0].device), "hours": hours},
            device=number,
            updates_facts=True,
        )


def _describe(alarm: WatchedAlarm) -> str:
    if alarm.is_over:
        return "All gateways that were claimed have connected, or were released."
    hours = alarm.facts.get("hours", _HOURS.default)
    age = "a day" if hours == _HOURS.default else format_duration(hours * _HOUR_MS)
    if alarm.members == 1:
        return f"Gateway {alarm.facts['name']} was claimed more than {age} ago, and has never connected."
    return f"{alarm.members} gateways were claimed more than {age} ago, and have never connected."


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="set-up-gateway",
        text="Switch it on, and enter its credentials.",
        href=f"/gateways/{facts['gateway']}",
    )


NEVER_CONNECTED: Final = Watch(
    Rule.GATEWAY_NEVER_CONNECTED,
    interval=60_000,
    wait=0,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
    thresholds=(_HOURS,),
)
