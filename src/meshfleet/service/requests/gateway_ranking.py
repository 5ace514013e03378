"""Rule by which a gateway is selected for a device (rest-102), without I/O.

A gateway is as good as its best parent of the device, and an RSSI reading loses value with its age:

    score = mean RSSI of the parent's newest minute - 4 dB per minute of age

The factor is 4 dB because -40 dBm is next to the antenna, -100 dBm is the weakest signal that is received,
and readings of the last 15 minutes count: a reading at the end of that time is worth nothing, however strong
it was. Two gateways that see a device every minute differ by at most 4 dB for that reason, which is less
than the noise of a reading.

The score matters only among gateways that can be used: connected gateways rank first, then those whose last
attempt for this device did not fail, then those that have not missed three of the device's intervals while
another gateway still sees it.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from meshfleet.db.samples import SampleKind
from meshfleet.service import clock
from meshfleet.service.ingest.rollups import decode_minute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from meshfleet.db.samples import StoredSample
    from meshfleet.service.clock import Now

    SelectGateways: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, int | None]]]
    """Selects the gateway of each device; None if no connected gateway has seen it."""

_MINUTE: Final = 60_000

LOOKBACK_MS: Final = 15 * _MINUTE
"""Age in milliseconds up to which a reading counts."""

_DECAY_DB_PER_MINUTE: Final = 4.0
"""dB that a reading loses per minute."""

_DEFAULT_RSSI_DBM: Final = -90.0
"""dBm assumed for a report without a reading: the device was seen, but the signal strength is unknown."""

_LOST_AFTER_INTERVALS: Final = 3
"""Intervals without a report after which a gateway has lost a device, if another one sees it."""

_CURRENT_FOR_INTERVALS: Final = 2
"""Intervals within which a gateway counts as seeing a device: one report may get lost."""

_FAILURE_COUNTS_MS: Final = 10 * _MINUTE
"""Milliseconds for which a failed attempt counts.

Longer than a job waits before its second attempt, so that this does not go to the gateway that failed.
"""

_MAX_FAILURES: Final = 20_000
"""Maximum number of failed attempts in memory; the oldest are discarded first."""


class LinkObservation(NamedTuple):
    """Last time a gateway saw a device, directly or through one parent."""

    gateway: int
    heard_at: int
    """Milliseconds since the epoch."""
    parent: int | None = None
    """Mesh device that saw it; None if the report does not name one."""
    rssi: float | None = None
    """Mean of the newest minute in dBm; None if the report has no reading."""
    is_unreachable: bool = False
    """Whether requests cannot reach the device through this parent."""


class RankedGateway(NamedTuple):
    """Gateway that may reach a device, with the values that decide its rank."""

    gateway: int
    connected: bool
    rssi: float | None
    """dBm of the parent with the best score; None if there is no reading."""
    heard_at: int
    """Time when it last saw the device, in milliseconds."""
    failed_ago: int | None
    """Milliseconds since its last attempt for the device failed; None if there is no recent failure."""
    is_silent: bool
    """Whether it has lost the device while another gateway still sees it."""
    score: float


def parse_link_minutes(minutes: Iterable[StoredSample]) -> list[LinkObservation]:
    """Return the observations in minutes of links and heartbeats, which may be in any order."""
    return keep_newest_links([each for minute in minutes if (each := _to_observation(minute)) is not None])


def keep_newest_links(observations: Iterable[LinkObservation]) -> list[LinkObservation]:
    """Keep the newest observation of each parent, and of each gateway without a parent."""
    newest: dict[tuple[int | None, int], LinkObservation] = {}
    for each in observations:
        # A parent is behind one gateway at a time: its newest observation says which.
        key = (None, each.gateway) if each.parent is None else (each.parent, 0)
        if key not in newest or each.heard_at > newest[key].heard_at:
            newest[key] = each
    return list(newest.values())


def rank_gateways(
    observations: Collection[LinkObservation],
    *,
    connected: Collection[int],
    interval: int,
    failures: Mapping[int, int],
    now: int,
) -> list[RankedGateway]:
    """Rank the gateways that have seen a device, the best first.

    `interval` is the usual time between two heartbeats of the device in milliseconds. `failures` maps a
    gateway to the milliseconds since its last attempt failed. If the attempts through all gateways failed,
    the one whose failure is the oldest ranks first, so that they take turns.
    """
    by_gateway: dict[int, list[LinkObservation]] = {}
    for each in observations:
        if not each.is_unreachable:
            by_gateway.setdefault(each.gateway, []).append(each)
    last_heard = {gateway: max(each.heard_at for each in links) for gateway, links in by_gateway.items()}
    is_seen_now = any(
        gateway in connected and now - at <= _CURRENT_FOR_INTERVALS * interval
        for gateway, at in last_heard.items()
    )
    candidates = []
    for gateway, links in by_gateway.items():
        rssi, score = _best_signal(links, now)
        candidate = RankedGateway(
            gateway,
            connected=gateway in connected,
            rssi=rssi,
            heard_at=last_heard[gateway],
            failed_ago=failures.get(gateway),
            is_silent=is_seen_now and now - last_heard[gateway] > _LOST_AFTER_INTERVALS * interval,
            score=score,
        )
        candidates.append(candidate)
    return sorted(candidates, key=_rank_key, reverse=True)


def _best_signal(links: Collection[LinkObservation], now: int) -> tuple[float | None, float]:
    """Return the RSSI of the best reading of a gateway, or None, and the gateway's score."""
    readings = [(each.rssi - _decay(each, now), each.rssi) for each in links if each.rssi is not None]
    score, rssi = max(readings, default=(-inf, None))
    # A report without a reading proves that the gateway sees the device, not how well.
    assumed_rssi = _DEFAULT_RSSI_DBM if rssi is None else min(_DEFAULT_RSSI_DBM, rssi)
    assumed_scores = (assumed_rssi - _decay(each, now) for each in links if each.rssi is None)
    return rssi, max([score, *assumed_scores])


def _decay(observation: LinkObservation, now: int) -> float:
    """Return the dB that an observation has lost by its age; the gateway's clock may be ahead."""
    return _DECAY_DB_PER_MINUTE * max(now - observation.heard_at, 0) / _MINUTE


def _rank_key(gateway: RankedGateway) -> tuple[bool, bool, int, bool, float, int]:
    """Return the sort key of a gateway; the best one has the greatest."""
    failed_ago = gateway.failed_ago or 0
    return (
        gateway.connected,
        gateway.failed_ago is None,
        failed_ago,
        not gateway.is_silent,
        gateway.score,
        gateway.heard_at,
    )


def _to_observation(minute: StoredSample) -> LinkObservation | None:
    if minute.number is None:
        return None
    summary = decode_minute(minute)
    at = minute.time if summary is None else summary.last_at
    if minute.kind != SampleKind.LINK:
        return LinkObservation(minute.gateway, at)
    unreachable = summary is not None and summary.unreachable
    return LinkObservation(minute.gateway, at, minute.identifier, float(minute.number), unreachable)


class FailedAttempts:
    """Recently failed attempts per device and gateway, kept for some minutes.

    An attempt failed if there was no response, or if the gateway reported that the device did not respond or
    has no route. A response of the device through the same gateway clears the failure.
    """

    def __init__(self, steady: Now = clock.steady) -> None:
        self._monotonic = steady
        self._failed_at: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed_at)

    def add(self, device: int, gateway: int) -> None:
        """Record that an attempt failed now."""
        key = (device, gateway)
        self._failed_at[key] = self._monotonic()
        self._failed_at.move_to_end(key)
        if len(self._failed_at) > _MAX_FAILURES:
            self._failed_at.popitem(last=False)

    def clear(self, device: int, gateway: int) -> None:
        """Clear the failure: the device responded through this gateway."""
        self._failed_at.pop((device, gateway), None)

    def get_ages(self, device: int, gateways: Iterable[int]) -> dict[int, int]:
        """Return the milliseconds since the last failure, for each gateway that failed recently."""
        now = self._monotonic()
        ages = {
            each: now - at for each in gateways if (at := self._failed_at.get((device, each))) is not None
        }
        return {each: age for each, age in ages.items() if age < _FAILURE_COUNTS_MS}
