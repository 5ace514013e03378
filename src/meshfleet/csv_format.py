"""CSV as in RFC 4180, in UTF-8; and the choice between CSV and JSON (rest-185)."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MEDIA_TYPE: Final = "text/csv"
CONTENT_TYPE: Final = f"{MEDIA_TYPE}; header=present"
_JSON: Final = "application/json"

_FORMULA_PREFIXES: Final = tuple("=+-@＝＋－＠")  # noqa: RUF001 # spreadsheets treat the full-width characters like the others
"""First characters of strings that a spreadsheet program would evaluate as formulas."""


def encode_csv(rows: Iterable[Sequence[object]]) -> bytes:
    """Encode rows as CSV, one line per row."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def escape_formula(name: str) -> str:
    """Put an apostrophe before a name that looks like a spreadsheet formula (rest-181)."""
    return f"'{name}" if name.lstrip().startswith(_FORMULA_PREFIXES) else name


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
