"""Nordic DFU: the gateway sends an image straight to a device that waits for it in DFU mode (firmware-26)."""

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
"""Seconds between two `dfu` reports."""

_DFU_MODE_TIMEOUT: Final = 600.0
"""Seconds after which a device that nobody updates leaves DFU mode by itself."""

_APPLY_SECONDS: Final = 10.0
_REPORT_STEP_PERCENT: Final = 5


def dfu_mac_of(device: SimulatedDevice) -> Mac:
    """The address that a device has in DFU mode (firmware-14)."""
    return to_dfu_mac(device.mac) if device.product.chip.is_nrf52 else device.mac


class DfuModeController:
    """Devices that wait for an update in DFU mode."""

    def __init__(
        self,
        core: EmulatorContext,
        behavior: DeviceBehavior,
        is_receiving_image: Callable[[SimulatedDevice], bool],
    ) -> None:
        self._core = core
        self._behavior = behavior
        self._is_receiving_image = is_receiving_image
        self._previous_modes: dict[Mac, DeviceMode] = {}
        """The modes that the devices came from."""

    def enter(self, device: SimulatedDevice, t: float) -> None:
        """Send a device into DFU mode: it leaves the mesh and advertises."""
        if device.mode is DeviceMode.DFU:
            return
        self._previous_modes[device.mac] = device.mode
        self._behavior.set_mode(device, DeviceMode.DFU, t)
        self._advertise(device, t, t)

    def leave(self, device: SimulatedDevice, on_restarted: ScheduledCallback | None = None) -> None:
        """Let a device start again in the mode that it came from."""
        device.mode = self._previous_modes.pop(device.mac, device.product.default_mode)
        self._behavior.reboot(device, ResetCause.SOFTWARE, seconds=_APPLY_SECONDS, on_restarted=on_restarted)

    def _advertise(self, device: SimulatedDevice, since: float, t: float) -> None:
        if device.mode is not DeviceMode.DFU:
            return
        if t - since >= _DFU_MODE_TIMEOUT and not self._is_receiving_image(device):
            self.leave(device)
            return
        mesh = self._core.mesh
        for i, hearer in enumerate(device.node.receivers):
            reading = mesh.measure_rssi(device.node, i, t, int(t))
            if hearer.depth >= 0 and reading >= radio.MIN_AUDIBLE_DBM and not device.is_offline:
                self._core.reports.publish_dfu(device, hearer, reading, t)
                break
        self._core.scheduler.after(_ADVERTISE_INTERVAL, partial(self._advertise, device, since))


class NordicDfu:
    """One transfer. Once it has begun it cannot be aborted (firmware-27)."""

    def __init__(
        self,
        core: EmulatorContext,
        behavior: DeviceBehavior,
        device: SimulatedDevice,
        *,
        image: ImageKey,
        fault: UpdateFault | None,
    ) -> None:
        self._core = core
        self._behavior = behavior
        self.device = device
        self._mac = dfu_mac_of(device)
        self.progress = UpdateStateValue(image)
        self._fault = fault
        self._reported_percent = 0
        self._transfer: ImageTransfer | None = None
        self.on_image_sent: Callable[[SimulatedDevice, ScheduledCallback], None] | None = None
        """Called when the device may go: it starts the new version, and then something is to be done."""
        self._report()

    @property
    def is_done(self) -> bool:
        """Whether another transfer may start."""
        return self.progress.is_done

    def send(self, image: ImageInfo) -> None:
        """The image is here: send it, if the bootloader takes it."""
        if error := self._check_image(image):
            self.fail(error)
            return
        self._enter(State.TRANSFERRING)
        self._transfer = ImageTransfer(self._core.scheduler, image.size, self)

    def _check_image(self, image: ImageInfo) -> Error:
        wanted, product = self.progress.image.model, self.device.product
        if product.model != wanted or image.model_number not in (None, wanted):
            return Error.WRONG_MODEL
        # Bootloaders of the nRF52 series check versions, those of the nRF51 do not.
        if product.chip.is_nrf52 and self.progress.image.version < self.device.firmware_version:
            return Error.DOWNGRADE
        return Error.NONE

    def bytes_per_second(self) -> float:
        """The rate of a link of its own, while the device is in range."""
        return 0.0 if self._core.is_down or not is_in_range(self._core, self.device) else NORDIC_RATE

    def on_progress(self, percent: int) -> None:
        """Tell how far it is, now and then."""
        self.progress.percent = percent
        if self._fault and self._fault.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
        elif percent - self._reported_percent >= _REPORT_STEP_PERCENT:
            self._reported_percent = percent
            self._report()

    def on_stalled(self) -> None:
        """The device is out of range."""
        self.fail(Error.TRANSFER_LOST)

    def on_complete(self) -> None:
        """Let the bootloader start it."""
        if self._fault and self._fault.breaks_image:
            self.fail(Error.BAD_HASH)
        else:
            self._enter(State.APPLYING)
            if self.on_image_sent is not None:
                self.on_image_sent(self.device, self._on_applied)

    def _on_applied(self, _t: float) -> None:
        if self._fault and self._fault.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.firmware_version = self.progress.image.version
        self._enter(State.DONE)

    def fail(self, error: Error) -> None:
        """Give up. The device stays in DFU mode, where it can be tried again."""
        if self.is_done:
            return
        if self._transfer is not None:
            self._transfer.stop()
        self.progress.error = error
        self._enter(State.FAILED)

    def _enter(self, state: State) -> None:
        self.progress.state = state
        self._report()

    def _report(self) -> None:
        raw = self.progress.to_bytes() + bytes.fromhex(self._mac)
        self._behavior.set_property(self._core.gateway_device, NORDIC_STATE_ID, raw, self._core.scheduler.now)


def is_in_range(core: EmulatorContext, device: SimulatedDevice) -> bool:
    """Whether the gateway itself hears a device well enough: no extender can stand in (firmware-28)."""
    node, root = device.node, core.mesh.root
    return (
        root in node.receivers
        and core.mesh.link_rssi(node, node.receivers.index(root), core.scheduler.now) >= radio.MIN_USABLE_DBM
    )
