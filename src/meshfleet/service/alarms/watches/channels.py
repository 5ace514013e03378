"""Watch of channels: messages about alarms cannot be delivered, were given up, or are not wanted any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from meshfleet.db import bulk
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, Watch
from meshfleet.service.alarms.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_WAIT_MS: Final = 15 * 60_000

_NO_DELIVERY: Final = "no-delivery"
_GIVEN_UP: Final = "given-up"
_SWITCHED_OFF: Final = "switched-off"

# A channel can fail and have lost messages: each cause is a subject of its own. Ids of channels are small,
# and numbers of devices have 48 bits.
_SUBJECT_BASES: Final = {_NO_DELIVERY: 0, _GIVEN_UP: 1 << 48, _SWITCHED_OFF: 2 << 48}

# Messages of a channel that was switched off are given up as well, but its admin wants none.
_SELECT: Final = """
    SELECT channel.id, channel.name, channel.enabled, channel.problem, channel.failing_since,
        channel.retry_at, channel.tried_at, channel.delivered_at,
        count(notification.id), min(notification.finished_at), max(notification.finished_at)
    FROM channel
    LEFT JOIN notification ON notification.channel = channel.id AND notification.state = 'dead'
        AND notification.finished_at > ? AND coalesce(notification.problem, '') <> 'the channel was off'
    GROUP BY channel.id
    HAVING channel.failing_since IS NOT NULL OR count(notification.id) > 0
        OR (NOT channel.enabled AND channel.problem IS NOT NULL)
"""
_SELECT_CHANGE: Final = """
    SELECT detail FROM audit WHERE target = ? AND action IN ('channel.create', 'channel.change')
    ORDER BY time DESC, id DESC LIMIT 1
"""


class _Channel(NamedTuple):
    """Channel that does not work, or has lost messages. Times are Unix times in milliseconds."""

    id: int
    name: str
    is_enabled: bool
    problem: str | None
    failing_since: int | None
    retry_at: int | None
    tried_at: int | None
    delivered_at: int | None
    dead: int
    """Messages that were given up in the last day."""
    first_dead_at: int | None
    last_dead_at: int | None


def _find(sight: Sight) -> Iterator[Fault]:
    for row in bulk.query_rows(sight.connection, _SELECT, (sight.now - DAY_MS,)):
        each = _Channel(*row)
        if each.is_enabled:
            yield from _find_problems(each)
        elif _is_switched_off_by_receiver(sight.connection, each):
            since = each.failing_since or each.tried_at or sight.now
            yield _build_fault(each, _SWITCHED_OFF, since, Severity.WARNING)


def _find_problems(each: _Channel) -> Iterator[Fault]:
    """Yield the faults of a channel that is switched on."""
    if each.failing_since is not None:
        yield _build_fault(each, _NO_DELIVERY, each.failing_since, Severity.WARNING)
    if each.first_dead_at is not None and each.last_dead_at is not None:
        is_working = each.delivered_at is not None and each.delivered_at > each.last_dead_at
        severity = Severity.INFO if is_working else Severity.WARNING
        fault = _build_fault(each, _GIVEN_UP, each.first_dead_at, severity)
        # While the channel fails, its alarm counts the lost messages: they need none of their own.
        yield fault._replace(is_certain=each.failing_since is None)


def _is_switched_off_by_receiver(connection: Connection, each: _Channel) -> bool:
    """Return whether a receiver has switched a channel off with 410, not a user.

    Both leave the problem of the last attempt. But if a user did, the last change in the audit log says so.
    """
    if each.problem is None:
        return False
    changes = bulk.query_rows(connection, _SELECT_CHANGE, (f"channel-{each.id}",))
    if changes:
        return msgspec.json.decode(changes[0][0]).get("enabled") is not False
    # The log does not go back so far. A failing channel waits for its next attempt, unless 410 came.
    return each.retry_at is None or (each.tried_at is not None and each.retry_at <= each.tried_at)


def _build_fault(each: _Channel, cause: str, since: int, severity: Severity) -> Fault:
    return Fault(
        _SUBJECT_BASES[cause] + each.id,
        since=since,
        cause=cause,
        scope=f"channel:{each.id}",
        severity=severity,
        facts={"name": each.name, "dead": each.dead, "cause": cause},
        updates_facts=True,
    )


def _describe(alarm: WatchedAlarm) -> str:
    # Alarms of earlier versions have no cause among their facts.
    name, dead, cause = alarm.facts["name"], alarm.facts["dead"], alarm.facts.get("cause", _NO_DELIVERY)
    if cause == _SWITCHED_OFF:
        if alarm.is_over:
            return f"Channel {name} was switched on again, or deleted, after {alarm.length}."
        return f"Channel {name} was switched off by its receiver (410)."
    if cause == _GIVEN_UP:
        if alarm.is_over:
            return f"Messages to {name} that were given up are tried again, or are a day old."
        verb = "was" if dead == 1 else "were"
        return f"{count(dead, 'message')} to {name} could not be delivered and {verb} given up."
    if alarm.is_over:
        return f"Channel {name} delivers messages again, or was switched off, after {alarm.length}."
    lost = f" {count(dead, 'message')} had to be given up." if dead else ""
    return f"Channel {name} does not deliver messages about alarms.{lost}"


def _choose_action(facts: Mapping[str, Any]) -> AlarmAction:
    code, text = {
        _GIVEN_UP: ("retry-messages", "Look at why, and try the messages again."),
        _SWITCHED_OFF: ("replace-url", "Set a new URL, and switch the channel on again; or delete it."),
    }.get(facts.get("cause", ""), ("check-channel", "Test the channel, and look at its problem."))
    return AlarmAction(code=code, text=text, href="/settings/channels")


CHANNELS: Final = Watch(
    Rule.CHANNEL_FAILING,
    interval=20_000,
    wait=_WAIT_MS,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
)
