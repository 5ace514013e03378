"""Rules of users, from samples to alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete

from meshfleet.db.tables import device as device_table
from tests.service.alarms.rule_harness import RuleHarness
from tests.service.ingest.ingest_harness import MINUTE
from tests.service.ingest.messages import D, E, mac_to_number, prop, temperature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def harness(database: Database, tmp_path: Path) -> Iterator[RuleHarness]:
    found = RuleHarness(database, tmp_path)
    yield found
    found.close()


@pytest.mark.both_databases
@pytest.mark.rule("rest-285", "rest-287")
async def test_a_value_beyond_its_threshold_opens_an_alarm_and_ends_it(harness: RuleHarness) -> None:
    await harness.report(-20)
    await harness.add_rule()
    await harness.report(-20, -14, -13, -12)
    assert harness.sentences() == []
    await harness.report(-11.2)
    (sentence,) = harness.sentences()
    assert sentence == "Device 00a1 is at -11.2 °C, above -15 °C since 12:15 UTC on 15 November."
    (alarm,) = harness.alarms()
    assert (alarm.rule, alarm.cause, alarm.severity, alarm.affected) == ("measurement", "above", 3, 1)
    assert alarm.key == f"measurement/above/rule-1:{D}"
    assert harness.members(alarm.id) == [D]
    await harness.report(-18)
    assert harness.sentences()[0].endswith("It has been well for 0 s and is watched.")
    await harness.report(-18)
    assert harness.sentences() == []
    assert harness.sentences("cleared") == [
        "Device 00a1 is well again after 25 min (Freezers too warm: temperature is above -15 °C)."
    ]
    assert harness.told() == [("measurement", "opened"), ("measurement", "cleared")]


@pytest.mark.rule("rest-287")
async def test_a_value_that_toggles_opens_no_alarm(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(*[-14, -16] * 12)
    assert harness.alarms() == []
    assert not harness.conditions()


@pytest.mark.rule("rest-287")
async def test_noise_within_the_hysteresis_is_one_alarm(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(*[-14] * 4, *[-16, -14, -16.9] * 8)
    assert harness.told() == [("measurement", "opened")]
    assert "recovering" not in [each["kind"] for each in harness.details("recovering")]
    await harness.report(-18, -18)
    assert harness.told() == [("measurement", "opened"), ("measurement", "cleared")]


async def test_an_alarm_that_returns_is_watched_for_longer(harness: RuleHarness) -> None:
    await harness.add_rule(forSeconds=0, clearSeconds=0)
    await harness.report(-10, -20, -10, *[-20] * 5)
    assert harness.told() == [("measurement", kind) for kind in ("opened", "cleared", "reopened")]
    await harness.report(-20, -20)
    assert harness.told()[-1] == ("measurement", "cleared")


async def test_a_restart_in_the_middle_changes_nothing(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(-14, -14)
    await harness.restart()
    await harness.report(-14)
    await harness.restart()
    await harness.report(-14)
    assert harness.sentences()[0].endswith("since 12:05 UTC on 15 November.")
    await harness.restart()
    assert len(harness.sentences()) == 1
    await harness.report(-14, -18)
    await harness.restart()
    await harness.report(-18, -18)
    assert harness.told() == [("measurement", "opened"), ("measurement", "cleared")]


@pytest.mark.rule("rest-287")
async def test_samples_that_arrive_late_open_and_clear_nothing(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(-20, every=60)
    old = harness.now - 50 * MINUTE
    late = [temperature(old + number * 5 * MINUTE, -5, seq=number) for number in range(9)]
    await harness.send(*late[:5])
    await harness.send(*late[5:])
    assert not harness.conditions()
    await harness.report(*[-14] * 4)
    assert len(harness.sentences()) == 1
    good = [temperature(old + number * 5 * MINUTE + 1, -30, seq=50 + number) for number in range(9)]
    await harness.send(*good)
    await harness.restart()
    await harness.send(*(temperature(old + number, -30, seq=200 + number) for number in range(3)))
    assert harness.told() == [("measurement", "opened")]
    assert "watched" not in harness.sentences()[0]


@pytest.mark.rule("rest-287")
async def test_nothing_opens_or_clears_while_a_device_is_silent(harness: RuleHarness) -> None:
    await harness.add_rule()
    await harness.report(-14)
    harness.connect(D)
    harness.connect(D, connected=False)
    await harness.send(minutes=300)
    assert harness.alarms() == []
    harness.connect(D)
    await harness.report(-14, -14, -14)
    assert harness.alarms() == [], "the time before it was silent does not count"
    await harness.report(-14)
    assert len(harness.sentences()) == 1
    await harness.report(-20)
    harness.connect(D, connected=False)
    await harness.send(minutes=300)
    assert len(harness.sentences()) == 1
    harness.connect(D)
    await harness.report(-20)
    assert len(harness.sentences()) == 1, "it must be good for some time after its return"
    await harness.report(-20)
    assert harness.sentences() == []


@pytest.mark.rule("rest-287")
async def test_a_rule_that_is_changed_disabled_or_deleted_ends_its_alarms(harness: RuleHarness) -> None:
    rule = (await harness.add_rule()).id
    await harness.report(-14)
    await harness.change_rule(rule, forSeconds=1800)
    await harness.report(-14, -14, -14, -14)
    assert harness.alarms() == [], "the time of the earlier version does not count"
    await harness.report(*[-14] * 4)
    assert len(harness.sentences()) == 1
    await harness.change_rule(rule, forSeconds=1800, name="Other")
    await harness.send()
    assert harness.sentences("cleared")[0].startswith("The rule of this alarm was changed.")
    await harness.report(*[-14] * 8)
    assert len(harness.sentences()) == 1
    await harness.change_rule(rule, enabled=False)
    await harness.send()
    await harness.report(*[-14] * 8)
    assert (harness.sentences(), harness.end_reasons()[-1]) == ([], "rule-disabled")
    await harness.change_rule(rule, forSeconds=0)
    await harness.report(-14)
    harness.delete_rule(rule)
    await harness.send()
    assert (harness.sentences(), harness.end_reasons()[-1]) == ([], "rule-deleted")
    assert not harness.conditions()


@pytest.mark.rule("rest-285")
async def test_a_rule_is_only_for_its_labels_and_models(harness: RuleHarness) -> None:
    await harness.report(-20)
    await harness.report(-20, device=E)
    harness.attach("Freezer", D, E)
    harness.attach("parked", E)
    await harness.add_rule(forSeconds=0, scope={"labels": ["Freezer"], "exceptLabels": ["parked"]})
    await harness.add_rule(forSeconds=0, name="Model", scope={"models": ["0018"]})
    await harness.report(-10, device=E)
    assert harness.alarms() == []
    await harness.report(-10)
    assert len(harness.sentences()) == 1
    harness.detach("Freezer", D)
    await harness.send()
    await harness.report(-10)
    assert (harness.sentences(), harness.end_reasons()) == ([], ["out-of-scope"])
    harness.detach("parked", E)
    await harness.send()
    await harness.report(-10, device=E)
    assert len(harness.sentences()) == 1
    await harness.send(prop("8000", harness.now, "0018"), minutes=1)
    await harness.send(minutes=6)
    await harness.report(-10)
    assert len(harness.sentences()) == 2


async def test_a_deleted_device_leaves_its_alarm(harness: RuleHarness) -> None:
    await harness.add_rule(forSeconds=0)
    await harness.report(-10)
    remove = delete(device_table).where(device_table.c.id == mac_to_number(D))
    harness.database.write_now(lambda connection: connection.execute(remove))
    await harness.report(-20, device=E, every=10)
    assert (harness.sentences(), harness.end_reasons()) == ([], ["deleted"])
    await harness.report(-10, -10)
    assert len(harness.sentences()) == 1


async def test_values_that_are_no_numbers_are_ignored(harness: RuleHarness) -> None:
    await harness.add_rule(forSeconds=0, clearSeconds=0)
    values: list[Any] = ["warm", True, None, {"value": 5}, [5], 10**40]
    await harness.report(*values)
    assert harness.alarms() == []
    await harness.report(-10, *values)
    assert len(harness.sentences()) == 1


async def test_devices_with_one_alarm_in_common(harness: RuleHarness) -> None:
    await harness.add_rule(groupBy="rule", forSeconds=0, clearSeconds=0)
    await harness.report(-10)
    await harness.report(-5, device=E)
    assert harness.sentences() == [
        "2 devices: temperature is above -15 °C; the worst, Device 00b1, is at -5 °C."
    ]
    (alarm,) = harness.alarms()
    assert (alarm.key, alarm.members) == ("measurement/above/rule-1", 2)
    await harness.report(-20, device=E)
    assert harness.sentences()[0].startswith("Device 00a1 is at -10 °C")
    await harness.report(-20)
    assert harness.sentences("cleared")[0].startswith("2 devices are well again after")


@pytest.mark.rule("rest-285")
async def test_other_comparisons(harness: RuleHarness) -> None:
    async def add(operator: str, value: Any, **more: Any) -> None:
        when = {"identifier": "temperature", "operator": operator, "value": value, **more}
        await harness.add_rule(name=operator, when=when, forSeconds=0, clearSeconds=0)

    await add("below", 0)
    await add("outside", 0, upper=30)
    await add("equals", 21)
    await add("changes-to", 25)
    await harness.report(25)
    assert harness.sentences() == [], "nothing has changed to 25"
    opened = []
    for value in (21, 25, 31, -1):
        before = len(harness.told())
        await harness.report(value, device=D)
        opened.append(sorted(each.cause for each in harness.alarms(state="open")))
        assert len(harness.told()) > before
    assert opened == [["equals"], ["changes-to"], ["outside"], ["below", "outside"]]


@pytest.mark.rule("rest-285")
async def test_missing_values_of_a_connected_device(harness: RuleHarness) -> None:
    await harness.report(-20)
    await harness.report(-20, device=E)
    harness.attach("Freezer", D, E)
    harness.connect(D, E)
    silent = {"identifier": "temperature", "operator": "silent-for", "value": 3600}
    await harness.add_rule(when=silent, scope={"labels": ["Freezer"]}, forSeconds=0, clearSeconds=0)
    await harness.report(*[-20] * 14)
    assert harness.sentences() == ["Device 00b1 has not reported temperature since 13:10 UTC on 15 November."]
    harness.connect(D, connected=False)
    await harness.send(minutes=120)
    assert len(harness.sentences()) == 1, "nothing is known of a device that is offline"
    await harness.restart()
    await harness.send(minutes=1)
    assert len(harness.sentences()) == 1
    await harness.report(-20, device=E)
    await harness.send(minutes=1)
    assert harness.sentences() == []


@pytest.mark.both_databases
@pytest.mark.rule("rest-285")
async def test_a_share_of_a_label_that_is_offline(harness: RuleHarness) -> None:
    devices = [f"ca00000000{number:02x}" for number in range(20)]
    await harness.send(*(temperature(harness.now, device=each) for each in devices))
    harness.attach("Cold room", *devices)
    harness.connect(*devices)
    await harness.add_rule(
        kind="label-offline",
        when=None,
        label="Cold room",
        sharePercent=30,
        severity="warning",
        forSeconds=300,
    )
    harness.connect(*devices[:6], connected=False)
    await harness.send(minutes=1)
    await harness.send(minutes=4)
    assert harness.sentences() == []
    await harness.send(minutes=1)
    assert harness.sentences() == ["30 % of Cold room is offline (6 of 20)."]
    harness.connect(devices[0])
    await harness.send(minutes=10)
    assert len(harness.sentences()) == 1
    harness.connect(devices[1])
    await harness.send(minutes=1)
    await harness.send(minutes=5)
    assert harness.sentences("cleared")[0].startswith("Enough of Cold room is online again after")


async def test_a_rule_that_matches_too_many_devices_says_so(
    harness: RuleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshfleet.service.alarms.user_rules.tracker.MAX_SINGLE", 3)
    await harness.add_rule(forSeconds=0)
    devices = [f"ca00000000{number:02x}" for number in range(6)]
    await harness.send(*(temperature(harness.now, device=each) for each in devices))
    await harness.send(*(temperature(harness.now, device=each, seq=2) for each in devices), minutes=1)
    assert sum(harness.conditions().values()) == 4
    assert "More than 3 devices match; the rule Freezers too warm is too wide." in harness.sentences()
