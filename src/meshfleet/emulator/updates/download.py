"""Firmware update of one device by download, or as part of a broadcast (firmware-22, firmware-23)."""

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
    from meshfleet.emulator.simulation.mesh_node import MeshNode
    from meshfleet.emulator.updates.update_faults import UpdateFault
    from meshfleet.emulator.updates.update_state import ImageKey
    from meshfleet.protocol.firmware_image import ImageInfo

UPDATE_STATE_ID: Final = Identifier("8120")

VERIFY_SECONDS: Final = 3.0
"""Simulated seconds that a device needs to verify a firmware image."""

APPLY_SECONDS: Final = 15.0
"""Simulated seconds that a device needs to start the new firmware version."""

_RESTART_DELAY: Final = 0.1
"""Simulated seconds from the apply command to the restart, so that the device can respond first."""


class UpdateSessionPlan(NamedTuple):
    """Settings of the firmware update of one device."""

    image: ImageKey
    waits_for_apply: bool
    """Whether the device waits for an apply command after it has verified the image."""
    fault: UpdateFault | None
    """Injected fault of the update, or None."""


class UpdateSession:
    """Firmware update of one device. Every change of the update state is reported as property 8120."""

    def __init__(
        self,
        context: EmulatorContext,
        behavior: DeviceBehavior,
        device: SimulatedDevice,
        plan: UpdateSessionPlan,
    ) -> None:
        self._context = context
        self._behavior = behavior
        self.device = device
        self.progress = UpdateStateValue(plan.image)
        self._waits_for_apply = plan.waits_for_apply
        self._fault = plan.fault
        self.on_done: Callable[[], None] | None = None
        """Function that is called when the update has ended."""
        self._report()

    @property
    def is_done(self) -> bool:
        """Whether the update has ended, successfully or not."""
        return self.progress.is_done

    def check_image(self, image: ImageInfo | None = None) -> Error:
        """Return why the device rejects the update, or NONE. `image` is None before it is fetched."""
        expected_model = self.progress.image.model
        if self.device.product.model != expected_model or (
            image and image.model_number not in (None, expected_model)
        ):
            return Error.WRONG_MODEL
        if (
            self.device.product.has_battery
            and self.device.battery_level(self._context.scheduler.now) < LOW_BATTERY_PERCENT
        ):
            return Error.BATTERY
        return Error.NONE

    def set_percent(self, percent: int) -> None:
        """Record the percentage of the image that has arrived, and report it in steps of 5 %.

        If the injected fault is a power loss at this percentage, fail the update and restart the device.
        """
        self.progress.state, self.progress.percent = State.TRANSFERRING, percent
        if self._fault and self._fault.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
            self._behavior.reboot(self.device, ResetCause.POWER_ON)
        elif self.progress.record_report_if_due():
            self._report()

    def verify(self) -> None:
        """Verify the complete image, then apply the image or wait for an apply command."""
        self._set_state(State.VERIFYING, percent=FULL_PERCENT)
        self._context.scheduler.after(VERIFY_SECONDS, self._on_verified)

    def _on_verified(self, _sim_time: float) -> None:
        """Apply or stage the verified image, or fail the update if the image is broken."""
        if self.progress.state is not State.VERIFYING:
            return
        if self._fault and self._fault.breaks_image:
            self.fail(Error.BAD_HASH)
        elif self._waits_for_apply:
            self._set_state(State.STAGED, percent=FULL_PERCENT)
        else:
            self.apply()

    def apply(self) -> None:
        """Restart the device with the new firmware version. The update cannot be aborted any more."""
        self._set_state(State.APPLYING, percent=FULL_PERCENT)
        self._context.scheduler.after(_RESTART_DELAY, self._restart_device)

    def _restart_device(self, _sim_time: float) -> None:
        self._behavior.reboot(
            self.device, ResetCause.SOFTWARE, seconds=APPLY_SECONDS, on_restarted=self._on_applied
        )

    def _on_applied(self, _sim_time: float) -> None:
        """End the update after the restart: with the new version, or with a rollback to the old version."""
        if self._fault and self._fault.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.firmware_version = self.progress.image.version
        self._set_state(State.DONE, percent=FULL_PERCENT)
        self._notify_done()

    def fail(self, error: Error) -> None:
        """Fail the update and keep the old firmware version. Do nothing if the update has ended."""
        if self.is_done:
            return
        self.progress.error = error
        self._set_state(State.FAILED, percent=self.progress.percent)
        self._notify_done()

    def _set_state(self, state: State, *, percent: int) -> None:
        """Set and report the update state."""
        self.progress.state, self.progress.percent = state, percent
        self._report()

    def _notify_done(self) -> None:
        if self.on_done is not None:
            self.on_done()

    def _report(self) -> None:
        """Report the update state as property 8120, unless the device is offline."""
        self.device.update_state = self.progress.to_bytes()
        if not self.device.is_offline:
            self._behavior.report_property(self.device, UPDATE_STATE_ID, self._context.scheduler.now)


class MeshDownload:
    """Transfers a firmware image to one device. Downloads in one branch of the mesh share its rate."""

    def __init__(
        self,
        context: EmulatorContext,
        update: UpdateSession,
        image: ImageInfo,
        *,
        count_downloads_in_branch: Callable[[MeshNode], int],
    ) -> None:
        self._context = context
        self._session = update
        self._count_downloads_in_branch = count_downloads_in_branch
        self._has_arrived = False
        update.set_percent(0)
        self._transfer = ImageTransfer(context.scheduler, image.size, self)

    @property
    def branch(self) -> MeshNode | None:
        """First mesh hop on the route to the device; None without a route or if the image has arrived."""
        device = self._session.device
        mesh, node = self._context.mesh, device.node
        if self._has_arrived or device.is_offline or not device.is_reachable:
            return None
        if not device.is_connected:
            relay = mesh.find_relay(node, self._context.scheduler.now)
            if relay is None or relay is mesh.root:
                return node if relay else None
            node = relay
        route = mesh.find_route(node)
        return route[0] if route else None

    def stop(self) -> None:
        """Stop the transfer of the image."""
        self._transfer.stop()

    def get_bytes_per_second(self) -> float:
        """Return the rate of this download, its share of the mesh branch's rate; 0 without a route."""
        if self._session.device is self._context.gateway_device:
            return HOST_RATE
        branch = self.branch
        return (
            MESH_RATE / self._count_downloads_in_branch(branch)
            if branch is not None and not self._context.is_restarting
            else 0.0
        )

    def on_complete(self) -> None:
        """Let the device verify the image; the download no longer uses its branch of the mesh."""
        self._has_arrived = True
        self._session.verify()

    def on_stalled(self) -> None:
        """Fail the update, because the device was unreachable for too long."""
        self._session.fail(Error.TRANSFER_LOST)

    def on_progress(self, percent: int) -> None:
        """Update the progress of the device, up to 99 %, because only verification sets 100 %."""
        self._session.set_percent(min(percent, FULL_PERCENT - 1))
