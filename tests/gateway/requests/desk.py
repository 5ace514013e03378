"""A gateway without a connection, and somebody who asks it and notes when which message came."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from meshfleet.gateway import Clock, Faults, Gateway, Mode, Settings
from meshfleet.gateway.world.site import Fixture, Site
from meshfleet.wire.gating import NEWEST
from tests.gateway.world.trees import GATEWAY, mac, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.wire.ids import Mac, Version

ORIGIN = 1_790_000_000_000
STEP = 8.0
"""Metres from extender to extender: links that hold however they fade."""

LONG_ENOUGH = 12.0
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


class Desk:
    """One gateway, whose time passes when somebody asks it to."""

    def __init__(
        self,
        *devices: Fixture,
        mode: Mode = Mode.RAW,
        version: Version = NEWEST,
        faults: Faults = Faults(),  # noqa: B008 # frozen
        speed: float = 1.0,
        prefix: str = "",
    ) -> None:
        site = Site(gateway=GATEWAY, seed=1, devices=devices)
        settings = Settings(mac=GATEWAY, mode=mode, api_version=version, faults=faults, topic_prefix=prefix)
        self.gateway = Gateway(settings, site, Clock(ORIGIN, speed))
        self.speed = speed
        self.now = 0.0
        self.heard: list[Message] = []
        """All that was published so far."""

    def publish(self, topic: str, payload: bytes | str | dict[str, Any]) -> None:
        """Hand in a message on a topic of any kind."""
        if isinstance(payload, dict):
            payload = json.dumps(payload)
        data = payload.encode() if isinstance(payload, str) else payload
        self.gateway.receive(topic, data, self.now)
        self._note()

    def request(self, device: Mac, what: str, **parameters: Any) -> None:
        """Send a request and do not wait: `what` is the operation, with the identifier behind it."""
        self.publish(f"mt/gateway/{GATEWAY}/request/{device}/{what}", parameters)

    def advance(self, seconds: float) -> list[Message]:
        """Live on, from deed to deed, so that every message has its moment."""
        until, first = self.now + seconds, len(self.heard)
        while (due := self.gateway.due) <= until:
            self.now = max(due, self.now)
            self._note()
        self.now = until
        return self.heard[first:]

    def responses(self, seconds: float = LONG_ENOUGH) -> list[Message]:
        """All responses so far, and those of some more time."""
        self.advance(seconds)
        return [message for message in self.heard if message.is_response]

    def ask(self, device: Mac, what: str, **parameters: Any) -> dict[str, Any]:
        """Ask and wait for the response."""
        return self.hear(device, what, **parameters).body

    def hear(self, device: Mac, what: str, **parameters: Any) -> Message:
        """The same, with the moment and the topic. Time stops when the response is there."""
        first = len(self.heard)
        self.request(device, what, **parameters)
        end = f"/response/{device}/{what}"
        return self.wait(lambda message: message.topic.endswith(end), first=first)

    def wait(self, wanted: Callable[[Message], bool], *, first: int | None = None) -> Message:
        """The next message of a kind; it has to come."""
        first, until = len(self.heard) if first is None else first, self.now + LONG_ENOUGH * 10
        while True:
            for message in self.heard[first:]:
                if wanted(message):
                    return message
            first = len(self.heard)
            assert self.gateway.due <= until, "it never came"
            self.now = max(self.gateway.due, self.now)
            self._note()

    def _note(self) -> None:
        published = self.gateway.advance(self.now)
        self.heard += (Message(self.now, each.topic, each.payload) for each in published)


def chain(extenders: int) -> list[Fixture]:
    """Extenders in a row, each the parent of the next: numbers 1 to so many."""
    row: list[Fixture] = []
    for number in range(1, extenders + 1):
        parent = row[-1].mac if row else GATEWAY
        row.append(put(number, STEP * number, code="0040", parent=parent))
    return row


def at_the_end(row: list[Fixture], number: int = 100, **given: Any) -> Fixture:
    """A device beside the last extender of a row, and out of reach of the gateway if the row is long."""
    end = row[-1] if row else None
    x = end.place.x + 2.0 if end else 2.0
    code = given.pop("code", "0018")
    fixture = put(number, x, 1.0, code=code, parent=end.mac if end else GATEWAY)
    return replace(fixture, **given)


def route(*numbers: int) -> str:
    """A route as responses spell it."""
    return "-".join(map(mac, numbers))
