"""Finds devices with missing metadata in the database, page by page, and queues these devices.

There is an index for each column that may be unknown. A scan follows one index in the order of device ids
and reads a fixed number of rows per page. So a page costs the same, however many devices have no metadata.
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


# Queue of candidates: a few per gateway, so that no gateway delays the others.

_MAX_QUEUED: Final = 1000
"""Maximum number of queued candidates of all gateways. A later scan finds the remaining devices again."""
_MAX_PER_GATEWAY: Final = 20
"""Maximum number of queued candidates per gateway. A later scan finds the remaining devices again."""
_MAX_RANDOM_CANDIDATES: Final = 20
"""Maximum number of candidates per scan that are drawn at random for another gateway.

These candidates do not fit into the queue of their own gateway.
"""


class CandidateQueue:
    """Queue of devices whose metadata is to be read. Gateways take turns, each with one device at a time."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[MetadataCandidate]] = {}
        """Queued candidates by gateway. The gateway whose turn is next comes first."""
        self._devices: set[int] = set()
        """Devices that are queued or being read."""
        self._busy_gateways: set[int] = set()
        """Gateways through which a device is being read."""

    def __len__(self) -> int:
        """Return the number of queued candidates."""
        return sum(map(len, self._queues.values()))

    @property
    def active_count(self) -> int:
        """Number of devices whose metadata is being read."""
        return len(self._busy_gateways)

    def preselect_candidates(
        self, candidates: Iterable[MetadataCandidate], random: Random
    ) -> list[MetadataCandidate]:
        """Return the candidates for which a gateway is to be selected. Each selection reads the database.

        First come the candidates that fit into the queue of their own gateway, because most devices are read
        through their own gateway. A few of the others follow, drawn at random, because another gateway may be
        selected for them.
        """
        new_candidates = [each for each in candidates if each.device not in self._devices]
        random.shuffle(new_candidates)
        fitting = _limit_candidates(new_candidates, self._queue_lengths, self._free_slots)
        fitting_devices = {each.device for each in fitting}
        others = [each for each in new_candidates if each.device not in fitting_devices]
        return fitting + _limit_candidates(
            others, Counter(), min(_MAX_RANDOM_CANDIDATES, self._free_slots - len(fitting))
        )

    def add_candidates(self, candidates: Iterable[MetadataCandidate]) -> None:
        """Queue candidates that are not queued yet, up to the limits in total and per gateway."""
        new = (each for each in candidates if each.device not in self._devices)
        for candidate in _limit_candidates(new, self._queue_lengths, self._free_slots):
            self._queues.setdefault(candidate.gateway, deque()).append(candidate)
            self._devices.add(candidate.device)

    @property
    def _queue_lengths(self) -> Counter[int]:
        """Number of queued candidates by gateway."""
        return Counter({gateway: len(queue) for gateway, queue in self._queues.items()})

    @property
    def _free_slots(self) -> int:
        """Number of candidates that can still be queued."""
        return _MAX_QUEUED - len(self)

    def pop_candidate(self) -> MetadataCandidate | None:
        """Return the next candidate and mark its gateway as busy; None if no candidate can be read now."""
        gateway = next((each for each in self._queues if each not in self._busy_gateways), None)
        if gateway is None:
            return None
        queue = self._queues.pop(gateway)
        candidate = queue.popleft()
        if queue:
            self._queues[gateway] = queue  # the gateway goes to the end
        self._busy_gateways.add(gateway)
        return candidate

    def finish_candidate(self, candidate: MetadataCandidate) -> None:
        """Mark a device as no longer being read, and its gateway as free for the next device."""
        self._busy_gateways.discard(candidate.gateway)
        self._devices.discard(candidate.device)

    def drop_gateway(self, gateway: int) -> None:
        """Drop all queued candidates of a gateway that does not respond."""
        for candidate in self._queues.pop(gateway, ()):
            self._devices.discard(candidate.device)


def _limit_candidates(
    candidates: Iterable[MetadataCandidate], lengths: Counter[int], slots: int
) -> list[MetadataCandidate]:
    """Return up to `slots` candidates, each device once, so that no gateway has more than 20 in its queue.

    `lengths` are the queue lengths by gateway. The returned candidates are counted in `lengths`.
    """
    limited: dict[int, MetadataCandidate] = {}
    for candidate in candidates:
        if len(limited) >= slots:
            break
        if candidate.device in limited or lengths[candidate.gateway] >= _MAX_PER_GATEWAY:
            continue
        lengths[candidate.gateway] += 1
        limited[candidate.device] = candidate
    return list(limited.values())


PAGE_ROWS: Final = 300
"""Number of database rows per page of a scan."""

_MIN_AGE_MS: Final = 60_000
"""Minimum age of a device in milliseconds, because a new device may soon report its metadata itself."""

_NO_VERSION: Final = "0.0.0"

MISSING_CONDITIONS: Final[Mapping[int, ColumnElement[bool]]] = {
    MODEL: device.c.model == 0,
    FIRMWARE: device.c.firmware == _NO_VERSION,
    HARDWARE: device.c.hardware == _NO_VERSION,
}
"""SQL condition that a property is missing in the table `device`, by identifier of the property."""

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
    """Connected device from which missing metadata can be read."""

    device: int
    gateway: int
    """Gateway through which the device is read. A gateway is read through itself."""
    missing: tuple[int, ...]
    """Identifiers of the missing properties, in the order in which they are read."""


class CandidatePage(NamedTuple):
    """One page of a scan for devices with missing metadata."""

    candidates: list[MetadataCandidate]
    after: int
    """Device after which the next page starts; -1 to start again with the first device."""


def find_candidates(connection: Connection, identifier: int, *, after: int, now: int) -> CandidatePage:
    """Return a page of readable devices that lack the property `identifier`.

    The page starts after the device `after`. A device is readable if it and its gateway are connected, its
    gateway is claimed, and the device is not new.
    """
    rows = connection.execute(build_candidate_query(identifier, after=after)).all()
    candidates = [_build_candidate(row) for row in rows if _is_readable(row, now)]
    return CandidatePage(candidates, rows[-1].id if len(rows) == PAGE_ROWS else -1)


def build_candidate_query(identifier: int, *, after: int) -> Select[Any]:
    """Build the SQL query for a page of devices that lack the property `identifier`.

    The page starts after the device `after`.
    """
    return (
        _CANDIDATES.where(MISSING_CONDITIONS[identifier], device.c.id > after)
        .order_by(device.c.id)
        .limit(PAGE_ROWS)
    )


def merge_candidates(pages: Iterable[CandidatePage]) -> list[MetadataCandidate]:
    """Return the candidates of several scans, each device once."""
    return list({candidate.device: candidate for each in pages for candidate in each.candidates}.values())


def _is_readable(row: Row[Any], now: int) -> bool:
    """Return whether a device is connected and not new, and its gateway is connected and claimed."""
    is_reached = row.is_gateway or row.is_reached
    return bool(row.connected and is_reached and now - row.created_at >= _MIN_AGE_MS)


def _build_candidate(row: Row[Any]) -> MetadataCandidate:
    """Build a candidate from a database row, with the properties that the device lacks."""
    missing = [
        identifier
        for identifier, is_missing in (
            # First, as no scan looks for variants: a device with all other properties is not found again.
            (VARIANT, row.variant_at is None),
            (MODEL, row.model == 0),
            (FIRMWARE, row.firmware == _NO_VERSION),
            (HARDWARE, row.hardware == _NO_VERSION),
        )
        if is_missing
    ]
    return MetadataCandidate(row.id, row.id if row.is_gateway else row.gateway, tuple(missing))
