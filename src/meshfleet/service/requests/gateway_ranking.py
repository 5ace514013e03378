"""The rule by which a gateway is chosen for a device (rest-102): values in, a ranking out.

A gateway is as good as its best parent of the device, and a reading loses by its age:

    score = RSSI of the parent's newest minute - 4 dB for each minute since

Four, because -40 dBm is next to the antenna, -100 dBm is the weakest that is heard, and 15 minutes are looked
back: what is at the end of that time is worth nothing, however strong it was. Two gateways that hear a device
every minute differ by 4 dB at most for that reason, which is less than the noise of a reading.

Before the score counts whether a gateway can be used at all: it is connected; its last try for this device
was answered; it has not missed three of the device's intervals while another gateway hears the device now.
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
    """Chooses the gateway of each of these devices; None: none is connected that has heard it."""

_MINUTE: Final = 60_000

LOOKBACK_MS: Final = 15 * _MINUTE
"""Milliseconds: a reading that is older counts for nothing."""

_DECAY_DB_PER_MINUTE: Final = 4.0
"""dB that a reading loses in a minute."""

_DEFAULT_RSSI_DBM: Final = -90.0
"""dBm for a report that came without a reading: the device was heard, nobody knows how well."""

_LOST_AFTER_INTERVALS: Final = 3
"""Intervals after which a gateway has lost a device, if another one hears it."""

_CURRENT_FOR_INTERVALS: Final = 2
"""Intervals within which a gateway counts as hearing a device now: one report may get lost."""

_FAILURE_COUNTS_MS: Final = 10 * _MINUTE
"""Milliseconds for which a failed try counts: longer than a job waits before its second attempt, so that this
one does not begin where the first one ended."""

_MAX_FAILURES: Final = 20_000
"""Failed tries; the oldest are forgotten first."""


class LinkObservation(NamedTuple):
    """That a gateway heard a device."""

    gateway: int
    heard_at: int
    """When last, in milliseconds."""
    parent: int | None = None
    """The device that heard it, where the report tells."""
    rssi: float | None = None
    """The mean of the newest minute; None: the report has no reading."""
    is_unreachable: bool = False
    """Whether requests cannot reach the device through this parent."""


class RankedGateway(NamedTuple):
    """A gateway that may reach a device."""

    gateway: int
    connected: bool
    rssi: float | None
    """Of the parent that makes its score; None: it has no reading."""
    heard_at: int
    """When it last heard the device."""
    failed_ago: int | None
    """Milliseconds since its last try for the device failed; None: it did not, or that is long ago."""
    is_silent: bool
    """Whether it has missed the device for so long that another gateway has it."""
    score: float


def parse_link_minutes(minutes: Iterable[StoredSample]) -> list[LinkObservation]:
    """Return what minutes of links and heartbeats tell. They may come in any order."""
    return keep_newest_links([each for minute in minutes if (each := _to_observation(minute)) is not None])


def keep_newest_links(observations: Iterable[LinkObservation]) -> list[LinkObservation]:
    """Keep the newest hearing of each parent, and of each gateway without one."""
    kept: dict[tuple[int | None, int], LinkObservation] = {}
    for each in observations:
        # A parent is behind one gateway at a time, so its newest hearing tells which.
        key = (None, each.gateway) if each.parent is None else (each.parent, 0)
        if key not in kept or each.heard_at > kept[key].heard_at:
            kept[key] = each
    return list(kept.values())


def rank_gateways(
    observations: Collection[LinkObservation],
    *,
    connected: Collection[int],
    interval: int,
    failures: Mapping[int, int],
    now: int,
) -> list[RankedGateway]:
    """Rank the gateways that have heard a device, the one to ask first.

    `interval` is the usual time between two heartbeats of the device, `failures` tells how many milliseconds
    ago the last try through a gateway failed. If the tries through all of them failed, they take turns.
    """
    by_gateway: dict[int, list[LinkObservation]] = {}
    for each in observations:
        if not each.is_unreachable:
            by_gateway.setdefault(each.gateway, []).append(each)
    last = {gateway: max(each.heard_at for each in heard) for gateway, heard in by_gateway.items()}
    hears_now = any(
        gateway in connected and now - at <= _CURRENT_FOR_INTERVALS * interval for gateway, at in last.items()
    )
    candidates = []
    for gateway, heard in by_gateway.items():
        rssi, score = _best_signal(heard, now)
        candidate = RankedGateway(
            gateway,
            connected=gateway in connected,
            rssi=rssi,
            heard_at=last[gateway],
            failed_ago=failures.get(gateway),
            is_silent=hears_now and now - last[gateway] > _LOST_AFTER_INTERVALS * interval,
            score=score,
        )
        candidates.append(candidate)
    return sorted(candidates, key=_rank_key, reverse=True)


def _best_signal(heard: Collection[LinkObservation], now: int) -> tuple[float | None, float]:
    """Return the reading of a gateway that counts for most, if it has one, and its score."""
    readings = [(each.rssi - _decay(each, now), each.rssi) for each in heard if each.rssi is not None]
    score, rssi = max(readings, default=(-inf, None))
    # A report without a reading proves that the gateway hears the device, not that it hears it well.
    unmeasured = _DEFAULT_RSSI_DBM if rssi is None else min(_DEFAULT_RSSI_DBM, rssi)
    others = (unmeasured - _decay(each, now) for each in heard if each.rssi is None)
    return rssi, max([score, *others])


def _decay(hearing: LinkObservation, now: int) -> float:
    """Return the dB that a hearing has lost by its age. The clock of a gateway may be ahead."""
    return _DECAY_DB_PER_MINUTE * max(now - hearing.heard_at, 0) / _MINUTE


def _rank_key(each: RankedGateway) -> tuple[bool, bool, int, bool, float, int]:
    """Of two, the one that ranks higher is asked first."""
    failed_ago = each.failed_ago or 0
    return each.connected, each.failed_ago is None, failed_ago, not each.is_silent, each.score, each.heard_at


def _to_observation(minute: StoredSample) -> LinkObservation | None:
    if minute.number is None:
        return None
    kept = decode_minute(minute)
    at = minute.time if kept is None else kept.last_at
    if minute.kind != SampleKind.LINK:
        return LinkObservation(minute.gateway, at)
    unreachable = kept is not None and kept.unreachable
    return LinkObservation(minute.gateway, at, minute.identifier, float(minute.number), unreachable)


class FailedAttempts:
    """Remembers for some minutes through which gateways a device was asked in vain.

    A try failed when nothing came back, or the gateway answered for the device: that it did not answer, or
    that there is no route to it. An answer of the device through the same gateway makes up for it.
    """

    def __init__(self, steady: Now = clock.steady) -> None:
        self._steady = steady
        self._failed: OrderedDict[tuple[int, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed)

    def add(self, device: int, gateway: int) -> None:
        """Remember that a try failed just now."""
        key = (device, gateway)
        self._failed[key] = self._steady()
        self._failed.move_to_end(key)
        if len(self._failed) > _MAX_FAILURES:
            self._failed.popitem(last=False)

    def clear(self, device: int, gateway: int) -> None:
        """Forget the failed try: the device has answered through this gateway."""
        self._failed.pop((device, gateway), None)

    def get_ages(self, device: int, gateways: Iterable[int]) -> dict[int, int]:
        """Return how many milliseconds ago the last try through each of these gateways failed."""
        now = self._steady()
        ages = {each: now - at for each in gateways if (at := self._failed.get((device, each))) is not None}
        return {each: age for each, age in ages.items() if age < _FAILURE_COUNTS_MS}
