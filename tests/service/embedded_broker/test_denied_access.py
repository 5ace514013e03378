"""Denied accesses of MQTT clients are recorded in the audit log, without flooding it."""

from __future__ import annotations

import pytest

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Connack, Publish, Suback, Subscribe, Will
from meshfleet.rest.accounts import Role
from meshfleet.service.embedded_broker.denied_access import DeniedAccessLog, insert_denied_access
from tests.service.embedded_broker.mqtt_accounts import MqttAccounts, database_outage
from tests.service.embedded_broker.running_broker import RunningBroker, until

pytestmark = pytest.mark.anyio

ADDRESS = "192.0.2.1"
GATEWAY = Account(kind=AccountKind.GATEWAY, name="02005e000001")
PERSON = Account(kind=AccountKind.USER, name="ada", role=Role.VIEWER)
PROGRAM = Account(kind=AccountKind.API_KEY, name="billing", role=Role.OPERATOR)


def write_and_list(
    accounts: MqttAccounts, denied_access: DeniedAccessLog
) -> list[tuple[str, str, str, dict[str, object]]]:
    """Write new denied accesses and return all rows of the audit log."""
    accounts.database.write_now(insert_denied_access, denied_access.drain())
    return [(row.actor, row.action, row.target, row.detail) for row in accounts.denied_access_rows()]


def test_a_row_has_actor_action_topic_and_address(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    for account, action in ((GATEWAY, "publish"), (PERSON, "subscribe"), (PROGRAM, "will")):
        denied_access.add(account, ADDRESS, action, f"topic of {account.name}")
    assert write_and_list(accounts, denied_access) == [
        ("gateway: 02005e000001", "mqtt.forbidden-publish", "topic of 02005e000001", {}),
        ("ada", "mqtt.forbidden-subscribe", "topic of ada", {}),
        ("api-key: billing", "mqtt.forbidden-will", "topic of billing", {}),
    ]
    assert {row.address for row in accounts.denied_access_rows()} == {ADDRESS}


def test_repetitions_within_a_minute_are_one_row_and_counted_in_the_next(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    for number in range(500):
        denied_access.add(PERSON, ADDRESS, "publish", f"topic {number}")
    accounts.clock.move(seconds=59)
    denied_access.add(PERSON, ADDRESS, "publish", "topic 500")
    assert len(write_and_list(accounts, denied_access)) == 1
    accounts.clock.move(seconds=2)
    denied_access.add(PERSON, ADDRESS, "publish", "topic 501")
    accounts.clock.move(seconds=61)
    denied_access.add(PERSON, ADDRESS, "publish", "topic 502")
    assert [(topic, detail) for _, _, topic, detail in write_and_list(accounts, denied_access)] == [
        ("topic 0", {}),
        ("topic 501", {"before": 500}),
        ("topic 502", {}),
    ]


def test_each_account_and_action_has_separate_rows(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    namesake = Account(kind=AccountKind.API_KEY, name=PERSON.name, role=Role.VIEWER)
    for _ in range(3):
        for account in (PERSON, PROGRAM, GATEWAY, namesake):
            for action in ("publish", "subscribe"):
                denied_access.add(account, ADDRESS, action, "topic")
    assert len(write_and_list(accounts, denied_access)) == 8


def test_another_address_or_password_adds_no_row(accounts: MqttAccounts) -> None:
    """Otherwise a client that reconnects repeatedly would fill the log."""
    denied_access = DeniedAccessLog(accounts.clock)
    for number in range(50):
        reconnected = Account(
            kind=AccountKind.USER, name=PERSON.name, role=Role.ADMIN, credential_digest=b"%d" % number
        )
        denied_access.add(reconnected, f"192.0.2.{number}", "publish", "topic")
    assert len(write_and_list(accounts, denied_access)) == 1


def test_a_long_topic_is_truncated(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    denied_access.add(PERSON, ADDRESS, "publish", "\N{THERMOMETER}" * 65_000)
    ((_, _, topic, _),) = write_and_list(accounts, denied_access)
    assert topic == "\N{THERMOMETER}" * 200


def test_a_clock_set_back_suppresses_nothing(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    denied_access.add(PERSON, ADDRESS, "publish", "first")
    accounts.clock.move(seconds=-3600)
    denied_access.add(PERSON, ADDRESS, "publish", "second")
    # The log is ordered by time.
    assert sorted(topic for _, _, topic, _ in write_and_list(accounts, denied_access)) == ["first", "second"]


def test_more_accounts_than_the_limit_are_all_recorded(accounts: MqttAccounts) -> None:
    denied_access = DeniedAccessLog(accounts.clock)
    count = 0
    for number in range(10_001):
        denied_access.add(Account(kind=AccountKind.USER, name=f"p{number}"), ADDRESS, "publish", "topic")
        count += len(denied_access.drain())
    assert count == 10_001


async def test_denied_accesses_at_the_broker_are_in_the_audit_log(accounts: MqttAccounts) -> None:
    gateway, viewer = accounts.gateway(), accounts.person(Role.VIEWER)
    async with RunningBroker(accounts) as running:
        for number in range(3):
            client = await running.connect(gateway)
            client.send(Publish(f"mt/gateways/request/02005e0000aa/read/{number}", b""))
            assert await client.receive_until_closed() == []
            other = await running.connect(viewer)
            other.send(Subscribe(1, (("#", 1), ("mt/gateway/+/request/#", 1))))
            assert await other.expect(Suback) == Suback(1, (128, 128))
            _, connack = await running.client(viewer, will=Will("mt/x", b""))
            assert connack == Connack(code=connack.code)
            assert connack.code == 5
        await until(lambda: len(accounts.denied_access_rows()) == 3)
    assert [(row.actor, row.action, row.target, row.address) for row in accounts.denied_access_rows()] == [
        (
            f"gateway: {gateway.user}",
            "mqtt.forbidden-publish",
            "mt/gateways/request/02005e0000aa/read/0",
            "127.0.0.1",
        ),
        (viewer.user, "mqtt.forbidden-subscribe", "#", "127.0.0.1"),
        (viewer.user, "mqtt.forbidden-will", "mt/x", "127.0.0.1"),
    ]


async def test_denied_accesses_during_a_database_outage_are_recorded_later(
    accounts: MqttAccounts, caplog: pytest.LogCaptureFixture
) -> None:
    users = [accounts.person(Role.VIEWER) for _ in range(3)]
    async with RunningBroker(accounts) as running:
        clients = [await running.connect(each) for each in users]
        with database_outage(accounts.database):
            for client in clients:
                client.send(Publish("mt/x", b""))
                assert await client.receive_until_closed() == []
                await until(lambda: "cannot check for revoked accounts" in caplog.text)
        assert caplog.text.count("cannot check") == 1  # logged once
        await until(lambda: len(accounts.denied_access_rows()) == 3)
    assert [row.actor for row in accounts.denied_access_rows()] == [each.user for each in users]


async def test_pending_denied_accesses_are_recorded_at_shutdown(accounts: MqttAccounts) -> None:
    viewer = accounts.person(Role.VIEWER)
    async with RunningBroker(accounts) as running:
        client = await running.connect(viewer)
        client.send(Publish("mt/x", b""))
        assert await client.receive_until_closed() == []
    assert [row.actor for row in accounts.denied_access_rows()] == [viewer.user]
