"""Encodes samples as CSV: RFC 4180, UTF-8, field names in the first line (rest-84)."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.rest.telemetry import ExportedSample, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshfleet.protocol.ids import Mac


MEDIA_TYPE: Final = "text/csv"
CONTENT_TYPE: Final = f"{MEDIA_TYPE}; header=present"

_FIELDS: Final = tuple(
    field.encode_name for field in msgspec.structs.fields(Sample) if field.name != "corrected_time"
)
"""Column names of the CSV export; times are as reported, like the filters `From` and `To`."""
_FORMULA_PREFIXES: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001 # spreadsheets treat the full-width characters like the others
"""First characters of strings that a spreadsheet program would evaluate as formulas."""


def build_csv_headers(device: Mac) -> dict[str, str]:
    """Return the HTTP headers that set the file name of the CSV export of a device."""
    return {"content-disposition": f'attachment; filename="samples-{device}.csv"'}


def encode_csv_header() -> bytes:
    """Encode the first CSV line, with the column names."""
    return _encode_csv([_FIELDS])


def encode_csv_rows(samples: Iterable[Sample]) -> bytes:
    """Encode samples as CSV, one line per sample."""
    return _encode_csv(map(_to_cells, samples))


def encode_export_header() -> bytes:
    """Encode the first CSV line of an export of several devices, with the column names."""
    return _encode_csv([("device", "deviceName", *_FIELDS)])


def encode_export_rows(samples: Iterable[ExportedSample]) -> bytes:
    """Encode the samples of several devices as CSV, one line per sample."""
    return _encode_csv(
        (sample.device, escape_formula(sample.device_name), *_to_cells(sample)) for sample in samples
    )


def _encode_csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


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


def escape_formula(name: str) -> str:
    """Put an apostrophe before a name that looks like a spreadsheet formula (rest-181)."""
    return f"'{name}" if name.lstrip().startswith(_FORMULA_PREFIXES) else name


# Content negotiation between JSON and CSV (rest-185).

_JSON: Final = "application/json"
_WEIGHT: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


def wants_csv(accept: Iterable[str]) -> bool:
    """Return whether `Accept` headers give `text/csv` a higher weight than `application/json`."""
    weights = {MEDIA_TYPE: 0.0, _JSON: 0.0}
    for header in accept:
        for media_range in header.split(","):
            name, *parameters = (part.strip() for part in media_range.split(";"))
            weights[name.lower()] = _parse_weight(parameters)
    return weights[MEDIA_TYPE] > weights[_JSON]


def _parse_weight(parameters: list[str]) -> float:
    match = next(filter(None, map(_WEIGHT.fullmatch, parameters)), None)
    return 1.0 if match is None else float(match[1])
