"""One emulated gateway, without a connection: messages and time go in, messages and chores come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.emulator.context import EmulatorContext
from meshfleet.emulator.device_behavior import REBOOT_SECONDS, DeviceBehavior
from meshfleet.emulator.flash_memory import restore_devices, save_devices
from meshfleet.emulator.requests.execution import PropertyWriter
from meshfleet.emulator.requests.request_handler import GatewayRequestHandler
from meshfleet.emulator.simulation.device import ResetCause
from meshfleet.emulator.updates import FirmwareUpdater

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.emulator.context import IoAction
    from meshfleet.emulator.settings import EmulatorSettings
    from meshfleet.emulator.simulation.clock import SimulatedClock
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.site import Site
    from meshfleet.emulator.updates import Error
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.protocol.diagnostics import FirmwareQuestion
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac
    from meshfleet.protocol.topics import TopicCodec


class GatewayEmulator:
    """A gateway and the mesh below it. Whoever owns it brings the time, in simulated seconds.

    Moments never go back: each call lives up to its own. With `memory` its devices go on where they were.
    """

    def __init__(
        self, settings: EmulatorSettings, site: Site, clock: SimulatedClock, *, memory: bytes | None = None
    ) -> None:
        core = self._core = EmulatorContext(settings, site, clock)
        if memory is not None:
            restore_devices(core, memory)
        self._behavior = DeviceBehavior(core)
        self._updates = FirmwareUpdater(core, self._behavior)
        self._request_handler = GatewayRequestHandler(
            core, PropertyWriter(core, self._behavior, self._updates)
        )
        if settings.faults.crash:
            self._schedule_crash()

    @property
    def settings(self) -> EmulatorSettings:
        """What was set."""
        return self._core.settings

    @property
    def topics(self) -> TopicCodec:
        """How its topics are spelled."""
        return self._core.topics

    @property
    def devices(self) -> Mapping[Mac, SimulatedDevice]:
        """The devices of its mesh as they really are, which reports may or may not tell."""
        return self._core.devices

    @property
    def next_due(self) -> float:
        """The moment at which something happens next."""
        return self._core.scheduler.next_due

    @property
    def is_down(self) -> bool:
        """Whether it is restarting, and so cannot be connected."""
        return self._core.is_down

    @property
    def report_count(self) -> int:
        """Reports made so far."""
        return self._core.reports.count

    def advance(self, t: float) -> list[Publish]:
        """Live up to a moment; gives what is to be published."""
        self._core.scheduler.run(t)
        return self._core.outbox.drain()

    def receive(self, topic: str, payload: bytes | None, t: float) -> None:
        """Take a message that came at this moment; None is a payload too long to be read.

        The response comes out of `advance`, sooner or later.
        """
        self._core.scheduler.run(t)
        if not self._core.is_down:
            self._request_handler.handle(topic, payload)

    @property
    def has_actions(self) -> bool:
        """Whether the owner is asked to do something."""
        return bool(self._core.actions)

    def drain_actions(self) -> list[IoAction]:
        """What the owner is asked to do, once."""
        chores, self._core.actions = self._core.actions, []
        return chores

    def on_image(self, question: FirmwareQuestion, image: ImageInfo, t: float) -> None:
        """A chore is done: here is the image."""
        self._core.scheduler.run(t)
        self._updates.on_image(question, image)

    def on_image_failed(self, question: FirmwareQuestion, error: Error, t: float) -> None:
        """A chore cannot be done."""
        self._core.scheduler.run(t)
        self._updates.on_image_failed(question, error)

    def save_memory(self) -> bytes:
        """What the devices keep, for another life."""
        return save_devices(self._core)

    def _schedule_crash(self) -> None:
        seconds = self._core.settings.faults.crash * self._core.clock.speed
        self._core.scheduler.after(seconds + REBOOT_SECONDS, self._crash)

    def _crash(self, _t: float) -> None:
        self._behavior.reboot(self._core.gateway_device, ResetCause.WATCHDOG)
        self._schedule_crash()
