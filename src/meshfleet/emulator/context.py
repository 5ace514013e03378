"""State shared by all parts of one emulated gateway: simulation, clock, outgoing messages, I/O actions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from meshfleet.emulator.outbox import Outbox
from meshfleet.emulator.report_publisher import ReportPublisher
from meshfleet.emulator.simulation.clock import SimulationScheduler
from meshfleet.emulator.simulation.device import SimulatedDevice
from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.noise import derive_noise_key, uniform_noise
from meshfleet.emulator.simulation.packet_forwarding import PacketForwarder
from meshfleet.emulator.simulation.products import GATEWAY_PRODUCT, TX_POWER_ID, DeviceMode
from meshfleet.emulator.simulation.routes import build_routes
from meshfleet.emulator.simulation.site import SiteDevice, SitePosition
from meshfleet.protocol.diagnostics import ImageRequest
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.topics import TopicCodec

if TYPE_CHECKING:
    from meshfleet.emulator.settings import EmulatorSettings
    from meshfleet.emulator.simulation.clock import SimulatedClock
    from meshfleet.emulator.simulation.site import Site
    from meshfleet.protocol.ids import Mac


class FetchImage(Struct, frozen=True):
    """Asks the owner of the emulator to fetch a firmware image.

    The owner then calls `on_image_fetched` or `on_image_failed`.
    """

    image_request: ImageRequest


class CloseConnection(Struct, frozen=True):
    """Asks the owner of the emulator to close the MQTT connection, because the gateway restarts.

    If the gateway has crashed, the owner closes the connection without DISCONNECT.
    """

    crashed: bool


class OpenConnection(Struct, frozen=True):
    """Asks the owner of the emulator to connect to the MQTT broker again."""


IoAction = FetchImage | CloseConnection | OpenConnection


@cache
def get_shared_topic_codec(prefix: str) -> TopicCodec:
    """Return the topic codec for a topic prefix. All gateways of the process with this prefix share it."""
    return TopicCodec(prefix, identifier_names=BUILTIN_CATALOGUE.names)


class EmulatorContext:
    """State that all parts of one emulated gateway share, without behavior of its own."""

    def __init__(self, settings: EmulatorSettings, site: Site, clock: SimulatedClock) -> None:
        self.settings = settings
        self.site = site
        self.clock = clock
        self.catalogue = BUILTIN_CATALOGUE
        self.topics = get_shared_topic_codec(settings.topic_prefix)
        self.noise_key = derive_noise_key(site.seed, settings.mac)
        self.scheduler = SimulationScheduler()
        self.mesh = SimulatedMesh(site)
        self.routes = build_routes(site)
        """Routes of the moving devices, by MAC."""
        self.gateway_device = SimulatedDevice(_build_gateway_device(settings.mac), self.mesh.root, site.seed)
        self.devices: dict[Mac, SimulatedDevice] = {settings.mac: self.gateway_device}
        for site_device in site.devices:
            self.devices[site_device.mac] = SimulatedDevice(
                site_device, self.mesh.nodes[site_device.mac], site.seed
            )
        for mac, power in site.powers.items():
            self.devices[mac].set_value(TX_POWER_ID, power.to_bytes(1, "big", signed=True))
        self.outbox = Outbox(settings.faults, self.scheduler, clock, self.noise_key)
        self.reports = ReportPublisher(settings, self.topics, self.catalogue, outbox=self.outbox, clock=clock)
        self.packets = PacketForwarder(self.scheduler, self.mesh, self.noise_key)
        self.actions: list[IoAction] = []
        """I/O actions that the owner of the emulator must perform."""
        self._silence_devices(settings.faults.silent)

    @property
    def is_restarting(self) -> bool:
        """Whether the gateway itself is restarting, so that it receives nothing from its devices."""
        return self.gateway_device.is_offline

    def _silence_devices(self, fraction: float) -> None:
        """Let a random fraction of the devices ignore requests."""
        for device in self.devices.values():
            if device is not self.gateway_device:
                device.is_silent = uniform_noise(device.noise_key, 6) < fraction


def _build_gateway_device(mac: Mac) -> SiteDevice:
    return SiteDevice(
        mac=mac,
        product=GATEWAY_PRODUCT,
        position=SitePosition(0, 0.0, 0.0),
        mode=DeviceMode.CONNECTED,
        battery=100,
    )
