"""Sources: what the topic of a report says, read once for each topic and then remembered.

A source knows how to read the payloads that come there, and what they mean for a draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from meshfleet.db.samples import NO_SEQ, Clock, More, SampleKind
from meshfleet.errors import MalformedTopic
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.values import from_json, from_raw, to_json
from meshfleet.wire.codes import Kind
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import mac_number
from meshfleet.wire.reports import DECODERS
from meshfleet.wire.topics import ReportTopic, Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.values import Number
    from meshfleet.wire.reports import (
        Dfu,
        Event,
        EventDecoded,
        Heartbeat,
        Measurement,
        MeasurementDecoded,
        MeasurementError,
        Property,
        PropertyDecoded,
        Report,
        Rssi,
    )

_REMEMBERED: Final = 1 << 17
"""Topics; a gateway repeats its few topics for ever."""

MODEL, FIRMWARE, HARDWARE, VARIANT, BATTERY = (
    identifier_number(BUILTIN[name].id)
    for name in ("model-number", "firmware-version", "hardware-version", "variant", "battery-level")
)
_FACTS: Final = frozenset({MODEL, FIRMWARE, HARDWARE, VARIANT, BATTERY})
"""Properties that tell what a device is."""


class Source(NamedTuple):
    """Where reports of one kind come from."""

    decode: Callable[[bytes], Report]
    take: Callable[[Draft, Source, Any], None]
    """What to do with a report that was read."""
    name: str
    """The kind as topics have it."""
    kind: int
    device: int
    gateway: int
    identifier: int
    text: str
    """The identifier as the topic has it."""
    is_fact: bool
    is_foreign: bool
    """Whether the identifier is a name that the catalogue does not know."""


class Sources:
    """Sources by topic."""

    def __init__(self, prefix: str) -> None:
        self._topics = Topics(prefix, names=BUILTIN.names)
        self._known: dict[str, Source] = {}
        self.find = self._known.get

    def read(self, topic: str) -> Source:
        """Read a topic that was not found, and remember it; raises a `WireError` for what is no report."""
        source = _source(self._topics.read(topic))
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[topic] = source
        return source


def _source(topic: Any) -> Source:
    if not isinstance(topic, ReportTopic):
        raise MalformedTopic("topic", "is not that of a report")
    kind, take = _KINDS[topic.kind]
    text = topic.identifier or ""
    identifier = identifier_number(topic.identifier) if topic.identifier is not None else 0
    return Source(
        decode=DECODERS[topic.kind],
        take=take,
        name=str(topic.kind),
        kind=kind,
        device=mac_number(topic.device),
        gateway=mac_number(topic.gateway),
        identifier=identifier,
        text=text,
        is_fact=kind == SampleKind.PROPERTY and identifier in _FACTS,
        is_foreign=identifier < 0,
    )


# --- What reports mean ---


def _take_raw(draft: Draft, source: Source, report: Property | Measurement | Event) -> None:
    seq = report.seq
    value = report.value
    if value is UNSET:
        number: Number = None
        raw = more = None
    else:
        number, raw, more = from_raw(source.text, value)
    _keep(draft, source, report, NO_SEQ if seq is UNSET else seq, number, raw, more)


def _take_decoded(
    draft: Draft, source: Source, report: PropertyDecoded | MeasurementDecoded | EventDecoded
) -> None:
    seq, ext = report.seq, report.ext
    if report.value is UNSET and ext is UNSET:
        number: Number = None
        more = None
    else:
        number, more = from_json(
            None if report.value is UNSET else report.value, None if ext is UNSET else ext
        )
    if source.is_foreign:
        draft.names[source.identifier] = source.text
    _keep(draft, source, report, NO_SEQ if seq is UNSET else seq, number, None, more)


def _take_error(draft: Draft, source: Source, report: MeasurementError) -> None:
    if source.is_foreign:
        draft.names[source.identifier] = source.text
    ext = report.error_ext
    more = More(error=report.error, error_ext=None if ext is UNSET else ext)
    _keep(draft, source, report, report.seq, None, None, more)


def _keep(  # noqa: PLR0913, PLR0917 # the hottest of all: by name it would cost more
    draft: Draft,
    source: Source,
    report: Any,
    seq: int,
    number: Number,
    raw: bytes | None,
    more: More | None,
) -> None:
    time = round(report.time.timestamp() * 1000)
    if not draft.earliest <= time <= draft.latest:
        clock = Clock.FUTURE if time > draft.now else Clock.PAST
        more = More(clock=clock) if more is None else replace(more, clock=clock)
        draft.keep(
            source.device, (time, source.kind, source.identifier, seq, source.gateway, number, raw, more)
        )
        return
    device, gateway = source.device, source.gateway
    draft.keep(device, (time, source.kind, source.identifier, seq, gateway, number, raw, more))
    if source.is_fact:
        value = to_json(number, more)
        draft.read((ReadingKind.FACT, device, gateway, time, value, source.identifier, False))
    else:
        draft.note(device, gateway, time)


def _take_heartbeat(draft: Draft, source: Source, report: Heartbeat) -> None:
    _read(draft, source, report, ReadingKind.HEARTBEAT, report.status, 0, unreachable=False)


def _take_rssi(draft: Draft, source: Source, report: Rssi) -> None:
    parent = mac_number(report.parent)
    _read(draft, source, report, ReadingKind.LINK, report.rssi, parent, unreachable=report.unreachable)


def _take_dfu(draft: Draft, source: Source, report: Dfu) -> None:
    parent = mac_number(report.parent)
    _read(draft, source, report, ReadingKind.DFU, report.rssi, parent, unreachable=False)


def _read(  # noqa: PLR0913, PLR0917 # hot as well
    draft: Draft, source: Source, report: Any, kind: int, value: int, other: int, *, unreachable: bool
) -> None:
    time = round(report.time.timestamp() * 1000)
    if draft.earliest <= time <= draft.latest:  # the others would decide state, which they must not
        narrow = min(max(value, -_WIDEST), _WIDEST)
        draft.read((kind, source.device, source.gateway, time, narrow, other, unreachable))


_WIDEST: Final = 2**31 - 1
"""What the tables hold; no status and no RSSI comes near it."""

_KINDS: Final[Mapping[Kind, tuple[int, Callable[[Draft, Source, Any], None]]]] = {
    Kind.HEARTBEAT: (SampleKind.HEARTBEAT, _take_heartbeat),
    Kind.DFU: (SampleKind.LINK, _take_dfu),
    Kind.RSSI: (SampleKind.LINK, _take_rssi),
    Kind.PROPERTY: (SampleKind.PROPERTY, _take_raw),
    Kind.PROPERTY_DECODED: (SampleKind.PROPERTY, _take_decoded),
    Kind.MEASUREMENT: (SampleKind.MEASUREMENT, _take_raw),
    Kind.MEASUREMENT_DECODED: (SampleKind.MEASUREMENT, _take_decoded),
    Kind.MEASUREMENT_ERROR: (SampleKind.MEASUREMENT_ERROR, _take_error),
    Kind.MEASUREMENT_ERROR_DECODED: (SampleKind.MEASUREMENT_ERROR, _take_error),
    Kind.EVENT: (SampleKind.EVENT, _take_raw),
    Kind.EVENT_DECODED: (SampleKind.EVENT, _take_decoded),
}
