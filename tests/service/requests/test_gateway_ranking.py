"""The rule by which gateways are ranked: values in, an order out."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.requests.gateway_ranking import (
    FailedAttempts,
    LinkObservation,
    parse_link_minutes,
    rank_gateways,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE = 60_000
NOW = 1_700_000_000_000
A, B, C = 1, 2, 3
DEVICE = 7


class Case(NamedTuple):
    """What was heard of a device, and which gateways are asked in which order."""

    says: str
    heard: list[LinkObservation]
    order: list[int]
    connected: tuple[int, ...] = (A, B, C)
    interval: float = 1
    """Minutes."""
    failed: Mapping[int, float] = MappingProxyType({})
    """Minutes ago, by gateway."""


def observation(
    gateway: int, rssi: float | None, ago: float = 0, parent: int | None = None, **how: Any
) -> LinkObservation:
    """A hearing so many minutes ago, by a parent of its own unless one is given."""
    by = None if rssi is None else 100 + gateway if parent is None else parent
    return LinkObservation(gateway, NOW - round(ago * MINUTE), by, rssi, **how)


CASES = [
    Case(
        "the strongest of those that hear it now",
        [observation(A, -70), observation(B, -55), observation(C, -90)],
        [B, A, C],
    ),
    Case(
        "-40 until 13 minutes ago, -60 ever since elsewhere",
        [observation(A, -40, 13), observation(B, -60)],
        [B, A],
    ),
    Case(
        "the same of a device of which no rhythm is known",
        [observation(A, -40, 13), observation(B, -60)],
        [B, A],
        interval=20,
    ),
    Case(
        "a newcomer in the minute under way", [observation(A, -50), observation(B, -92)], [A, B], interval=20
    ),
    Case("a strong signal outweighs a minute", [observation(A, -40, 1), observation(B, -60)], [A, B]),
    Case(
        "three intervals without a word are the end", [observation(A, -40, 3.1), observation(B, -90)], [B, A]
    ),
    Case("unless nobody else hears it", [observation(A, -40, 3.1), observation(B, -90, 2.5)], [A, B]),
    Case(
        "or the other is not connected",
        [observation(A, -40, 3.1), observation(B, -90)],
        [A, B],
        connected=(A,),
    ),
    Case(
        "a slow device misses nothing in three minutes",
        [observation(A, -40, 3.1), observation(B, -90)],
        [A, B],
        interval=20,
    ),
    Case(
        "a heartbeat through B, of A nothing for three",
        [observation(A, -40, 3.1), observation(B, None)],
        [B, A],
    ),
    Case("a heartbeat says less than a reading", [observation(A, -80), observation(B, None)], [A, B]),
    Case(
        "a heartbeat makes a weak reading no better",
        [observation(A, -95, 0.5), observation(A, None), observation(B, -94, 0.2)],
        [B, A],
    ),
    Case(
        "a gateway that is away comes last",
        [observation(A, -40), observation(B, -90)],
        [B, A],
        connected=(B,),
    ),
    Case(
        "its best parent counts",
        [observation(A, -90), observation(A, -50, 0, 9), observation(B, -60)],
        [A, B],
    ),
    Case(
        "a parent that does not reach the device does not count",
        [observation(A, -30, is_unreachable=True), observation(A, -85, 0, 9), observation(B, -80)],
        [B, A],
    ),
    Case(
        "a failed try puts a gateway behind",
        [observation(A, -40), observation(B, -90)],
        [B, A],
        failed={A: 1},
    ),
    Case(
        "and behind one that has lost the device",
        [observation(A, -40), observation(B, -60, 9)],
        [B, A],
        failed={A: 0},
    ),
    Case("the only one is asked all the same", [observation(A, -40)], [A], failed={A: 0}),
    Case(
        "but not before it is connected",
        [observation(A, -40), observation(B, -90)],
        [A, B],
        (A,),
        failed={A: 1},
    ),
    Case(
        "where all failed they take turns",
        [observation(A, -40), observation(B, -60), observation(C, -80)],
        [C, A, B],
        failed={A: 2, B: 1, C: 3},
    ),
    Case("a clock ahead is no advantage", [observation(A, -60, -9), observation(B, -59)], [B, A]),
    Case("nobody has heard it", [], []),
]


@pytest.mark.rule("rest-102")
def test_gateways_are_ranked_by_signal_age_and_failed_tries() -> None:
    wrong = {}
    for case in CASES:
        ranked = rank_gateways(
            case.heard,
            connected=case.connected,
            interval=round(case.interval * MINUTE),
            failures={gateway: round(ago * MINUTE) for gateway, ago in case.failed.items()},
            now=NOW,
        )
        order = [each.gateway for each in ranked]
        if order != case.order:
            wrong[case.says] = order
    assert not wrong


@pytest.mark.rule("rest-102")
def test_what_counts_of_a_gateway_is_told() -> None:
    stale, fresh, beat = observation(A, -20, 14, 1), observation(A, -60, 1, 2), observation(A, None)
    (only,) = rank_gateways([stale, fresh, beat], connected=(), interval=MINUTE, failures={A: 5}, now=NOW)
    assert only._replace(score=0) == (A, False, -60, NOW, 5, False, 0)
    assert only.score == pytest.approx(-64)


def test_a_parent_that_changes_its_gateway_is_behind_the_new_one_alone() -> None:
    rollups = Rollups()
    readings = [
        (ReadingKind.LINK, DEVICE, A, NOW, -50, 9, False),
        (ReadingKind.HEARTBEAT, DEVICE, A, NOW, 0, 0, False),
        (ReadingKind.LINK, DEVICE, B, NOW + 1000, -52, 9, False),
    ]
    rollups.add(1, readings, NOW)
    minutes = rollups.list_open_minutes(DEVICE, {SampleKind.LINK, SampleKind.HEARTBEAT})
    assert sorted(parse_link_minutes(minutes)) == [
        (A, NOW, None, None, False),
        (B, NOW + 1000, 9, -51, False),
    ]


def test_failed_tries_are_forgotten_after_ten_minutes_and_when_there_are_too_many() -> None:
    now = 0
    failures = FailedAttempts(lambda: now)
    failures.add(DEVICE, A)
    now = 9 * MINUTE
    failures.add(DEVICE, B)
    assert failures.get_ages(DEVICE, [A, B, C]) == {A: 9 * MINUTE, B: 0}
    assert failures.get_ages(DEVICE + 1, [A]) == {}
    now = 10 * MINUTE
    assert failures.get_ages(DEVICE, [A, B]) == {B: MINUTE}
    failures.clear(DEVICE, B)
    assert failures.get_ages(DEVICE, [A, B]) == {}
    for device in range(30_000):
        failures.add(device, A)
    assert len(failures) == 20_000
    assert failures.get_ages(29_999, [A]) == {A: 0}
