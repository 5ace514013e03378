"""Collects the newest values of devices, and builds state messages, without I/O (homeassistant-5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from meshfleet.db.samples.sample import SampleKind
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.identifiers.homeassistant import EntityPlatform
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Version
from meshfleet.service.homeassistant.entities import (
    CONNECTIVITY,
    DEVICE_COUNT,
    FIRMWARE,
    OFF,
    ON,
    OTHER_OPTION,
    REPORT_RATE,
    RSSI,
    UNREPORTED,
    list_options,
)
from meshfleet.service.ingest.sample_values import from_sample_value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from meshfleet.db.samples.sample import SampleRow
    from meshfleet.protocol.identifiers import IdentifierCatalogue, IdentifierDefinition

_VALUE_KINDS: Final = {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.EVENT}
_NUMERIC: Final = {EntityPlatform.SENSOR, EntityPlatform.NUMBER}

_encode = msgspec.json.Encoder().encode

ShownValue = str | int | float | None
"""Value in a state message."""


class BelievedValue(NamedTuple):
    """Newest known value of an identifier of a device."""

    time: int
    """Unix time in milliseconds at which the device had the value."""
    value: Any


class DeviceFigures(Struct, frozen=True, kw_only=True):
    """Values of a device that come from the registry, not from a sample."""

    connected: bool
    rssi: int | None
    """RSSI of the device in dBm; None if it is unknown."""
    latest_firmware: str | None
    """Newest released firmware for the model; None if there is none."""
    device_count: int | None = None
    """Number of devices behind a gateway; None for other devices."""
    report_rate: int | None = None
    """Reports per minute of a gateway; None for other devices."""


class NewEvent(NamedTuple):
    """Event of a device that is not published yet."""

    definition: IdentifierDefinition
    time: int
    """Unix time of the event in milliseconds."""


class ShownIdentifiers:
    """The identifiers that Home Assistant shows, by the number under which samples are stored."""

    def __init__(self, catalogue: IdentifierCatalogue) -> None:
        self.catalogue = catalogue
        self._by_number = {
            identifier_to_int(each.id): each for each in catalogue if each.homeassistant is not None
        }

    def list_names(self, identifiers: Collection[str]) -> list[str]:
        """Return the names of the given identifiers, without those that have no value in state messages."""
        found = (self.catalogue.find(each) for each in sorted(identifiers))
        return [
            each.name
            for each in found
            if each is not None
            and each.homeassistant is not None
            and each.homeassistant.platform not in UNREPORTED
        ]

    def find(self, number: int) -> IdentifierDefinition | None:
        """Return the identifier with this stored number; None if Home Assistant does not show it."""
        return self._by_number.get(number)


def apply_rows(
    values: dict[str, BelievedValue], rows: Iterable[SampleRow], shown: ShownIdentifiers
) -> list[NewEvent]:
    """Update `values`, the newest values of a device by identifier, from samples in any order.

    Return the events among the samples. Samples with implausible times are ignored, because it is unknown
    which of them is the newest.
    """
    events: list[NewEvent] = []
    for time, kind, identifier, _, _, number, raw, extras in rows:
        if (definition := shown.find(identifier)) is None or kind not in _VALUE_KINDS:
            continue
        if extras is not None:
            if not extras.has_plausible_time:
                continue
            time += extras.shift or 0  # noqa: PLW2901 # converted to the service's clock
        if is_event(definition):
            if kind == SampleKind.EVENT:
                events.append(NewEvent(definition, time))
            continue
        known = values.get(definition.id)
        if known is None or time >= known.time:
            value = from_sample_value(number, extras)
            if value is None and raw is not None:
                value = _decode(definition, raw)
            values[definition.id] = BelievedValue(time, value)
    return events


def is_event(definition: IdentifierDefinition) -> bool:
    """Return whether an identifier is shown as an event."""
    return definition.homeassistant is not None and definition.homeassistant.platform is EntityPlatform.EVENT


def _decode(definition: IdentifierDefinition, raw: bytes) -> Any:
    """Decode a raw value of an identifier that only the user's identifier table defines; None if invalid."""
    try:
        return definition.decode(raw).value
    except MalformedInput:
        return None


def build_state(
    values: Mapping[str, BelievedValue],
    figures: DeviceFigures,
    firmware: str | None,
    shown: ShownIdentifiers,
    *,
    earlier: Mapping[str, ShownValue],
) -> bytes:
    """Build the payload of the state message of a device: a JSON object with values by name of identifier.

    `earlier` maps the name of each identifier to the value that an earlier process published, or None.
    Newer values in `values` replace these. `firmware` is the installed version; None if it is unknown.
    """
    state: dict[str, Any] = dict(earlier)
    for identifier in values:
        if (definition := shown.catalogue.find(identifier)) is not None:
            state[definition.name] = _convert_to_entity_state(definition, values[identifier].value)
    if figures.device_count is None:
        state[RSSI] = figures.rssi
    else:
        state[CONNECTIVITY] = ON if figures.connected else OFF
        state[DEVICE_COUNT] = figures.device_count
        state[REPORT_RATE] = figures.report_rate
    if firmware is not None:
        newest = find_newest_version(firmware, figures.latest_firmware)
        state[FIRMWARE] = {"installed_version": firmware, "latest_version": newest}
    return _encode(state)


_decode_state = msgspec.json.Decoder(dict[str, Any]).decode
_MAX_TEXT_LENGTH: Final = 255
"""Maximum length of a text that Home Assistant accepts as a state."""


def parse_state(payload: bytes) -> dict[str, ShownValue]:
    """Parse a state message of an earlier process to values by name; empty if the message is malformed."""
    try:
        found = _decode_state(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _MAX_TEXT_LENGTH)
    }


def _convert_to_entity_state(definition: IdentifierDefinition, value: Any) -> Any:
    """Convert the value of an identifier to the state of its entity in Home Assistant.

    Return None if the value is unknown, or of a type that the entity cannot show.
    """
    entity = definition.homeassistant
    if entity is None or value is None:
        return None
    if entity.device_class == "enum":
        return _find_option(definition, value)
    is_number = isinstance(value, int | float)
    if entity.platform is EntityPlatform.BINARY_SENSOR:
        return (ON if value else OFF) if is_number else None
    if entity.platform in _NUMERIC and (definition.unit or entity.state_class is not None):
        return value if is_number and value != entity.unknown else None
    return value if is_number or isinstance(value, str) else None


def _find_option(definition: IdentifierDefinition, value: Any) -> str | None:
    """Return the keyword for the value of an enumeration. The value is a number or already a keyword.

    Home Assistant refuses any other text, so the result is None for an unknown keyword.
    """
    options = list_options(definition)
    if OTHER_OPTION not in options:
        return value if isinstance(value, str) and value in options else None
    assert definition.homeassistant is not None  # noqa: S101 # it has options
    numbers = definition.homeassistant.options.items()
    return next((keyword for keyword, number in numbers if number == value), OTHER_OPTION)


def find_newest_version(installed: str, released: str | None) -> str:
    """Return the newer of two firmware versions; `released` is None if no firmware is released."""
    if released is None:
        return installed
    return max(installed, released, key=Version.parse)
