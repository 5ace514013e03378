"""Nordic DFU: the gateway sends an image straight to a device that waits for it in DFU mode (firmware-26)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.updates.progress import Error, Progress, State
from meshfleet.gateway.updates.transfer import NORDIC_RATE, Transfer
from meshfleet.gateway.world import radio
from meshfleet.gateway.world.device import Reset
from meshfleet.gateway.world.products import Mode
from meshfleet.wire.ids import Identifier, dfu_mac

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates.mishaps import Mishap
    from meshfleet.gateway.updates.progress import ImageName
    from meshfleet.gateway.world.agenda import Deed
    from meshfleet.gateway.world.device import Device
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.package import Image

STATE: Final = Identifier("8130")

_ADVERTISES: Final = 10.0
"""Seconds between two `dfu` reports."""

_PATIENCE: Final = 600.0
"""Seconds after which a device that nobody updates leaves DFU mode by itself."""

_APPLY: Final = 10.0
_TOLD: Final = 5


def advertised_mac(device: Device) -> Mac:
    """The address that a device has in DFU mode (firmware-14)."""
    return dfu_mac(device.mac) if device.product.chip.is_nrf52 else device.mac


class DfuMode:
    """Devices that wait for an update in DFU mode."""

    def __init__(self, core: Core, life: Life, is_served: Callable[[Device], bool]) -> None:
        self._core = core
        self._life = life
        self._is_served = is_served
        self._before: dict[Mac, Mode] = {}
        """The modes that the devices came from."""

    def enter(self, device: Device, t: float) -> None:
        """Send a device into DFU mode: it leaves the mesh and advertises."""
        if device.mode is Mode.DFU:
            return
        self._before[device.mac] = device.mode
        self._life.set_mode(device, Mode.DFU, t)
        self._advertise(device, t, t)

    def leave(self, device: Device, then: Deed | None = None) -> None:
        """Let a device start again in the mode that it came from."""
        device.mode = self._before.pop(device.mac, device.product.usual)
        self._life.reboot(device, Reset.SOFTWARE, seconds=_APPLY, then=then)

    def _advertise(self, device: Device, since: float, t: float) -> None:
        if device.mode is not Mode.DFU:
            return
        if t - since >= _PATIENCE and not self._is_served(device):
            self.leave(device)
            return
        mesh = self._core.mesh
        for i, hearer in enumerate(device.node.hearers):
            reading = mesh.reading(device.node, i, t, int(t))
            if hearer.depth >= 0 and reading >= radio.HEARD and not device.is_away:
                self._core.report.dfu(device, hearer, reading, t)
                break
        self._core.agenda.after(_ADVERTISES, partial(self._advertise, device, since))


class NordicDfu:
    """One transfer. Once it has begun it cannot be aborted (firmware-27)."""

    def __init__(
        self, core: Core, life: Life, device: Device, *, image: ImageName, mishap: Mishap | None
    ) -> None:
        self._core = core
        self._life = life
        self.device = device
        self._mac = advertised_mac(device)
        self.progress = Progress(image)
        self._mishap = mishap
        self._told = 0
        self._transfer: Transfer | None = None
        self.left: Callable[[Device, Deed], None] | None = None
        """Called when the device may go: it starts the new version, and then something is to be done."""
        self._tell()

    @property
    def is_over(self) -> bool:
        """Whether another transfer may start."""
        return self.progress.is_over

    def send(self, image: Image) -> None:
        """The image is here: send it, if the bootloader takes it."""
        if error := self._refusal(image):
            self.fail(error)
            return
        self._enter(State.TRANSFERRING)
        self._transfer = Transfer(self._core.agenda, image.size, self)

    def _refusal(self, image: Image) -> Error:
        wanted, product = self.progress.image.model, self.device.product
        if product.model != wanted or image.model_number not in (None, wanted):
            return Error.WRONG_MODEL
        # Bootloaders of the nRF52 series check versions, those of the nRF51 do not.
        if product.chip.is_nrf52 and self.progress.image.version < self.device.version:
            return Error.DOWNGRADE
        return Error.NONE

    def rate(self) -> float:
        """The rate of a link of its own, while the device is in range."""
        return 0.0 if self._core.is_down or not in_range(self._core, self.device) else NORDIC_RATE

    def moved(self, percent: int) -> None:
        """Tell how far it is, now and then."""
        self.progress.percent = percent
        if self._mishap and self._mishap.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
        elif percent - self._told >= _TOLD:
            self._told = percent
            self._tell()

    def lost(self) -> None:
        """The device is out of range."""
        self.fail(Error.TRANSFER_LOST)

    def arrived(self) -> None:
        """Let the bootloader start it."""
        if self._mishap and self._mishap.breaks_image:
            self.fail(Error.BAD_HASH)
        else:
            self._enter(State.APPLYING)
            if self.left is not None:
                self.left(self.device, self._applied)

    def _applied(self, _t: float) -> None:
        if self._mishap and self._mishap.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.version = self.progress.image.version
        self._enter(State.DONE)

    def fail(self, error: Error) -> None:
        """Give up. The device stays in DFU mode, where it can be tried again."""
        if self.is_over:
            return
        if self._transfer is not None:
            self._transfer.stop()
        self.progress.error = error
        self._enter(State.FAILED)

    def _enter(self, state: State) -> None:
        self.progress.state = state
        self._tell()

    def _tell(self) -> None:
        raw = self.progress.raw() + bytes.fromhex(self._mac)
        self._life.change(self._core.own, STATE, raw, self._core.agenda.now)


def in_range(core: Core, device: Device) -> bool:
    """Whether the gateway itself hears a device well enough: no extender can stand in (firmware-28)."""
    node, root = device.node, core.mesh.root
    return (
        root in node.hearers
        and core.mesh.rssi(node, node.hearers.index(root), core.agenda.now) >= radio.USABLE
    )
