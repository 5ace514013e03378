"""Gateway in a simulation whose time a test advances, with its reports and responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.emulator import EmulatorSettings, GatewayEmulator, SimulatedClock, Site, generate_site
from meshfleet.protocol import reports, responses
from meshfleet.protocol.codes import Kind, Operation
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.topics import ReportTopic, RequestTopic, ResponseTopic
from tests.emulator.simulation.sites import GATEWAY, place_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meshfleet.emulator.context import IoAction
    from meshfleet.emulator.simulation.device import SimulatedDevice
    from meshfleet.emulator.simulation.site import SiteDevice
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.protocol.ids import Mac
    from meshfleet.protocol.responses import Response

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR
ORIGIN = 1_790_000_000_000
"""Wall-clock time at simulated second 0, in milliseconds since 1970."""

EXTENDER, LEAF = "0040", "0018"


class ObservedReport(NamedTuple):
    """Report with the simulated time at which it was published."""

    moment: float
    mac: Mac
    kind: Kind
    """Raw kind in both modes."""
    identifier: str
    """Identifier in hex in both modes; empty if there is none."""
    report: Any

    @property
    def series(self) -> tuple[Mac, Kind, str]:
        return self.mac, self.kind, self.identifier

    @property
    def value(self) -> Any:
        """Decoded value."""
        if self.report.value is UNSET or isinstance(self.report, reports.PropertyDecoded):
            return self.report.value
        return BUILTIN_CATALOGUE.decode(self.identifier, bytes.fromhex(self.report.value)).value

    @property
    def raw(self) -> bytes:
        return bytes.fromhex(self.report.value)


def nearby_device(
    number: int, x: float = 2.0, y: float = 0.0, *, code: str = LEAF, **fields: Any
) -> SiteDevice:
    """Return a device that is by default so near to the gateway that no packets are lost."""
    return replace(place_device(number, x, y, code=code), **fields)


class SimulatedGateway:
    """One gateway with its mesh, without a broker."""

    def __init__(self, site: Site | Iterable[SiteDevice], *, speed: float = 1.0, **settings: Any) -> None:
        if not isinstance(site, Site):
            site = Site(gateway=GATEWAY, seed=1, devices=tuple(site))
        self.clock = SimulatedClock(ORIGIN, speed)
        self.gateway = GatewayEmulator(EmulatorSettings(mac=site.gateway, **settings), site, self.clock)
        self.mac = site.gateway
        self.now = 0.0
        self.published: list[tuple[float, Publish]] = []
        self.actions: list[tuple[float, IoAction]] = []
        self._request_count = 0

    def device(self, mac: Mac) -> SimulatedDevice:
        """Return a device in its true simulated state."""
        return self.gateway.devices[mac]

    @property
    def devices(self) -> list[SimulatedDevice]:
        return list(self.gateway.devices.values())

    @property
    def scheduled_count(self) -> int:
        """Number of scheduled callbacks."""
        return len(self.gateway._context.scheduler._callbacks)  # noqa: SLF001 # only tests need the size

    def advance(self, seconds: float) -> list[ObservedReport]:
        """Advance the time event by event. Return the new reports."""
        before = len(self.published)
        until = self.now + seconds
        while (due := self.gateway.next_due) <= until:
            self._advance_to(due)
        self._advance_to(until)
        return list(decode_reports(self.gateway, self.published[before:]))

    def advance_in_one_step(self, seconds: float) -> list[Publish]:
        """Advance the time in one step, which is faster. Return the new messages."""
        self.now += seconds
        return self.gateway.advance(self.now)

    def _advance_to(self, t: float) -> None:
        self.now = t
        self.published += ((t, message) for message in self.gateway.advance(t))
        self.actions += ((t, action) for action in self.gateway.drain_actions())

    def send(self, operation: Operation, mac: Mac, identifier: str | None = None, **content: Any) -> str:
        """Send a request. Return its id."""
        self._request_count += 1
        content.setdefault("id", f"request {self._request_count}")
        topic = RequestTopic(
            self.mac, mac, operation, BUILTIN_CATALOGUE[identifier].id if identifier else None
        )
        self.gateway.receive(self.gateway.topics.format_topic(topic), msgspec.json.encode(content), self.now)
        return str(content["id"])

    def request(
        self, operation: Operation, mac: Mac, identifier: str | None = None, **content: Any
    ) -> Response:
        """Send a request and advance the time exactly until its response."""
        request_id = self.send(operation, mac, identifier, **content)
        until = self.now + 15.0
        while self.now < until:
            before = len(self.published)
            self._advance_to(min(self.gateway.next_due, until))
            for _, message in self.published[before:]:
                topic = self.gateway.topics.parse(message.topic)
                if isinstance(topic, ResponseTopic):
                    response = responses.decode_response(topic.operation, message.payload)
                    if response.id == request_id:
                        return response
        raise AssertionError(f"no response to {operation} {identifier} of {mac}")

    def send_write(self, mac: Mac, identifier: str, raw: str = "", **content: Any) -> str:
        """Send a write without waiting for the response. Return its id."""
        return self.send(Operation.WRITE, mac, identifier, value=raw, **content)

    def write(self, mac: Mac, identifier: str, raw: str = "", **content: Any) -> int:
        """Write a raw value. Return the status of the response."""
        return self.request(Operation.WRITE, mac, identifier, value=raw, **content).status

    def read(self, mac: Mac, identifier: str, **content: Any) -> bytes:
        """Read a raw value, which must succeed."""
        response: Any = self.request(Operation.READ, mac, identifier, **content)
        assert response.status == 0, response
        return bytes.fromhex(response.value)


def decode_reports(
    gateway: GatewayEmulator, published: Iterable[tuple[float, Publish]]
) -> Iterator[ObservedReport]:
    """Decode the reports among published messages. All must be valid."""
    for moment, message in published:
        topic = gateway.topics.parse(message.topic)
        if isinstance(topic, ReportTopic):
            report = reports.decode_report(topic.kind, message.payload)
            identifier = BUILTIN_CATALOGUE[topic.identifier].id if topic.identifier else ""
            kind = Kind(topic.kind.removesuffix("-decoded"))
            yield ObservedReport(moment, topic.device, kind, identifier, report)


def generated_gateway(devices: int = 10, seed: int = 1, **settings: Any) -> SimulatedGateway:
    """Return a gateway with a generated site."""
    return SimulatedGateway(generate_site(GATEWAY, devices=devices, seed=seed), **settings)


def select_reports(
    observed: Iterable[ObservedReport], mac: Mac, kind: Kind | None = None, identifier: str = ""
) -> list[ObservedReport]:
    """Return the reports of one device, optionally of one kind and one identifier."""
    return [
        report
        for report in observed
        if report.mac == mac and kind in (None, report.kind) and identifier in ("", report.identifier)
    ]
