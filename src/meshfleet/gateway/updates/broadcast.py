"""Updating many connected devices at once (firmware-24, firmware-25)."""

from __future__ import annotations

from functools import partial
from struct import pack
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.updates.download import VERIFY
from meshfleet.gateway.updates.progress import Error, Progress, State
from meshfleet.gateway.updates.transfer import BROADCAST_RATE, Transfer
from meshfleet.wire.ids import Identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.gateway.core import Core
    from meshfleet.gateway.life import Life
    from meshfleet.gateway.updates.download import Update
    from meshfleet.gateway.updates.progress import ImageName
    from meshfleet.wire.package import Image

STATE: Final = Identifier("8125")

_TOLD: Final = 5
_SETTLED: Final = VERIFY + 1.0
"""Seconds after which all devices have checked the image."""

_STAGGER: Final = 1.0
"""Seconds between devices that start the new version, so that they do not all come back in one moment."""


class Broadcast:
    """One image for many devices. It is told in 8125 of the gateway, and each device in its own 8120."""

    def __init__(self, core: Core, life: Life, image: ImageName, updates: Sequence[Update]) -> None:
        self._core = core
        self._life = life
        self.updates = updates
        self.progress = Progress(image)
        self._told = 0
        self._transfer: Transfer | None = None
        self._cause = Error.NONE
        """Why it failed, if it did as a whole."""
        for update in updates:
            update.ended = self._one_ended
        self._tell()

    @property
    def is_over(self) -> bool:
        """Whether another broadcast may start."""
        return self.progress.is_over

    def send(self, image: Image) -> None:
        """The image is here: send it to those who take it."""
        for update in self._active():
            if error := update.refusal(image):
                update.fail(error)
        if self.is_over:
            return
        self.moved(0)
        self._transfer = Transfer(self._core.agenda, image.size, self)

    def apply(self) -> bool:
        """Let those that wait for it start the new version; whether there is anybody."""
        staged = [update for update in self._active() if update.progress.state is State.STAGED]
        if not staged:
            return False
        self.progress.state = State.APPLYING
        self._tell()
        for place, update in enumerate(staged):
            self._core.agenda.after(place * _STAGGER, partial(self._apply_one, update))
        return True

    def _apply_one(self, update: Update, _t: float) -> None:
        if update.progress.state is State.STAGED:
            update.apply()

    def fail(self, error: Error) -> None:
        """Give up for all who have not got past the point of no return."""
        if self.is_over:
            return
        self._cause = error
        for update in self._active():
            if update.progress.state is not State.APPLYING:
                update.fail(error)
        self._settle()

    def _active(self) -> list[Update]:
        return [update for update in self.updates if not update.is_over]

    def rate(self) -> float:
        """Whoever listens gets it at this rate."""
        return 0.0 if self._core.is_down else BROADCAST_RATE

    def moved(self, percent: int) -> None:
        """Let those who hear it know how far it is."""
        self.progress.state, self.progress.percent = State.TRANSFERRING, percent
        for update in self._active():
            if self._hears(update):
                update.move(min(percent, 99))
        if percent == 0 or percent - self._told >= _TOLD:
            self._told = percent
            self._tell()

    def _hears(self, update: Update) -> bool:
        device = update.device
        return not device.is_away and device.node.depth >= 0

    def lost(self) -> None:
        """The gateway was away for too long."""
        self.fail(Error.TRANSFER_LOST)

    def arrived(self) -> None:
        """Let all who have it check it."""
        self.progress.state, self.progress.percent = State.VERIFYING, 100
        self._tell()
        for update in self._active():
            if self._hears(update):
                update.verify()
            else:
                update.fail(Error.TRANSFER_LOST)
        self._core.agenda.after(_SETTLED, lambda _t: self._settle())

    def _one_ended(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """Say where the whole of it stands, from where the devices stand."""
        if self.is_over:
            return
        active = self._active()
        states = {update.progress.state for update in active}
        if not active:
            self._end()
        elif states == {State.STAGED} and self.progress.state is State.VERIFYING:
            self.progress.state = State.STAGED
        elif states <= {State.APPLYING, State.STAGED} and State.APPLYING in states:
            self.progress.state = State.APPLYING
        self._tell()

    def _end(self) -> None:
        if self._transfer is not None:
            self._transfer.stop()
        if self._done():
            self.progress.state, self.progress.percent = State.DONE, 100
        else:
            self.progress.state = State.FAILED
            # Where devices failed for several reasons the first stands for all; each tells its own in 8120.
            self.progress.error = self._cause or self.updates[0].progress.error

    def _done(self) -> int:
        return sum(update.progress.state is State.DONE for update in self.updates)

    def _tell(self) -> None:
        counts = pack(">HH", self._done(), len(self.updates))
        self._life.change(self._core.own, STATE, self.progress.raw() + counts, self._core.agenda.now)
