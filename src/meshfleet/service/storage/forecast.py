"""Forecasts when the disk with the data will be full. Pure functions.

The model is simple, and rather too early than too late. Each part grows as it did in the last seven days; a
part that shrank does not grow. Samples stop growing when the oldest of them reach their retention, because
from then on as many are deleted as arrive. Kinds of samples with a shorter retention than the others count
with the longest one. If one kind is kept forever, samples never stop growing. A forecast needs at least one
day of measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db.samples import DAY_MS
from meshfleet.rest.operations import StoragePart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.storage.sizes import Measurement
    from meshfleet.settings import Retention

GROWTH_DAYS: Final = 7
"""Number of days whose growth is projected into the future."""

_HORIZON_DAYS: Final = 3650
"""Days after which a full disk is not foreseen, because growth will have changed until then."""


class SampleAge(NamedTuple):
    """Age of the oldest sample, and how long samples are kept: both decide when samples stop growing."""

    oldest: int | None
    """Time of the oldest sample, in milliseconds; None if there are no samples yet."""
    retention: int | None
    """Milliseconds for which samples are kept; None means forever."""


class Forecast(NamedTuple):
    """Measured growth of the data, and the time at which the disk will be full."""

    growth: Mapping[StoragePart, int | None]
    """Bytes per day of each part; None if it is not known yet."""
    since: int
    """Beginning of the time in which the growth was measured, in milliseconds."""
    full_at: int | None
    """Time at which the disk is full, in milliseconds; None if that is not foreseen, or not known."""

    @property
    def total_growth(self) -> int | None:
        """Bytes per day of all growing parts together; None if not known yet."""
        known = [each for each in self.growth.values() if each is not None]
        return sum(max(0, each) for each in known) if known else None


def find_longest_retention(retention: Retention) -> int | None:
    """Return how long samples are kept, in milliseconds, for the kind that is kept longest; None: forever."""
    kinds = (
        *(retention.property, retention.measurement, retention.measurement_error),
        *(retention.event, retention.link, retention.heartbeat),
    )
    seconds = [each for each in kinds if each is not None]
    return max(seconds) * 1000 if len(seconds) == len(kinds) else None


def forecast_storage(
    measured: Measurement, history: Mapping[int, Mapping[StoragePart, int]], age: SampleAge, *, now: int
) -> Forecast:
    """Forecast growth from the current sizes, and from the sizes of earlier days in `history`.

    A key of `history` is the start of a day (Unix time in milliseconds).
    """
    today = now - now % DAY_MS
    first = min((day for day in history if today - GROWTH_DAYS * DAY_MS <= day < today), default=None)
    since = now if first is None else first + DAY_MS  # the sizes of a day are those at its end
    growth: dict[StoragePart, int | None] = dict.fromkeys(StoragePart)
    if first is not None and now - since >= DAY_MS:
        growth = {
            part: round((measured.sizes[part] - history[first].get(part, 0)) * DAY_MS / (now - since))
            for part in StoragePart
        }
    return Forecast(growth, since, _find_full_time(measured.free, growth, age, now))


def _find_full_time(
    free: int | None, growth: Mapping[StoragePart, int | None], age: SampleAge, now: int
) -> int | None:
    """Return the time at which the disk will be full (Unix time in ms); None if not foreseen."""
    if free is None or None in growth.values():
        return None
    rates = {part: max(0, each or 0) / DAY_MS for part, each in growth.items()}
    fast, slow = sum(rates.values()), sum(rates.values()) - rates[StoragePart.SAMPLES]
    horizon = now + _HORIZON_DAYS * DAY_MS
    samples_end = horizon if age.retention is None else max(now, (age.oldest or now) + age.retention)
    if fast * (samples_end - now) >= free:
        full_at = now + free / fast if fast else now
    elif slow:
        full_at = samples_end + (free - fast * (samples_end - now)) / slow
    else:
        return None
    return round(full_at) if full_at < horizon else None
