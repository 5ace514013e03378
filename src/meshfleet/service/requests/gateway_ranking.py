"""Ranks the gateways that can reach a device (rest-102), without I/O.

These criteria decide, in this order:

1. Connected gateways rank before gateways that are not connected.
2. Gateways whose last request to the device did not fail rank first; then those with the oldest failure.
3. Gateways that still receive the device rank before those that do not. A gateway no longer receives a device
   if no report arrived for three heartbeat intervals while another gateway still receives the device.
4. The gateway with the higher score ranks first.

A gateway receives a device through one or more parents in the mesh. The score of a gateway is the score of
the best parent, and decreases with the age of the RSSI reading:

    score = mean RSSI of the parent's newest minute - 4 dB per minute of age

RSSI ranges from -40 dBm next to the antenna to -100 dBm, the weakest signal that is received. Readings of the
last 15 minutes count, so at 4 dB per minute even the strongest reading is worth nothing at the end. If two
gateways receive a device every minute, the ages of their readings change the scores by at most 4 dB, which is
less than the noise of a reading.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from meshfleet.db.samples import SampleKind
from meshfleet.service import clock
from meshfleet.service.ingest.minute_rollup import decode_minute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from meshfleet.db.samples import StoredSample
    from meshfleet.service.clock import Now

    SelectGateways: TypeAlias = Callable[[Sequence[int]], Awaitable[Mapping[int, int | None]]]
    """Async function that selects a gateway for each device; None if no connected gateway received it."""

_MINUTE: Final = 60_000

LOOKBACK_MS: Final = 15 * _MINUTE
"""Maximum age of an RSSI reading that counts, in milliseconds."""

_DECAY_DB_PER_MINUTE: Final = 4.0
"""Decibels that are subtracted from an RSSI reading per minute of its age."""

_DEFAULT_RSSI_DBM: Final = -90.0
"""Assumed RSSI in dBm of a report without RSSI, such as a heartbeat."""

_LOST_AFTER_INTERVALS: Final = 3
"""Number of heartbeat intervals without a report after which a gateway has lost a device.

A gateway counts as having lost a device only if another gateway still receives the device.
"""

_CURRENT_FOR_INTERVALS: Final = 2
"""Maximum age of the last report, in heartbeat intervals, for a gateway that still receives a device."""

_FAILURE_COUNTS_MS: Final = 10 * _MINUTE
"""Milliseconds for which a failed request lowers the rank of a gateway.

The time is longer than the delay before the second attempt of a job, which then uses another gateway.
"""

_MAX_FAILURES: Final = 20_000
"""Maximum number of failed requests that are kept in memory. The oldest failures are discarded first."""


class LinkObservation(NamedTuple):
    """Last report of a device through one gateway and, if known, through one parent in the mesh."""

    gateway: int
    heard_at: int
    """Unix time of the report in milliseconds."""
    parent: int | None = None
    """Mesh node that received the device; None if the report names no parent."""
    rssi: float | None = None
    """Mean RSSI in dBm of the newest minute with readings; None if the report has no RSSI."""
    is_unreachable: bool = False
    """Whether requests cannot reach the device through the parent."""


class RankedGateway(NamedTuple):
    """Gateway that may reach a device, with the values that decide its rank."""

    gateway: int
    connected: bool
    rssi: float | None
    """RSSI in dBm at the parent with the best score; None if no RSSI was reported."""
    heard_at: int
    """Unix time in milliseconds of the last report of the device through this gateway."""
    failed_ago: int | None
    """Milliseconds since a request to the device through the gateway failed; None if none failed recently."""
    is_silent: bool
    """Whether this gateway no longer receives the device, but another gateway does."""
    score: float


def parse_link_minutes(minutes: Iterable[StoredSample]) -> list[LinkObservation]:
    """Convert minute roll-ups of links and heartbeats to observations, and keep the newest of each link."""
    return keep_newest_links([each for minute in minutes if (each := _build_observation(minute)) is not None])


def keep_newest_links(observations: Iterable[LinkObservation]) -> list[LinkObservation]:
    """Return the newest observation of each parent. Without a parent, keep the newest of each gateway."""
    newest: dict[tuple[int | None, int], LinkObservation] = {}
    for each in observations:
        # A parent is connected to one gateway at a time: its newest observation says which.
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
    """Rank the gateways that have received a device, the best first.

    `interval` is the usual time between two heartbeats of the device in milliseconds. `failures` maps a
    gateway to the milliseconds since a request through the gateway failed. If requests through all gateways
    failed, the gateway with the oldest failure ranks first, so that the gateways take turns.
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
        rssi, score = _find_best_signal(links, now)
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
    return sorted(candidates, key=_build_rank_key, reverse=True)


def _find_best_signal(links: Collection[LinkObservation], now: int) -> tuple[float | None, float]:
    """Return the RSSI of the best reading of a gateway (None without readings), and the gateway's score."""
    readings = [(each.rssi - _compute_decay(each, now), each.rssi) for each in links if each.rssi is not None]
    score, rssi = max(readings, default=(-inf, None))
    # A report without RSSI proves that the gateway receives the device, but not how well.
    assumed_rssi = _DEFAULT_RSSI_DBM if rssi is None else min(_DEFAULT_RSSI_DBM, rssi)
    assumed_scores = (assumed_rssi - _compute_decay(each, now) for each in links if each.rssi is None)
    return rssi, max([score, *assumed_scores])


def _compute_decay(observation: LinkObservation, now: int) -> float:
    """Return the decibels to subtract for the age of an observation; 0 if its time is in the future."""
    return _DECAY_DB_PER_MINUTE * max(now - observation.heard_at, 0) / _MINUTE


def _build_rank_key(gateway: RankedGateway) -> tuple[bool, bool, int, bool, float, int]:
    """Return the sort key of a gateway; the best gateway has the greatest key."""
    failed_ago = gateway.failed_ago or 0
    return (
        gateway.connected,
        gateway.failed_ago is None,
        failed_ago,
        not gateway.is_silent,
        gateway.score,
        gateway.heard_at,
    )


def _build_observation(minute: StoredSample) -> LinkObservation | None:
    """Convert a minute roll-up to an observation; None if the roll-up has no value."""
    if minute.number is None:
        return None
    summary = decode_minute(minute)
    at = minute.time if summary is None else summary.last_at
    if minute.kind != SampleKind.LINK:
        return LinkObservation(minute.gateway, at)
    unreachable = summary is not None and summary.unreachable
    return LinkObservation(minute.gateway, at, minute.identifier, float(minute.number), unreachable)


class FailedAttempts:
    """Keeps in memory when the last request to a device through a gateway failed, for ten minutes.

    A request failed if the gateway did not respond, or reported that the device did not respond or has no
    route. A response of the device through the same gateway clears the failure.
    """

    def __init__(self, monotonic: Now = clock.monotonic) -> None:
        self._monotonic = monotonic
        self._failed_at: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of pairs of device and gateway with a failed request."""
        return len(self._failed_at)

    def add(self, device: int, gateway: int) -> None:
        """Record that a request to a device through a gateway failed now."""
        key = (device, gateway)
        self._failed_at[key] = self._monotonic()
        self._failed_at.move_to_end(key)
        if len(self._failed_at) > _MAX_FAILURES:
            self._failed_at.popitem(last=False)

    def clear(self, device: int, gateway: int) -> None:
        """Forget a failed request, because the device has responded through the gateway."""
        self._failed_at.pop((device, gateway), None)

    def get_ages(self, device: int, gateways: Iterable[int]) -> dict[int, int]:
        """Return how many milliseconds ago the last request to a device failed, by gateway.

        Gateways without a failure in the last ten minutes are left out.
        """
        now = self._monotonic()
        ages = {
            each: now - at for each in gateways if (at := self._failed_at.get((device, each))) is not None
        }
        return {each: age for each, age in ages.items() if age < _FAILURE_COUNTS_MS}
