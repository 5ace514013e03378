"""Updating one device by download, or as one of many in a broadcast (firmware-22, firmware-23)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.gateway.updates.progress import Error, Progress, State
from meshfleet.gateway.updates.transfer import FULL, HOST_RATE, MESH_RATE, Transfer
from meshfleet.gateway.world.device import LOW_BATTERY, Reset
from meshfleet.wire.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates.mishaps import Mishap
    from meshfleet.gateway.updates.progress import ImageName
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.node import Node
    from meshfleet.wire.package import Image

STATE: Final = Identifier("8120")

VERIFY: Final = 3.0
"""Seconds that a device needs to check an image."""

APPLY: Final = 15.0
"""Seconds that it takes to start the new version."""

_SOON: Final = 0.1
"""Seconds from the word to the restart: time for an answer."""

_TOLD: Final = 5
"""Percents between two reports of progress."""


class Plan(NamedTuple):
    """What an update shall do, and what it will suffer."""

    image: ImageName
    stage: bool
    """Whether it waits for a word before it is applied."""
    mishap: Mishap | None


class Update:
    """One device on its way to another version. It tells every step in 8120."""

    def __init__(self, core: Core, life: Life, device: Device, plan: Plan) -> None:
        self._core = core
        self._life = life
        self.device = device
        self.progress = Progress(plan.image)
        self._stage = plan.stage
        self._mishap = plan.mishap
        self._told = 0
        self.ended: Callable[[], None] | None = None
        """Told when it is over."""
        self._tell()

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self.progress.is_over

    def refusal(self, image: Image | None = None) -> Error:
        """Why the device does not take the image; without one, as far as it can be told beforehand."""
        wanted = self.progress.image.model
        if self.device.product.model != wanted or (image and image.model_number not in (None, wanted)):
            return Error.WRONG_MODEL
        if self.device.product.battery and self.device.battery_level(self._core.agenda.now) < LOW_BATTERY:
            return Error.BATTERY
        return Error.NONE

    def move(self, percent: int) -> None:
        """The image has arrived so far."""
        self.progress.state, self.progress.percent = State.TRANSFERRING, percent
        if self._mishap and self._mishap.loses_power_at(percent):
            self.fail(Error.TRANSFER_LOST)
            self._life.reboot(self.device, Reset.POWER_ON)
        elif percent == 0 or percent - self._told >= _TOLD:
            self._told = percent
            self._tell()

    def verify(self) -> None:
        """The image is there: check it."""
        self._enter(State.VERIFYING, percent=FULL)
        self._core.agenda.after(VERIFY, self._verified)

    def _verified(self, _t: float) -> None:
        if self.progress.state is not State.VERIFYING:
            return
        if self._mishap and self._mishap.breaks_image:
            self.fail(Error.BAD_HASH)
        elif self._stage:
            self._enter(State.STAGED, percent=FULL)
        else:
            self.apply()

    def apply(self) -> None:
        """Start the new version; from here on nothing can be taken back."""
        self._enter(State.APPLYING, percent=FULL)
        self._core.agenda.after(_SOON, self._restart)

    def _restart(self, _t: float) -> None:
        self._life.reboot(self.device, Reset.SOFTWARE, seconds=APPLY, then=self._applied)

    def _applied(self, _t: float) -> None:
        if self._mishap and self._mishap.rolls_back:
            self.fail(Error.ROLLED_BACK)
            return
        self.device.version = self.progress.image.version
        self._enter(State.DONE, percent=FULL)
        self._end()

    def fail(self, error: Error) -> None:
        """Give up; the old version runs on. What is over stays as it is."""
        if self.is_over:
            return
        self.progress.error = error
        self._enter(State.FAILED, percent=self.progress.percent)
        self._end()

    def _enter(self, state: State, *, percent: int) -> None:
        self.progress.state, self.progress.percent = state, percent
        self._tell()

    def _end(self) -> None:
        if self.ended is not None:
            self.ended()

    def _tell(self) -> None:
        self.device.update = self.progress.raw()
        if not self.device.is_away:
            self._life.report_property(self.device, STATE, self._core.agenda.now)


class Download:
    """An update whose image one device gets for itself, while others may do the same."""

    def __init__(self, core: Core, update: Update, image: Image, *, sharing: Callable[[Node], int]) -> None:
        self._core = core
        self._update = update
        self._sharing = sharing
        self._has_arrived = False
        update.move(0)
        self._transfer = Transfer(core.agenda, image.size, self)

    @property
    def branch(self) -> Node | None:
        """The first hop of the way that the image takes; None while there is no way."""
        device = self._update.device
        mesh, node = self._core.mesh, device.node
        if self._has_arrived or device.is_away or not device.is_reachable:
            return None
        if not device.is_connected:
            reacher = mesh.reacher(node, self._core.agenda.now)
            if reacher is None or reacher is mesh.root:
                return node if reacher else None
            node = reacher
        route = mesh.route(node)
        return route[0] if route else None

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._transfer.stop()

    def rate(self) -> float:
        """The share that this one has of its branch."""
        if self._update.device is self._core.own:
            return HOST_RATE
        branch = self.branch
        return MESH_RATE / self._sharing(branch) if branch is not None and not self._core.is_down else 0.0

    def arrived(self) -> None:
        """Let the device check it; the branch is free for others."""
        self._has_arrived = True
        self._update.verify()

    def lost(self) -> None:
        """The device was away for too long."""
        self._update.fail(Error.TRANSFER_LOST)

    def moved(self, percent: int) -> None:
        """Let the device tell how far it is. Complete it is only when it has been checked."""
        self._update.move(min(percent, FULL - 1))
