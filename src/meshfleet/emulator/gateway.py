"""One emulated gateway without an MQTT connection: takes messages and time, returns messages and actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.emulator.context import EmulatorContext
from meshfleet.emulator.device_behavior import REBOOT_SECONDS, DeviceBehavior
from meshfleet.emulator.device_movement import DeviceMovement
from meshfleet.emulator.flash_memory import restore_devices, save_devices
from meshfleet.emulator.requests.execution import PropertyWriter
from meshfleet.emulator.requests.request_handler import GatewayRequestHandler
from meshfleet.emulator.simulation.device import ResetCause
from meshfleet.emulator.updates import FirmwareUpdater

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.emulator.context import IoAction
    from meshfleet.emulator.device_movement import MovementRecord
    from meshfleet.emulator.settings import EmulatorSettings
    from meshfleet.emulator.simulation.clock import SimulatedClock
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.site import Site, SitePosition
    from meshfleet.emulator.updates import Error
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.protocol.diagnostics import ImageRequest
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac
    from meshfleet.protocol.topics import TopicCodec


class GatewayEmulator:
    """Emulated gateway and its mesh. The caller passes simulated times in seconds that never decrease.

    Each call first runs the simulation up to the passed time. With `memory`, devices resume from their saved
    state. `on_movement` is called with each position of a moving device, and with each stop of a survey.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        site: Site,
        clock: SimulatedClock,
        *,
        memory: bytes | None = None,
        on_movement: Callable[[MovementRecord], None] = lambda _: None,
    ) -> None:
        context = self._context = EmulatorContext(settings, site, clock)
        if memory is not None:
            restore_devices(context, memory)
        self._behavior = DeviceBehavior(context)
        self._movement = DeviceMovement(context, self._behavior, on_movement)
        self._updates = FirmwareUpdater(context, self._behavior)
        self._request_handler = GatewayRequestHandler(
            context, PropertyWriter(context, self._behavior, self._updates)
        )
        if settings.faults.crash:
            self._schedule_crash()

    @property
    def settings(self) -> EmulatorSettings:
        """Settings of this emulated gateway."""
        return self._context.settings

    @property
    def topics(self) -> TopicCodec:
        """Codec for MQTT topics with the topic prefix of this gateway."""
        return self._context.topics

    @property
    def devices(self) -> Mapping[Mac, SimulatedDevice]:
        """Devices of the mesh and the gateway itself, by MAC, with their simulated state."""
        return self._context.devices

    def true_place(self, mac: Mac) -> SitePosition:
        """Return the true position of a device, or of the gateway, at the time of the last simulated event.

        Raise `KeyError` if the site has no such device.
        """
        return self._movement.find_position(mac)

    @property
    def next_due(self) -> float:
        """Simulated time in seconds of the next scheduled event of this gateway."""
        return self._context.scheduler.next_due

    @property
    def is_restarting(self) -> bool:
        """Whether the gateway is restarting and therefore cannot be connected."""
        return self._context.is_restarting

    @property
    def report_count(self) -> int:
        """Number of reports that this gateway has created so far."""
        return self._context.reports.count

    def advance(self, sim_time: float) -> list[Publish]:
        """Run the simulation up to a simulated time in seconds. Return the MQTT messages to publish."""
        self._context.scheduler.run(sim_time)
        return self._context.outbox.drain()

    def receive(self, topic: str, payload: bytes | None, sim_time: float) -> None:
        """Handle an MQTT message received at a simulated time. A later `advance` returns the response.

        `payload` is None if the payload was too long to read.
        """
        self._context.scheduler.run(sim_time)
        if not self._context.is_restarting:
            self._request_handler.handle(topic, payload)

    @property
    def has_actions(self) -> bool:
        """Whether there are I/O actions that the owner of the emulator must perform."""
        return bool(self._context.actions)

    def drain_actions(self) -> list[IoAction]:
        """Remove and return the I/O actions that the owner of the emulator must perform."""
        actions, self._context.actions = self._context.actions, []
        return actions

    def on_image_fetched(self, image_request: ImageRequest, image: ImageInfo, sim_time: float) -> None:
        """Pass a firmware image, fetched for `image_request`, to the updates that wait for the image."""
        self._context.scheduler.run(sim_time)
        self._updates.on_image_fetched(image_request, image)

    def on_image_failed(self, image_request: ImageRequest, error: Error, sim_time: float) -> None:
        """Fail the updates that wait for the firmware image, which could not be fetched."""
        self._context.scheduler.run(sim_time)
        self._updates.on_image_failed(image_request, error)

    def save_memory(self) -> bytes:
        """Return the flash memory of all devices, to pass as `memory` to a later emulator."""
        return save_devices(self._context)

    def _schedule_crash(self) -> None:
        """Schedule the next crash of the gateway, at the interval of the injected fault `crash`."""
        seconds = self._context.settings.faults.crash * self._context.clock.speed
        self._context.scheduler.after(seconds + REBOOT_SECONDS, self._crash)

    def _crash(self, _sim_time: float) -> None:
        """Restart the gateway as if its watchdog had reset it, and schedule the next crash."""
        self._behavior.reboot(self._context.gateway_device, ResetCause.WATCHDOG)
        self._schedule_crash()
