"""One fault, one message: what people and programs are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import HOUR, MINUTE

if TYPE_CHECKING:
    from tests.service.notifications.fleet_harness import NotifiedFleet

pytestmark = pytest.mark.anyio


@pytest.mark.both_databases
async def test_a_gateway_with_two_hundred_devices_is_one_message(fleet: NotifiedFleet) -> None:
    fleet.notifications.add_route(fleet.hook, fleet.mail, groupSeconds=0)
    gateway, devices = fleet.add_gateway(1, 200)
    fleet.add_gateway(2, 5)
    await fleet.run(5 * MINUTE)
    fleet.disconnected.add(gateway)
    await fleet.run(20 * MINUTE)
    assert fleet.recorder.texts() == [
        ["opened: Gateway Gateway 1 is offline. 200 devices are cut off with it."]
    ]
    assert fleet.recorder.events() == [("alarm.opened", "alarm-1")]
    fleet.switch_off(devices[:7])
    fleet.disconnected.clear()
    await fleet.run(30 * MINUTE)
    assert fleet.recorder.texts()[1:] == [
        [
            "cleared: Gateway Gateway 1 is back after 27 min."
            " 193 of 200 devices are back; 7 have not reported yet."
        ],
        ["opened: 7 devices behind Gateway 1 did not come back with the gateway."],
    ]
    assert fleet.recorder.events()[1:] == [("alarm.cleared", "alarm-1"), ("alarm.opened", "alarm-2")]


@pytest.mark.both_databases
async def test_many_gateways_that_are_lost_together_are_one_message(fleet: NotifiedFleet) -> None:
    fleet.notifications.add_route(fleet.hook, fleet.mail, groupSeconds=0)
    gateways = [fleet.add_gateway(number, 10)[0] for number in range(1, 41)]
    await fleet.run(5 * MINUTE)
    fleet.disconnected.update(gateways)
    await fleet.run(10 * MINUTE)
    fleet.disconnected.clear()
    await fleet.run(20 * MINUTE)
    assert fleet.recorder.kinds() == [["opened"], ["cleared"]]
    assert fleet.recorder.events() == [("alarm.opened", "alarm-1"), ("alarm.cleared", "alarm-1")]


async def test_a_gateway_that_comes_and_goes_is_told_three_times_at_most(fleet: NotifiedFleet) -> None:
    fleet.notifications.add_route(fleet.mail, groupSeconds=0)
    gateway, _ = fleet.add_gateway(1, 3)
    fleet.add_gateway(2, 3)
    await fleet.run(5 * MINUTE)
    for _ in range(30):
        fleet.disconnected.add(gateway)
        await fleet.run(6 * MINUTE)
        fleet.disconnected.clear()
        await fleet.run(6 * MINUTE)
    fleet.disconnected.add(gateway)
    await fleet.run(HOUR)
    assert fleet.recorder.kinds() == [["opened"], ["cleared"], ["opened"]]
