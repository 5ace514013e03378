"""Receivers that fail: nothing is lost, and the order is kept."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.notifications.notifier_harness import DELIVERED, FAILED, REFUSED

if TYPE_CHECKING:
    from meshfleet.service.notifications.delivery import DeliveryResult
    from tests.service.notifications.fleet_harness import NotifiedLog

pytestmark = pytest.mark.anyio


async def test_a_receiver_that_returns_gets_everything_in_order(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number)[0] for number in range(1, 13)]
    await log.pass_time(10 * MINUTE)
    log.recorder.answer = lambda name, _message: FAILED if name == "hook" else DELIVERED
    for turn in range(4):
        for each in gateways[turn::4]:
            log.set_gateway(each, connected=False)
        await log.pass_time(20 * MINUTE, step=60)
        for each in gateways[turn::4]:
            log.set_gateway(each, connected=True)
        log.notifications.start()  # the process was killed
        await log.pass_time(20 * MINUTE, step=60)
    assert log.recorder.events() == []
    assert log.recorder.kinds() != []
    waiting = log.notifications.states()["waiting"]
    log.recorder.answer = lambda _name, _message: DELIVERED
    await log.pass_time(6 * MINUTE, step=10)
    by_alarm = defaultdict(list)
    for kind, number in log.recorder.events():
        by_alarm[number].append(kind)
    assert sum(map(len, by_alarm.values())) == waiting
    turns = ["alarm.opened", "alarm.cleared"]
    assert all(kinds == (turns * len(kinds))[: len(kinds)] for kinds in by_alarm.values())
    identities = [message.id for name, message in log.recorder.received if name == "hook"]
    assert len(identities) == len(set(identities))


@pytest.mark.parametrize("answer", [REFUSED, FAILED], ids=["refused", "failed"])
async def test_a_message_that_is_never_accepted_is_given_up_without_delaying_others(
    log: NotifiedLog, answer: DeliveryResult
) -> None:
    log.notifications.add_route(log.hook)
    first, *others = (log.add_gateway(number, 20) for number in range(1, 8))
    log.recorder.answer = lambda _name, message: answer if message.thread == "alarm-1" else DELIVERED
    log.set_device(first[1][0], first[0], connected=False)
    await log.pass_time(15 * MINUTE)
    for gateway, devices in others:
        log.set_device(devices[0], gateway, connected=False)
        await log.pass_time(HOUR, step=600)
    assert [number for _, number in log.recorder.events()].count("alarm-1") == 0
    assert ("alarm.opened", "alarm-2") in log.recorder.events()
    assert log.notifications.states()["dead"] == 1


async def test_a_message_is_given_up_after_three_days(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook)
    gateway, _ = log.add_gateway(1)
    log.recorder.answer = lambda _name, _message: FAILED
    log.set_gateway(gateway, connected=False)
    await log.pass_time(71 * HOUR, step=1800)
    assert "dead" not in log.notifications.states()
    await log.pass_time(3 * HOUR, step=1800)
    assert log.notifications.states()["dead"] == 1


async def test_people_get_one_summary_of_what_happened_while_their_channel_failed(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number, 3) for number in range(1, 6)]
    log.recorder.answer = lambda _name, _message: FAILED
    for gateway, devices in gateways:
        log.set_device(devices[0], gateway, connected=False)
        await log.pass_time(20 * MINUTE, step=60)
    log.recorder.answer = lambda _name, _message: DELIVERED
    await log.pass_time(10 * MINUTE, step=60)
    # The second one was made while the channel failed, to find out whether only the first one fails.
    assert log.recorder.kinds() == [["opened"], ["opened"], ["opened"] * 3]


async def test_a_kill_before_a_delivery_is_recorded_repeats_the_message_with_its_id(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number)[0] for number in range(1, 5)]
    await log.pass_time(10 * MINUTE)
    log.recorder.kills = {1, 2, 4, 7, 8}
    for each in gateways:
        log.set_gateway(each, connected=False)
        await log.pass_time(10 * MINUTE)
        log.set_gateway(each, connected=True)
        await log.pass_time(10 * MINUTE)
    for name in ("hook", "mail"):
        identities = [message.id for channel, message in log.recorder.received if channel == name]
        repeated = len(identities) - len(set(identities))
        assert repeated <= len(log.recorder.kills)
        assert len(set(identities)) == 8
        assert [each for number, each in enumerate(identities) if each not in identities[:number]] == sorted(
            set(identities), key=lambda each: int(each.rpartition("_")[2])
        )
