"""Newest believed values of devices, and the state message of a device (homeassistant-5). Pure."""

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
    """Value of an identifier, and the time at which the device had it, in Unix milliseconds."""

    time: int
    value: Any


class DeviceFigures(Struct, frozen=True, kw_only=True):
    """Values of a device that come from the registry, not from a sample."""

    connected: bool
    rssi: int | None
    latest_firmware: str | None
    """Newest released firmware for the model; None if there is none."""
    device_count: int | None = None
    """Number of devices behind a gateway; None for other devices."""
    report_rate: int | None = None
    """Reports per minute of a gateway; None for other devices."""


class NewEvent(NamedTuple):
    """Event of a device that Home Assistant has not seen."""

    definition: IdentifierDefinition
    time: int


class ShownIdentifiers:
    """The identifiers that Home Assistant shows, by the number under which samples are stored."""

    def __init__(self, catalogue: IdentifierCatalogue) -> None:
        self.catalogue = catalogue
        self._by_number = {
            identifier_to_int(each.id): each for each in catalogue if each.homeassistant is not None
        }

    def list_names(self, identifiers: Collection[str]) -> list[str]:
        """Return the names of those of the identifiers that have a value in state messages."""
        found = (self.catalogue.find(each) for each in sorted(identifiers))
        return [
            each.name
            for each in found
            if each is not None
            and each.homeassistant is not None
            and each.homeassistant.platform not in UNREPORTED
        ]

    def find(self, number: int) -> IdentifierDefinition | None:
        """Return the definition of an identifier that is shown; None for all others."""
        return self._by_number.get(number)


def apply_rows(
    values: dict[str, BelievedValue], rows: Iterable[SampleRow], shown: ShownIdentifiers
) -> list[NewEvent]:
    """Apply samples of a device to its newest values, in whatever order they come. Return its events.

    Samples with implausible times are ignored, as nothing is known about their order.
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
    """Decode a value that the service stored raw: only the user's own table describes it."""
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
    """Build the state message of a device: a JSON object with a key for each identifier that it reported.

    `earlier` are values of an earlier process by name, or None, for identifiers without newer values.
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


def read_state(payload: bytes) -> dict[str, ShownValue]:
    """Return the values in a state message of an earlier process; none if it is malformed."""
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
    """Return the keyword of a number, or a keyword itself; Home Assistant refuses any other text."""
    options = list_options(definition)
    if OTHER_OPTION not in options:
        return value if isinstance(value, str) and value in options else None
    assert definition.homeassistant is not None  # noqa: S101 # it has options
    numbers = definition.homeassistant.options.items()
    return next((keyword for keyword, number in numbers if number == value), OTHER_OPTION)


def find_newest_version(installed: str, released: str | None) -> str:
    """Return the newer one of the installed and the newest released version."""
    if released is None:
        return installed
    return max(installed, released, key=Version.parse)
