"""What a driver is, and what all of them have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from meshfleet.errors import WireError
from meshfleet.service.jobs.update.model import to_device
from meshfleet.wire.codes import Operation
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.ids import Identifier, Version
from meshfleet.wire.updates import UpdateState

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Order, Scene, Step

ABORT, APPLY = 0, 1
"""What 8122 and 8126 can say (firmware-7)."""

AT_ONCE, STAGE = 0, 1
"""Types of 8121 and 8124 (firmware-3)."""

_STATES: Final = {state.name.lower(): state for state in UpdateState}

VERSION: Final = Identifier("8001")


class Told(NamedTuple):
    """How far an update is."""

    state: UpdateState
    percent: int
    error: int
    is_ours: bool
    """Whether it is this image, and for this device."""


class Driver(Protocol):
    """One way of updating. It only says what to ask and reads what is answered; it sends nothing."""

    needs_dfu: bool
    """Whether the device must be in DFU mode before it begins."""

    def start(self, scene: Scene, execution: Execution) -> Ask:
        """Begin the transfer."""

    def state(self, execution: Execution) -> Ask:
        """Ask how far it is."""

    def apply(self) -> Ask | None:
        """Let devices start what they have staged; None: they do that by themselves."""

    def abort(self) -> Ask | None:
        """Take it back; None: nobody can, once it has begun."""

    def read(self, value: Any, order: Order, execution: Execution) -> Told | None:
        """Read the answer to `state`; None: it cannot be read."""


def image(order: Order) -> dict[str, Any]:
    """Which image, inside a value (firmware-1)."""
    return {"modelNumber": int(order.model, 16), "version": str(order.version)}


def kind(order: Order) -> int:
    """Whether a device starts what it has got by itself."""
    return STAGE if order.stage and not order.is_applied else AT_ONCE


def read_state(value: Any, order: Order) -> Told | None:
    """Read what 8120, 8125 and 8130 begin with (firmware-4)."""
    if not isinstance(value, dict):
        return None
    state = _STATES.get(str(value.get("state")))
    percent, error = value.get("percent"), value.get("error")
    if state is None or type(percent) is not int or type(error) is not int:
        return None
    ours = all(value.get(name) == each for name, each in image(order).items())
    return Told(state, min(max(percent, 0), 100), error, ours)


def ask_version(step: Step) -> Ask:
    """Ask which version a device runs."""
    return to_device(step, Operation.READ, VERSION)


def read_version(value: Any) -> Version | None:
    """Read the answer; None: it cannot be read."""
    try:
        return Version.parse(BUILTIN.decode(VERSION, bytes.fromhex(value)).value)
    except (WireError, TypeError, ValueError):
        return None
