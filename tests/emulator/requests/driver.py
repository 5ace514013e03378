"""Gateway without a connection, and a driver that sends requests and records messages with their times."""

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
"""Meters between extenders: short enough for links that never break by fading."""

RESPONSE_SECONDS = 12.0
"""Simulated seconds within which every request has a response."""


class Message(NamedTuple):
    """Message that a gateway published, with its simulated time."""

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
        """Topic levels after the device: a kind or an operation, and an identifier."""
        return self.topic.partition("mt/gateway/")[2].split("/", 3)[3]


class RequestDriver:
    """Gateway whose simulated time advances only when a test calls for it."""

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
        """All messages published so far."""

    def publish(self, topic: str, payload: bytes | str | dict[str, Any]) -> None:
        """Pass a message on any topic to the gateway."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        self.gateway.receive(topic, data, self.now)
        self._record()

    def request(self, device: Mac, operation: str, **parameters: Any) -> None:
        """Send a request without waiting. `operation` includes the identifier, as in `read/8000`."""
        self.publish(f"mt/gateway/{GATEWAY}/request/{device}/{operation}", parameters)

    def advance(self, seconds: float) -> list[Message]:
        """Advance the time event by event, so that messages have exact times. Return the new messages."""
        until, first = self.now + seconds, len(self.messages)
        while (due := self.gateway.next_due) <= until:
            self.now = max(due, self.now)
            self._record()
        self.now = until
        return self.messages[first:]

    def responses(self, seconds: float = RESPONSE_SECONDS) -> list[Message]:
        """Return all responses so far and within some more time."""
        self.advance(seconds)
        return [message for message in self.messages if message.is_response]

    def request_and_wait(self, device: Mac, operation: str, **parameters: Any) -> dict[str, Any]:
        """Send a request and return the body of its response."""
        return self.request_message(device, operation, **parameters).body

    def request_message(self, device: Mac, operation: str, **parameters: Any) -> Message:
        """Send a request and return its response as a message. The time stops at the response."""
        first = len(self.messages)
        self.request(device, operation, **parameters)
        topic_end = f"/response/{device}/{operation}"
        return self.wait(lambda message: message.topic.endswith(topic_end), first=first)

    def wait(self, is_match: Callable[[Message], bool], *, first: int | None = None) -> Message:
        """Wait for the first matching message."""
        first, until = len(self.messages) if first is None else first, self.now + RESPONSE_SECONDS * 10
        while True:
            for message in self.messages[first:]:
                if is_match(message):
                    return message
            first = len(self.messages)
            assert self.gateway.next_due <= until, "the message did not arrive"
            self.now = max(self.gateway.next_due, self.now)
            self._record()

    def _record(self) -> None:
        published = self.gateway.advance(self.now)
        self.messages += (Message(self.now, message.topic, message.payload) for message in published)


def extender_chain(extenders: int) -> list[SiteDevice]:
    """Return extenders in a chain, numbered from 1, each the parent of the next."""
    chain: list[SiteDevice] = []
    for number in range(1, extenders + 1):
        parent = chain[-1].mac if chain else GATEWAY
        chain.append(place_device(number, EXTENDER_SPACING * number, code="0040", parent=parent))
    return chain


def device_at_end(chain: list[SiteDevice], number: int = 100, **fields: Any) -> SiteDevice:
    """Return a device beside the end of a chain, out of range of the gateway if the chain is long."""
    last = chain[-1] if chain else None
    x = last.position.x + 2.0 if last else 2.0
    code = fields.pop("code", "0018")
    site_device = place_device(number, x, 1.0, code=code, parent=last.mac if last else GATEWAY)
    return replace(site_device, **fields)


def format_route(*numbers: int) -> str:
    """Format a route as responses do."""
    return "-".join(map(device_mac, numbers))
