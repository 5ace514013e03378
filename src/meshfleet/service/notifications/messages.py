"""Messages about alarms: events for programs, and texts for people."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

MAX_ENTRIES: Final = 20
"""Maximum number of alarms in one message for people; it says how many more there are."""


class MessageKind(StrEnum):
    """Why a message is sent."""

    OPENED = "opened"
    UPDATED = "updated"
    """More severe, twice as many devices, or a new member after an acknowledgment."""
    REPEATED = "repeated"
    """Still open, and not acknowledged."""
    STILL_OPEN = "still-open"
    """Still open after a silence."""
    ACKNOWLEDGED = "acknowledged"
    UNACKNOWLEDGED = "unacknowledged"
    CLEARED = "cleared"
    SUMMARY = "summary"
    """Several alarms in one message for people."""
    TEST = "test"


class EventMessage(Struct, frozen=True, kw_only=True):
    """Message for a program: one change of one alarm."""

    type: str
    """`alarm.opened`, `alarm.updated`, `alarm.acknowledged`, `alarm.cleared` or `channel.test`."""
    timestamp: str
    """Time of the change, as in REST."""
    data: dict[str, Any]
    """The alarm as in REST."""


class MessageEntry(Struct, frozen=True, kw_only=True):
    """Alarm in a message for people."""

    kind: MessageKind
    alarm: str
    """Id, such as `alarm-12`."""
    severity: str
    sentence: str
    action: str
    """First thing to do; empty for an alarm that is over."""
    since: str
    """Time at which the fault began, as in REST."""


class HumanMessage(Struct, frozen=True, kw_only=True):
    """Message for people about one or more alarms: first those that are open."""

    entries: list[MessageEntry]
    more: int = 0
    """Number of alarms that are left out."""
    passed: int = 0
    """Number of alarms that were opened and cleared while the message was held."""
    kind: MessageKind = MessageKind.SUMMARY
    """The kind of its only entry; else `summary`; or `test`, without entries."""
