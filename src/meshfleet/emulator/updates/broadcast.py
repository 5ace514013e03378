"""Firmware update of many connected devices at once by broadcast (firmware-24, firmware-25)."""

from __future__ import annotations

from functools import partial
from struct import pack
from typing import TYPE_CHECKING, Final

from meshfleet.emulator.updates.download import VERIFY_SECONDS
from meshfleet.emulator.updates.transfer import BROADCAST_RATE, ImageTransfer
from meshfleet.emulator.updates.update_state import Error, State, UpdateStateValue
from meshfleet.protocol.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.emulator.context import EmulatorContext
    from meshfleet.emulator.device_behavior import DeviceBehavior
    from meshfleet.emulator.updates.download import UpdateSession
    from meshfleet.emulator.updates.update_state import ImageKey
    from meshfleet.protocol.firmware_image import ImageInfo

BROADCAST_STATE_ID: Final = Identifier("8125")

_VERIFIED_SECONDS: Final = VERIFY_SECONDS + 1.0
"""Simulated seconds after the transfer until all devices have verified the image."""

_APPLY_STAGGER_SECONDS: Final = 1.0
"""Simulated seconds between the restarts of two devices that apply a broadcast image."""


class MeshBroadcast:
    """Broadcast of one firmware image to several devices.

    The gateway reports the state of the broadcast as property 8125; each device reports its own update state
    as property 8120.
    """

    def __init__(
        self,
        context: EmulatorContext,
        behavior: DeviceBehavior,
        image: ImageKey,
        updates: Sequence[UpdateSession],
    ) -> None:
        self._context = context
        self._behavior = behavior
        self.updates = updates
        self.progress = UpdateStateValue(image)
        self._transfer: ImageTransfer | None = None
        self._error = Error.NONE
        """Error that made the whole broadcast fail; NONE if it has not failed."""
        for update in updates:
            update.on_done = self._update_overall_state
        self._report()

    @property
    def is_done(self) -> bool:
        """Whether the broadcast has ended, so that another broadcast may start."""
        return self.progress.is_done

    def send(self, image: ImageInfo) -> None:
        """Start to send the fetched firmware image to the devices that accept the image."""
        for update in self._list_active_updates():
            if error := update.check_image(image):
                update.fail(error)
        if self.is_done:
            return
        self.on_progress(0)
        self._transfer = ImageTransfer(self._context.scheduler, image.size, self)

    def apply(self) -> bool:
        """Apply the image on all devices that have staged it. Return False if there are no such devices."""
        staged = [update for update in self._list_active_updates() if update.progress.state is State.STAGED]
        if not staged:
            return False
        self.progress.state = State.APPLYING
        self._report()
        for index, update in enumerate(staged):
            self._context.scheduler.after(
                index * _APPLY_STAGGER_SECONDS, partial(self._apply_staged_update, update)
            )
        return True

    def _apply_staged_update(self, update: UpdateSession, _sim_time: float) -> None:
        """Apply the image on one device, if the image is still staged there."""
        if update.progress.state is State.STAGED:
            update.apply()

    def fail(self, error: Error) -> None:
        """Fail the broadcast: fail the updates of all devices that do not apply the image yet."""
        if self.is_done:
            return
        self._error = error
        for update in self._list_active_updates():
            if update.progress.state is not State.APPLYING:
                update.fail(error)
        self._update_overall_state()

    def _list_active_updates(self) -> list[UpdateSession]:
        return [update for update in self.updates if not update.is_done]

    def get_bytes_per_second(self) -> float:
        """Return the transfer rate of the broadcast; 0 while the gateway is restarting."""
        return 0.0 if self._context.is_restarting else BROADCAST_RATE

    def on_progress(self, percent: int) -> None:
        """Update the transfer progress of the broadcast and of the devices that receive it."""
        self.progress.state, self.progress.percent = State.TRANSFERRING, percent
        for update in self._list_active_updates():
            if self._is_receiving(update):
                update.set_percent(min(percent, 99))
        if self.progress.record_report_if_due():
            self._report()

    def _is_receiving(self, update: UpdateSession) -> bool:
        """Return whether the device of an update is online and has a route, so that it gets the image."""
        device = update.device
        return not device.is_offline and device.node.depth >= 0

    def on_stalled(self) -> None:
        """Fail the broadcast, because the gateway was restarting for too long."""
        self.fail(Error.TRANSFER_LOST)

    def on_complete(self) -> None:
        """Let all devices that have received the whole image verify it; fail the updates of the others."""
        self.progress.state, self.progress.percent = State.VERIFYING, 100
        self._report()
        for update in self._list_active_updates():
            if self._is_receiving(update):
                update.verify()
            else:
                update.fail(Error.TRANSFER_LOST)
        self._context.scheduler.after(_VERIFIED_SECONDS, lambda _sim_time: self._update_overall_state())

    def _update_overall_state(self) -> None:
        """Derive the state of the broadcast from the update states of its devices, and report it as 8125."""
        if self.is_done:
            return
        active = self._list_active_updates()
        states = {update.progress.state for update in active}
        if not active:
            self._finish()
        elif states == {State.STAGED} and self.progress.state is State.VERIFYING:
            self.progress.state = State.STAGED
        elif states <= {State.APPLYING, State.STAGED} and State.APPLYING in states:
            self.progress.state = State.APPLYING
        self._report()

    def _finish(self) -> None:
        """Stop the transfer, and set the final state: DONE if any device was updated, else FAILED."""
        if self._transfer is not None:
            self._transfer.stop()
        if self._count_done():
            self.progress.state, self.progress.percent = State.DONE, 100
        else:
            self.progress.state = State.FAILED
            # The error of the first device stands for all; each device reports its own in 8120.
            self.progress.error = self._error or self.updates[0].progress.error

    def _count_done(self) -> int:
        return sum(update.progress.state is State.DONE for update in self.updates)

    def _report(self) -> None:
        """Report the state of the broadcast as property 8125 of the gateway."""
        counts = pack(">HH", self._count_done(), len(self.updates))
        self._behavior.set_property(
            self._context.gateway_device,
            BROADCAST_STATE_ID,
            self.progress.to_bytes() + counts,
            self._context.scheduler.now,
        )
