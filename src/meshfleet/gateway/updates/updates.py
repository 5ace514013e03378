"""Starting updates, and handing images to those that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.gateway.core import Fetch
from meshfleet.gateway.updates.broadcast import Broadcast
from meshfleet.gateway.updates.download import Download, Plan, Update
from meshfleet.gateway.updates.mishaps import Mishaps
from meshfleet.gateway.updates.nordic import DfuMode, NordicDfu, advertised_mac, in_range
from meshfleet.gateway.updates.progress import Error, State
from meshfleet.gateway.world.products import Mode
from meshfleet.wire.codes import Status
from meshfleet.wire.diagnostics import FirmwareQuestion, FirmwareType
from meshfleet.wire.products import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates.progress import ImageName
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.node import Node
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.package import Image


class _Waiting:
    """Somebody who waits for an image."""

    __slots__ = ("came", "failed")

    def __init__(self, came: Callable[[Image], None], failed: Callable[[Error], None]) -> None:
        self.came = came
        self.failed = failed


class Updates:
    """All updates of one gateway."""

    def __init__(self, core: Core, life: Life) -> None:
        self._core = core
        self._life = life
        self._mishaps = Mishaps(core)
        self._waiting: dict[FirmwareQuestion, list[_Waiting]] = {}
        self._running: dict[Mac, Update] = {}
        self._downloads: dict[Mac, Download] = {}
        self._broadcast: Broadcast | None = None
        self._nordic: NordicDfu | None = None
        self.dfu_mode = DfuMode(core, life, self.is_served)
        life.interrupt = self._interrupt

    # Download

    def download(self, device: Device, image: ImageName, *, stage: bool) -> Status:
        """Start an update of one device."""
        if self._is_updating(device):
            return Status.BUSY
        update = self._update(device, image, stage=stage)
        if error := update.refusal():
            update.fail(error)
        else:
            self._want(device, image, _Waiting(lambda found: self._begin(update, found), update.fail))
        return Status.OK

    def _begin(self, update: Update, image: Image) -> None:
        if update.is_over:
            return
        if error := update.refusal(image):
            update.fail(error)
            return
        update.ended = lambda: self._stop(update.device)
        self._downloads[update.device.mac] = Download(self._core, update, image, sharing=self._sharing)

    def _sharing(self, branch: Node) -> int:
        """How many downloads share a branch of the mesh; whoever asks is among them."""
        return max(1, sum(each.branch is branch for each in self._downloads.values()))

    def control(self, device: Device, *, apply: bool) -> Status:
        """Apply a staged update of a device, or abort one that has not got too far."""
        update = self._running.get(device.mac)
        if update is None or update.is_over:
            return Status.FAILED
        if apply:
            if update.progress.state is not State.STAGED:
                return Status.BUSY
            update.apply()
        elif update.progress.state is State.APPLYING:
            return Status.BUSY
        else:
            self._stop(device)
            update.fail(Error.ABORTED)
        return Status.OK

    # Broadcast

    def broadcast(self, image: ImageName, targets: Sequence[Mac], *, stage: bool) -> Status:
        """Start one image for many devices; without targets for all of its model (firmware-9)."""
        if self._broadcast is not None and not self._broadcast.is_over:
            return Status.BUSY
        devices = self._targets(image, targets)
        if not devices:
            return Status.INVALID_VALUE
        free = [device for device in devices if not self._is_updating(device)]
        if not free:
            return Status.BUSY
        updates = [self._update(device, image, stage=stage) for device in free]
        broadcast = self._broadcast = Broadcast(self._core, self._life, image, updates)
        self._want(free[0], image, _Waiting(broadcast.send, broadcast.fail))
        return Status.OK

    def _targets(self, image: ImageName, targets: Sequence[Mac]) -> list[Device]:
        named = [self._core.devices[mac] for mac in targets if mac in self._core.devices]
        among = named or [
            device
            for device in self._core.devices.values()
            if device.product.model == image.model and not targets
        ]
        return [
            device
            for device in dict.fromkeys(among)
            if Way.BROADCAST in device.product.ways and device.is_connected
        ]

    def control_broadcast(self, *, apply: bool) -> Status:
        """Apply a staged broadcast, or abort it."""
        broadcast = self._broadcast
        if broadcast is None or broadcast.is_over:
            return Status.FAILED
        if apply:
            return Status.OK if broadcast.apply() else Status.BUSY
        if broadcast.progress.state is State.APPLYING:
            return Status.BUSY
        broadcast.fail(Error.ABORTED)
        return Status.OK

    # Nordic DFU

    def nordic(self, mac: Mac, image: ImageName) -> Status:
        """Start sending an image to the device that advertises under this MAC."""
        if self._nordic is not None and not self._nordic.is_over:
            return Status.BUSY
        waiting = (device for device in self._core.devices.values() if device.mode is Mode.DFU)
        device = next((device for device in waiting if advertised_mac(device) == mac), None)
        if device is None or not in_range(self._core, device):
            return Status.UNREACHABLE
        nordic = self._nordic = NordicDfu(
            self._core, self._life, device, image=image, mishap=self._mishaps.next()
        )
        nordic.left = self.dfu_mode.leave
        self._want(device, image, _Waiting(nordic.send, nordic.fail))
        return Status.OK

    # Images

    def image_came(self, question: FirmwareQuestion, image: Image) -> None:
        """An image is here."""
        for waiting in self._waiting.pop(question, ()):
            waiting.came(image)

    def image_failed(self, question: FirmwareQuestion, error: Error) -> None:
        """There is no such image, or a broken one."""
        for waiting in self._waiting.pop(question, ()):
            waiting.failed(error)

    def _want(self, device: Device, image: ImageName, waiting: _Waiting) -> None:
        """Ask for an image, once for all who want the same (firmware-21)."""
        own = device is self._core.own
        question = FirmwareQuestion(
            model_number=image.model,
            version=image.version,
            firmware_type=FirmwareType.RAUC_BUNDLE if own else FirmwareType.NORDIC_PACKAGE,
        )
        if self._core.is_down:
            waiting.failed(Error.NO_IMAGE)
            return
        asked = self._waiting.setdefault(question, [])
        if not asked:
            self._core.chores.append(Fetch(question))
        asked.append(waiting)

    # What is going on

    def _interrupt(self, device: Device) -> None:
        """A device restarts in the middle of something; with the gateway all transfers break off."""
        for update in list(self._running.values()):
            concerned = update.device is device or device is self._core.own
            if concerned and update.progress.state in (State.FETCHING, State.TRANSFERRING, State.VERIFYING):
                self._stop(update.device)
                update.fail(Error.TRANSFER_LOST)
        if device is self._core.own:
            self._waiting.clear()
            for each in (self._broadcast, self._nordic):
                if each is not None and each.progress.state in (State.FETCHING, State.TRANSFERRING):
                    each.fail(Error.TRANSFER_LOST)

    def _update(self, device: Device, image: ImageName, *, stage: bool) -> Update:
        update = Update(self._core, self._life, device, Plan(image, stage, self._mishaps.next()))
        self._running[device.mac] = update
        return update

    def is_served(self, device: Device) -> bool:
        """Whether an image is on its way to a device in DFU mode."""
        nordic = self._nordic
        return nordic is not None and nordic.device is device and not nordic.is_over

    def _is_updating(self, device: Device) -> bool:
        update = self._running.get(device.mac)
        return update is not None and not update.is_over

    def _stop(self, device: Device) -> None:
        if download := self._downloads.pop(device.mac, None):
            download.stop()
