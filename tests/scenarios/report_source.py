"""Reports of a gateway, and the samples that the service must store for them."""

from __future__ import annotations

import json
import time
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.times import format_millis

if TYPE_CHECKING:
    from collections.abc import Callable


class ExpectedSample(NamedTuple):
    """Sample as the service returns it."""

    time: str
    kind: str
    identifier: str
    """Identifier in hex, or its name if the hex is unknown."""
    seq: int | None
    value: str
    """Value as JSON text."""
    raw: str | None
    gateway: str


class ReportSource:
    """Reports of one gateway about its devices. No two reports have the same identity.

    They are measurements, properties and events, raw and decoded, with and without `seq`, of identifiers in
    the catalogue and of others. Every tenth is published twice, as gateways may do.
    """

    def __init__(self, gateway: str, devices: int = 2) -> None:
        self.gateway = gateway
        base = int(gateway, 16)
        self.expected: dict[Mac, set[ExpectedSample]] = {
            Mac(f"{base + (number << 16):012x}"): set() for number in range(1, devices + 1)
        }
        """Samples that must be stored when all reports are acknowledged, by device."""
        self.published = 0
        self.acknowledged = 0
        self._devices = tuple(self.expected)
        self._numbers = count()
        self._last = 0

    @property
    def unacknowledged(self) -> int:
        """Number of messages that are in flight, or will be sent again."""
        return self.published - self.acknowledged

    def next_messages(self, reports: int) -> list[Publish]:
        """Return the messages of the next reports."""
        messages: list[Publish] = []
        for number in (next(self._numbers) for _ in range(reports)):
            messages += [self._build_message(number)] * (2 if number % 10 == 0 else 1)
        self.published += len(messages)
        return messages

    def _build_message(self, number: int) -> Publish:
        """Build the message of one report, and record the sample that must be stored for it."""
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        at = format_millis(self._last)
        device = self._devices[number % len(self._devices)]
        form = _FORMS[number % len(_FORMS)]
        value, decoded = form.make_value(number)
        seq = None if form.kind == "property" else number % 256
        raw = None if "decoded" in form.topic else str(value)
        self.expected[device].add(
            ExpectedSample(at, form.kind, form.identifier, seq, to_json(decoded), raw, self.gateway)
        )
        payload = {"time": at, "value": value} | ({} if seq is None else {"seq": seq})
        topic = f"mt/gateway/{self.gateway}/device/{device}/{form.topic}"
        return Publish(topic, json.dumps(payload).encode(), 1)


class _ReportForm(NamedTuple):
    """Topic, kind and values of one form of report."""

    topic: str
    kind: str
    identifier: str
    make_value: Callable[[int], tuple[Any, Any]]
    """Returns the value in the report, and the value that clients read."""


def to_json(value: object) -> str:
    """Format a value as JSON text: 2.0 is 2, as everywhere in the service (rest-180)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, separators=(",", ":"))


def _build_note(number: int) -> tuple[Any, Any]:
    note = {"page": number, "isRead": number % 2 == 0, "text": f"Blatt №{number} \0"}
    return note, note


_FORMS = (
    _ReportForm("measurement/8800", "measurement", "8800", lambda n: (f"{n % 3000:04x}", n % 3000 / 100)),
    _ReportForm("measurement-decoded/temperature", "measurement", "8800", lambda n: (n / 4, n / 4)),
    _ReportForm("property/8100", "property", "8100", lambda n: (f"{n % 100:02x}", n % 100)),
    _ReportForm("property-decoded/ledger-note", "property", "ledger-note", _build_note),
    _ReportForm("event/8112", "event", "8112", lambda n: (f"{n:04x}", {"modelNumber": n})),
    _ReportForm("event-decoded/alarm-call", "event", "alarm-call", lambda n: (n % 2 == 0, n % 2 == 0)),
    _ReportForm("measurement/f00d", "measurement", "f00d", lambda n: (f"{n:08x}", None)),
)
