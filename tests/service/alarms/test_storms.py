"""One fault, one alarm: gateways that fail with all their devices, and what is missing when they return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import MINUTE

if TYPE_CHECKING:
    from tests.service.alarms.alarm_harness import AlarmHarness

pytestmark = pytest.mark.anyio


@pytest.mark.both_databases
async def test_a_gateway_with_two_hundred_devices_is_one_alarm(fleet: AlarmHarness) -> None:
    gateway, _ = fleet.add_gateway(1, 200)
    fleet.add_gateway(2, 5)
    await fleet.run(5 * MINUTE)
    fleet.disconnected.add(gateway)
    await fleet.run(4 * MINUTE)
    assert fleet.alarms() == []
    await fleet.run(10 * MINUTE)
    assert fleet.summarize() == [("gateway-offline", "no-connection", "open", 200)]
    assert fleet.conditions() == {("gateway-offline", "active"): 1}
    fleet.disconnected.clear()
    await fleet.run(20 * MINUTE)
    assert fleet.told() == [("gateway-offline", "opened"), ("gateway-offline", "cleared")]
    assert fleet.details("cleared") == [{"reason": "well", "affected": 200, "back": 200}]


@pytest.mark.both_databases
async def test_a_gateway_that_returns_names_the_devices_that_are_missing(fleet: AlarmHarness) -> None:
    gateway, devices = fleet.add_gateway(1, 200)
    fleet.add_gateway(2, 5)
    await fleet.run(5 * MINUTE)
    fleet.disconnected.add(gateway)
    await fleet.run(20 * MINUTE)
    fleet.switch_off(devices[:7])
    fleet.disconnected.clear()
    await fleet.run(18 * MINUTE)
    assert fleet.details("cleared") == [{"reason": "well", "affected": 200, "back": 193}]
    _, missing = fleet.alarms()
    assert (missing.rule, missing.state, missing.members) == ("device-offline", "open", 7)
    assert fleet.members(missing.id) == devices[:7]
    fleet.off.clear()
    await fleet.run(10 * MINUTE)
    assert fleet.told() == [
        ("gateway-offline", "opened"),
        ("gateway-offline", "cleared"),
        ("device-offline", "opened"),
        ("device-offline", "cleared"),
    ]


@pytest.mark.both_databases
async def test_many_gateways_that_are_lost_together_are_one_alarm(fleet: AlarmHarness) -> None:
    gateways = [fleet.add_gateway(number, 10)[0] for number in range(1, 41)]
    await fleet.run(5 * MINUTE)
    fleet.disconnected.update(gateways)
    await fleet.run(10 * MINUTE)
    assert fleet.summarize() == [("gateways-lost", "uplink-lost", "open", 400)]
    fleet.disconnected.clear()
    await fleet.run(20 * MINUTE)
    assert fleet.told() == [("gateways-lost", "opened"), ("gateways-lost", "cleared")]


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
