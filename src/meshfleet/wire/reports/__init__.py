"""Reports: what gateways publish of devices.

structs     what a report of each kind holds
reading     payload to report
writing     report to payload
"""

from meshfleet.wire.reports.reading import DECODERS, decode
from meshfleet.wire.reports.structs import (
    STRUCTS,
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
from meshfleet.wire.reports.writing import encode

__all__ = [
    "DECODERS",
    "STRUCTS",
    "Dfu",
    "Event",
    "EventDecoded",
    "Heartbeat",
    "Measurement",
    "MeasurementDecoded",
    "MeasurementError",
    "Property",
    "PropertyDecoded",
    "Report",
    "Rssi",
    "decode",
    "encode",
]
