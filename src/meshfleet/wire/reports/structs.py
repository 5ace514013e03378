"""What a report of each kind holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET, UnsetType

from meshfleet.wire.codes import Kind
from meshfleet.wire.fields import Channel, Count, HexField, Json, MacField, Seq, Time, Whole
from meshfleet.wire.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Mapping

# `time` stands first in all of them: reading and writing know its place.


class Heartbeat(Payload, frozen=True, kw_only=True):
    """A device is alive (report-1)."""

    time: Time
    seq: Seq
    status: Whole
    """0 is fine; anything else is a device error or warning."""
    last_count: Count | UnsetType = UNSET
    """How many copies of the previous heartbeat were heard."""


class Dfu(Payload, frozen=True, kw_only=True):
    """A device advertises in DFU mode (report-2)."""

    time: Time
    parent: MacField
    rssi: Whole


class Rssi(Payload, frozen=True, kw_only=True):
    """How well a mesh node hears a device (report-3)."""

    time: Time
    parent: MacField
    rssi: Whole
    channel: Channel | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    unreachable: bool = False
    """The device cannot be reached through this parent."""


class Property(Payload, frozen=True, kw_only=True):
    """The raw value of a property (report-4)."""

    time: Time
    value: HexField
    seq: Seq | UnsetType = UNSET


class PropertyDecoded(Payload, frozen=True, kw_only=True):
    """The value of a property (report-5)."""

    time: Time
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET


class Measurement(Payload, frozen=True, kw_only=True):
    """A raw measured sample (report-6)."""

    time: Time
    seq: Seq
    value: HexField


class MeasurementDecoded(Payload, frozen=True, kw_only=True):
    """A measured sample (report-7)."""

    time: Time
    seq: Seq
    value: Json
    ext: dict[str, Json] | UnsetType = UNSET


class MeasurementError(Payload, frozen=True, kw_only=True):
    """A measurement that failed; raw and decoded reports look the same (report-8, report-9)."""

    time: Time
    seq: Seq
    error: Whole
    error_ext: Whole | UnsetType = UNSET


class Event(Payload, frozen=True, kw_only=True):
    """Something happened; some events carry a raw value (report-10)."""

    time: Time
    seq: Seq
    value: HexField | UnsetType = UNSET


class EventDecoded(Payload, frozen=True, kw_only=True):
    """Something happened; some events carry a value (report-11)."""

    time: Time
    seq: Seq
    value: Json | UnsetType = UNSET
    ext: dict[str, Json] | UnsetType = UNSET


Report = (
    Heartbeat
    | Dfu
    | Rssi
    | Property
    | PropertyDecoded
    | Measurement
    | MeasurementDecoded
    | MeasurementError
    | Event
    | EventDecoded
)

STRUCTS: Final[Mapping[Kind, type[Report]]] = {
    Kind.HEARTBEAT: Heartbeat,
    Kind.DFU: Dfu,
    Kind.RSSI: Rssi,
    Kind.PROPERTY: Property,
    Kind.PROPERTY_DECODED: PropertyDecoded,
    Kind.MEASUREMENT: Measurement,
    Kind.MEASUREMENT_DECODED: MeasurementDecoded,
    Kind.MEASUREMENT_ERROR: MeasurementError,
    Kind.MEASUREMENT_ERROR_DECODED: MeasurementError,
    Kind.EVENT: Event,
    Kind.EVENT_DECODED: EventDecoded,
}
