"""By download: the device gets the image through the mesh, and goes on working meanwhile (firmware-22)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshfleet.service.jobs.update.drivers.driver import ABORT, APPLY, Told, image, kind, read_state
from meshfleet.service.jobs.update.model import Step, to_device
from meshfleet.wire.codes import Operation

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Order, Scene


class Download:
    """8121 to the device, 8120 tells the progress, 8122 applies or aborts."""

    needs_dfu = False

    def start(self, scene: Scene, execution: Execution) -> Ask:  # noqa: ARG002 # as all drivers
        """Begin."""
        value = {**image(scene.order), "type": kind(scene.order)}
        return to_device(Step.START, Operation.WRITE_DECODED, "start-firmware-update", value)

    def state(self, execution: Execution) -> Ask:  # noqa: ARG002 # as all drivers
        """Ask the device."""
        return to_device(Step.STATE, Operation.READ_DECODED, "firmware-update-state")

    def apply(self) -> Ask:
        """Start what was staged."""
        return _control(Step.APPLY, APPLY)

    def abort(self) -> Ask:
        """Take it back."""
        return _control(Step.ABORT, ABORT)

    def read(self, value: Any, order: Order, execution: Execution) -> Told | None:  # noqa: ARG002 # as all drivers
        """Read 8120."""
        return read_state(value, order)


def _control(step: Step, action: int) -> Ask:
    return to_device(step, Operation.WRITE_DECODED, "firmware-update-control", {"action": action})
