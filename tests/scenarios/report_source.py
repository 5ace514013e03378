"""What a gateway reports, and the samples that must become of it."""

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
    """A sample as the service shows it."""

    time: str
    kind: str
    identifier: str
    """In hex, or its name if that is all that is known."""
    seq: int | None
    value: str
    """As JSON."""
    raw: str | None
    gateway: str


class ReportSource:
    """What one gateway reports of its devices. No two of its reports have the same identity.

    They are measurements, properties and events, raw and decoded, with and without `seq`, of identifiers that
    the catalogue knows and of others. Every tenth is published twice: gateways repeat themselves.
    """

    def __init__(self, gateway: str, devices: int = 2) -> None:
        self.gateway = gateway
        own = int(gateway, 16)
        self.expected: dict[Mac, set[ExpectedSample]] = {
            Mac(f"{own + (number << 16):012x}"): set() for number in range(1, devices + 1)
        }
        """What must be stored when all is acknowledged, by device."""
        self.published = 0
        self.acknowledged = 0
        self._devices = tuple(self.expected)
        self._numbers = count()
        self._last = 0

    @property
    def unacknowledged(self) -> int:
        """How many messages are on their way, or will be said again."""
        return self.published - self.acknowledged

    def next_messages(self, reports: int) -> list[Publish]:
        """The next reports, as messages to be published."""
        drawn: list[Publish] = []
        for number in (next(self._numbers) for _ in range(reports)):
            drawn += [self._build_message(number)] * (2 if number % 10 == 0 else 1)
        self.published += len(drawn)
        return drawn

    def _build_message(self, number: int) -> Publish:
        """Report something, and write down what must become of it."""
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        at = format_millis(self._last)
        device = self._devices[number % len(self._devices)]
        form = _FORMS[number % len(_FORMS)]
        value, seen = form.make_value(number)
        seq = None if form.kind == "property" else number % 256
        raw = None if "decoded" in form.topic else str(value)
        self.expected[device].add(
            ExpectedSample(at, form.kind, form.identifier, seq, to_json(seen), raw, self.gateway)
        )
        payload = {"time": at, "value": value} | ({} if seq is None else {"seq": seq})
        topic = f"mt/gateway/{self.gateway}/device/{device}/{form.topic}"
        return Publish(topic, json.dumps(payload).encode(), 1)


class _ReportForm(NamedTuple):
    """One way to report a number."""

    topic: str
    kind: str
    identifier: str
    make_value: Callable[[int], tuple[Any, Any]]
    """The value in the report, and the value that clients see."""


def to_json(value: object) -> str:
    """A value as an entry has it: 2.0 is 2, as everywhere in the service (rest-180)."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, separators=(",", ":"))


def _note(number: int) -> tuple[Any, Any]:
    note = {"page": number, "isRead": number % 2 == 0, "text": f"Blatt №{number} \0"}
    return note, note


_FORMS = (
    _ReportForm("measurement/8800", "measurement", "8800", lambda n: (f"{n % 3000:04x}", n % 3000 / 100)),
    _ReportForm("measurement-decoded/temperature", "measurement", "8800", lambda n: (n / 4, n / 4)),
    _ReportForm("property/8100", "property", "8100", lambda n: (f"{n % 100:02x}", n % 100)),
    _ReportForm("property-decoded/ledger-note", "property", "ledger-note", _note),
    _ReportForm("event/8112", "event", "8112", lambda n: (f"{n:04x}", {"modelNumber": n})),
    _ReportForm("event-decoded/alarm-call", "event", "alarm-call", lambda n: (n % 2 == 0, n % 2 == 0)),
    _ReportForm("measurement/f00d", "measurement", "f00d", lambda n: (f"{n:08x}", None)),
)
