"""Nordic DFU: the gateway sends the image to a device that waits for it in DFU mode (firmware-26)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.service.jobs.update.drivers.driver import Told, image, read_state
from meshfleet.service.jobs.update.model import Step, to_device, to_gateway
from meshfleet.wire.codes import Operation
from meshfleet.wire.ids import dfu_mac, number_mac
from meshfleet.wire.products import is_legacy

if TYPE_CHECKING:
    from meshfleet.service.jobs.update.model import Ask, Execution, Order, Scene
    from meshfleet.wire.ids import Mac

_DFU: Final = 1
"""The mode as 8111 has it."""


class Nordic:
    """8110 or 8111 sends the device into DFU mode, 8131 to the gateway begins, 8130 tells the progress."""

    needs_dfu = True

    def mode(self, order: Order, execution: Execution) -> Ask:
        """Send the device into DFU mode; an older one through its gateway."""
        if is_legacy(order.model):
            value = {"mac": number_mac(execution.device), "mode": _DFU}
            return to_gateway(Step.MODE, Operation.WRITE_DECODED, "legacy-device-mode-switch", value)
        return to_device(Step.MODE, Operation.WRITE_DECODED, "device-mode", "dfu")

    def start(self, scene: Scene, execution: Execution) -> Ask:
        """Begin."""
        value = {"mac": _advertised(scene.order, execution), **image(scene.order)}
        return to_gateway(Step.START, Operation.WRITE_DECODED, "start-nordic-dfu", value)

    def state(self, execution: Execution) -> Ask:  # noqa: ARG002 # as all drivers
        """Ask the gateway."""
        return to_gateway(Step.STATE, Operation.READ_DECODED, "nordic-dfu-state")

    def apply(self) -> None:
        """The bootloader starts what it has got."""

    def abort(self) -> None:
        """Nobody can (firmware-27)."""

    def read(self, value: Any, order: Order, execution: Execution) -> Told | None:
        """Read 8130, which may be about another device."""
        told = read_state(value, order)
        if told is None:
            return None
        return told._replace(is_ours=told.is_ours and value.get("mac") == _advertised(order, execution))


def _advertised(order: Order, execution: Execution) -> Mac:
    """The address that the device has in DFU mode (firmware-14)."""
    mac = number_mac(execution.device)
    return mac if is_legacy(order.model) else dfu_mac(mac)
