"""One emulated gateway, without a connection: messages and time go in, messages and chores come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.gateway.core import Core
from meshfleet.gateway.life import REBOOT, Life
from meshfleet.gateway.memory import restore, save
from meshfleet.gateway.requests.answering import Answering
from meshfleet.gateway.requests.writing import Writing
from meshfleet.gateway.updates import Updates
from meshfleet.gateway.world.device import Reset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.gateway.core import Chore
    from meshfleet.gateway.settings import Settings
    from meshfleet.gateway.updates import Error
    from meshfleet.gateway.world.clock import Clock
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.site import Site
    from meshfleet.wire.diagnostics import FirmwareQuestion
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.mqtt.packets import Publish
    from meshfleet.wire.package import Image
    from meshfleet.wire.topics import Topics


class Gateway:
    """A gateway and the mesh below it. Whoever owns it brings the time, in simulated seconds.

    Moments never go back: each call lives up to its own. With `memory` its devices go on where they were.
    """

    def __init__(self, settings: Settings, site: Site, clock: Clock, *, memory: bytes | None = None) -> None:
        core = self._core = Core(settings, site, clock)
        if memory is not None:
            restore(core, memory)
        self._life = Life(core)
        self._updates = Updates(core, self._life)
        self._answering = Answering(core, Writing(core, self._life, self._updates))
        if settings.faults.crash:
            self._plan_crash()

    @property
    def settings(self) -> Settings:
        """What was set."""
        return self._core.settings

    @property
    def topics(self) -> Topics:
        """How its topics are spelled."""
        return self._core.topics

    @property
    def devices(self) -> Mapping[Mac, Device]:
        """The devices of its mesh as they really are, which reports may or may not tell."""
        return self._core.devices

    @property
    def due(self) -> float:
        """The moment at which something happens next."""
        return self._core.agenda.due

    @property
    def is_down(self) -> bool:
        """Whether it is restarting, and so cannot be connected."""
        return self._core.is_down

    @property
    def reports(self) -> int:
        """Reports made so far."""
        return self._core.report.count

    def advance(self, t: float) -> list[Publish]:
        """Live up to a moment; gives what is to be published."""
        self._core.agenda.run(t)
        return self._core.outbox.take()

    def receive(self, topic: str, payload: bytes | None, t: float) -> None:
        """Take a message that came at this moment; None is a payload too long to be read.

        The response comes out of `advance`, sooner or later.
        """
        self._core.agenda.run(t)
        if not self._core.is_down:
            self._answering.take(topic, payload)

    @property
    def has_chores(self) -> bool:
        """Whether the owner is asked to do something."""
        return bool(self._core.chores)

    def chores(self) -> list[Chore]:
        """What the owner is asked to do, once."""
        chores, self._core.chores = self._core.chores, []
        return chores

    def image_came(self, question: FirmwareQuestion, image: Image, t: float) -> None:
        """A chore is done: here is the image."""
        self._core.agenda.run(t)
        self._updates.image_came(question, image)

    def image_failed(self, question: FirmwareQuestion, error: Error, t: float) -> None:
        """A chore cannot be done."""
        self._core.agenda.run(t)
        self._updates.image_failed(question, error)

    def memory(self) -> bytes:
        """What the devices keep, for another life."""
        return save(self._core)

    def _plan_crash(self) -> None:
        seconds = self._core.settings.faults.crash * self._core.clock.speed
        self._core.agenda.after(seconds + REBOOT, self._crash)

    def _crash(self, _t: float) -> None:
        self._life.reboot(self._core.own, Reset.WATCHDOG)
        self._plan_crash()
