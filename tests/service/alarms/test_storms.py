"""One fault, one alarm: gateways that fail with all their devices, and what is missing when they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import MINUTE

if TYPE_CHECKING:
    from tests.service.alarms.alarm_harness import AlarmHarness

pytestmark = pytest.mark.anyio


async def test_gateways_that_were_claimed_a_moment_ago_are_not_lost(fleet: AlarmHarness) -> None:
    gateway, _ = fleet.add_gateway(1, 3)
    fleet.add_gateway(2, 3)
    await fleet.run(5 * MINUTE)
    new = {fleet.add_gateway(number, 0)[0] for number in range(3, 20)}
    fleet.disconnected |= {gateway, *new}
    await fleet.run(10 * MINUTE)
    assert fleet.summarize() == [("gateway-offline", "no-connection", "open", 3)]


async def test_gateways_that_stay_away_after_a_common_cause_have_alarms_of_their_own(
    fleet: AlarmHarness,
) -> None:
    gateways = [fleet.add_gateway(number, 3)[0] for number in range(1, 11)]
    await fleet.run(5 * MINUTE)
    fleet.disconnected.update(gateways)
    await fleet.run(10 * MINUTE)
    fleet.disconnected.intersection_update(gateways[:2])
    await fleet.run(20 * MINUTE)
    assert fleet.told() == [
        ("gateways-lost", "opened"),
        ("gateways-lost", "cleared"),
        ("gateway-offline", "opened"),
        ("gateway-offline", "opened"),
    ]
