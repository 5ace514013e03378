"""Starts and controls firmware updates, and passes fetched images to the updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from meshfleet.emulator.context import FetchImage
from meshfleet.emulator.simulation.products import DeviceMode
from meshfleet.emulator.updates.broadcast import MeshBroadcast
from meshfleet.emulator.updates.download import MeshDownload, UpdateSession, UpdateSessionPlan
from meshfleet.emulator.updates.nordic_dfu import DfuModeController, NordicDfu, get_dfu_mac, is_in_range
from meshfleet.emulator.updates.update_faults import UpdateFaultInjector
from meshfleet.emulator.updates.update_state import Error, State
from meshfleet.protocol.codes import Status
from meshfleet.protocol.diagnostics import FirmwareType, ImageRequest
from meshfleet.protocol.products import UpdateMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.updates.update_state import ImageKey
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac


class _ImageWaiter(NamedTuple):
    """Callbacks of a firmware update that waits for an image."""

    on_image_fetched: Callable[[ImageInfo], None]
    on_failure: Callable[[Error], None]


class FirmwareUpdater:
    """Starts and controls all firmware updates of one gateway and its devices."""

    def __init__(self, context: EmulatorContext, behavior: DeviceBehavior) -> None:
        self._context = context
        self._behavior = behavior
        self._faults = UpdateFaultInjector(context)
        self._image_waiters: dict[ImageRequest, list[_ImageWaiter]] = {}
        self._sessions: dict[Mac, UpdateSession] = {}
        self._downloads: dict[Mac, MeshDownload] = {}
        self._broadcast: MeshBroadcast | None = None
        self._nordic: NordicDfu | None = None
        self.dfu_mode = DfuModeController(context, behavior, self.is_receiving_image)
        behavior.on_restart = self._on_restart

    # Download

    def start_download(self, device: SimulatedDevice, image: ImageKey, *, stage: bool) -> Status:
        """Start a firmware update of one device; return BUSY if the device is being updated.

        With `stage`, the verified image waits for an apply command.
        """
        if self._is_updating(device):
            return Status.BUSY
        update = self._start_session(device, image, stage=stage)
        if error := update.check_image():
            update.fail(error)
        else:
            self._request_image(
                device, image, _ImageWaiter(lambda found: self._start_transfer(update, found), update.fail)
            )
        return Status.OK

    def _start_transfer(self, update: UpdateSession, image: ImageInfo) -> None:
        """Start to send a fetched image to a device, or fail the update if the device rejects the image."""
        if update.is_done:
            return
        if error := update.check_image(image):
            update.fail(error)
            return
        update.on_done = lambda: self._stop_download(update.device)
        self._downloads[update.device.mac] = MeshDownload(
            self._context, update, image, count_downloads_in_branch=self._count_downloads_in_branch
        )

    def _count_downloads_in_branch(self, branch: MeshNode) -> int:
        """Return how many downloads share a branch of the mesh, at least 1."""
        return max(1, sum(each.branch is branch for each in self._downloads.values()))

    def control_download(self, device: SimulatedDevice, *, apply: bool) -> Status:
        """Apply the staged update of a device, or abort the update of a device before it is applied."""
        update = self._sessions.get(device.mac)
        if update is None or update.is_done:
            return Status.FAILED
        if apply:
            if update.progress.state is not State.STAGED:
                return Status.BUSY
            update.apply()
        elif update.progress.state is State.APPLYING:
            return Status.BUSY
        else:
            self._stop_download(device)
            update.fail(Error.ABORTED)
        return Status.OK

    # Broadcast

    def start_broadcast(self, image: ImageKey, targets: Sequence[Mac], *, stage: bool) -> Status:
        """Start a firmware update by broadcast, and return the status for the response.

        If `targets` is empty, the broadcast is for all devices of the image's model (firmware-9). With
        `stage`, the devices wait for an apply command after they have verified the image.
        """
        if self._broadcast is not None and not self._broadcast.is_done:
            return Status.BUSY
        devices = self._select_targets(image, targets)
        if not devices:
            return Status.INVALID_VALUE
        free = [device for device in devices if not self._is_updating(device)]
        if not free:
            return Status.BUSY
        updates = [self._start_session(device, image, stage=stage) for device in free]
        broadcast = self._broadcast = MeshBroadcast(self._context, self._behavior, image, updates)
        self._request_image(free[0], image, _ImageWaiter(broadcast.send, broadcast.fail))
        return Status.OK

    def _select_targets(self, image: ImageKey, targets: Sequence[Mac]) -> list[SimulatedDevice]:
        """Return the connected devices for a broadcast: `targets`, or all of the image's model if empty."""
        named = [self._context.devices[mac] for mac in targets if mac in self._context.devices]
        candidates = named or [
            device
            for device in self._context.devices.values()
            if device.product.model == image.model and not targets
        ]
        return [
            device
            for device in dict.fromkeys(candidates)
            if UpdateMethod.BROADCAST in device.product.update_methods and device.is_connected
        ]

    def control_broadcast(self, *, apply: bool) -> Status:
        """Apply the staged broadcast, or abort the broadcast before it is applied."""
        broadcast = self._broadcast
        if broadcast is None or broadcast.is_done:
            return Status.FAILED
        if apply:
            return Status.OK if broadcast.apply() else Status.BUSY
        if broadcast.progress.state is State.APPLYING:
            return Status.BUSY
        broadcast.fail(Error.ABORTED)
        return Status.OK

    # Nordic DFU

    def start_nordic_dfu(self, mac: Mac, image: ImageKey) -> Status:
        """Start sending a firmware image to the device that advertises with this MAC in DFU mode."""
        if self._nordic is not None and not self._nordic.is_done:
            return Status.BUSY
        dfu_devices = (device for device in self._context.devices.values() if device.mode is DeviceMode.DFU)
        device = next((device for device in dfu_devices if get_dfu_mac(device) == mac), None)
        if device is None or not is_in_range(self._context, device):
            return Status.UNREACHABLE
        nordic = self._nordic = NordicDfu(
            self._context, self._behavior, device, image=image, fault=self._faults.select_next_fault()
        )
        nordic.on_image_sent = self.dfu_mode.leave
        self._request_image(device, image, _ImageWaiter(nordic.send, nordic.fail))
        return Status.OK

    # Images

    def on_image_fetched(self, image_request: ImageRequest, image: ImageInfo) -> None:
        """Pass a fetched image to all firmware updates that wait for the image."""
        for waiter in self._image_waiters.pop(image_request, ()):
            waiter.on_image_fetched(image)

    def on_image_failed(self, image_request: ImageRequest, error: Error) -> None:
        """Fail all firmware updates that wait for an image which is missing or invalid."""
        for waiter in self._image_waiters.pop(image_request, ()):
            waiter.on_failure(error)

    def _request_image(self, device: SimulatedDevice, image: ImageKey, waiter: _ImageWaiter) -> None:
        """Request an image once for all firmware updates that need it (firmware-21)."""
        is_gateway = device is self._context.gateway_device
        image_request = ImageRequest(
            model_number=image.model,
            version=image.version,
            firmware_type=FirmwareType.RAUC_BUNDLE if is_gateway else FirmwareType.NORDIC_PACKAGE,
        )
        if self._context.is_restarting:
            waiter.on_failure(Error.NO_IMAGE)
            return
        waiters = self._image_waiters.setdefault(image_request, [])
        if not waiters:
            self._context.actions.append(FetchImage(image_request))
        waiters.append(waiter)

    # State

    def _on_restart(self, device: SimulatedDevice) -> None:
        """Fail the updates that the restart of a device interrupts.

        A restart of the gateway interrupts all updates whose image is not verified yet.
        """
        for update in list(self._sessions.values()):
            is_affected = update.device is device or device is self._context.gateway_device
            if is_affected and update.progress.state in (State.FETCHING, State.TRANSFERRING, State.VERIFYING):
                self._stop_download(update.device)
                update.fail(Error.TRANSFER_LOST)
        if device is self._context.gateway_device:
            self._image_waiters.clear()
            for transfer in (self._broadcast, self._nordic):
                if transfer is not None and transfer.progress.state in (State.FETCHING, State.TRANSFERRING):
                    transfer.fail(Error.TRANSFER_LOST)

    def _start_session(self, device: SimulatedDevice, image: ImageKey, *, stage: bool) -> UpdateSession:
        """Create the update session of a device, perhaps with an injected fault."""
        update = UpdateSession(
            self._context,
            self._behavior,
            device,
            UpdateSessionPlan(image, stage, self._faults.select_next_fault()),
        )
        self._sessions[device.mac] = update
        return update

    def is_receiving_image(self, device: SimulatedDevice) -> bool:
        """Return whether a firmware image is being sent to a device in DFU mode."""
        nordic = self._nordic
        return nordic is not None and nordic.device is device and not nordic.is_done

    def _is_updating(self, device: SimulatedDevice) -> bool:
        update = self._sessions.get(device.mac)
        return update is not None and not update.is_done

    def _stop_download(self, device: SimulatedDevice) -> None:
        """Stop the transfer of an image to a device, if one is in progress."""
        if download := self._downloads.pop(device.mac, None):
            download.stop()
