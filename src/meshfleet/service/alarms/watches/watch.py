"""Watches: rules that look at stored facts now and then, and name what is at fault.

A watch says only what is wrong now. The engine compares that with the stored conditions: it waits before an
alarm opens and before it is cleared, and counts how often the same fault returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.rest.alarms import AlarmAction
    from meshfleet.service.alarms.conditions import Condition
    from meshfleet.service.alarms.rules import Rule, Severity


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


class Sight(NamedTuple):
    """Facts that a watch looks at."""

    connection: Connection
    now: int
    known: Mapping[int, Condition]
    """Conditions of the rule that are not forgotten, by subject: for thresholds that differ afterwards."""


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
