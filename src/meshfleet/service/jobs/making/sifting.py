"""The targets of a job, parted into those that are updated and those that are not, and why.

A job may have a hundred thousand: what is known of them is kept in arrays, and what many have in common once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.service.jobs.fitness import Facts, Misfit, MisfitCode, misfit, version_of
from meshfleet.service.jobs.making import rivals
from meshfleet.service.jobs.making.targets import pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.fitness import Need

_FACTS: Final = (
    "SELECT id, model, hardware, firmware, beta, CASE WHEN gateway.device IS NULL THEN device.gateway"
    " ELSE id END AS behind, device.connected FROM device LEFT JOIN gateway ON gateway.device = id"
    " WHERE id IN numbers ORDER BY id"
)
"""A claimed gateway is behind itself."""

_NOWHERE: Final = -1


class Target(NamedTuple):
    """One of them."""

    device: int
    gateway: int | None
    from_version: str | None
    """None: nobody knows."""
    misfit: Misfit | None
    """None: it is updated."""


class _Kind(NamedTuple):
    """What devices have in common of which the same is known."""

    from_version: str | None
    misfit: Misfit | None


class Sifted:
    """All targets, by device."""

    def __init__(self) -> None:
        self._devices = array("q")
        self._gateways = array("q")
        self._places = array("q")
        self._connected = bytearray()
        self._kinds: list[_Kind] = []
        self._numbered: dict[_Kind, int] = {}
        self._known: dict[Facts, _Kind] = {}
        self.offline = 0
        """How many of those that are updated are not connected now."""

    def __len__(self) -> int:
        return len(self._devices)

    def __iter__(self) -> Iterator[Target]:
        return self.part(0, len(self))

    def part(self, start: int, end: int) -> Iterator[Target]:
        """Some of them, by their place."""
        for place in range(start, min(end, len(self))):
            gateway = self._gateways[place]
            yield Target(
                self._devices[place],
                None if gateway == _NOWHERE else gateway,
                *self._kinds[self._places[place]],
            )

    def fitting(self, *, connected: bool | None = None) -> Iterator[int]:
        """Those that are updated; only those that are connected, or are not, if that is said."""
        rows = zip(self._devices, self._places, self._connected, strict=True)
        return (
            device
            for device, place, is_there in rows
            if self._kinds[place].misfit is None and connected in (None, bool(is_there))
        )

    def misfits(self) -> Counter[Misfit]:
        """How many are not updated, for which reason."""
        found: Counter[Misfit] = Counter()
        for place, count in Counter(self._places).items():
            why = self._kinds[place].misfit
            if why is not None:
                found[why] += count
        return found

    def add(self, rows: Sequence[Sequence[Any]], need: Need, claimed: dict[int, int]) -> None:
        """Judge devices as they stand in the registry; `claimed` are those that another job keeps."""
        for device, model, hardware, firmware, beta, gateway, connected in rows:
            kind = self._kind(Facts(model, hardware, firmware, beta), need)
            if kind.misfit is None and device in claimed:
                kind = kind._replace(misfit=_claimed(claimed[device]))
            self._devices.append(device)
            self._gateways.append(_NOWHERE if gateway is None else gateway)
            self._places.append(self._number(kind))
            self._connected.append(bool(connected))
            self.offline += kind.misfit is None and not connected

    def _kind(self, facts: Facts, need: Need) -> _Kind:
        kind = self._known.get(facts)
        if kind is None:
            version = version_of(facts)
            text = None if version is None else str(version)
            kind = self._known[facts] = _Kind(text, misfit(facts, need))
        return kind

    def _number(self, kind: _Kind) -> int:
        number = self._numbered.setdefault(kind, len(self._kinds))
        if number == len(self._kinds):
            self._kinds.append(kind)
        return number


async def sift(database: Database, numbers: array[int], need: Need, keeping: Sequence[int]) -> Sifted:
    """Judge all of these devices; `keeping` are jobs that let no newer one have theirs."""
    sifted = Sifted()
    for page in pages(numbers):
        await database.read(_sift_page, page, need, keeping, sifted)
    return sifted


def _sift_page(
    connection: Connection, numbers: Sequence[int], need: Need, keeping: Sequence[int], sifted: Sifted
) -> None:
    claimed = rivals.claims(connection, keeping, numbers)
    sifted.add(bulk.pick(connection, _FACTS, numbers), need, claimed)


def _claimed(job: int) -> Misfit:
    return Misfit(MisfitCode.EARLIER_JOB, f"job-{job} is not done with it and lets no newer job have it")
