"""Watch of channels: messages about alarms cannot be delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.db import bulk
from meshfleet.rest.alarms import AlarmAction
from meshfleet.service.alarms.rules import DAY_MS, Rule, Severity
from meshfleet.service.alarms.watches.watch import Fault, Watch
from meshfleet.service.alarms.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshfleet.service.alarms.watches.watch import Sight, WatchedAlarm

_WAIT_MS: Final = 15 * 60_000
_SELECT: Final = """
    SELECT channel.id, channel.name, channel.failing_since,
        count(notification.id), min(notification.finished_at)
    FROM channel
    LEFT JOIN notification ON notification.channel = channel.id AND notification.state = 'dead'
        AND notification.finished_at > ?
    WHERE channel.enabled
    GROUP BY channel.id, channel.name, channel.failing_since
    HAVING channel.failing_since IS NOT NULL OR count(notification.id) > 0
"""


def _find(sight: Sight) -> Iterator[Fault]:
    for number, name, failing_since, dead, first in bulk.query_rows(
        sight.connection, _SELECT, (sight.now - DAY_MS,)
    ):
        yield Fault(
            number,
            since=first - _WAIT_MS if failing_since is None else failing_since,
            cause="no-delivery",
            scope=f"channel:{number}",
            severity=Severity.WARNING,
            facts={"name": name, "dead": dead},
        )


def _describe(alarm: WatchedAlarm) -> str:
    name, dead = alarm.facts["name"], alarm.facts["dead"]
    if alarm.is_over:
        return f"Channel {name} delivers messages again after {alarm.length}."
    lost = f" {count(dead, 'message')} had to be given up." if dead else ""
    return f"Channel {name} does not deliver messages about alarms.{lost}"


def _choose_action(_facts: Mapping[str, Any]) -> AlarmAction:
    return AlarmAction(
        code="check-channel", text="Test the channel, and look at its problem.", href="/settings/channels"
    )


CHANNELS: Final = Watch(
    Rule.CHANNEL_FAILING,
    interval=20_000,
    wait=_WAIT_MS,
    back=0,
    find=_find,
    describe=_describe,
    choose_action=_choose_action,
)
