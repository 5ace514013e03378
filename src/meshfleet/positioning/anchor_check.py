"""Anchor check: finds anchors that do not seem to be where they are said to be.

Each device is located without the readings of the checked anchor. If the anchor is elsewhere, its own
readings then differ from what is expected at its stated place by more than those of other anchors do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from meshfleet.positioning.arrays import Floats
    from meshfleet.positioning.posterior import PosteriorSolver, Readings
    from meshfleet.positioning.signal_model import SignalMap

MIN_FINGERPRINTS: Final = 8
"""Minimum number of readings of an anchor for a judgment."""
_SUSPICIOUS_DB: Final = 6.5
"""Root mean square difference in dB above which an anchor is named. Right anchors reach 3.6 to 5.6 dB."""
_SUSPICIOUS_RATIO: Final = 1.35
"""Minimum ratio to the median of all anchors: at a noisy site all anchors differ."""


class AnchorSuspicion(NamedTuple):
    """Anchor whose readings do not fit to its place."""

    anchor: int
    """Index of the anchor."""
    difference_db: float
    """Root mean square difference between its readings and those expected, in dB."""


def find_misplaced_anchors(
    solver: PosteriorSolver, signal_map: SignalMap, readings: Readings
) -> list[AnchorSuspicion]:
    """Return the anchors whose readings do not fit to their places, the worst first."""
    differences = np.array(
        [_measure_difference(solver, signal_map, readings, anchor) for anchor in range(len(signal_map.mean))]
    )
    typical = np.nanmedian(differences) if not np.isnan(differences).all() else np.inf
    limit = max(_SUSPICIOUS_DB, _SUSPICIOUS_RATIO * float(typical))
    order = np.argsort(-np.nan_to_num(differences))
    return [AnchorSuspicion(int(i), float(differences[i])) for i in order if differences[i] > limit]


def _measure_difference(
    solver: PosteriorSolver, signal_map: SignalMap, readings: Readings, anchor: int
) -> float:
    """Return the root mean square difference of an anchor's readings in dB; NaN if it has too few."""
    rows = np.flatnonzero(~np.isnan(readings.levels[:, anchor]))
    if len(rows) < MIN_FINGERPRINTS:
        return float("nan")
    levels: Floats = readings.levels[rows].copy()
    own = levels[:, anchor].copy() - readings.offsets[rows]
    levels[:, anchor] = np.nan
    others = readings._replace(
        levels=levels,
        offsets=readings.offsets[rows],
        offset_variances=readings.offset_variances[rows],
        is_silent=None,
    )
    expected = solver.solve(others) @ signal_map.mean[anchor]
    return float(np.sqrt(((own - expected) ** 2).mean()))
