"""Nordic DFU: the gateway sends an image directly to a device in DFU mode (firmware-26)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.device import ResetCause
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.updates.transfer import NORDIC_RATE, ImageTransfer
from meshfleet.emulator.updates.update_state import Error, State, UpdateStateValue
from meshfleet.protocol.ids import Identifier, to_dfu_mac

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.simulation.clock import ScheduledCallback
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.updates.update_faults import UpdateFault
    from meshfleet.emulator.updates.update_state import ImageKey
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac

NORDIC_STATE_ID: Final = Identifier("8130")

_ADVERTISE_INTERVAL: Final = 10.0
"""Simulated seconds between two `dfu` reports of a device in DFU mode."""

_DFU_MODE_TIMEOUT: Final = 600.0
"""Simulated seconds after which a device leaves DFU mode if no update is in progress."""

_APPLY_SECONDS: Final = 10.0
"""Simulated seconds that a device needs to restart from DFU mode."""


def get_dfu_mac(device: SimulatedDevice) -> Mac:
    """Return the MAC with which a device advertises in DFU mode (firmware-14)."""
    return to_dfu_mac(device.mac) if device.product.chip.is_nrf52 else device.mac


class DfuModeController:
    """Puts devices into DFU mode, simulates their advertising, and restarts them in their previous mode."""

    def __init__(
        self,
        context: EmulatorContext,
        behavior: DeviceBehavior,
        is_receiving_image: Callable[[SimulatedDevice], bool],
    ) -> None:
        self._context = context
        self._behavior = behavior
        self._is_receiving_image = is_receiving_image
        self._previous_modes: dict[Mac, DeviceMode] = {}
        """Modes of devices before they entered DFU mode, by MAC."""

    def enter(self, device: SimulatedDevice, sim_time: float) -> None:
        """Put a device into DFU mode: the device leaves the mesh and advertises."""
        if device.mode is DeviceMode.DFU:
            return
        self._previous_modes[device.mac] = device.mode
        self._behavior.set_mode(device, DeviceMode.DFU, sim_time)
        self._advertise(device, sim_time, sim_time)

    def leave(self, device: SimulatedDevice, on_restarted: ScheduledCallback | None = None) -> None:
        """Restart a device in the mode that it had before DFU mode."""
        device.mode = self._previous_modes.pop(device.mac, device.product.default_mode)
        self._behavior.reboot(device, ResetCause.SOFTWARE, seconds=_APPLY_SECONDS, on_restarted=on_restarted)

    def _advertise(self, device: SimulatedDevice, started_at: float, sim_time: float) -> None:
        """Publish a `dfu` report and schedule the next one. End DFU mode if it has lasted too long."""
        if device.mode is not DeviceMode.DFU:
            return
        if sim_time - started_at >= _DFU_MODE_TIMEOUT and not self._is_receiving_image(device):
            self.leave(device)
            return
        mesh = self._context.mesh
        for i, receiver in enumerate(device.node.receivers):
            reading = mesh.measure_rssi(device.node, i, sim_time, int(sim_time))
            if receiver.depth >= 0 and reading >= radio.MIN_AUDIBLE_DBM and not device.is_offline:
                self._context.reports.publish_dfu(device, receiver, reading, sim_time)
                break
        self._context.scheduler.after(_ADVERTISE_INTERVAL, partial(self._advertise, device, started_at))


class NordicDfu:
    """Nordic DFU transfer to one device. The transfer cannot be aborted after its start (firmware-27)."""

    def __init__(
        self,
        context: EmulatorContext,
        behavior: DeviceBehavior,
        device: SimulatedDevice,
        *,
        image: ImageKey,
        fault: UpdateFault | None,
    ) -> None:
        self._context = context
        self._behavior = behavior
        self.device = device
        self._mac = get_dfu_mac(device)
        self.progress = UpdateStateValue(image)
        self._fault = fault
        self._transfer: ImageTransfer | None = None
        self.on_image_sent: Callable[[SimulatedDevice, ScheduledCallback], None] | None = None
        """Function that restarts the device when it has the image, and calls its argument afterwards."""
        self._report()

    @property
    def is_done(self) -> bool:
        """Whether the DFU transfer has ended, so that another transfer may start."""
        return self.progress.is_done

    def send(self, image: ImageInfo) -> None:
        """Send the fetched firmware image to the device, unless the bootloader rejects it."""
        if error := self._check_image(image):
            self.fail(error)
            return
        self._set_state(State.TRANSFERRING)
        self._transfer = ImageTransfer(self._context.scheduler, image.size, self)

    def _check_image(self, image: ImageInfo) -> Error:
        """Return why the bootloader rejects an image, or NONE."""
        expected_model, product = self.progress.image.model, self.device.product
        if product.model != expected_model or image.model_number not in (None, expected_model):
            return Error.WRONG_MODEL
        # Bootloaders of the nRF52 series reject older versions, those of the nRF51 series do not.
        if product.chip.is_nrf52 and self.progress.image.version < self.device.firmware_version:
            return Error.DOWNGRADE
        return Error.NONE

    def get_bytes_per_second(self) -> float:
        """Return the rate of the direct link; 0 if the device is out of range or the gateway restarts."""
        return (
            0.0 if self._context.is_restarting or not is_in_range(self._context, self.device) else NORDIC_RATE
        )

    def on_progress(self, percent: int) -> None:
        """Record the percentage of the DFU transfer, and report it in steps of 5 %.

        If the injected fault is a power loss at this percentage, fail the transfer.
        """
        self.progress.percent = percent
        if self._fault and self._fault.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
        elif self.progress.record_report_if_due():
            self._report()

    def on_stalled(self) -> None:
        """Fail the DFU transfer, because the device was out of range for too long."""
        self.fail(Error.TRANSFER_LOST)

    def on_complete(self) -> None:
        """Let the bootloader start the new firmware version."""
        if self._fault and self._fault.breaks_image:
            self.fail(Error.BAD_HASH)
        else:
            self._set_state(State.APPLYING)
            if self.on_image_sent is not None:
                self.on_image_sent(self.device, self._on_applied)

    def _on_applied(self, _sim_time: float) -> None:
        """End the transfer after the restart: with the new version, or with a rollback to the old version."""
        if self._fault and self._fault.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.firmware_version = self.progress.image.version
        self._set_state(State.DONE)

    def fail(self, error: Error) -> None:
        """Fail the DFU transfer. The device stays in DFU mode, so that the transfer can be retried."""
        if self.is_done:
            return
        if self._transfer is not None:
            self._transfer.stop()
        self.progress.error = error
        self._set_state(State.FAILED)

    def _set_state(self, state: State) -> None:
        """Set and report the state of the DFU transfer."""
        self.progress.state = state
        self._report()

    def _report(self) -> None:
        """Report the state of the DFU transfer as property 8130 of the gateway."""
        raw = self.progress.to_bytes() + bytes.fromhex(self._mac)
        self._behavior.set_property(
            self._context.gateway_device, NORDIC_STATE_ID, raw, self._context.scheduler.now
        )


def is_in_range(context: EmulatorContext, device: SimulatedDevice) -> bool:
    """Return whether the gateway reaches a device directly, as extenders cannot relay DFU (firmware-28)."""
    node, root = device.node, context.mesh.root
    return (
        root in node.receivers
        and context.mesh.compute_link_rssi(node, node.receivers.index(root), context.scheduler.now)
        >= radio.MIN_USABLE_DBM
    )
