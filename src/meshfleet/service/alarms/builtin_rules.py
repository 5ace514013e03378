"""Built-in rules as admins see and change them: names, sentences, times and thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.service.alarms.rules import DEFAULT_TIMES, AlarmTimes, Rule
from meshfleet.service.alarms.watches.registry import WATCHES
from meshfleet.service.alarms.watches.watch import RuleThreshold
from meshfleet.service.alarms.wording import format_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.service.alarms.watches.watch import Watch

_SECOND_MS: Final = 1000
_HOUR_MS: Final = 3600 * _SECOND_MS


class BuiltinRule(NamedTuple):
    """Texts of a built-in rule."""

    title: str
    sentence: str
    """When its alarm opens, with the time and the thresholds as fields of a format."""


class RuleChange(NamedTuple):
    """Settings of a built-in rule that an admin has changed. None and absent thresholds: the default."""

    is_enabled: bool
    for_seconds: int | None
    clear_seconds: int | None
    thresholds: Mapping[str, float]
    needs_end: bool = False
    """Whether the conditions of earlier settings have not ended yet."""


_NO_CHANGE: Final = RuleChange(is_enabled=True, for_seconds=None, clear_seconds=None, thresholds={})

BUILTIN_RULES: Final[Mapping[Rule, BuiltinRule]] = {
    Rule.GATEWAYS_LOST: BuiltinRule(
        "Many gateways lost",
        "When three gateways or more, and a fifth of all, were lost together and stay away for {wait}.",
    ),
    Rule.GATEWAY_OFFLINE: BuiltinRule(
        "Gateway offline", "When a claimed gateway has had no connection for {wait}."
    ),
    Rule.RELAY_LOST: BuiltinRule(
        "Extender lost", "When an extender has been silent for {wait} and cuts off devices behind it."
    ),
    Rule.DEVICE_OFFLINE: BuiltinRule(
        "Device offline",
        "When a device has been silent for {wait} although its gateway is connected; longer if it often is"
        " away, at most {longestHours} h.",
    ),
    Rule.GATEWAY_UNSTABLE: BuiltinRule(
        "Gateway unstable", "When a gateway lost its connection 6 times or more within an hour."
    ),
    Rule.DEVICE_UNSTABLE: BuiltinRule(
        "Device unstable",
        "When a device at a fixed place was silent 3 times or more within a day, and came back.",
    ),
    Rule.GATEWAY_NEVER_CONNECTED: BuiltinRule(
        "Gateway never connected", "When a gateway was claimed {hours} h ago, and has never connected."
    ),
    Rule.GATEWAY_CLOCK: BuiltinRule(
        "Clock of a gateway",
        "When the clock of a gateway has been wrong by more than {wrongSeconds} s for {wait}.",
    ),
    Rule.SERVICE_CLOCK: BuiltinRule(
        "Clock of the service",
        "When three gateways or more, and half of all, have been wrong by the same amount for {wait}.",
    ),
    Rule.REJECTS_RISING: BuiltinRule(
        "Unreadable reports",
        "When a gateway sent more than {reports} unreadable reports within 10 minutes.",
    ),
    Rule.SAMPLES_LOST: BuiltinRule(
        "Samples lost", "When gaps in the samples of devices were given up {wait} ago."
    ),
    Rule.BATTERY_LOW: BuiltinRule(
        "Battery low",
        "When a device reported {lowPercent} % or less two times in a row; it ends at {chargedPercent} %.",
    ),
    Rule.JOB_STOPPED: BuiltinRule("Update stopped", "When an update pauses itself, or waits for you."),
    Rule.JOB_ENDED_BADLY: BuiltinRule("Update failed", "When an update has ended and devices failed."),
    Rule.JOB_STUCK: BuiltinRule("Update stuck", "When nothing in an update has moved for {minutes} minutes."),
    Rule.CHANNEL_FAILING: BuiltinRule(
        "Messages not delivered", "When messages about alarms were not delivered for {wait}."
    ),
    Rule.DATABASE: BuiltinRule("Database", "When the database has failed for a minute."),
    Rule.BROKER: BuiltinRule("MQTT broker", "When the MQTT broker has not delivered reports for {wait}."),
    Rule.INGEST_LAG: BuiltinRule(
        "Reports wait",
        "When reports have waited more than {waitSeconds} s until they are stored, for {wait}.",
    ),
    Rule.DISK: BuiltinRule(
        "Disk",
        "When less than {freePercent} % or 2 GiB of the disk have been free for {wait}, or it is full within"
        " 7 days.",
    ),
    Rule.CERTIFICATE: BuiltinRule("Certificate", "When the TLS certificate ends within 21 days."),
    Rule.BACKUP_OLD: BuiltinRule("Backup old", "When the last backup is older than {days} days."),
    Rule.VERSION_SKEW: BuiltinRule(
        "Older firmware",
        "When devices have run older firmware for {wait} than one that was released {days} days ago.",
    ),
}
"""All built-in rules that open alarms."""

FIXED_RULES: Final = frozenset({Rule.DATABASE})
"""Rules that cannot be changed: while the database is away, nothing that is stored can be read."""

CONNECTION_RULES: Final = frozenset({Rule.GATEWAYS_LOST, Rule.GATEWAY_OFFLINE, Rule.DEVICE_OFFLINE})
"""Rules that are told of changes only. Their conditions stay when the rule changes, and wait again."""

_LONGEST: Final = RuleThreshold("longestHours", DEFAULT_TIMES.device_offline_max // _HOUR_MS, 1, 720)


class RuleLimits(NamedTuple):
    """Settings of a built-in rule that can be changed, with their defaults."""

    for_seconds: int | None
    """None if the rule has no such time."""
    clear_seconds: int | None
    thresholds: tuple[RuleThreshold, ...]


def find_limits(rule: Rule) -> RuleLimits:
    """Return what can be changed of a built-in rule."""
    if rule in FIXED_RULES:
        return RuleLimits(None, None, ())
    times = DEFAULT_TIMES
    match rule:
        case Rule.GATEWAYS_LOST:
            return RuleLimits(times.gateways_lost // _SECOND_MS, None, ())
        case Rule.GATEWAY_OFFLINE:
            return RuleLimits(times.gateway_offline // _SECOND_MS, times.gateway_back // _SECOND_MS, ())
        case Rule.RELAY_LOST:
            return RuleLimits(times.relay_lost // _SECOND_MS, times.relay_back // _SECOND_MS, ())
        case Rule.DEVICE_OFFLINE:
            seconds = (times.device_offline // _SECOND_MS, times.device_back // _SECOND_MS)
            return RuleLimits(*seconds, (_LONGEST,))
        case _:
            watch = WATCHES[rule]
            return RuleLimits(watch.wait // _SECOND_MS, watch.back // _SECOND_MS, watch.thresholds)


def describe_builtin(rule: Rule, change: RuleChange | None) -> str:
    """Say when the alarm of a built-in rule opens."""
    limits, change = find_limits(rule), change or _NO_CHANGE
    values = {each.name: each.default for each in limits.thresholds} | dict(change.thresholds)
    wait = limits.for_seconds if change.for_seconds is None else change.for_seconds
    return BUILTIN_RULES[rule].sentence.format(wait=format_span((wait or 0) * _SECOND_MS), **values)


def change_times(times: AlarmTimes, changes: Mapping[Rule, RuleChange]) -> AlarmTimes:
    """Return the times of the rules of connections with what admins have changed."""
    gateways = changes.get(Rule.GATEWAYS_LOST, _NO_CHANGE)
    gateway = changes.get(Rule.GATEWAY_OFFLINE, _NO_CHANGE)
    relay = changes.get(Rule.RELAY_LOST, _NO_CHANGE)
    device = changes.get(Rule.DEVICE_OFFLINE, _NO_CHANGE)
    longest = device.thresholds.get(_LONGEST.name)
    shortest = _choose(device.for_seconds, times.device_offline)
    return times._replace(
        gateways_lost=_choose(gateways.for_seconds, times.gateways_lost),
        gateway_offline=_choose(gateway.for_seconds, times.gateway_offline),
        gateway_back=_choose(gateway.clear_seconds, times.gateway_back),
        relay_lost=_choose(relay.for_seconds, times.relay_lost),
        relay_back=_choose(relay.clear_seconds, times.relay_back),
        device_offline=shortest,
        device_back=_choose(device.clear_seconds, times.device_back),
        device_offline_max=max(
            shortest, times.device_offline_max if longest is None else int(longest * _HOUR_MS)
        ),
    )


def change_watches(watches: Iterable[Watch], changes: Mapping[Rule, RuleChange]) -> list[Watch]:
    """Return the watches that are not disabled, with the times and thresholds that admins have changed."""
    return [
        each._replace(
            wait=_choose(change.for_seconds, each.wait),
            back=_choose(change.clear_seconds, each.back),
            changed_thresholds=change.thresholds,
        )
        if change is not _NO_CHANGE
        else each
        for each in watches
        if (change := changes.get(each.rule, _NO_CHANGE)).is_enabled
    ]


def _choose(seconds: int | None, default: int) -> int:
    return default if seconds is None else seconds * _SECOND_MS
