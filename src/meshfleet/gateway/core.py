"""What all parts of one gateway share: its world, its time, and what it wants from outside."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from meshfleet.gateway.outbox import Outbox
from meshfleet.gateway.reporting import Reporting
from meshfleet.gateway.traffic import Traffic
from meshfleet.gateway.world.agenda import Agenda
from meshfleet.gateway.world.device import Device
from meshfleet.gateway.world.mesh import Mesh
from meshfleet.gateway.world.noise import key_of, noise
from meshfleet.gateway.world.places import Place
from meshfleet.gateway.world.products import GATEWAY, Mode
from meshfleet.gateway.world.site import Fixture
from meshfleet.wire.diagnostics import FirmwareQuestion
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from meshfleet.gateway.settings import Settings
    from meshfleet.gateway.world.clock import Clock
    from meshfleet.gateway.world.site import Site
    from meshfleet.wire.identifiers import Catalogue
    from meshfleet.wire.ids import Mac


class Fetch(Struct, frozen=True):
    """A chore: get this image, and tell what came of it."""

    question: FirmwareQuestion


class GoDown(Struct, frozen=True):
    """A chore: end the connection to the broker; after a crash without a word."""

    crashed: bool


class ComeUp(Struct, frozen=True):
    """A chore: connect again."""


Chore = Fetch | GoDown | ComeUp


@cache
def shared_topics(prefix: str) -> Topics:
    """The topics below a prefix: thousands of gateways in a process have the same."""
    return Topics(prefix, names=BUILTIN.names)


class Core:
    """One gateway without its deeds."""

    def __init__(
        self, settings: Settings, site: Site, clock: Clock, *, catalogue: Catalogue = BUILTIN
    ) -> None:
        self.settings = settings
        self.site = site
        self.clock = clock
        self.catalogue = catalogue
        self.topics = shared_topics(settings.topic_prefix)
        self.key = key_of(site.seed, settings.mac)
        self.agenda = Agenda()
        self.mesh = Mesh(site)
        self.own = Device(_own_fixture(settings.mac), self.mesh.root, site.seed)
        self.devices: dict[Mac, Device] = {settings.mac: self.own}
        for fixture in site.devices:
            self.devices[fixture.mac] = Device(fixture, self.mesh.nodes[fixture.mac], site.seed)
        self.outbox = Outbox(settings.faults, self.agenda, clock, self.key)
        self.report = Reporting(settings, self.topics, catalogue, outbox=self.outbox, clock=clock)
        self.traffic = Traffic(self.agenda, self.mesh, self.key)
        self.chores: list[Chore] = []
        """What only the outside can do."""
        self._silence(settings.faults.silent)

    @property
    def is_down(self) -> bool:
        """Whether the gateway itself is restarting: then nobody hears its devices."""
        return self.own.is_away

    def _silence(self, fraction: float) -> None:
        for device in self.devices.values():
            if device is not self.own:
                device.is_silent = noise(device.key, 6) < fraction


def _own_fixture(mac: Mac) -> Fixture:
    return Fixture(mac=mac, product=GATEWAY, place=Place(0, 0.0, 0.0), mode=Mode.CONNECTED, battery=100)
