"""Eligibility of the targets of a job: which devices are updated, and why devices are excluded.

A job may have a hundred thousand targets. To save memory, they are kept in arrays and share equal results.
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
"""Selects the registry data of devices. A claimed gateway has itself as its gateway."""

_NO_GATEWAY: Final = -1


class JobTarget(NamedTuple):
    """Target device of a job with its eligibility."""

    device: int
    gateway: int | None
    from_version: str | None
    """Firmware version that the device runs; None if unknown."""
    exclusion: Exclusion | None
    """Reason why the device is excluded from the job; None if the device will be updated."""


class _EligibilityResult(NamedTuple):
    """Result of checking whether a device may be updated; equal for devices with equal `DeviceFacts`."""

    from_version: str | None
    exclusion: Exclusion | None


class ResolvedTargets:
    """Target devices of a job, each with the result of its eligibility check, in the order of adding."""

    def __init__(self) -> None:
        self._devices = array("q")
        self._gateways = array("q")
        self._verdict_indexes = array("q")
        self._connected = bytearray()
        self._verdicts: list[_EligibilityResult] = []
        self._index_by_verdict: dict[_EligibilityResult, int] = {}
        self._verdict_by_facts: dict[DeviceFacts, _EligibilityResult] = {}
        self.offline = 0
        """Number of eligible devices that are not connected."""

    def __len__(self) -> int:
        """Return the number of targets, including excluded devices."""
        return len(self._devices)

    def __iter__(self) -> Iterator[JobTarget]:
        return self.iterate_targets(0, len(self))

    def iterate_targets(self, start: int, end: int) -> Iterator[JobTarget]:
        """Iterate over the targets with indexes from `start` (included) to `end` (excluded)."""
        for index in range(start, min(end, len(self))):
            gateway = self._gateways[index]
            yield JobTarget(
                self._devices[index],
                None if gateway == _NO_GATEWAY else gateway,
                *self._verdicts[self._verdict_indexes[index]],
            )

    def list_eligible_devices(self, *, connected: bool | None = None) -> Iterator[int]:
        """Iterate over eligible devices: connected (True), disconnected (False) or all devices (None)."""
        rows = zip(self._devices, self._verdict_indexes, self._connected, strict=True)
        return (
            device
            for device, index, is_connected in rows
            if self._verdicts[index].exclusion is None and connected in (None, bool(is_connected))
        )

    def count_exclusions(self) -> Counter[Exclusion]:
        """Count the devices that are excluded from the job, by reason."""
        counts: Counter[Exclusion] = Counter()
        for index, count in Counter(self._verdict_indexes).items():
            exclusion = self._verdicts[index].exclusion
            if exclusion is not None:
                counts[exclusion] += count
        return counts

    def add_devices(
        self, rows: Sequence[Sequence[Any]], requirement: FirmwareRequirement, blocking_jobs: dict[int, int]
    ) -> None:
        """Check the eligibility of devices, given as rows of the registry, and add the devices.

        `blocking_jobs` maps devices to the number of an unfinished job that rejects newer jobs for them.
        """
        for device, model, hardware, firmware, beta, gateway, connected in rows:
            facts = DeviceFacts(model, hardware, firmware, beta, is_gateway=gateway == device)
            verdict = self._evaluate_facts(facts, requirement)
            if verdict.exclusion is None and device in blocking_jobs:
                verdict = verdict._replace(exclusion=_build_conflict_exclusion(blocking_jobs[device]))
            self._devices.append(device)
            self._gateways.append(_NO_GATEWAY if gateway is None else gateway)
            self._verdict_indexes.append(self._find_verdict_index(verdict))
            self._connected.append(bool(connected))
            self.offline += verdict.exclusion is None and not connected

    def _evaluate_facts(self, facts: DeviceFacts, requirement: FirmwareRequirement) -> _EligibilityResult:
        """Check whether devices with these properties may be updated. Cache the result."""
        verdict = self._verdict_by_facts.get(facts)
        if verdict is None:
            version = parse_running_version(facts)
            text = None if version is None else str(version)
            verdict = self._verdict_by_facts[facts] = _EligibilityResult(
                text, find_exclusion(facts, requirement)
            )
        return verdict

    def _find_verdict_index(self, verdict: _EligibilityResult) -> int:
        """Return the index of a result in the list of different results. Add it if it is new."""
        index = self._index_by_verdict.setdefault(verdict, len(self._verdicts))
        if index == len(self._verdicts):
            self._verdicts.append(verdict)
        return index


async def evaluate_targets(
    database: Database, devices: array[int], requirement: FirmwareRequirement, rejecting_jobs: Sequence[int]
) -> ResolvedTargets:
    """Check the eligibility of devices, page by page, and return the devices with the results.

    `rejecting_jobs` are the open jobs that reject newer jobs for their devices.
    """
    targets = ResolvedTargets()
    for page in split_pages(devices):
        await database.read(_evaluate_page, page, requirement, rejecting_jobs, targets)
    return targets


def _evaluate_page(
    connection: Connection,
    devices: Sequence[int],
    requirement: FirmwareRequirement,
    rejecting_jobs: Sequence[int],
    targets: ResolvedTargets,
) -> None:
    """Check the eligibility of a page of devices, and add the devices to `targets`."""
    blocking_jobs = conflicts.find_unfinished_devices(connection, rejecting_jobs, devices)
    targets.add_devices(bulk.query_in(connection, _FACTS, devices), requirement, blocking_jobs)


def _build_conflict_exclusion(job: int) -> Exclusion:
    """Build the exclusion of a device with which the older job `job` has not finished."""
    return Exclusion(ExclusionCode.EARLIER_JOB, f"job-{job} has not finished with it and rejects newer jobs")
