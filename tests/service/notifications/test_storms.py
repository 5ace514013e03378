"""One fault, one message: what people and programs are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import MINUTE

if TYPE_CHECKING:
    from tests.service.notifications.fleet_harness import NotifiedFleet

pytestmark = pytest.mark.anyio


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
    assert fleet.summarize() == [("gateway-offline", "no-connection", "open", 200)]
    assert fleet.conditions() == {("gateway-offline", "active"): 1}
    fleet.switch_off(devices[:7])
    fleet.disconnected.clear()
    await fleet.run(30 * MINUTE)
    back = "193 of 200 devices are back; 7 have not reported yet."
    assert fleet.recorder.texts()[1:] == [
        [f"cleared: Gateway Gateway 1 is back after 22 min. {back}"],
        ["opened: 7 devices behind Gateway 1 did not come back with the gateway."],
    ]
    assert fleet.recorder.events()[1:] == [("alarm.cleared", "alarm-1"), ("alarm.opened", "alarm-2")]
    assert fleet.members(2) == devices[:7]
    fleet.off.clear()
    await fleet.run(10 * MINUTE)
    assert fleet.recorder.kinds()[3:] == [["cleared"]]


async def test_many_gateways_that_are_lost_together_are_one_message(fleet: NotifiedFleet) -> None:
    fleet.notifications.add_route(fleet.hook, fleet.mail, groupSeconds=0)
    gateways = [fleet.add_gateway(number, 10)[0] for number in range(1, 41)]
    await fleet.run(5 * MINUTE)
    fleet.disconnected.update(gateways)
    await fleet.run(10 * MINUTE)
    assert fleet.summarize() == [("gateways-lost", "uplink-lost", "open", 400)]
    fleet.disconnected.clear()
    await fleet.run(20 * MINUTE)
    assert fleet.recorder.kinds() == [["opened"], ["cleared"]]
    assert fleet.recorder.events() == [("alarm.opened", "alarm-1"), ("alarm.cleared", "alarm-1")]
