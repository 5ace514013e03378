"""Encodes samples as CSV (rest-84)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.csv_format import encode_csv, escape_formula
from meshfleet.rest.telemetry import ExportedSample, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELDS: Final = tuple(
    field.encode_name for field in msgspec.structs.fields(Sample) if field.name != "corrected_time"
)
"""Column names of the CSV export; times are as reported, like the filters `From` and `To`."""


def encode_csv_header() -> bytes:
    """Encode the first CSV line, with the column names."""
    return encode_csv([_FIELDS])


def encode_csv_rows(samples: Iterable[Sample]) -> bytes:
    """Encode samples as CSV, one line per sample."""
    return encode_csv(map(_to_cells, samples))


def encode_export_header() -> bytes:
    """Encode the first CSV line of an export of several devices, with the column names."""
    return encode_csv([("device", "deviceName", *_FIELDS)])


def encode_export_rows(samples: Iterable[ExportedSample]) -> bytes:
    """Encode the samples of several devices as CSV, one line per sample."""
    return encode_csv(
        (sample.device, escape_formula(sample.device_name), *_to_cells(sample)) for sample in samples
    )


def _to_cells(sample: Sample) -> tuple[object, ...]:
    return (
        sample.time,
        sample.kind,
        sample.identifier,
        None if sample.name is None else escape_formula(sample.name),
        sample.seq,
        _to_json(sample.value),
        sample.raw,
        _to_json(sample.ext),
        sample.error,
        sample.error_ext,
        sample.gateway,
        sample.clock,
    )


def _to_json(value: Any) -> str | None:
    """Encode a value as JSON. JSON quotes prevent spreadsheets from evaluating a string as a formula."""
    return None if value is None else msgspec.json.encode(value).decode()
