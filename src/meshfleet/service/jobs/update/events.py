"""What can happen to an execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Step


class Due(NamedTuple):
    """It is time to look at it: a clock ran out, or something is to be asked."""


class Answered(NamedTuple):
    """A response came to its request."""

    step: Step
    status: int
    value: Any = None
    is_shared: bool = False
    """Whether another device of the same broadcast asked."""


class Unsent(NamedTuple):
    """Its request did not leave, and why."""

    step: Step
    reason: str


class Unclear(NamedTuple):
    """Its request may have been carried out: no response came that says so, and why."""

    step: Step
    reason: str
    is_cut: bool = False
    """Whether the way to the gateway broke, so that the silence says nothing about the device."""


class Beat(NamedTuple):
    """The device sent a heartbeat."""

    status: int
    at: int
    """By the clock of whoever reported it."""


class InDfu(NamedTuple):
    """The device was heard in DFU mode."""

    gateway: int | None
    parent: int | None
    rssi: int | None
    has_room: bool = True
    """Whether that gateway can take one more update."""


class GatewayAway(NamedTuple):
    """The gateway through which it is reached is not connected."""


class GatewayBack(NamedTuple):
    """That gateway is connected again."""


class Gone(NamedTuple):
    """The device is in the registry no longer."""


Event = Due | Answered | Unsent | Unclear | Beat | InDfu | GatewayAway | GatewayBack | Gone
