"""Gateways that keep a ledger: what they have published, what of it was acknowledged, and what must be stored."""

from __future__ import annotations

import csv
import io
import json
import time
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from meshfleet.wire.ids import Mac, device_id
from meshfleet.wire.mqtt.packets import Publish
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.scenarios.serving import Service


class Entry(NamedTuple):
    """A sample as the service shows it."""

    time: str
    kind: str
    identifier: str
    seq: int | None
    value: str
    """As JSON."""
    raw: str | None
    gateway: str


class Ledger:
    """What one gateway reports of its devices. No two of its reports have the same identity.

    They come in six forms: measurements, properties and events, raw and decoded, with and without `seq`, with
    an identifier that the catalogue knows and with one that it does not.
    """

    def __init__(self, gateway: str, devices: int = 2) -> None:
        self.gateway = gateway
        self.devices = [Mac(f"{int(gateway, 16) + (number << 8):012x}") for number in range(1, devices + 1)]
        self.entries: dict[Mac, set[Entry]] = {device: set() for device in self.devices}
        """What was drawn, by device."""
        self.drawn = 0
        self.acknowledged = 0
        self._numbers = count()
        self._last = 0

    @property
    def unacknowledged(self) -> int:
        """How many reports may be on their way."""
        return self.drawn - self.acknowledged

    def draw(self, reports: int) -> list[Publish]:
        """The next reports, to be published at QoS 1. Every tenth is there twice: gateways repeat themselves."""
        drawn = []
        for _ in range(reports):
            number = next(self._numbers)
            message = self._write(number)
            drawn += [message, message] if number % 10 == 0 else [message]
        self.drawn += len(drawn)
        return drawn

    def _write(self, number: int) -> Publish:
        """Report something, and write down what is to become of it."""
        self._last = max(self._last + 1, time.time_ns() // 1_000_000)
        at = write_millis(self._last)
        device = self.devices[number % len(self.devices)]
        form = _FORMS[number % len(_FORMS)]
        payload, seen = form.fill(number)
        self.entries[device].add(
            Entry(
                at,
                form.kind,
                form.identifier,
                payload.get("seq"),
                json.dumps(seen, separators=(",", ":")),
                payload["value"] if form.is_raw else None,
                self.gateway,
            )
        )
        topic = f"mt/gateway/{self.gateway}/device/{device}/{form.topic}"
        return Publish(topic, json.dumps({"time": at, **payload}).encode(), 1)


class _Form(NamedTuple):
    """One way to report a number."""

    topic: str
    kind: str
    identifier: str
    has_seq: bool

    @property
    def is_raw(self) -> bool:
        return "-decoded" not in self.topic

    def fill(self, number: int) -> tuple[dict[str, Any], object]:
        """The payload without its time, and the value that clients see."""
        value, seen = _VALUES[self.topic](number)
        return ({"seq": number % 256} if self.has_seq else {}) | {"value": value}, seen


_FORMS = (
    _Form("measurement/8800", "measurement", "8800", has_seq=True),
    _Form("measurement-decoded/temperature", "measurement", "8800", has_seq=True),
    _Form("property/8100", "property", "8100", has_seq=False),
    _Form("property-decoded/ledger-note", "property", "ledger-note", has_seq=False),
    _Form("event/8112", "event", "8112", has_seq=True),
    _Form("event-decoded/storage-mode-event", "event", "8112", has_seq=True),
    _Form("measurement/f00d", "measurement", "f00d", has_seq=True),
)

_VALUES = {
    "measurement/8800": lambda n: (f"{n % 30_000:04x}", _plain(n % 30_000 / 100)),
    "measurement-decoded/temperature": lambda n: (n / 4, _plain(n / 4)),
    "property/8100": lambda n: (f"{n % 100:02x}", n % 100),
    "property-decoded/ledger-note": lambda n: ({"page": n, "read": n % 2 == 0}, {"page": n, "read": n % 2 == 0}),
    "event/8112": lambda n: (f"{n % 65_536:04x}", {"modelNumber": n % 65_536}),
    "event-decoded/storage-mode-event": lambda n: ({"modelNumber": n}, {"modelNumber": n}),
    "measurement/f00d": lambda n: (f"{n:08x}", None),
}


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


# --- What the service has ---


def check(service: Service, ledgers: Iterable[Ledger]) -> None:
    """See that all that was published is there, as it was published, and once."""
    for ledger in ledgers:
        for device, entries in ledger.entries.items():
            stored = shown(service, device)
            assert set(stored) == entries
            assert len(stored) == len(entries)


def shown(service: Service, device: Mac) -> list[Entry]:
    """The samples of a device, read as a sheet."""
    text = service.ask("GET", f"/api/v1/devices/{device_id(device)}/samples", Accept="text/csv")
    return [
        Entry(
            row["time"],
            row["kind"],
            row["identifier"],
            int(row["seq"]) if row["seq"] else None,
            row["value"] or "null",
            row["raw"] or None,
            row["gateway"],
        )
        for row in csv.DictReader(io.StringIO(text))
    ]


def paged(service: Service, device: Mac) -> list[Entry]:
    """The same, read in pages; the newest first."""
    found, token = [], ""
    while token is not None:
        path = f"/api/v1/devices/{device_id(device)}/samples?MaxResults=300"
        page = service.ask("GET", f"{path}&NextToken={token}" if token else path)
        found += [_entry(item) for item in page["items"]]
        token = page["nextToken"]
    return found


def _entry(item: dict[str, Any]) -> Entry:
    value = json.dumps(item["value"], separators=(",", ":"))
    return Entry(
        item["time"], item["kind"], item["identifier"], item["seq"], value, item["raw"], item["gateway"]
    )
