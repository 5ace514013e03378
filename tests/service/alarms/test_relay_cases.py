"""Cases in which an alarm about an extender would be wrong, doubled, hidden, or never end."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, insert, update

from meshfleet.db.tables import device, device_label, device_state, label
from meshfleet.service.alarms import diagnosis, probes, views
from meshfleet.service.alarms.probes import ProbeResult
from meshfleet.service.presence.changes import PresenceCause
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.rest.alarms import Alarm
    from tests.service.alarms.presence_log import PresenceLog

OPENED = ("relay-lost", "opened")
CLEARED = ("relay-lost", "cleared")


def set_state(log: PresenceLog, devices: Iterable[str], **values: Any) -> None:
    """Store what devices have reported last."""
    numbers = [mac_to_number(each) for each in devices]
    statement = update(device_state).where(device_state.c.device.in_(numbers)).values(**values)
    log.database.write_now(lambda connection: connection.execute(statement))


def set_parent(log: PresenceLog, parent: str, devices: Iterable[str]) -> None:
    """Store that devices were heard by a parent last."""
    set_state(log, devices, parent=mac_to_number(parent))


def lose(log: PresenceLog, gateway: str, *devices: str) -> None:
    """Store that devices are silent."""
    log.change(*devices, connected=False, cause=PresenceCause.SILENT, gateway=gateway)


def hear(log: PresenceLog, gateway: str, *devices: str) -> None:
    """Store that devices were heard again."""
    log.change(*devices, connected=True, cause=PresenceCause.HEARD, gateway=gateway)


def show(log: PresenceLog) -> list[Alarm]:
    """Return the REST bodies of all alarms, oldest first."""
    numbers = [each.id for each in log.alarms()]
    return log.database.read_now(lambda connection: views.load_alarms(connection, numbers, now=log.now))


def answer_probes(log: PresenceLog, result: ProbeResult) -> list[int]:
    """Store the result of all probes that are asked for. Return their devices."""
    awaited = log.database.read_now(probes.list_awaited, log.now)
    for each in awaited:
        log.database.write_now(probes.store_result, each.device, result, log.now)
    return [each.device for each in awaited]


@pytest.mark.both_databases
@pytest.mark.rule("rest-282")
def test_devices_with_alarms_join_that_of_an_extender_that_is_found_later(log: PresenceLog) -> None:
    office, (extender, below, *children) = log.add_gateway(1, 5)
    set_parent(log, extender, [below])
    set_parent(log, below, children)
    lose(log, office, *children[:2])
    log.run(12 * MINUTE)
    assert log.summarize() == [("device-offline", "no-warning", "open", 2)]
    lose(log, office, below)
    log.run(11 * MINUTE)
    assert log.summarize()[1:] == [("relay-lost", "relay-silent", "open", 2)]
    lose(log, office, extender)
    log.run(11 * MINUTE)
    assert log.summarize() == [
        ("device-offline", "no-warning", "cleared", 2),
        ("relay-lost", "relay-silent", "cleared", 2),
        ("relay-lost", "relay-silent", "open", 3),
    ]
    assert log.members(log.alarms()[2].id) == sorted([extender, below, *children[:2]])
    assert [each.end_reason for each in log.alarms()] == ["merged", "merged", None]
    assert [kind for _, kind in log.told()] == 3 * ["opened"]
    found = log.database.read_now(diagnosis.diagnose_device, mac_to_number(children[0]), log.now)
    assert (found.code, found.sentence) == (
        "relay-silent",
        "Device 0002 is cut off with extender Device 0000, silent for 11 min.",
    )


@pytest.mark.rule("rest-282")
def test_an_extender_that_answers_is_not_lost(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 7)
    set_parent(log, extender, children)
    lose(log, office, *children[:4])
    log.run(11 * MINUTE)
    assert (log.alarms(), answer_probes(log, ProbeResult.ANSWERED)) == ([], [mac_to_number(extender)])
    log.run(MINUTE)
    (alarm,) = show(log)
    assert (alarm.cause.code, alarm.cause.params["certainty"]) == ("unknown", "likely")
    assert alarm.sentence == (
        "4 devices behind extender Device 0000 stopped although it answers: the cause is unknown."
    )
    assert answer_probes(log, ProbeResult.ANSWERED) == []


@pytest.mark.rule("rest-282")
def test_a_probed_extender_is_probably_lost_until_it_is_heard(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 7)
    set_parent(log, extender, children)
    lose(log, office, *children[:4])
    log.run(11 * MINUTE)
    answer_probes(log, ProbeResult.LOST)
    log.run(MINUTE)
    assert show(log)[0].sentence == (
        "Extender Device 0000 is probably lost; 4 devices behind it are cut off."
    )
    set_state(log, [extender], reported_at=log.now)
    log.run(10 * MINUTE)
    assert log.told() == [OPENED, CLEARED]
    assert show(log)[0].sentence.endswith(" 0 of 4 devices are back; 4 have not reported yet.")
    log.run(2 * HOUR)
    assert log.told()[2:] == [("device-offline", "opened")]


def test_a_probed_extender_that_is_found_silent_later_is_a_member_of_its_alarm(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 7)
    set_parent(log, extender, children)
    lose(log, office, *children[:4])
    log.run(11 * MINUTE)
    answer_probes(log, ProbeResult.LOST)
    log.run(45 * MINUTE)
    lose(log, office, extender)
    log.run(11 * MINUTE)
    (alarm,) = log.alarms()
    assert (alarm.state, alarm.members, alarm.affected, log.told()) == ("open", 5, 4, [OPENED])
    hear(log, office, extender, *children)
    log.run(6 * MINUTE)
    assert log.told() == [OPENED, CLEARED]


def test_devices_wait_for_a_probe_for_some_minutes_only(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 5)
    set_parent(log, extender, children)
    lose(log, office, *children)
    log.run(14 * MINUTE)
    assert log.alarms() == []
    log.run(2 * MINUTE)
    assert log.summarize() == [("device-offline", "no-warning", "open", 4)]


@pytest.mark.rule("rest-283")
def test_many_devices_that_stop_together_are_one_alarm(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 40)
    lose(log, office, devices[39])
    log.run(11 * MINUTE)
    for each in range(6):
        lose(log, office, *devices[5 * each : 5 * each + 5])
        log.run(MINUTE)
    log.run(10 * MINUTE)
    assert log.summarize() == [
        ("device-offline", "no-warning", "open", 1),
        ("device-offline", "burst", "open", 30),
    ]
    alarm = show(log)[1]
    assert alarm.severity == "critical"
    assert alarm.sentence == (
        "30 devices behind Gateway 1 stopped within 5 min without a common extender:"
        " interference, or a power cut?"
    )


def test_tags_that_go_home_together_every_evening_are_no_burst(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 13)
    tags = devices[:12]
    for _ in range(3):
        lose(log, office, *tags)
        log.run(14 * HOUR, step=1800)
        hear(log, office, *tags)
        log.run(10 * HOUR, step=1800)
    before = len(log.alarms())
    lose(log, office, *devices)
    log.run(30 * MINUTE)
    assert [each.cause for each in log.alarms()[before:]] == ["no-warning"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-283")
def test_what_the_devices_of_an_alarm_have_in_common_is_named(log: PresenceLog) -> None:
    office, (extender, *devices) = log.add_gateway(1, 40)
    set_parent(log, extender, devices[:10])

    def add_label(connection: Any) -> None:
        number = connection.execute(insert(label).values(text="Floor 2", created_at=0)).inserted_primary_key[
            0
        ]
        rows = [{"label": number, "device": mac_to_number(each)} for each in devices[:11]]
        connection.execute(insert(device_label), rows)

    log.database.write_now(add_label)
    lose(log, office, extender, *devices[:10])
    log.run(11 * MINUTE)
    (alarm,) = show(log)
    assert alarm.sentence == (
        "Extender Device 0000 is silent; 10 devices behind it are cut off. All carry the label Floor 2."
    )


@pytest.mark.rule("rest-282")
def test_an_extender_that_cuts_off_many_is_critical(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 21)
    set_parent(log, extender, children)
    lose(log, office, extender, *children[:19])
    log.run(11 * MINUTE)
    assert show(log)[0].severity == "warning"
    lose(log, office, children[19])
    log.run(11 * MINUTE)
    assert (show(log)[0].severity, log.told()) == ("critical", [OPENED])


def test_an_extender_in_dfu_mode_or_behind_an_absent_gateway_is_not_lost(log: PresenceLog) -> None:
    office, (dfu, far, first, second) = log.add_gateway(1, 4)
    other, _ = log.add_gateway(2)
    log.add_gateway(3)
    set_parent(log, dfu, [first])
    set_parent(log, far, [second])
    set_state(log, [dfu], boot_mode="dfu")
    log.move(far, other)
    log.set_gateway(other, connected=False)
    log.change(far, connected=False, cause=log.WITH_GATEWAY, gateway=other)
    lose(log, office, dfu, first, second)
    log.run(15 * MINUTE)
    assert sorted(log.summarize()) == [
        ("device-offline", "no-warning", "open", 2),
        ("gateway-offline", "no-connection", "open", 1),
    ]


def test_devices_wait_when_the_gateway_goes_away_before_their_extender_is_missed(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 5)
    log.add_gateway(2)
    log.add_gateway(3)
    set_parent(log, extender, children)
    lose(log, office, extender, *children)
    log.run(5 * MINUTE)
    log.set_gateway(office, connected=False)
    log.run(HOUR)
    assert log.told() == [("gateway-offline", "opened")]
    log.set_gateway(office, connected=True)
    log.run(2 * HOUR)
    assert log.told()[1:] == [("gateway-offline", "cleared"), OPENED]
    assert log.summarize()[1] == ("relay-lost", "relay-silent", "open", 4)


def test_a_deleted_extender_leaves_its_devices_an_alarm_of_their_own(log: PresenceLog) -> None:
    office, (extender, *children) = log.add_gateway(1, 4)
    set_parent(log, extender, children)
    lose(log, office, extender, *children)
    log.run(11 * MINUTE)
    number = mac_to_number(extender)
    log.database.write_now(lambda connection: connection.execute(delete(device).where(device.c.id == number)))
    log.run(MINUTE)
    assert log.summarize() == [
        ("relay-lost", "relay-silent", "cleared", 3),
        ("device-offline", "no-warning", "open", 3),
    ]
    assert show(log)[0].sentence == f"Extender {extender} was silent when it was deleted."


def test_an_extender_that_comes_and_goes_causes_few_messages_and_hides_no_dead_device(
    log: PresenceLog,
) -> None:
    office, (extender, dead, *children) = log.add_gateway(1, 5)
    set_parent(log, extender, [dead, *children])
    lose(log, office, dead)
    for _ in range(8):
        lose(log, office, extender, *children)
        log.run(12 * MINUTE, step=60)
        hear(log, office, extender, *children)
        log.run(8 * MINUTE, step=60)
    told = [kind for rule, kind in log.told() if rule == "relay-lost"]
    assert len(told) <= 3
    lose(log, office, extender, *children)
    log.run(15 * MINUTE)
    (alarm,) = [each for each in log.alarms(state="open") if each.rule == "relay-lost"]
    assert alarm.recovering_since is None
    hear(log, office, extender, *children)
    log.run(HOUR + 15 * MINUTE, step=60)
    assert [log.members(each.id) for each in log.alarms(state="open") if each.rule == "device-offline"] == [
        [dead]
    ]


@pytest.mark.parametrize("seed", range(2))
def test_each_silent_device_of_any_tree_is_in_one_alarm_at_its_topmost_silent_ancestor(
    log: PresenceLog, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 # a fixed sequence
    office, devices = log.add_gateway(1, 30)
    parents = {each: random.choice([office, *devices[: index // 2]]) for index, each in enumerate(devices)}
    for each, parent in parents.items():
        set_parent(log, parent, [each])
    silent = set(random.sample(devices, 10 + 6 * seed))
    lose(log, office, *silent)
    for _ in range(13):
        log.run(MINUTE)
        answer_probes(log, ProbeResult.ANSWERED)
    expected = {}
    for each in silent:
        root = each
        while parents[root] in silent:
            root = parents[root]
        is_relay = root != each or any(parents[other] == each for other in silent)
        expected[each] = [f"relay:{root}" if is_relay else "device-offline"]
    found: dict[str, list[str]] = {}
    for alarm in log.alarms(state="open"):
        name = alarm.key.split("/")[2] if alarm.rule == "relay-lost" else alarm.rule
        for each in log.members(alarm.id):
            found.setdefault(each, []).append(name)
    assert found == expected
