"""Alarms of gateways and devices that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import update

from meshfleet.db.tables import device
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import DAY, execute, list_alarms
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from tests.service.alarms.presence_log import PresenceLog

EXTENDER = 0x40
CLIP = 0x0F


def toggle_gateways(log: PresenceLog, *gateways: str, off: int, on: int, times: int) -> None:
    """Let gateways lose their connections together, some times."""
    for _ in range(times):
        for each in gateways:
            log.set_gateway(each, connected=False)
        log.run(off, step=min(off, 90))
        for each in gateways:
            log.set_gateway(each, connected=True)
        log.run(on, step=min(on, 5 * MINUTE))


def toggle_device(log: PresenceLog, mac: str, gateway: str, *, times: int, on: int = 2 * HOUR) -> None:
    """Let a device be silent for some minutes, some times."""
    for _ in range(times):
        log.set_device(mac, gateway, connected=False)
        log.run(6 * MINUTE, step=3 * MINUTE)
        log.set_device(mac, gateway, connected=True)
        log.run(on, step=on // 4)


def set_model(log: PresenceLog, mac: str, model: int) -> None:
    execute(log, update(device).where(device.c.id == mac_to_number(mac)).values(model=model))


def test_a_gateway_that_is_away_every_other_90_seconds_is_one_alarm(log: PresenceLog) -> None:
    gateway, *_ = (log.add_gateway(number)[0] for number in range(1, 7))
    toggle_gateways(log, gateway, off=90, on=90, times=120)
    assert log.told() == [("gateway-unstable", "opened")]
    assert list_alarms(log) == [
        ("gateway-unstable", "warning", "Gateway Gateway 1 lost its connection 19 times within an hour.")
    ]
    log.run(HOUR + 50 * MINUTE, step=10 * MINUTE)
    assert len(list_alarms(log)) == 1
    log.run(12 * MINUTE, step=2 * MINUTE)
    assert log.told() == [("gateway-unstable", "opened"), ("gateway-unstable", "cleared")]
    assert list_alarms(log, "cleared")[0][2] == "Gateway Gateway 1 has not lost its connection again for 2 h."


def test_only_six_losses_within_an_hour_make_a_gateway_unstable(log: PresenceLog) -> None:
    opened = ("gateway-unstable", "opened")
    numbers = iter(range(1, 100))
    for row, (off, on, times, expected) in enumerate(
        ((60, 9 * MINUTE, 6, 1), (60, 14 * MINUTE, 8, 0), (60, 60, 5, 0), (4 * MINUTE, 4 * MINUTE, 8, 1))
    ):
        others = [log.add_gateway(next(numbers))[0] for _ in range(4)]
        before = log.told().count(opened)
        toggle_gateways(log, others[0], off=off, on=on, times=times)
        log.run(3 * MINUTE)
        assert log.told().count(opened) - before == expected, f"row {row}"


def test_gateways_that_come_and_go_together_are_one_alarm(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number)[0] for number in range(1, 5)]
    toggle_gateways(log, *gateways, off=60, on=2 * MINUTE, times=10)
    (told,) = [each for each in log.told() if each[0] == "gateway-unstable"]
    assert told == ("gateway-unstable", "opened")
    sentence = (
        "4 gateways lose their connections again and again: the network or this service, not the gateways."
    )
    assert [each for rule, _, each in list_alarms(log) if rule == "gateway-unstable"] == [sentence]


def test_the_last_gateway_of_a_common_alarm_keeps_its_sentence(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number)[0] for number in range(1, 5)]
    toggle_gateways(log, *gateways, off=60, on=2 * MINUTE, times=10)
    toggle_gateways(log, gateways[0], off=60, on=4 * MINUTE, times=30)
    (sentence,) = [each for rule, _, each in list_alarms(log) if rule == "gateway-unstable"]
    assert sentence.startswith("1 gateway loses its connection again and again: the network")


def test_a_single_outage_of_all_gateways_makes_none_unstable(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number)[0] for number in range(1, 5)]
    toggle_gateways(log, *gateways, off=10 * MINUTE, on=HOUR, times=1)
    assert {rule for rule, _ in log.told()} == {"gateways-lost"}


def test_extenders_that_come_and_go_are_one_alarm_for_each_gateway(log: PresenceLog) -> None:
    office, (first, second, clip) = log.add_gateway(1, 3)
    log.add_gateway(2)
    for mac, model in ((first, EXTENDER), (second, EXTENDER), (clip, CLIP)):
        set_model(log, mac, model)
    toggle_device(log, clip, office, times=6)  # it is carried away, and back
    toggle_device(log, first, office, times=2)
    assert log.told() == []
    toggle_device(log, first, office, times=1)
    ((rule, severity, sentence),) = list_alarms(log)
    assert (rule, severity) == ("device-unstable", "info")
    assert sentence.endswith(" comes and goes: it was silent 3 times within a day.")
    toggle_device(log, second, office, times=3)
    assert [sentence for _, _, sentence in list_alarms(log)] == [
        "2 devices behind Gateway 1 come and go: silent up to 3 times within a day."
    ]
    log.run(DAY + HOUR, step=30 * MINUTE)
    assert log.told() == [("device-unstable", "opened"), ("device-unstable", "cleared")]


@pytest.mark.both_databases
def test_devices_of_a_gateway_that_comes_and_goes_are_not_unstable(log: PresenceLog) -> None:
    office, (mac,) = log.add_gateway(1, 1)
    log.add_gateway(2)
    set_model(log, mac, EXTENDER)
    for _ in range(8):
        for is_connected in (False, True):
            log.set_gateway(office, connected=is_connected)
            log.change(mac, connected=is_connected, cause=log.WITH_GATEWAY, gateway=office)
            log.run(90)
    toggle_device(log, mac, office, times=4, on=10 * MINUTE)
    assert log.told() == [("gateway-unstable", "opened")]
