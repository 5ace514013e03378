"""JSON or CSV: what somebody asks for who may have both (rest-185)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from meshfleet.service.telemetry.sheet import MEDIA_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

_JSON: Final = "application/json"
_WEIGHT: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)", re.IGNORECASE)


def wants_csv(accept: Iterable[str]) -> bool:
    """Whether these `Accept` headers name CSV, and JSON not just as much."""
    weights = {MEDIA_TYPE: 0.0, _JSON: 0.0}
    for line in accept:
        for each in line.split(","):
            name, *parameters = (part.strip() for part in each.split(";"))
            weights[name.lower()] = _weight(parameters)
    return weights[MEDIA_TYPE] > weights[_JSON]


def _weight(parameters: list[str]) -> float:
    found = next(filter(None, map(_WEIGHT.fullmatch, parameters)), None)
    return 1.0 if found is None else float(found[1])
