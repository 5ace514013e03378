"""What outlives a connection: subscriptions, and messages that were not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish, Pubrec, Subscribe
from meshfleet.rest import Role
from tests.mqtt.broker.messages import expect_messages, load_stored, publish
from tests.mqtt.broker.running_broker import REPORTS, D, G, connect, report, request

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

AGE = 300
"""Seconds; short, as only small steps of a clock count."""


class CountingAccess(TopicPermissions):
    """The access of the viewer. Remembers every filter and topic it was asked about."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER), prefix)
        self.asked: list[str] = []

    def may_read(self, wanted: str) -> bool:
        self.asked.append(wanted)
        return super().may_read(wanted)


async def leave(client: RawClient) -> None:
    """Take leave, and wait until the broker knows."""
    client.send(Disconnect())
    assert await client.receive_until_closed() == []


async def come_back(
    stage: RunningBroker, user: str = "viewer", *, present: bool = True, **options: object
) -> RawClient:
    """Connect, and hear whether there was a session."""
    client = await stage.raw_client()
    client.send(connect(user, **{"clean": False, **options}))
    assert await client.expect(Connack) == Connack(session_present=present)
    return client


async def test_what_was_not_acknowledged_comes_again_with_its_packet_id(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await publish(await stage.gateway(), b"1", b"2", b"3")
    first = [await viewer.expect(Publish) for _ in range(3)]
    assert [message.dup for message in first] == [False] * 3
    viewer.send(Puback(first[1].packet_id))
    await viewer.receive_until_pong()
    viewer.abort()
    for _ in range(2):
        viewer = await come_back(stage)
        again = [await viewer.expect(Publish) for _ in range(2)]
        assert [message.payload for message in again] == [b"1", b"3"]
        assert [message.packet_id for message in again] == [first[0].packet_id, first[2].packet_id]
        assert [message.dup for message in again] == [True] * 2
        assert await viewer.receive_until_pong() == []
        viewer.abort()


async def test_an_id_of_a_message_that_waits_is_given_to_no_other(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, b"1", b"2")
    old = {(await viewer.expect(Publish)).packet_id for _ in range(2)}
    await stage.restart()
    await publish(await stage.gateway(), b"3", b"4")
    viewer = await come_back(stage)
    ids = [(await viewer.expect(Publish)).packet_id for _ in range(4)]
    assert set(ids[:2]) == old
    assert len(set(ids)) == 4


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_session_is_resumed_with_its_subscriptions_and_messages(
    stage: RunningBroker, *, restarts: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await leave(viewer)
    await publish(await stage.gateway(), b"while away")
    if restarts:
        await stage.restart()
    viewer = await come_back(stage)
    assert (await viewer.expect(Publish)).payload == b"while away"
    await publish(await stage.gateway(), b"while here")
    assert (await viewer.expect(Publish)).payload == b"while here"


async def test_an_acknowledgement_outlives_a_restart(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await publish(await stage.gateway(), b"1", b"2")
    one, two = [await viewer.expect(Publish) for _ in range(2)]
    viewer.send(Puback(one.packet_id))
    await viewer.receive_until_pong()
    await stage.restart()
    viewer = await come_back(stage)
    assert await viewer.receive_until_pong() == [
        Publish(report(), b"2", 1, dup=True, packet_id=two.packet_id)
    ]


async def test_messages_for_an_absent_client_wait_for_it(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await leave(viewer)
    gateway = await stage.gateway()
    await publish(gateway, b"at 1")
    gateway.send(Publish(report(), b"at 2", 2, packet_id=2), Publish(report(), b"at 0"))
    assert await gateway.expect(Pubrec) == Pubrec(2)
    viewer = await come_back(stage)
    come = await viewer.receive_until_pong()
    assert [(each.payload, each.dup) for each in come if isinstance(each, Publish)] == [
        (b"at 1", False),
        (b"at 2", False),
    ]
    assert len(come) == 2


async def test_a_clean_session_leaves_nothing_behind(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await leave(viewer)
    await publish(gateway, b"1")
    clean = await come_back(stage, present=False, clean=True)
    await expect_messages(clean)
    await publish(gateway, b"2")
    await expect_messages(clean)
    clean.send(Subscribe(1, ((REPORTS, 1),)))
    await clean.receive()
    await leave(clean)
    await publish(gateway, b"3")
    viewer = await come_back(stage, present=False)
    await publish(gateway, b"4")
    await expect_messages(viewer)


async def test_a_clean_session_leaves_nothing_in_the_database(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway(clean=False)
    await leave(viewer)
    gateway.send(Publish(report(), b"{}", 2, packet_id=5))
    await gateway.expect(Pubrec)
    before = await load_stored(stage)
    assert len(before.sessions) == 2
    assert before.subscriptions
    assert before.messages
    assert before.unreleased_ids
    await come_back(stage, present=False, clean=True)
    await come_back(stage, G, present=False, clean=True)
    after = await load_stored(stage)
    assert after[:4] == ({}, [], [], [])


async def test_two_client_ids_have_two_sessions(stage: RunningBroker) -> None:
    one = await stage.subscriber("viewer", report(), client_id="one", clean=False)
    two = await stage.subscriber("viewer", report(kind="heartbeat"), client_id="two", clean=False)
    assert await one.receive_until_pong() == await two.receive_until_pong() == []
    await leave(one)
    await leave(two)
    await publish(await stage.gateway(), b"for one")
    await expect_messages(await come_back(stage, client_id="two"))
    await expect_messages(await come_back(stage, client_id="one"), b"for one")


async def test_two_accounts_with_one_client_id_are_two_clients(stage: RunningBroker) -> None:
    one = await stage.subscriber("viewer-1", report(), client_id="same", clean=False)
    two = await stage.client("viewer-2", client_id="same", clean=False)
    assert await one.receive_until_pong() == await two.receive_until_pong() == []
    await leave(one)
    await leave(two)
    await publish(await stage.gateway(), b"for one")
    await come_back(stage, "viewer-3", client_id="same", present=False)
    await expect_messages(await come_back(stage, "viewer-2", client_id="same"))
    await expect_messages(await come_back(stage, "viewer-1", client_id="same"), b"for one")


async def test_client_ids_are_compared_as_they_are_spelt(stage: RunningBroker) -> None:
    for client_id in ("a", "A", "a ", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "a\N{COMBINING DIAERESIS}"):
        await leave(await come_back(stage, client_id=client_id, present=False))
    await stage.restart()
    assert len(stage.broker.sessions) == 5


async def test_session_present_tells_whether_there_was_a_session(stage: RunningBroker) -> None:
    told = [(True, False), (True, False), (False, False), (False, True), (True, False), (False, False)]
    for clean, present in told:
        await leave(await come_back(stage, clean=clean, present=present))
    await stage.restart()
    await leave(await come_back(stage))


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_the_session_of_a_connected_client_is_not_forgotten(stage: RunningBroker) -> None:
    connected = await stage.subscriber("viewer", REPORTS, client_id="here", clean=False)
    await leave(await stage.client("viewer", client_id="away", clean=False))
    stage.broker.sessions.delete_expired(stage.clock())
    assert len(stage.broker.sessions) == 2
    stage.clock.move(seconds=AGE + 60)
    stage.broker.sessions.delete_expired(stage.clock())
    assert [session.client_id for session in stage.broker.sessions] == ["here"]
    await publish(await stage.gateway(), b"still served")
    await expect_messages(connected, b"still served")
    await come_back(stage, client_id="away", present=False)
    await leave(connected)
    stage.broker.sessions.delete_expired(stage.clock())
    await come_back(stage, client_id="here")


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_the_age_of_a_session_is_counted_over_restarts(stage: RunningBroker) -> None:
    await leave(await stage.client("viewer", client_id="away", clean=False))
    staying = await stage.client("viewer", client_id="staying", clean=False)
    assert await staying.receive_until_pong() == []
    stage.clock.move(seconds=AGE / 2)
    await stage.restart()
    stage.clock.move(seconds=AGE / 2 + 60)
    stage.broker.sessions.delete_expired(stage.clock())
    assert [session.client_id for session in stage.broker.sessions] == ["staying"]


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
@pytest.mark.parametrize("seconds", [10 * AGE, -10 * AGE])
async def test_the_age_of_a_session_does_not_depend_on_the_steady_clock_of_a_process(
    stage: RunningBroker, seconds: int
) -> None:
    await leave(await stage.client("viewer", clean=False))
    await stage.stop()
    stage.clock.start_again(seconds=seconds)
    await stage.start()
    stage.broker.sessions.delete_expired(stage.clock.steady())
    assert len(stage.broker.sessions) == 1
    stage.clock.move(seconds=AGE + 60)
    stage.broker.sessions.delete_expired(stage.clock.steady())
    assert len(stage.broker.sessions) == 0


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_a_clock_that_is_set_while_a_client_is_away_does_not_end_its_session(
    stage: RunningBroker,
) -> None:
    await leave(await stage.client("viewer", clean=False))
    stage.clock.set(seconds=10 * AGE)  # as when a machine gets the time only after its start
    stage.broker.sessions.delete_expired(stage.clock.steady())
    await stage.restart()
    stage.broker.sessions.delete_expired(stage.clock.steady())
    assert len(stage.broker.sessions) == 1


@pytest.mark.parametrize("days", [1000, -1000])
async def test_a_clock_that_is_set_makes_nobody_absent(stage: RunningBroker, days: int) -> None:
    await leave(await stage.subscriber("viewer", REPORTS, clean=False))
    stage.clock.move(seconds=days * 86_400)
    for _ in range(2):
        stage.broker.sessions.delete_expired(stage.clock())
        assert len(stage.broker.sessions) == 1
    stage.clock.move(seconds=AGE)
    stage.broker.sessions.delete_expired(stage.clock())
    await come_back(stage)


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
@pytest.mark.parametrize("sweep_seconds", [0.001])
async def test_a_broker_forgets_sessions_by_itself(stage: RunningBroker) -> None:
    await leave(await stage.client("viewer", clean=False))
    assert len(stage.broker.sessions) == 1
    stage.clock.move(seconds=AGE + 60)
    await stage.until(lambda: len(stage.broker.sessions) == 0)


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_a_forgotten_session_is_gone_from_the_database(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await leave(viewer)
    await publish(await stage.gateway(), b"1")
    stage.clock.move(seconds=AGE + 60)
    stage.broker.sessions.delete_expired(stage.clock())
    await publish(await stage.gateway(), b"2")
    await stage.restart()
    saved = await load_stored(stage)
    assert saved[:3] == ({}, [], [])


async def test_many_sessions_outlive_a_restart_each_with_its_own(stage: RunningBroker) -> None:
    macs = [f"02005e00{number:04x}" for number in range(40)]
    for mac in macs:
        gateway = await stage.client(mac, clean=False)
        gateway.send(Subscribe(1, ((f"mt/gateway/{mac}/#", 1),)))
        await gateway.receive()
        await leave(gateway)
        for number in range(3):
            await stage.broker.publish(request(mac, D), b'{"n":%d}' % number)
    await stage.restart()
    assert len(stage.broker.sessions) == len(macs)
    for mac in macs:
        gateway = await come_back(stage, mac)
        come = await gateway.receive_until_pong()
        assert [(each.topic, each.payload) for each in come if isinstance(each, Publish)] == [
            (request(mac, D), b'{"n":%d}' % number) for number in range(3)
        ]


async def test_restarts_change_nothing_for_who_stays_away(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    await leave(viewer)
    await publish(await stage.gateway(), b"1", b"2")
    before = await load_stored(stage)
    for _ in range(3):
        await stage.restart()
    after = await load_stored(stage)
    assert (after.sessions, after.subscriptions) == (before.sessions, before.subscriptions)
    await expect_messages(await come_back(stage), b"1", b"2")


async def test_access_to_what_waits_is_checked_once_per_topic_and_only_if_it_may_have_changed(
    stage: RunningBroker,
) -> None:
    await leave(await stage.subscriber("viewer", REPORTS, clean=False))
    topics = [report(), report(kind="heartbeat")]
    for topic in topics:
        await publish(await stage.gateway(), *[b"{}"] * 10, topic=topic)

    def check(access: CountingAccess) -> tuple[list[str], int]:
        opened = stage.broker.sessions.open("user viewer", "viewer", access, clean=False)
        return access.asked, len(opened.session)

    assert check(CountingAccess()) == ([], 20)
    await stage.restart()
    assert check(CountingAccess()) == ([REPORTS, *topics], 20)
    assert check(CountingAccess()) == ([], 20)
    assert check(CountingAccess("another/prefix")) == ([REPORTS, *topics], 0)
