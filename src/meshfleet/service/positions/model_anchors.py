"""Anchors of a model: which devices with a place it uses, and which of them are near each other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from meshfleet.positioning.arrays import Bools, Ints
    from meshfleet.positioning.signal_model import Anchors
    from meshfleet.service.sites.geometry import Anchor

MAX_ANCHORS: Final = 500
"""Maximum number of anchors of a model: the time of a calibration grows with their cube."""

NEAR_ANCHORS: Final = 24
"""Number of anchors around the one with the strongest reading whose silence is considered."""

_STRIP_METERS: Final = 20.0
_FLOOR_METERS: Final = 3.0


def select_anchors(placed: Sequence[Anchor], receivers: Iterable[Collection[int]]) -> tuple[Anchor, ...]:
    """Return the anchors that a model uses: of more than `MAX_ANCHORS`, those that receive most often.

    `placed` are all devices with a place, which may be all lights of a mesh. `receivers` are the devices that
    received each minute of a device, or each survey point.
    """
    if len(placed) <= MAX_ANCHORS:
        return tuple(placed)
    counts = Counter(device for each in receivers for device in each)
    receiving = [each for each in placed if counts[each.device]] or placed
    most = sorted(receiving, key=lambda each: counts[each.device], reverse=True)[:MAX_ANCHORS]
    return tuple(sorted(most, key=lambda each: each.device))


def order_by_neighborhood(anchors: Anchors) -> Ints:
    """Return a number for each anchor; anchors with similar numbers are near each other."""
    strips = np.floor(anchors.xy[:, 0] / _STRIP_METERS)
    order = np.lexsort((anchors.xy[:, 1], strips, anchors.floors))
    numbers = np.empty(anchors.size, dtype=np.int64)
    numbers[order] = np.arange(anchors.size)
    return numbers


def find_near_anchors(anchors: Anchors) -> Bools:
    """Return for each anchor which others are among the nearest."""
    places = np.column_stack((anchors.xy, _FLOOR_METERS * anchors.floors))
    distance2 = ((places[:, None] - places[None]) ** 2).sum(axis=2)
    limit = np.sort(distance2, axis=1)[:, : NEAR_ANCHORS + 1].max(axis=1, initial=0.0)
    near: Bools = distance2 <= limit[:, None]
    return near
