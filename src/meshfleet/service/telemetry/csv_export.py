"""Samples as CSV: RFC 4180, in UTF-8, with the names of the fields in the first line (rest-84)."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet import rest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from meshfleet.protocol.ids import Mac


MEDIA_TYPE: Final = "text/csv"
CONTENT_TYPE: Final = f"{MEDIA_TYPE}; header=present"

_FIELDS: Final = tuple(
    field.encode_name for field in msgspec.structs.fields(rest.Sample) if field.name != "corrected_time"
)
"""A sheet has the times as they were reported, which are what `From` and `To` go by."""
_FORMULA_PREFIXES: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001 # spreadsheets take the wide ones for the others
"""What the text of a cell begins with that a spreadsheet would calculate."""


def build_csv_headers(device: Mac) -> dict[str, str]:
    """What is told about the sheet of a device."""
    return {"content-disposition": f'attachment; filename="samples-{device}.csv"'}


def encode_csv_header() -> bytes:
    """The names of the fields."""
    return _encode_csv([_FIELDS])


def encode_csv_rows(samples: Iterable[rest.Sample]) -> bytes:
    """A line for each sample."""
    return _encode_csv(map(_cells, samples))


def _encode_csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _cells(sample: rest.Sample) -> tuple[object, ...]:
    return (
        sample.time,
        sample.kind,
        sample.identifier,
        _escape_formula(sample.name),
        sample.seq,
        _json(sample.value),
        sample.raw,
        _json(sample.ext),
        sample.error,
        sample.error_ext,
        sample.gateway,
        sample.clock,
    )


def _json(value: Any) -> str | None:
    """A value as JSON; text is in quotes, so that no spreadsheet takes it for a formula."""
    return None if value is None else msgspec.json.encode(value).decode()


def _escape_formula(name: str | None) -> str | None:
    """A name as a cell: gateways make names up, and one must not be a formula (rest-181)."""
    return f"'{name}" if name is not None and name.lstrip().startswith(_FORMULA_PREFIXES) else name


# JSON or CSV: what somebody asks for who may have both (rest-185).

_JSON: Final = "application/json"
_WEIGHT: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


def wants_csv(accept: Iterable[str]) -> bool:
    """Whether these `Accept` headers name CSV, and JSON not just as much."""
    weights = {MEDIA_TYPE: 0.0, _JSON: 0.0}
    for line in accept:
        for each in line.split(","):
            name, *parameters = (part.strip() for part in each.split(";"))
            weights[name.lower()] = _parse_weight(parameters)
    return weights[MEDIA_TYPE] > weights[_JSON]


def _parse_weight(parameters: list[str]) -> float:
    found = next(filter(None, map(_WEIGHT.fullmatch, parameters)), None)
    return 1.0 if found is None else float(found[1])
