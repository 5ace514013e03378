"""A gateway whose time a test moves: what it tells, when, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.gateway import Clock, Gateway, Settings, Site, generate
from meshfleet.wire import reports, responses
from meshfleet.wire.codes import Kind, Operation
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.topics import ReportTopic, RequestTopic, ResponseTopic
from tests.gateway.world.trees import GATEWAY, put

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.gateway.core import Chore
    from meshfleet.gateway.world.device import Device
    from meshfleet.gateway.world.site import Fixture
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.mqtt.packets import Publish
    from meshfleet.wire.responses import Response

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ORIGIN = 1_790_000_000_000
"""The time on the wall at simulated second 0."""

EXTENDER, LEAF = "0040", "0018"


class Told(NamedTuple):
    """A report, and the simulated moment at which it was published."""

    moment: float
    mac: Mac
    kind: Kind
    """Raw, whatever the mode."""
    identifier: str
    """In hex, whatever the mode; empty where there is none."""
    report: Any

    @property
    def series(self) -> tuple[Mac, Kind, str]:
        return self.mac, self.kind, self.identifier

    @property
    def value(self) -> Any:
        """What it says, as JSON; None where that cannot be decoded."""
        if self.report.value is UNSET or isinstance(self.report, reports.PropertyDecoded):
            return self.report.value
        return BUILTIN.decode(self.identifier, bytes.fromhex(self.report.value)).value

    @property
    def raw(self) -> bytes:
        return bytes.fromhex(self.report.value)


def device(number: int, x: float = 2.0, y: float = 0.0, *, code: str = LEAF, **other: Any) -> Fixture:
    """A device; without a place, so near to the gateway that nothing is lost."""
    return replace(put(number, x, y, code=code), **other)


class World:
    """One gateway and its mesh, without a broker."""

    def __init__(self, site: Site | Iterable[Fixture], *, speed: float = 1.0, **settings: Any) -> None:
        if not isinstance(site, Site):
            site = Site(gateway=GATEWAY, seed=1, devices=tuple(site))
        self.clock = Clock(ORIGIN, speed)
        self.gateway = Gateway(Settings(mac=site.gateway, **settings), site, self.clock)
        self.mac = site.gateway
        self.now = 0.0
        self.published: list[tuple[float, Publish]] = []
        self.chores: list[tuple[float, Chore]] = []
        self._asked = 0

    def device(self, mac: Mac) -> Device:
        """The device as only the simulation sees it."""
        return self.gateway.devices[mac]

    @property
    def devices(self) -> list[Device]:
        return list(self.gateway.devices.values())

    @property
    def planned(self) -> int:
        """Deeds on the agenda."""
        return len(self.gateway._core.agenda._deeds)  # noqa: SLF001 # its size is asked for by tests alone

    def live(self, seconds: float) -> list[Told]:
        """Live on; gives what was reported meanwhile."""
        before = len(self.published)
        until = self.now + seconds
        while (due := self.gateway.due) <= until:
            self._advance(due)
        self._advance(until)
        return list(read(self.gateway, self.published[before:]))

    def leap(self, seconds: float) -> list[Publish]:
        """Live on in one step, which is faster; gives what was published meanwhile."""
        self.now += seconds
        return self.gateway.advance(self.now)

    def _advance(self, t: float) -> None:
        self.now = t
        self.published += ((t, message) for message in self.gateway.advance(t))
        self.chores += ((t, chore) for chore in self.gateway.chores())

    def send(self, operation: Operation, mac: Mac, identifier: str | None = None, **content: Any) -> str:
        """Send a request; gives its id."""
        self._asked += 1
        content.setdefault("id", f"question {self._asked}")
        topic = RequestTopic(self.mac, mac, operation, BUILTIN[identifier].id if identifier else None)
        self.gateway.receive(self.gateway.topics.spell(topic), msgspec.json.encode(content), self.now)
        return str(content["id"])

    def ask(self, operation: Operation, mac: Mac, identifier: str | None = None, **content: Any) -> Response:
        """Send a request and live until its response comes, and no longer."""
        asked = self.send(operation, mac, identifier, **content)
        until = self.now + 15.0
        while self.now < until:
            before = len(self.published)
            self._advance(min(self.gateway.due, until))
            for _, message in self.published[before:]:
                topic = self.gateway.topics.parse(message.topic)
                if isinstance(topic, ResponseTopic):
                    response = responses.decode(topic.operation, message.payload)
                    if response.id == asked:
                        return response
        raise AssertionError(f"no response to {operation} {identifier} of {mac}")

    def send_write(self, mac: Mac, identifier: str, raw: str = "", **content: Any) -> str:
        """Send a write without waiting for what comes of it; gives its id."""
        return self.send(Operation.WRITE, mac, identifier, value=raw, **content)

    def write(self, mac: Mac, identifier: str, raw: str = "", **content: Any) -> int:
        """Write a raw value; gives the status of the response."""
        return self.ask(Operation.WRITE, mac, identifier, value=raw, **content).status

    def read(self, mac: Mac, identifier: str, **content: Any) -> bytes:
        """Read a raw value, which must succeed."""
        response: Any = self.ask(Operation.READ, mac, identifier, **content)
        assert response.status == 0, response
        return bytes.fromhex(response.value)


def read(gateway: Gateway, published: Iterable[tuple[float, Publish]]) -> Iterator[Told]:
    """The reports among what was published. All must be readable."""
    for moment, message in published:
        topic = gateway.topics.parse(message.topic)
        if isinstance(topic, ReportTopic):
            report = reports.decode(topic.kind, message.payload)
            identifier = BUILTIN[topic.identifier].id if topic.identifier else ""
            kind = Kind(topic.kind.removesuffix("-decoded"))
            yield Told(moment, topic.device, kind, identifier, report)


def town(devices: int = 10, seed: int = 1, **other: Any) -> World:
    """A made-up site."""
    return World(generate(GATEWAY, devices=devices, seed=seed), **other)


def of(told: Iterable[Told], mac: Mac, kind: Kind | None = None, identifier: str = "") -> list[Told]:
    """What one device told, of one kind and about one identifier if these are given."""
    return [
        each
        for each in told
        if each.mac == mac and kind in (None, each.kind) and identifier in ("", each.identifier)
    ]
