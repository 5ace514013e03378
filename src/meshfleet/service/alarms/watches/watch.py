"""Watches: rules that look at stored facts now and then, and name what is at fault.

A watch says only what is wrong now. The engine compares that with the stored conditions: it waits before an
alarm opens and before it is cleared, and counts how often the same fault returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from meshfleet.service.alarms.rules import Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.rest.alarms import AlarmAction
    from meshfleet.service.alarms.conditions import Condition
    from meshfleet.service.alarms.rules import Rule


class Fault(NamedTuple):
    """Subject that is at fault now."""

    number: int
    """Number of the subject: a device or gateway as an integer, or the row id of something else."""
    since: int
    """Time at which the fault began, as Unix time in milliseconds."""
    cause: str
    scope: str
    """Group of faults that are one alarm, such as `gw:02005e000001`, `channel:3` or `service`."""
    severity: Severity
    facts: Mapping[str, Any] = {}
    """Numbers and names for the sentence of the alarm, as they are when it opens."""
    device: int | None = None
    """Device or gateway that is at fault, if it is one: its deletion ends the fault."""
    gateway: int | None = None
    is_certain: bool = True
    """Whether the alarm may open. If not, nothing changes: neither opens the alarm, nor is it cleared."""
    updates_facts: bool = False
    """Whether the facts replace those of an open alarm. One of its members is enough to give them."""

    @property
    def changes_alarm(self) -> bool:
        """Whether the fault may change an alarm that is open. Most do not, so that theirs is not loaded."""
        return self.is_certain and (self.updates_facts or self.severity > Severity.INFO)


class ServiceFacts(NamedTuple):
    """Facts about this service that only its process knows. Times are Unix times in milliseconds."""

    disk_free: int | None = None
    """Free bytes of the disk of the data; None if they are not known, or if the database is a server."""
    disk_total: int | None = None
    disk_full_at: int | None = None
    """Time at which the disk will be full; None if that is not foreseen."""
    broker_failing_since: int | None = None
    """Time since which the MQTT broker does not deliver reports; None while it does."""
    ingest_lag: int = 0
    """Milliseconds for which the oldest report waits until it is stored, or for which the last one waited."""
    certificate_ends_at: int | None = None
    """Time at which the TLS certificate ends; None without a certificate."""


class RuleThreshold(NamedTuple):
    """Number of a built-in rule that an admin can change."""

    name: str
    default: int
    least: int
    most: int


class Sight(NamedTuple):
    """Facts that a watch looks at."""

    connection: Connection
    now: int
    known: Mapping[int, Condition]
    """Conditions of the rule that are not forgotten, by subject: for thresholds that differ afterwards."""
    service: ServiceFacts | None = None
    """Facts about this service; None if they are not known now."""
    thresholds: Mapping[str, float] = {}
    """Numbers of the rule by their names."""


class WatchedAlarm(NamedTuple):
    """Facts of an alarm from which its sentence is built."""

    name: str
    """Name of the gateway or device that the alarm is about; empty if there is none."""
    members: int
    is_over: bool
    length: str
    """Duration of an alarm that is over, such as `25 min`."""
    facts: Mapping[str, Any]


class Watch(NamedTuple):
    """Rule that looks at stored facts now and then."""

    rule: Rule
    interval: int
    """Milliseconds between two looks."""
    wait: int
    """Milliseconds for which a fault must last before its alarm opens."""
    back: int
    """Milliseconds for which the subject must be well before the alarm is cleared."""
    find: Callable[[Sight], Iterable[Fault] | None]
    """Function that returns what is at fault now; None if that is not known now."""
    describe: Callable[[WatchedAlarm], str]
    choose_action: Callable[[Mapping[str, Any]], AlarmAction]
    """Function that returns what to do first, from the facts of the alarm."""
    thresholds: tuple[RuleThreshold, ...] = ()
    """Numbers that an admin can change."""
    changed_thresholds: Mapping[str, float] = {}
    """Values of the numbers that were changed."""

    @property
    def thresholds_in_force(self) -> dict[str, float]:
        """Numbers of the rule by their names."""
        return {each.name: each.default for each in self.thresholds} | dict(self.changed_thresholds)
