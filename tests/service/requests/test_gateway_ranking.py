"""The ranking of gateways, without I/O."""

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
    """Observations of a device, and the expected order of gateways."""

    description: str
    observations: list[LinkObservation]
    order: list[int]
    connected: tuple[int, ...] = (A, B, C)
    interval: float = 1
    """Minutes between two heartbeats."""
    failed_ago: Mapping[int, float] = MappingProxyType({})
    """Minutes since the last failure, by gateway."""


def observation(
    gateway: int, rssi: float | None, ago: float = 0, parent: int | None = None, **options: Any
) -> LinkObservation:
    """Return an observation some minutes ago, with a parent of its own unless one is given."""
    parent_or_default = None if rssi is None else 100 + gateway if parent is None else parent
    return LinkObservation(gateway, NOW - round(ago * MINUTE), parent_or_default, rssi, **options)


CASES = [
    Case(
        "the strongest of the gateways that see it now",
        [observation(A, -70), observation(B, -55), observation(C, -90)],
        [B, A, C],
    ),
    Case(
        "-40 dBm until 13 minutes ago, -60 dBm elsewhere since then",
        [observation(A, -40, 13), observation(B, -60)],
        [B, A],
    ),
    Case(
        "-40 dBm until 13 minutes ago, -60 dBm elsewhere, unknown interval",
        [observation(A, -40, 13), observation(B, -60)],
        [B, A],
        interval=20,
    ),
    Case("a new device in the open minute", [observation(A, -50), observation(B, -92)], [A, B], interval=20),
    Case("a strong signal outweighs a minute", [observation(A, -40, 1), observation(B, -60)], [A, B]),
    Case(
        "a gateway loses a device after three intervals without reports",
        [observation(A, -40, 3.1), observation(B, -90)],
        [B, A],
    ),
    Case(
        "a gateway does not lose a device that no other sees",
        [observation(A, -40, 3.1), observation(B, -90, 2.5)],
        [A, B],
    ),
    Case(
        "a gateway does not lose a device to one that is not connected",
        [observation(A, -40, 3.1), observation(B, -90)],
        [A, B],
        connected=(A,),
    ),
    Case(
        "three minutes are less than an interval of a slow device",
        [observation(A, -40, 3.1), observation(B, -90)],
        [A, B],
        interval=20,
    ),
    Case(
        "a heartbeat through B, nothing through A for three intervals",
        [observation(A, -40, 3.1), observation(B, None)],
        [B, A],
    ),
    Case("a heartbeat counts less than a reading", [observation(A, -80), observation(B, None)], [A, B]),
    Case(
        "a heartbeat does not improve a weak reading",
        [observation(A, -95, 0.5), observation(A, None), observation(B, -94, 0.2)],
        [B, A],
    ),
    Case(
        "a disconnected gateway ranks last",
        [observation(A, -40), observation(B, -90)],
        [B, A],
        connected=(B,),
    ),
    Case(
        "the best parent of a gateway counts",
        [observation(A, -90), observation(A, -50, 0, 9), observation(B, -60)],
        [A, B],
    ),
    Case(
        "a parent that does not reach the device does not count",
        [observation(A, -30, is_unreachable=True), observation(A, -85, 0, 9), observation(B, -80)],
        [B, A],
    ),
    Case(
        "a failed attempt ranks a gateway lower",
        [observation(A, -40), observation(B, -90)],
        [B, A],
        failed_ago={A: 1},
    ),
    Case(
        "a failed attempt ranks a gateway below one that lost the device",
        [observation(A, -40), observation(B, -60, 9)],
        [B, A],
        failed_ago={A: 0},
    ),
    Case(
        "the only gateway is used in spite of a failed attempt", [observation(A, -40)], [A], failed_ago={A: 0}
    ),
    Case(
        "a failed but connected gateway ranks before a disconnected one",
        [observation(A, -40), observation(B, -90)],
        [A, B],
        (A,),
        failed_ago={A: 1},
    ),
    Case(
        "gateways take turns if all failed",
        [observation(A, -40), observation(B, -60), observation(C, -80)],
        [C, A, B],
        failed_ago={A: 2, B: 1, C: 3},
    ),
    Case("a clock ahead is no advantage", [observation(A, -60, -9), observation(B, -59)], [B, A]),
    Case("no gateway has seen the device", [], []),
]


@pytest.mark.rule("rest-102")
def test_gateways_are_ranked_by_signal_age_and_failed_attempts() -> None:
    wrong = {}
    for case in CASES:
        ranked = rank_gateways(
            case.observations,
            connected=case.connected,
            interval=round(case.interval * MINUTE),
            failures={gateway: round(ago * MINUTE) for gateway, ago in case.failed_ago.items()},
            now=NOW,
        )
        order = [each.gateway for each in ranked]
        if order != case.order:
            wrong[case.description] = order
    assert not wrong


@pytest.mark.rule("rest-102")
def test_a_ranked_gateway_has_the_values_of_its_best_parent() -> None:
    stale, fresh, heartbeat = observation(A, -20, 14, 1), observation(A, -60, 1, 2), observation(A, None)
    (only,) = rank_gateways(
        [stale, fresh, heartbeat], connected=(), interval=MINUTE, failures={A: 5}, now=NOW
    )
    assert only._replace(score=0) == (A, False, -60, NOW, 5, False, 0)
    assert only.score == pytest.approx(-64)


def test_a_parent_that_changes_its_gateway_counts_only_for_the_new_one() -> None:
    rollups = Rollups()
    readings = [
        (ReadingKind.LINK, DEVICE, A, NOW, -50, 9, False),
        (ReadingKind.HEARTBEAT, DEVICE, A, NOW, 0, 0, False),
        (ReadingKind.LINK, DEVICE, B, NOW + 1000, -52, 9, False),
    ]
    rollups.add(1, readings, NOW)
    minutes = rollups.list_unwritten_minutes(DEVICE, {SampleKind.LINK, SampleKind.HEARTBEAT})
    assert sorted(parse_link_minutes(minutes)) == [
        (A, NOW, None, None, False),
        (B, NOW + 1000, 9, -51, False),
    ]


def test_failed_attempts_are_discarded_after_ten_minutes_and_beyond_a_limit() -> None:
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
