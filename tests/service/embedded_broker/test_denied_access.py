"""What MQTT clients wanted and may not have: it is in the audit log, and does not flood it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Connack, Publish, Suback, Subscribe, Will
from meshfleet.rest import Role
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog, insert_denied_access
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.embedded_broker.running_broker import RunningBroker, until

if TYPE_CHECKING:
    from tests.service.embedded_broker.mqtt_accounts import MqttAccounts

pytestmark = pytest.mark.anyio

HERE = "192.0.2.1"
GATEWAY = Account(kind=AccountKind.GATEWAY, name="02005e000001")
PERSON = Account(kind=AccountKind.USER, name="ada", role=Role.VIEWER)
PROGRAM = Account(kind=AccountKind.API_KEY, name="billing", role=Role.OPERATOR)


def written(
    house: MqttAccounts, complaints: DeniedAccessLog
) -> list[tuple[str, str, str, dict[str, object]]]:
    """Write down what is new, and tell all that is in the audit log."""
    house.database.write_now(insert_denied_access, complaints.drain())
    return [(row.actor, row.action, row.target, row.detail) for row in house.denied_access_rows()]


def test_a_row_tells_who_from_where_wanted_what(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    for account, deed in ((GATEWAY, "publish"), (PERSON, "subscribe"), (PROGRAM, "will")):
        complaints.add(account, HERE, deed, f"topic of {account.name}")
    assert written(house, complaints) == [
        ("gateway: 02005e000001", "mqtt.forbidden-publish", "topic of 02005e000001", {}),
        ("ada", "mqtt.forbidden-subscribe", "topic of ada", {}),
        ("api-key: billing", "mqtt.forbidden-will", "topic of billing", {}),
    ]
    assert {row.address for row in house.denied_access_rows()} == {HERE}


def test_a_minute_of_the_same_is_one_row_and_the_next_row_tells_how_often(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    for number in range(500):
        complaints.add(PERSON, HERE, "publish", f"topic {number}")
    house.clock.move(seconds=59)
    complaints.add(PERSON, HERE, "publish", "topic 500")
    assert len(written(house, complaints)) == 1
    house.clock.move(seconds=2)
    complaints.add(PERSON, HERE, "publish", "topic 501")
    house.clock.move(seconds=61)
    complaints.add(PERSON, HERE, "publish", "topic 502")
    assert [(topic, detail) for _, _, topic, detail in written(house, complaints)] == [
        ("topic 0", {}),
        ("topic 501", {"before": 500}),
        ("topic 502", {}),
    ]


def test_each_account_and_each_deed_has_rows_of_its_own(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    namesake = Account(kind=AccountKind.API_KEY, name=PERSON.name, role=Role.VIEWER)
    for _ in range(3):
        for account in (PERSON, PROGRAM, GATEWAY, namesake):
            for deed in ("publish", "subscribe"):
                complaints.add(account, HERE, deed, "topic")
    assert len(written(house, complaints)) == 8


def test_another_address_or_password_makes_no_other_deed(house: MqttAccounts) -> None:
    """Else who reconnects again and again would fill the log."""
    complaints = DeniedAccessLog(house.clock)
    for number in range(50):
        again = Account(
            kind=AccountKind.USER, name=PERSON.name, role=Role.ADMIN, credential_digest=b"%d" % number
        )
        complaints.add(again, f"192.0.2.{number}", "publish", "topic")
    assert len(written(house, complaints)) == 1


def test_a_long_topic_is_cut(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    complaints.add(PERSON, HERE, "publish", "\N{THERMOMETER}" * 65_000)
    ((_, _, topic, _),) = written(house, complaints)
    assert topic == "\N{THERMOMETER}" * 200


def test_a_clock_that_goes_back_silences_nobody(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    complaints.add(PERSON, HERE, "publish", "first")
    house.clock.move(seconds=-3600)
    complaints.add(PERSON, HERE, "publish", "second")
    # The log goes by its times.
    assert sorted(topic for _, _, topic, _ in written(house, complaints)) == ["first", "second"]


def test_more_accounts_than_are_remembered_are_all_written_down(house: MqttAccounts) -> None:
    complaints = DeniedAccessLog(house.clock)
    taken = 0
    for number in range(10_001):
        complaints.add(Account(kind=AccountKind.USER, name=f"p{number}"), HERE, "publish", "topic")
        taken += len(complaints.drain())
    assert taken == 10_001


async def test_what_clients_try_on_a_broker_is_in_the_audit_log(house: MqttAccounts) -> None:
    gateway, viewer = house.gateway(), house.person(Role.VIEWER)
    async with RunningBroker(house) as site:
        for number in range(3):
            client = await site.connect(gateway)
            client.send(Publish(f"mt/gateways/request/02005e0000aa/read/{number}", b""))
            assert await client.receive_until_closed() == []
            other = await site.connect(viewer)
            other.send(Subscribe(1, (("#", 1), ("mt/gateway/+/request/#", 1))))
            assert await other.expect(Suback) == Suback(1, (128, 128))
            _, answer = await site.client(viewer, will=Will("mt/x", b""))
            assert answer == Connack(code=answer.code)
            assert answer.code == 5
        await until(lambda: len(house.denied_access_rows()) == 3)
    assert [(row.actor, row.action, row.target, row.address) for row in house.denied_access_rows()] == [
        (
            f"gateway: {gateway.user}",
            "mqtt.forbidden-publish",
            "mt/gateways/request/02005e0000aa/read/0",
            "127.0.0.1",
        ),
        (viewer.user, "mqtt.forbidden-subscribe", "#", "127.0.0.1"),
        (viewer.user, "mqtt.forbidden-will", "mt/x", "127.0.0.1"),
    ]


async def test_nothing_is_lost_while_the_database_is_away(
    house: MqttAccounts, caplog: pytest.LogCaptureFixture
) -> None:
    people = [house.person(Role.VIEWER) for _ in range(3)]
    async with RunningBroker(house) as site:
        clients = [await site.connect(each) for each in people]
        with database_outage(house.database):
            for client in clients:
                client.send(Publish("mt/x", b""))
                assert await client.receive_until_closed() == []
                await until(lambda: "cannot check for revoked accounts" in caplog.text)
        assert caplog.text.count("cannot check") == 1  # it is said once
        await until(lambda: len(house.denied_access_rows()) == 3)
    assert [row.actor for row in house.denied_access_rows()] == [each.user for each in people]


async def test_a_service_that_stops_writes_down_what_it_knows(house: MqttAccounts) -> None:
    viewer = house.person(Role.VIEWER)
    async with RunningBroker(house) as site:
        client = await site.connect(viewer)
        client.send(Publish("mt/x", b""))
        assert await client.receive_until_closed() == []
    assert [row.actor for row in house.denied_access_rows()] == [viewer.user]
