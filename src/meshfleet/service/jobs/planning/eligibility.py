"""The targets of a job, parted into those that are updated and those that are not, and why.

A job may have a hundred thousand: what is known of them is kept in arrays, and what many have in common once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.service.jobs.compatibility import (
    DeviceFacts,
    Exclusion,
    ExclusionCode,
    find_exclusion,
    parse_running_version,
)
from meshfleet.service.jobs.planning import conflicts
from meshfleet.service.jobs.planning.targets import split_pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.compatibility import FirmwareRequirement

_FACTS: Final = (
    "SELECT id, model, hardware, firmware, beta, CASE WHEN gateway.device IS NULL THEN device.gateway"
    " ELSE id END AS behind, device.connected FROM device LEFT JOIN gateway ON gateway.device = id"
    " WHERE id IN numbers ORDER BY id"
)
"""A claimed gateway is behind itself."""

_NO_GATEWAY: Final = -1


class JobTarget(NamedTuple):
    """One of them."""

    device: int
    gateway: int | None
    from_version: str | None
    """None: nobody knows."""
    exclusion: Exclusion | None
    """None: it is updated."""


class _Verdict(NamedTuple):
    """What devices have in common of which the same is known."""

    from_version: str | None
    exclusion: Exclusion | None


class ResolvedTargets:
    """All targets, by device."""

    def __init__(self) -> None:
        self._devices = array("q")
        self._gateways = array("q")
        self._verdict_indexes = array("q")
        self._connected = bytearray()
        self._verdicts: list[_Verdict] = []
        self._index_by_verdict: dict[_Verdict, int] = {}
        self._verdict_by_facts: dict[DeviceFacts, _Verdict] = {}
        self.offline = 0
        """How many of those that are updated are not connected now."""

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[JobTarget]:
        return self.iterate(0, len(self))

    def iterate(self, start: int, end: int) -> Iterator[JobTarget]:
        """Some of them, by their place."""
        for place in range(start, min(end, len(self))):
            gateway = self._gateways[place]
            yield JobTarget(
                self._devices[place],
                None if gateway == _NO_GATEWAY else gateway,
                *self._verdicts[self._verdict_indexes[place]],
            )

    def list_eligible(self, *, connected: bool | None = None) -> Iterator[int]:
        """Those that are updated; only those that are connected, or are not, if that is said."""
        rows = zip(self._devices, self._verdict_indexes, self._connected, strict=True)
        return (
            device
            for device, place, is_there in rows
            if self._verdicts[place].exclusion is None and connected in (None, bool(is_there))
        )

    def count_exclusions(self) -> Counter[Exclusion]:
        """How many are not updated, for which reason."""
        found: Counter[Exclusion] = Counter()
        for place, count in Counter(self._verdict_indexes).items():
            why = self._verdicts[place].exclusion
            if why is not None:
                found[why] += count
        return found

    def add(
        self, rows: Sequence[Sequence[Any]], requirement: FirmwareRequirement, held_by: dict[int, int]
    ) -> None:
        """Judge devices as they stand in the registry; `claimed` are those that another job keeps."""
        for device, model, hardware, firmware, beta, gateway, connected in rows:
            kind = self._judge(DeviceFacts(model, hardware, firmware, beta), requirement)
            if kind.exclusion is None and device in held_by:
                kind = kind._replace(exclusion=_build_conflict_exclusion(held_by[device]))
            self._devices.append(device)
            self._gateways.append(_NO_GATEWAY if gateway is None else gateway)
            self._verdict_indexes.append(self._find_index(kind))
            self._connected.append(bool(connected))
            self.offline += kind.exclusion is None and not connected

    def _judge(self, facts: DeviceFacts, requirement: FirmwareRequirement) -> _Verdict:
        kind = self._verdict_by_facts.get(facts)
        if kind is None:
            version = parse_running_version(facts)
            text = None if version is None else str(version)
            kind = self._verdict_by_facts[facts] = _Verdict(text, find_exclusion(facts, requirement))
        return kind

    def _find_index(self, kind: _Verdict) -> int:
        number = self._index_by_verdict.setdefault(kind, len(self._verdicts))
        if number == len(self._verdicts):
            self._verdicts.append(kind)
        return number


async def evaluate_targets(
    database: Database, numbers: array[int], requirement: FirmwareRequirement, rejecting_jobs: Sequence[int]
) -> ResolvedTargets:
    """Judge all of these devices; `keeping` are jobs that let no newer one have theirs."""
    sifted = ResolvedTargets()
    for page in split_pages(numbers):
        await database.read(_evaluate_page, page, requirement, rejecting_jobs, sifted)
    return sifted


def _evaluate_page(
    connection: Connection,
    numbers: Sequence[int],
    requirement: FirmwareRequirement,
    rejecting_jobs: Sequence[int],
    targets: ResolvedTargets,
) -> None:
    claimed = conflicts.find_unfinished_devices(connection, rejecting_jobs, numbers)
    targets.add(bulk.query_in(connection, _FACTS, numbers), requirement, claimed)


def _build_conflict_exclusion(job: int) -> Exclusion:
    return Exclusion(
        ExclusionCode.EARLIER_JOB, f"job-{job} is not done with it and lets no newer job have it"
    )
