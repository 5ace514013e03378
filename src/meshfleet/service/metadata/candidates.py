"""Devices of which something is not known, found a few at a time.

There is an index for each column that may be unknown. A walk goes along one of them by the number of the
device, so many rows at each look, whatever they are: a fleet of which nothing is known costs no more.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db.tables import device, device_state, gateway
from meshfleet.service.ingest.device_facts import FIRMWARE, HARDWARE, MODEL, VARIANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from sqlalchemy import ColumnElement, Connection, Row, Select


# Candidates that wait to be asked: a few of each gateway, so that none keeps the others waiting.

_MAX_QUEUED: Final = 1000
_MAX_PER_GATEWAY: Final = 20
"""What does not fit is found again by a later walk."""
_MAX_RANDOM: Final = 20
"""Candidates per look for which a gateway is chosen though the line of their own is full."""


class CandidateQueue:
    """Gives one candidate of a gateway at a time, one gateway after the other."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[MetadataCandidate]] = {}
        """By gateway; whose turn is next is in front."""
        self._devices: set[int] = set()
        """Who waits, or is being asked."""
        self._busy_gateways: set[int] = set()
        """Gateways through which somebody is being asked."""

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def active(self) -> int:
        """How many are being asked."""
        return len(self._busy_gateways)

    def preselect(self, candidates: Iterable[MetadataCandidate], random: Random) -> list[MetadataCandidate]:
        """Return candidates for which it is worth while to choose gateways, which costs a read for each.

        Most are asked through the gateway that they belong to: those that fit in its line come first. Of the
        others any may be asked through another gateway, so some are drawn by lot.
        """
        waiting = [each for each in candidates if each.device not in self._devices]
        random.shuffle(waiting)
        fitting = _limit(waiting, self._queue_lengths, self._free_slots)
        taken = {each.device for each in fitting}
        others = [each for each in waiting if each.device not in taken]
        return fitting + _limit(others, Counter(), min(_MAX_RANDOM, self._free_slots - len(fitting)))

    def add(self, candidates: Iterable[MetadataCandidate]) -> None:
        """Let these wait, as far as there is room and they do not wait already."""
        new = (each for each in candidates if each.device not in self._devices)
        for candidate in _limit(new, self._queue_lengths, self._free_slots):
            self._waiting.setdefault(candidate.gateway, deque()).append(candidate)
            self._devices.add(candidate.device)

    @property
    def _queue_lengths(self) -> Counter[int]:
        """How many wait for each gateway."""
        return Counter({gateway: len(line) for gateway, line in self._waiting.items()})

    @property
    def _free_slots(self) -> int:
        """How many more may wait."""
        return _MAX_QUEUED - len(self)

    def pop(self) -> MetadataCandidate | None:
        """The next, who is being asked from now on; None: there is nobody, or all gateways are busy."""
        gateway = next((each for each in self._waiting if each not in self._busy_gateways), None)
        if gateway is None:
            return None
        line = self._waiting.pop(gateway)
        candidate = line.popleft()
        if line:
            self._waiting[gateway] = line  # behind all others
        self._busy_gateways.add(gateway)
        return candidate

    def finish(self, candidate: MetadataCandidate) -> None:
        """It was asked."""
        self._busy_gateways.discard(candidate.gateway)
        self._devices.discard(candidate.device)

    def drop_gateway(self, gateway: int) -> None:
        """Let nobody wait for a gateway that does not answer."""
        for candidate in self._waiting.pop(gateway, ()):
            self._devices.discard(candidate.device)


def _limit(
    candidates: Iterable[MetadataCandidate], lengths: Counter[int], slots: int
) -> list[MetadataCandidate]:
    """Return as many candidates as there is room for, each device once. `lengths` are those of the lines."""
    found: dict[int, MetadataCandidate] = {}
    for candidate in candidates:
        if len(found) >= slots:
            break
        if candidate.device in found or lengths[candidate.gateway] >= _MAX_PER_GATEWAY:
            continue
        lengths[candidate.gateway] += 1
        found[candidate.device] = candidate
    return list(found.values())


PAGE_ROWS: Final = 300
"""Rows of each walk at a look."""

_MIN_AGE_MS: Final = 60_000
"""Milliseconds that a device is known before it is asked: it may just be about to tell by itself."""

_NO_VERSION: Final = "0.0.0"

MISSING_CONDITIONS: Final[Mapping[int, ColumnElement[bool]]] = {
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


class MetadataCandidate(NamedTuple):
    """A device that can be asked, and what is not known of it."""

    device: int
    gateway: int
    """Through which it is asked; a gateway through itself."""
    missing: tuple[int, ...]
    """Identifiers, in the order in which they are asked."""


class CandidatePage(NamedTuple):
    """What one look of a walk found."""

    candidates: list[MetadataCandidate]
    after: int
    """Where the next look begins."""


def find_candidates(connection: Connection, identifier: int, *, after: int, now: int) -> CandidatePage:
    """The next rows of the walk along what is unknown of one property."""
    rows = connection.execute(build_candidate_query(identifier, after=after)).all()
    candidates = [_to_candidate(row) for row in rows if _is_readable(row, now)]
    return CandidatePage(candidates, rows[-1].id if len(rows) == PAGE_ROWS else -1)


def build_candidate_query(identifier: int, *, after: int) -> Select[Any]:
    """The query of such a look."""
    return (
        _CANDIDATES.where(MISSING_CONDITIONS[identifier], device.c.id > after)
        .order_by(device.c.id)
        .limit(PAGE_ROWS)
    )


def merge_candidates(pages: Iterable[CandidatePage]) -> list[MetadataCandidate]:
    """The candidates of several walks, each once."""
    return list({candidate.device: candidate for each in pages for candidate in each.candidates}.values())


def _is_readable(row: Row[Any], now: int) -> bool:
    """Whether it is there, for a while already, and somebody is there to reach it."""
    is_reached = row.is_gateway or row.is_reached
    return bool(row.connected and is_reached and now - row.created_at >= _MIN_AGE_MS)


def _to_candidate(row: Row[Any]) -> MetadataCandidate:
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
    return MetadataCandidate(row.id, row.id if row.is_gateway else row.gateway, tuple(unknown))
