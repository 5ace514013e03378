"""The rule by which gateways are ranked: values in, an order out."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.requests.gateway_selection import FailedTries, Hearing, hearings_of, rank_gateways

if TYPE_CHECKING:
    from collections.abc import Mapping

MINUTE = 60_000
NOW = 1_700_000_000_000
A, B, C = 1, 2, 3
DEVICE = 7


class Case(NamedTuple):
    """What was heard of a device, and which gateways are asked in which order."""

    says: str
    heard: list[Hearing]
    order: list[int]
    connected: tuple[int, ...] = (A, B, C)
    interval: float = 1
    """Minutes."""
    failed: Mapping[int, float] = MappingProxyType({})
    """Minutes ago, by gateway."""


def heard(gateway: int, rssi: float | None, ago: float = 0, parent: int | None = None, **how: Any) -> Hearing:
    """A hearing so many minutes ago, by a parent of its own unless one is given."""
    by = None if rssi is None else 100 + gateway if parent is None else parent
    return Hearing(gateway, NOW - round(ago * MINUTE), by, rssi, **how)


CASES = [
    Case("the strongest of those that hear it now", [heard(A, -70), heard(B, -55), heard(C, -90)], [B, A, C]),
    Case("-40 until 13 minutes ago, -60 ever since elsewhere", [heard(A, -40, 13), heard(B, -60)], [B, A]),
    Case(
        "the same of a device of which no rhythm is known",
        [heard(A, -40, 13), heard(B, -60)],
        [B, A],
        interval=20,
    ),
    Case("a newcomer in the minute under way", [heard(A, -50), heard(B, -92)], [A, B], interval=20),
    Case("a strong signal outweighs a minute", [heard(A, -40, 1), heard(B, -60)], [A, B]),
    Case("three intervals without a word are the end", [heard(A, -40, 3.1), heard(B, -90)], [B, A]),
    Case("unless nobody else hears it", [heard(A, -40, 3.1), heard(B, -90, 2.5)], [A, B]),
    Case("or the other is not connected", [heard(A, -40, 3.1), heard(B, -90)], [A, B], connected=(A,)),
    Case(
        "a slow device misses nothing in three minutes",
        [heard(A, -40, 3.1), heard(B, -90)],
        [A, B],
        interval=20,
    ),
    Case("a heartbeat through B, of A nothing for three", [heard(A, -40, 3.1), heard(B, None)], [B, A]),
    Case("a heartbeat says less than a reading", [heard(A, -80), heard(B, None)], [A, B]),
    Case(
        "a heartbeat makes a weak reading no better",
        [heard(A, -95, 0.5), heard(A, None), heard(B, -94, 0.2)],
        [B, A],
    ),
    Case("a gateway that is away comes last", [heard(A, -40), heard(B, -90)], [B, A], connected=(B,)),
    Case("its best parent counts", [heard(A, -90), heard(A, -50, 0, 9), heard(B, -60)], [A, B]),
    Case(
        "a parent that does not reach the device does not count",
        [heard(A, -30, unreachable=True), heard(A, -85, 0, 9), heard(B, -80)],
        [B, A],
    ),
    Case("a failed try puts a gateway behind", [heard(A, -40), heard(B, -90)], [B, A], failed={A: 1}),
    Case("and behind one that has lost the device", [heard(A, -40), heard(B, -60, 9)], [B, A], failed={A: 0}),
    Case("the only one is asked all the same", [heard(A, -40)], [A], failed={A: 0}),
    Case("but not before it is connected", [heard(A, -40), heard(B, -90)], [A, B], (A,), failed={A: 1}),
    Case(
        "where all failed they take turns",
        [heard(A, -40), heard(B, -60), heard(C, -80)],
        [C, A, B],
        failed={A: 2, B: 1, C: 3},
    ),
    Case("a clock ahead is no advantage", [heard(A, -60, -9), heard(B, -59)], [B, A]),
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
    stale, fresh, beat = heard(A, -20, 14, 1), heard(A, -60, 1, 2), heard(A, None)
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
    minutes = rollups.minutes_of(DEVICE, {SampleKind.LINK, SampleKind.HEARTBEAT})
    assert sorted(hearings_of(minutes)) == [(A, NOW, None, None, False), (B, NOW + 1000, 9, -51, False)]


def test_failed_tries_are_forgotten_after_ten_minutes_and_when_there_are_too_many() -> None:
    now = 0
    failures = FailedTries(lambda: now)
    failures.add(DEVICE, A)
    now = 9 * MINUTE
    failures.add(DEVICE, B)
    assert failures.of(DEVICE, [A, B, C]) == {A: 9 * MINUTE, B: 0}
    assert failures.of(DEVICE + 1, [A]) == {}
    now = 10 * MINUTE
    assert failures.of(DEVICE, [A, B]) == {B: MINUTE}
    failures.clear(DEVICE, B)
    assert failures.of(DEVICE, [A, B]) == {}
    for device in range(30_000):
        failures.add(device, A)
    assert len(failures) == 20_000
    assert failures.of(29_999, [A]) == {A: 0}
