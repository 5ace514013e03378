"""Devices of which something is not known, found a few at a time.

There is an index for each column that may be unknown. A walk goes along one of them by the number of the
device, so many rows at each look, whatever they are: a fleet of which nothing is known costs no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db.tables import device, device_state, gateway
from meshfleet.service.ingest.facts import FIRMWARE, HARDWARE, MODEL, VARIANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import ColumnElement, Connection, Row, Select

ROWS: Final = 300
"""Rows of each walk at a look."""

_MET: Final = 60_000
"""Milliseconds that a device is known before it is asked: it may just be about to tell by itself."""

_NO_VERSION: Final = "0.0.0"

UNKNOWN: Final[Mapping[int, ColumnElement[bool]]] = {
    MODEL: device.c.model == 0,
    FIRMWARE: device.c.firmware == _NO_VERSION,
    HARDWARE: device.c.hardware == _NO_VERSION,
}
"""How the table says that something is not known."""

_root = device.alias("root")
_claim = gateway.alias("claim")
_own_claim = gateway.alias("own_claim")
_CANDIDATES: Final = (
    select(
        device,
        device_state.c.variant_at,
        _own_claim.c.device.is_not(None).label("is_gateway"),
        (_claim.c.device.is_not(None) & _root.c.connected).label("is_reached"),
    )
    .outerjoin(device_state, device_state.c.device == device.c.id)
    .outerjoin(_own_claim, _own_claim.c.device == device.c.id)
    .outerjoin(_root, _root.c.id == device.c.gateway)
    .outerjoin(_claim, _claim.c.device == device.c.gateway)
)


class Candidate(NamedTuple):
    """A device that can be asked, and what is not known of it."""

    device: int
    gateway: int
    """Through which it is asked; a gateway through itself."""
    unknown: tuple[int, ...]
    """Identifiers, in the order in which they are asked."""


class Found(NamedTuple):
    """What one look of a walk found."""

    candidates: list[Candidate]
    after: int
    """Where the next look begins."""


def look(connection: Connection, identifier: int, *, after: int, now: int) -> Found:
    """The next rows of the walk along what is unknown of one property."""
    rows = connection.execute(walk(identifier, after=after)).all()
    candidates = [_candidate(row) for row in rows if _can_be_asked(row, now)]
    return Found(candidates, rows[-1].id if len(rows) == ROWS else -1)


def walk(identifier: int, *, after: int) -> Select[Any]:
    """The query of such a look."""
    return _CANDIDATES.where(UNKNOWN[identifier], device.c.id > after).order_by(device.c.id).limit(ROWS)


def merged(found: Iterable[Found]) -> list[Candidate]:
    """The candidates of several walks, each once."""
    return list({candidate.device: candidate for each in found for candidate in each.candidates}.values())


def _can_be_asked(row: Row[Any], now: int) -> bool:
    """Whether it is there, for a while already, and somebody is there to reach it."""
    is_reached = row.is_gateway or row.is_reached
    return bool(row.connected and is_reached and now - row.created_at >= _MET)


def _candidate(row: Row[Any]) -> Candidate:
    unknown = [
        identifier
        for identifier, is_unknown in (
            # In front of the model: a device whose model is known is found by nobody who looks for variants.
            (VARIANT, row.variant_at is None),
            (MODEL, row.model == 0),
            (FIRMWARE, row.firmware == _NO_VERSION),
            (HARDWARE, row.hardware == _NO_VERSION),
        )
        if is_unknown
    ]
    return Candidate(row.id, row.id if row.is_gateway else row.gateway, tuple(unknown))
