"""A gateway without a connection, and somebody who asks it and notes when which message came."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from meshfleet.emulator import EmulatorSettings, Faults, GatewayEmulator, ReportMode, SimulatedClock
from meshfleet.emulator.simulation.site import Site, SiteDevice
from meshfleet.protocol.api_versions import LATEST_VERSION
from tests.emulator.simulation.sites import GATEWAY, device_mac, place_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.protocol.ids import Mac, Version

ORIGIN = 1_790_000_000_000
EXTENDER_SPACING = 8.0
"""Metres from extender to extender: links that hold however they fade."""

RESPONSE_SECONDS = 12.0
"""Simulated seconds in which every request is answered."""


class Message(NamedTuple):
    """What a gateway published, and at which simulated moment."""

    moment: float
    topic: str
    payload: bytes

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.payload)
        return body

    @property
    def is_response(self) -> bool:
        return "/response/" in self.topic

    @property
    def kind(self) -> str:
        """The words behind the device: a kind or an operation, and an identifier."""
        return self.topic.partition("mt/gateway/")[2].split("/", 3)[3]


class RequestDriver:
    """One gateway, whose time passes when somebody asks it to."""

    def __init__(
        self,
        *devices: SiteDevice,
        mode: ReportMode = ReportMode.RAW,
        version: Version = LATEST_VERSION,
        faults: Faults = Faults(),  # noqa: B008 # frozen
        speed: float = 1.0,
        prefix: str = "",
    ) -> None:
        site = Site(gateway=GATEWAY, seed=1, devices=devices)
        settings = EmulatorSettings(
            mac=GATEWAY, mode=mode, api_version=version, faults=faults, topic_prefix=prefix
        )
        self.gateway = GatewayEmulator(settings, site, SimulatedClock(ORIGIN, speed))
        self.speed = speed
        self.now = 0.0
        self.messages: list[Message] = []
        """All that was published so far."""

    def publish(self, topic: str, payload: bytes | str | dict[str, Any]) -> None:
        """Hand in a message on a topic of any kind."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        self.gateway.receive(topic, data, self.now)
        self._record()

    def request(self, device: Mac, what: str, **parameters: Any) -> None:
        """Send a request and do not wait: `what` is the operation, with the identifier behind it."""
        self.publish(f"mt/gateway/{GATEWAY}/request/{device}/{what}", parameters)

    def advance(self, seconds: float) -> list[Message]:
        """Live on, from deed to deed, so that every message has its moment."""
        until, first = self.now + seconds, len(self.messages)
        while (due := self.gateway.next_due) <= until:
            self.now = max(due, self.now)
            self._record()
        self.now = until
        return self.messages[first:]

    def responses(self, seconds: float = RESPONSE_SECONDS) -> list[Message]:
        """All responses so far, and those of some more time."""
        self.advance(seconds)
        return [message for message in self.messages if message.is_response]

    def request_and_wait(self, device: Mac, what: str, **parameters: Any) -> dict[str, Any]:
        """Ask and wait for the response."""
        return self.request_message(device, what, **parameters).body

    def request_message(self, device: Mac, what: str, **parameters: Any) -> Message:
        """The same, with the moment and the topic. Time stops when the response is there."""
        first = len(self.messages)
        self.request(device, what, **parameters)
        end = f"/response/{device}/{what}"
        return self.wait(lambda message: message.topic.endswith(end), first=first)

    def wait(self, wanted: Callable[[Message], bool], *, first: int | None = None) -> Message:
        """The next message of a kind; it has to come."""
        first, until = len(self.messages) if first is None else first, self.now + RESPONSE_SECONDS * 10
        while True:
            for message in self.messages[first:]:
                if wanted(message):
                    return message
            first = len(self.messages)
            assert self.gateway.next_due <= until, "it never came"
            self.now = max(self.gateway.next_due, self.now)
            self._record()

    def _record(self) -> None:
        published = self.gateway.advance(self.now)
        self.messages += (Message(self.now, each.topic, each.payload) for each in published)


def extender_chain(extenders: int) -> list[SiteDevice]:
    """Extenders in a row, each the parent of the next: numbers 1 to so many."""
    row: list[SiteDevice] = []
    for number in range(1, extenders + 1):
        parent = row[-1].mac if row else GATEWAY
        row.append(place_device(number, EXTENDER_SPACING * number, code="0040", parent=parent))
    return row


def device_at_end(row: list[SiteDevice], number: int = 100, **given: Any) -> SiteDevice:
    """A device beside the last extender of a row, and out of reach of the gateway if the row is long."""
    end = row[-1] if row else None
    x = end.position.x + 2.0 if end else 2.0
    code = given.pop("code", "0018")
    fixture = place_device(number, x, 1.0, code=code, parent=end.mac if end else GATEWAY)
    return replace(fixture, **given)


def format_route(*numbers: int) -> str:
    """A route as responses spell it."""
    return "-".join(map(device_mac, numbers))
