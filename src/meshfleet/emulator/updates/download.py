"""Updating one device by download, or as one of many in a broadcast (firmware-22, firmware-23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation.device import LOW_BATTERY_PERCENT, ResetCause
from meshfleet.emulator.updates.transfer import FULL_PERCENT, HOST_RATE, MESH_RATE, ImageTransfer
from meshfleet.emulator.updates.update_state import Error, State, UpdateStateValue
from meshfleet.protocol.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.mesh import MeshNode
    from meshfleet.emulator.updates.update_faults import UpdateFault
    from meshfleet.emulator.updates.update_state import ImageKey
    from meshfleet.protocol.firmware_image import ImageInfo

UPDATE_STATE_ID: Final = Identifier("8120")

VERIFY_SECONDS: Final = 3.0
"""Seconds that a device needs to check an image."""

APPLY_SECONDS: Final = 15.0
"""Seconds that it takes to start the new version."""

_RESTART_DELAY: Final = 0.1
"""Seconds from the word to the restart: time for an answer."""

_REPORT_STEP_PERCENT: Final = 5
"""Percents between two reports of progress."""


class UpdateSessionPlan(NamedTuple):
    """What an update shall do, and what it will suffer."""

    image: ImageKey
    waits_for_apply: bool
    """Whether it waits for a word before it is applied."""
    fault: UpdateFault | None


class UpdateSession:
    """One device on its way to another version. It tells every step in 8120."""

    def __init__(
        self,
        core: EmulatorContext,
        behavior: DeviceBehavior,
        device: SimulatedDevice,
        plan: UpdateSessionPlan,
    ) -> None:
        self._core = core
        self._behavior = behavior
        self.device = device
        self.progress = UpdateStateValue(plan.image)
        self._waits_for_apply = plan.waits_for_apply
        self._fault = plan.fault
        self._reported_percent = 0
        self.on_done: Callable[[], None] | None = None
        """Told when it is over."""
        self._report()

    @property
    def is_done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self.progress.is_done

    def check_image(self, image: ImageInfo | None = None) -> Error:
        """Why the device does not take the image; without one, as far as it can be told beforehand."""
        wanted = self.progress.image.model
        if self.device.product.model != wanted or (image and image.model_number not in (None, wanted)):
            return Error.WRONG_MODEL
        if (
            self.device.product.has_battery
            and self.device.battery_level(self._core.scheduler.now) < LOW_BATTERY_PERCENT
        ):
            return Error.BATTERY
        return Error.NONE

    def set_percent(self, percent: int) -> None:
        """The image has arrived so far."""
        self.progress.state, self.progress.percent = State.TRANSFERRING, percent
        if self._fault and self._fault.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
            self._behavior.reboot(self.device, ResetCause.POWER_ON)
        elif percent == 0 or percent - self._reported_percent >= _REPORT_STEP_PERCENT:
            self._reported_percent = percent
            self._report()

    def verify(self) -> None:
        """The image is there: check it."""
        self._enter(State.VERIFYING, percent=FULL_PERCENT)
        self._core.scheduler.after(VERIFY_SECONDS, self._on_verified)

    def _on_verified(self, _t: float) -> None:
        if self.progress.state is not State.VERIFYING:
            return
        if self._fault and self._fault.breaks_image:
            self.fail(Error.BAD_HASH)
        elif self._waits_for_apply:
            self._enter(State.STAGED, percent=FULL_PERCENT)
        else:
            self.apply()

    def apply(self) -> None:
        """Start the new version; from here on nothing can be taken back."""
        self._enter(State.APPLYING, percent=FULL_PERCENT)
        self._core.scheduler.after(_RESTART_DELAY, self._restart)

    def _restart(self, _t: float) -> None:
        self._behavior.reboot(
            self.device, ResetCause.SOFTWARE, seconds=APPLY_SECONDS, on_restarted=self._on_applied
        )

    def _on_applied(self, _t: float) -> None:
        if self._fault and self._fault.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.firmware_version = self.progress.image.version
        self._enter(State.DONE, percent=FULL_PERCENT)
        self._notify_done()

    def fail(self, error: Error) -> None:
        """Give up; the old version runs on. What is over stays as it is."""
        if self.is_done:
            return
        self.progress.error = error
        self._enter(State.FAILED, percent=self.progress.percent)
        self._notify_done()

    def _enter(self, state: State, *, percent: int) -> None:
        self.progress.state, self.progress.percent = state, percent
        self._report()

    def _notify_done(self) -> None:
        if self.on_done is not None:
            self.on_done()

    def _report(self) -> None:
        self.device.update_state = self.progress.to_bytes()
        if not self.device.is_offline:
            self._behavior.report_property(self.device, UPDATE_STATE_ID, self._core.scheduler.now)


class MeshDownload:
    """An update whose image one device gets for itself, while others may do the same."""

    def __init__(
        self,
        core: EmulatorContext,
        update: UpdateSession,
        image: ImageInfo,
        *,
        count_sharing: Callable[[MeshNode], int],
    ) -> None:
        self._core = core
        self._session = update
        self._count_sharing = count_sharing
        self._has_arrived = False
        update.set_percent(0)
        self._transfer = ImageTransfer(core.scheduler, image.size, self)

    @property
    def branch(self) -> MeshNode | None:
        """The first hop of the way that the image takes; None while there is no way."""
        device = self._session.device
        mesh, node = self._core.mesh, device.node
        if self._has_arrived or device.is_offline or not device.is_reachable:
            return None
        if not device.is_connected:
            reacher = mesh.find_relay(node, self._core.scheduler.now)
            if reacher is None or reacher is mesh.root:
                return node if reacher else None
            node = reacher
        route = mesh.find_route(node)
        return route[0] if route else None

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._transfer.stop()

    def bytes_per_second(self) -> float:
        """The share that this one has of its branch."""
        if self._session.device is self._core.gateway_device:
            return HOST_RATE
        branch = self.branch
        return (
            MESH_RATE / self._count_sharing(branch) if branch is not None and not self._core.is_down else 0.0
        )

    def on_complete(self) -> None:
        """Let the device check it; the branch is free for others."""
        self._has_arrived = True
        self._session.verify()

    def on_stalled(self) -> None:
        """The device was away for too long."""
        self._session.fail(Error.TRANSFER_LOST)

    def on_progress(self, percent: int) -> None:
        """Let the device tell how far it is. Complete it is only when it has been checked."""
        self._session.set_percent(min(percent, FULL_PERCENT - 1))
