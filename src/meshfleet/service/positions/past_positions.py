"""Positions of a device over time, page by page.

Minutes of the same site and the same kind that follow one another are located together.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.protocol.times import format_millis
from meshfleet.rest.positions import PastPosition
from meshfleet.rest.sites import format_site_id
from meshfleet.service.positions.reading_steps import Step, choose_site, merge_levels, split_into_steps
from meshfleet.service.positions.reading_windows import choose_minutes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.service.positions.positions import PositionFinder
    from meshfleet.service.positions.reading_store import AnchorLevel, AnchorReading, DeviceReadings
    from meshfleet.service.positions.reading_windows import ReceivedMinute
    from meshfleet.service.positions.site_model import SiteModel

MAX_STEPS: Final = 1000
"""Maximum number of positions on a page."""

_MINUTE_MS: Final = 60_000
_MOVING_STEP_MS: Final = 3_000
"""Length of a step of a device whose readings are frequent enough to follow it while it moves."""
_MIN_INTERVALS: Final = 3
_MIN_COVERAGE: Final = 1 / 2
"""Readings of a minute are frequent if there are some in at least three intervals of a moving step, and in
this share of all intervals from the first to the last."""
_MAX_GAP_MS: Final = 60_000
"""Time between two steps after which a device can be anywhere, so that they are not located together."""

_SPAN_MS: Final = 3_600_000
"""Length of time that is read at once."""


class PastPositions(NamedTuple):
    """Positions of a device over time."""

    items: list[PastPosition]
    end: int | None
    """Time from which on there are more; None if there are none."""


class Segment(NamedTuple):
    """Steps of a device on one site that are located together."""

    site: int
    step_ms: int
    steps: list[Step]

    def continues_with(self, other: Segment) -> bool:
        """Return whether the steps of another segment are located together with those of this one."""
        is_like = (self.site, self.step_ms) == (other.site, other.step_ms)
        return is_like and other.steps[0].time - self.steps[-1].time <= _MAX_GAP_MS + self.step_ms


async def list_past_positions(
    positions: PositionFinder, device: int, since: int, until: int, *, limit: int
) -> PastPositions:
    """Return the positions of a device over time, the oldest first, from at most `limit` steps."""
    readings = positions.readings.take_device(device)
    anchors = positions.readings.anchors
    segments: list[Segment] = []
    # Like a step, a period does not include its start: a reading on a full minute belongs to the one before.
    start, count = since - 1, 0
    while start < until and count <= limit:
        next_time = await _find_next(positions, readings, device, start, until)
        if next_time is None:
            break
        start = max(start, next_time - 1)
        end = min(start - start % _MINUTE_MS + _SPAN_MS, until)
        rollups = await positions.windows.load_rollups(device, start, end)
        found = await positions.slow_work.run(_split_period, readings, rollups, start, end, anchors)
        segments += found
        count += sum(len(each.steps) for each in found)
        start = end
    page, next_start = _cut(_join(segments), limit)
    # One model of each site for the whole page: a calibration that ends meanwhile would move only the later
    # segments, and each segment would wait for it again.
    models = {site: await positions.get_model(site) for site in {each.site for each in page}}
    items: list[PastPosition] = []
    for segment in page:
        if (model := models[segment.site]) is not None:
            items += await _locate(positions, model, device, segment)
    return PastPositions(items, next_start)


async def _find_next(
    positions: PositionFinder, readings: DeviceReadings, device: int, since: int, until: int
) -> int | None:
    """Return from when on anchors have received a device after `since`; None if they have not."""
    minute = await positions.windows.find_next_rollup(device, since, until)
    single = await asyncio.to_thread(readings.find_next, since)
    return min((each for each in (minute, single) if each is not None and each <= until), default=None)


async def _locate(
    positions: PositionFinder, model: SiteModel, device: int, segment: Segment
) -> list[PastPosition]:
    history = import_module("meshfleet.service.positions.history")
    located = await positions.slow_work.run(
        history.locate_steps, model, device, segment.steps, segment.step_ms
    )
    return [
        PastPosition(
            time=format_millis(time),
            site=format_site_id(segment.site),
            floor=estimate.floor,
            x=round(estimate.x, 3),
            y=round(estimate.y, 3),
            radius=round(estimate.radius, 2),
        )
        for time, estimate in located
    ]


def _split_period(
    readings: DeviceReadings,
    rollups: Mapping[int, Mapping[int, AnchorLevel]],
    since: int,
    until: int,
    anchors: Mapping[int, int],
) -> list[Segment]:
    """Return the steps of a device that end after `since` and begin before `until`, in segments.

    `rollups` has the stored minutes by their start. `anchors` has the number of the site by anchor.
    """
    first, last = since - since % _MINUTE_MS, -(-until // _MINUTE_MS) * _MINUTE_MS
    segments = []
    for minute in choose_minutes(readings, rollups, first, last):
        segment = _build_segment(minute, anchors)
        if segment is not None:
            steps = [each for each in segment.steps if since < each.time < until + segment.step_ms]
            if steps:
                segments.append(segment._replace(steps=steps))
    return segments


def _build_segment(minute: ReceivedMinute, anchors: Mapping[int, int]) -> Segment | None:
    """Return the steps of one minute. Return None if no site has received the device in it."""
    step_ms = _MINUTE_MS
    if _are_frequent(minute.singles):
        step_ms, steps = _MOVING_STEP_MS, split_into_steps(minute.singles, _MOVING_STEP_MS)
    else:
        steps = [Step(minute.start + _MINUTE_MS, minute.compute_levels())]
    chosen = choose_site(merge_levels(each.levels for each in steps), anchors)
    if chosen is None:
        return None
    own = [
        Step(time, {anchor: level for anchor, level in levels.items() if anchor in chosen.levels})
        for time, levels in steps
    ]
    return Segment(chosen.site, step_ms, own)


def _are_frequent(readings: Sequence[AnchorReading]) -> bool:
    """Return whether readings of a minute are frequent enough to follow a device that moves."""
    intervals = {each.time // _MOVING_STEP_MS for each in readings}
    return (
        len(intervals) >= _MIN_INTERVALS
        and len(intervals) >= (max(intervals) - min(intervals) + 1) * _MIN_COVERAGE
    )


def _join(segments: Sequence[Segment]) -> list[Segment]:
    """Join segments that are located together."""
    joined: list[Segment] = []
    for each in segments:
        if joined and joined[-1].continues_with(each):
            joined[-1].steps.extend(each.steps)
        else:
            joined.append(each)
    return joined


def _cut(segments: Sequence[Segment], limit: int) -> tuple[list[Segment], int | None]:
    """Return the segments of the first `limit` steps, and from which time on there are more steps."""
    page: list[Segment] = []
    for segment in segments:
        if not limit:
            return page, page[-1].steps[-1].time + 1
        steps = segment.steps[:limit]
        page.append(segment._replace(steps=steps))
        if len(steps) < len(segment.steps):
            return page, steps[-1].time + 1
        limit -= len(steps)
    return page, None
