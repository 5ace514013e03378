"""By broadcast: the gateway sends one image to many connected devices at once (firmware-24).

One request begins it for all, and one question tells how far it is for all. When the image is out, each
device is asked for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.service.jobs.update.drivers.driver import ABORT, APPLY, Told, image, kind, read_state
from meshfleet.service.jobs.update.model import Step, to_device, to_gateway
from meshfleet.wire.codes import Operation
from meshfleet.wire.ids import number_mac
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Order, Scene

LARGEST: Final = 200
"""Devices of one broadcast; the list in 8124 has room for 255."""

_TOGETHER: Final = frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING})


class Broadcast:
    """8124 to the gateway, 8125 tells the progress, then 8120 of each device; 8126 applies or aborts."""

    needs_dfu = False

    def start(self, scene: Scene, execution: Execution) -> Ask:
        """Begin, for all of the batch."""
        targets = [number_mac(each) for each in scene.batch or (execution.device,)]
        value = {**image(scene.order), "type": kind(scene.order), "targets": targets}
        return to_gateway(Step.START, Operation.WRITE_DECODED, "start-firmware-broadcast", value)

    def state(self, execution: Execution) -> Ask:
        """Ask the gateway, and when the image is out, the device."""
        if execution.step is Step.OWN_STATE or execution.state not in _TOGETHER:
            return to_device(Step.OWN_STATE, Operation.READ_DECODED, "firmware-update-state")
        return to_gateway(Step.STATE, Operation.READ_DECODED, "firmware-broadcast-state")

    def apply(self) -> Ask:
        """Let all start what they have staged."""
        return _control(Step.APPLY, APPLY)

    def abort(self) -> Ask:
        """Take it back, for all."""
        return _control(Step.ABORT, ABORT)

    def read(self, value: Any, order: Order, execution: Execution) -> Told | None:  # noqa: ARG002 # as all drivers
        """Read 8125, or 8120, which begins alike."""
        return read_state(value, order)


def _control(step: Step, action: int) -> Ask:
    return to_gateway(step, Operation.WRITE_DECODED, "firmware-broadcast-control", {"action": action})
