"""Alarms of reports: samples that are lost, reports that cannot be read, and gateways that never report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import insert

from meshfleet.db.tables import hole, reject, series
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms.watches import rejects, samples
from meshfleet.service.gateways import store as gateway_store
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import DAY, execute, list_alarms
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    import pytest
    from sqlalchemy import Connection

    from tests.service.alarms.presence_log import PresenceLog


def lose(log: PresenceLog, mac: str, gaps: int = 1, *, identifier: int = 1, unfilled: int = 1) -> None:
    """Store that gaps of a series of a device are given up now."""
    key = {"device": mac_to_number(mac), "kind": 1, "identifier": identifier}
    rows = [
        {**key, "since": number, "until": number + 1, "found_at": 0, "lost_at": log.now}
        for number in range(log.now - gaps, log.now)
    ]
    state = {**key, "time": log.now, "seq": 0, "unfilled": unfilled}
    execute(log, insert(hole).values(rows), insert(series).prefix_with("OR REPLACE").values(state))


def send_rejects(log: PresenceLog, mac: str, number: int, reason: str = "payload: is not JSON") -> None:
    """Store that reports of a gateway are rejected now."""
    row = {"gateway": mac_to_number(mac), "topic": "", "reason": reason, "payload": b"", "time": log.now}
    execute(log, insert(reject).values([row] * number))


def test_lost_samples_are_one_alarm_for_each_gateway_until_a_day_after_the_last(log: PresenceLog) -> None:
    _, devices = log.add_gateway(1, 3)
    lose(log, devices[0], 2)
    lose(log, devices[1], 3)
    lose(log, devices[2], 3, unfilled=3)  # it does not number its samples
    log.run(9 * MINUTE, step=MINUTE)
    assert list_alarms(log) == []
    log.run(2 * MINUTE, step=MINUTE)
    assert list_alarms(log) == [
        (
            "samples-lost",
            "warning",
            "5 gaps in the samples of 2 devices behind Gateway 1 could not be filled.",
        )
    ]
    log.run(23 * HOUR, step=HOUR)
    lose(log, devices[0], 2, unfilled=3)
    log.run(2 * HOUR, step=HOUR)
    ((_, _, sentence),) = list_alarms(log)
    assert sentence.startswith("2 gaps in the samples of ")
    log.run(DAY, step=HOUR)
    assert list_alarms(log) == []
    assert log.told() == [("samples-lost", "opened"), ("samples-lost", "cleared")]


def test_very_many_lost_samples_are_one_alarm_of_the_fleet(
    log: PresenceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_MAX_GAPS", 4)
    for number in range(1, 4):
        lose(log, log.add_gateway(number, 1)[1][0], 2)
    log.run(20 * MINUTE)
    assert [sentence for _, _, sentence in list_alarms(log)] == [
        "4 gaps or more in the samples of the fleet could not be filled within a day."
    ]


def test_lost_samples_are_found_by_their_index(log: PresenceLog) -> None:
    def explain(connection: Connection) -> str:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {samples.SELECT_LOST}", (log.now,))
        return "; ".join(row[3] for row in rows)

    assert "SEARCH hole USING COVERING INDEX ix_hole_lost_at" in log.database.read_now(explain)


def test_a_gateway_that_sends_unreadable_reports_is_an_alarm_with_the_reason(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    send_rejects(log, gateway, 10)
    send_rejects(log, "02005effffff", 50)  # not claimed
    log.run(MINUTE)
    assert list_alarms(log) == []
    send_rejects(log, gateway, 21)
    log.run(MINUTE)
    assert list_alarms(log) == [
        (
            "rejects-rising",
            "warning",
            "Gateway Gateway 1 sends unreadable reports: 31 in 10 min (payload: is not JSON).",
        )
    ]
    log.run(28 * MINUTE)
    assert len(list_alarms(log)) == 1
    log.run(4 * MINUTE)
    assert [sentence for _, _, sentence in list_alarms(log, "cleared")] == [
        "Gateway Gateway 1 has sent no unreadable reports for 30 min."
    ]


def test_a_reason_that_quotes_a_gateway_is_short_and_in_one_line(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    log.run(2 * MINUTE)
    send_rejects(log, gateway, 11, "topic: 'evil\n\x1b[31m\u202e' is not a report topic, " + 1000 * "x")
    log.run(MINUTE)
    (alarm,) = log.alarms()
    assert alarm.cause == "topic-is-not-a-report-topic-xxxxxxxxxxxx"
    ((_, _, sentence),) = list_alarms(log)
    assert (sentence.isprintable(), len(sentence)) == (True, 140), sentence


def test_rejects_that_fill_their_table_are_one_alarm(
    log: PresenceLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejects, "MAX_REJECTS", 50)
    for number in range(1, 5):
        send_rejects(log, log.add_gateway(number)[0], 12)
    log.run(2 * MINUTE)
    assert [sentence for _, _, sentence in list_alarms(log)] == [
        "4 gateways send very many unreadable reports."
    ]


def test_claimed_gateways_that_never_connect_are_one_alarm_after_a_day(log: PresenceLog) -> None:
    log.add_gateway(1)
    macs = [Mac(f"02005e00000{number}") for number in (7, 8)]
    for mac in macs:
        log.database.write_now(
            gateway_store.claim_gateway, mac, name=f"New {mac[-1]}", by=SERVICE, now=log.now
        )
        log.run(HOUR, step=HOUR)
    log.run(21 * HOUR, step=HOUR)
    assert list_alarms(log) == []
    log.run(90 * MINUTE, step=30 * MINUTE)
    assert list_alarms(log)[0][1:] == (
        "info",
        "Gateway New 7 was claimed more than a day ago, and has never connected.",
    )
    log.run(2 * HOUR, step=HOUR)
    assert list_alarms(log)[0][2] == "2 gateways were claimed more than a day ago, and have never connected."
    log.set_gateway(macs[0], connected=True)
    log.run(MINUTE)
    assert list_alarms(log)[0][2].startswith("Gateway New 8 was claimed")
    log.set_gateway(macs[1], connected=True)
    log.run(MINUTE)
    log.set_gateway(macs[1], connected=False)
    log.run(2 * MINUTE)
    assert list_alarms(log) == []
