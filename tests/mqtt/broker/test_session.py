"""Session state that outlives a connection: subscriptions, and unacknowledged messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish, Pubrec, Subscribe
from meshfleet.rest.accounts import Role
from tests.mqtt.broker.messages import expect_messages, load_stored, publish
from tests.mqtt.broker.running_broker import REPORTS, D, G, RunningBroker, connect, report, request

if TYPE_CHECKING:
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio

AGE = 300
"""Session age in seconds; short, because larger steps of the clock are ignored."""


class RecordingPermissions(TopicPermissions):
    """Permissions of a viewer that record every filter and topic they are checked for."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER), prefix)
        self.checked: list[str] = []

    def may_read(self, topic_filter: str) -> bool:
        self.checked.append(topic_filter)
        return super().may_read(topic_filter)


async def disconnect(client: RawClient) -> None:
    """Send DISCONNECT, and wait until the broker has closed the connection."""
    client.send(Disconnect())
    assert await client.receive_until_closed() == []


async def reconnect(
    server: RunningBroker, user: str = "viewer", *, present: bool = True, **options: object
) -> RawClient:
    """Connect, and check the session present flag."""
    client = await server.raw_client()
    client.send(connect(user, **{"clean": False, **options}))
    assert await client.expect(Connack) == Connack(session_present=present)
    return client


async def test_unacknowledged_messages_are_resent_with_their_packet_ids(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await publish(await server.gateway(), b"1", b"2", b"3")
    first = [await viewer.expect(Publish) for _ in range(3)]
    assert [message.dup for message in first] == [False] * 3
    viewer.send(Puback(first[1].packet_id))
    await viewer.receive_until_pong()
    viewer.abort()
    for _ in range(2):
        viewer = await reconnect(server)
        again = [await viewer.expect(Publish) for _ in range(2)]
        assert [message.payload for message in again] == [b"1", b"3"]
        assert [message.packet_id for message in again] == [first[0].packet_id, first[2].packet_id]
        assert [message.dup for message in again] == [True] * 2
        assert await viewer.receive_until_pong() == []
        viewer.abort()


async def test_the_packet_id_of_an_unacknowledged_message_is_not_used_for_another(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, b"1", b"2")
    old = {(await viewer.expect(Publish)).packet_id for _ in range(2)}
    await server.restart()
    await publish(await server.gateway(), b"3", b"4")
    viewer = await reconnect(server)
    ids = [(await viewer.expect(Publish)).packet_id for _ in range(4)]
    assert set(ids[:2]) == old
    assert len(set(ids)) == 4


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_session_is_resumed_with_its_subscriptions_and_messages(
    server: RunningBroker, *, restarts: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await disconnect(viewer)
    await publish(await server.gateway(), b"while away")
    if restarts:
        await server.restart()
    viewer = await reconnect(server)
    assert (await viewer.expect(Publish)).payload == b"while away"
    await publish(await server.gateway(), b"while here")
    assert (await viewer.expect(Publish)).payload == b"while here"


async def test_an_acknowledgement_survives_a_restart(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await publish(await server.gateway(), b"1", b"2")
    one, two = [await viewer.expect(Publish) for _ in range(2)]
    viewer.send(Puback(one.packet_id))
    await viewer.receive_until_pong()
    await server.restart()
    viewer = await reconnect(server)
    assert await viewer.receive_until_pong() == [
        Publish(report(), b"2", 1, dup=True, packet_id=two.packet_id)
    ]


async def test_messages_are_queued_for_an_absent_client(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await disconnect(viewer)
    gateway = await server.gateway()
    await publish(gateway, b"at 1")
    gateway.send(Publish(report(), b"at 2", 2, packet_id=2), Publish(report(), b"at 0"))
    assert await gateway.expect(Pubrec) == Pubrec(2)
    viewer = await reconnect(server)
    received = await viewer.receive_until_pong()
    assert [(each.payload, each.dup) for each in received if isinstance(each, Publish)] == [
        (b"at 1", False),
        (b"at 2", False),
    ]
    assert len(received) == 2


async def test_a_clean_session_leaves_nothing_behind(server: RunningBroker) -> None:
    gateway = await server.gateway()
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await disconnect(viewer)
    await publish(gateway, b"1")
    clean = await reconnect(server, present=False, clean=True)
    await expect_messages(clean)
    await publish(gateway, b"2")
    await expect_messages(clean)
    clean.send(Subscribe(1, ((REPORTS, 1),)))
    await clean.receive()
    await disconnect(clean)
    await publish(gateway, b"3")
    viewer = await reconnect(server, present=False)
    await publish(gateway, b"4")
    await expect_messages(viewer)


async def test_a_clean_session_leaves_nothing_in_the_database(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway(clean=False)
    await disconnect(viewer)
    gateway.send(Publish(report(), b"{}", 2, packet_id=5))
    await gateway.expect(Pubrec)
    before = await load_stored(server)
    assert len(before.sessions) == 2
    assert before.subscriptions
    assert before.messages
    assert before.unreleased_ids
    await reconnect(server, present=False, clean=True)
    await reconnect(server, G, present=False, clean=True)
    after = await load_stored(server)
    assert after[:4] == ({}, [], [], [])


async def test_two_client_ids_have_two_sessions(server: RunningBroker) -> None:
    one = await server.subscriber("viewer", report(), client_id="one", clean=False)
    two = await server.subscriber("viewer", report(kind="heartbeat"), client_id="two", clean=False)
    assert await one.receive_until_pong() == await two.receive_until_pong() == []
    await disconnect(one)
    await disconnect(two)
    await publish(await server.gateway(), b"for one")
    await expect_messages(await reconnect(server, client_id="two"))
    await expect_messages(await reconnect(server, client_id="one"), b"for one")


async def test_two_accounts_with_one_client_id_are_two_clients(server: RunningBroker) -> None:
    one = await server.subscriber("viewer-1", report(), client_id="same", clean=False)
    two = await server.client("viewer-2", client_id="same", clean=False)
    assert await one.receive_until_pong() == await two.receive_until_pong() == []
    await disconnect(one)
    await disconnect(two)
    await publish(await server.gateway(), b"for one")
    await reconnect(server, "viewer-3", client_id="same", present=False)
    await expect_messages(await reconnect(server, "viewer-2", client_id="same"))
    await expect_messages(await reconnect(server, "viewer-1", client_id="same"), b"for one")


async def test_client_ids_are_compared_exactly(server: RunningBroker) -> None:
    for client_id in ("a", "A", "a ", "\N{LATIN SMALL LETTER A WITH DIAERESIS}", "a\N{COMBINING DIAERESIS}"):
        await disconnect(await reconnect(server, client_id=client_id, present=False))
    await server.restart()
    assert len(server.broker.sessions) == 5


async def test_session_present_is_set_if_there_was_a_session(server: RunningBroker) -> None:
    cases = [(True, False), (True, False), (False, False), (False, True), (True, False), (False, False)]
    for clean, present in cases:
        await disconnect(await reconnect(server, clean=clean, present=present))
    await server.restart()
    await disconnect(await reconnect(server))


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_the_session_of_a_connected_client_does_not_expire(server: RunningBroker) -> None:
    connected = await server.subscriber("viewer", REPORTS, client_id="here", clean=False)
    await disconnect(await server.client("viewer", client_id="away", clean=False))
    server.broker.sessions.delete_expired(server.clock())
    assert len(server.broker.sessions) == 2
    server.clock.move(seconds=AGE + 60)
    server.broker.sessions.delete_expired(server.clock())
    assert [session.client_id for session in server.broker.sessions] == ["here"]
    await publish(await server.gateway(), b"still served")
    await expect_messages(connected, b"still served")
    await reconnect(server, client_id="away", present=False)
    await disconnect(connected)
    server.broker.sessions.delete_expired(server.clock())
    await reconnect(server, client_id="here")


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_the_age_of_a_session_is_counted_over_restarts(server: RunningBroker) -> None:
    await disconnect(await server.client("viewer", client_id="away", clean=False))
    staying = await server.client("viewer", client_id="staying", clean=False)
    assert await staying.receive_until_pong() == []
    server.clock.move(seconds=AGE / 2)
    await server.restart()
    server.clock.move(seconds=AGE / 2 + 60)
    server.broker.sessions.delete_expired(server.clock())
    assert [session.client_id for session in server.broker.sessions] == ["staying"]


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
@pytest.mark.parametrize("seconds", [10 * AGE, -10 * AGE])
async def test_the_age_of_a_session_does_not_depend_on_the_monotonic_clock_of_a_process(
    server: RunningBroker, seconds: int
) -> None:
    await disconnect(await server.client("viewer", clean=False))
    await server.stop()
    server.clock.start_again(seconds=seconds)
    await server.start()
    server.broker.sessions.delete_expired(server.clock.monotonic())
    assert len(server.broker.sessions) == 1
    server.clock.move(seconds=AGE + 60)
    server.broker.sessions.delete_expired(server.clock.monotonic())
    assert len(server.broker.sessions) == 0


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_setting_the_wall_clock_does_not_expire_a_session(
    server: RunningBroker,
) -> None:
    await disconnect(await server.client("viewer", clean=False))
    server.clock.set(seconds=10 * AGE)  # as on a machine that gets the time only after its start
    server.broker.sessions.delete_expired(server.clock.monotonic())
    await server.restart()
    server.broker.sessions.delete_expired(server.clock.monotonic())
    assert len(server.broker.sessions) == 1


@pytest.mark.parametrize("days", [1000, -1000])
async def test_a_jump_of_the_clock_does_not_expire_a_session(server: RunningBroker, days: int) -> None:
    await disconnect(await server.subscriber("viewer", REPORTS, clean=False))
    server.clock.move(seconds=days * 86_400)
    for _ in range(2):
        server.broker.sessions.delete_expired(server.clock())
        assert len(server.broker.sessions) == 1
    server.clock.move(seconds=AGE)
    server.broker.sessions.delete_expired(server.clock())
    await reconnect(server)


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
@pytest.mark.parametrize("sweep_seconds", [0.001])
async def test_the_broker_deletes_expired_sessions_periodically(server: RunningBroker) -> None:
    await disconnect(await server.client("viewer", clean=False))
    assert len(server.broker.sessions) == 1
    server.clock.move(seconds=AGE + 60)
    await server.until(lambda: len(server.broker.sessions) == 0)


@pytest.mark.parametrize("limits", [BrokerLimits(session_age=AGE)])
async def test_an_expired_session_is_deleted_from_the_database(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await disconnect(viewer)
    await publish(await server.gateway(), b"1")
    server.clock.move(seconds=AGE + 60)
    server.broker.sessions.delete_expired(server.clock())
    await publish(await server.gateway(), b"2")
    await server.restart()
    stored = await load_stored(server)
    assert stored[:3] == ({}, [], [])


async def test_many_sessions_survive_a_restart_with_their_messages(server: RunningBroker) -> None:
    macs = [f"02005e00{number:04x}" for number in range(40)]
    for mac in macs:
        gateway = await server.client(mac, clean=False)
        gateway.send(Subscribe(1, ((f"mt/gateway/{mac}/#", 1),)))
        await gateway.receive()
        await disconnect(gateway)
        for number in range(3):
            await server.broker.publish(request(mac, D), b'{"n":%d}' % number)
    await server.restart()
    assert len(server.broker.sessions) == len(macs)
    for mac in macs:
        gateway = await reconnect(server, mac)
        received = await gateway.receive_until_pong()
        assert [(each.topic, each.payload) for each in received if isinstance(each, Publish)] == [
            (request(mac, D), b'{"n":%d}' % number) for number in range(3)
        ]


async def test_restarts_do_not_change_the_session_of_an_absent_client(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    await disconnect(viewer)
    await publish(await server.gateway(), b"1", b"2")
    before = await load_stored(server)
    for _ in range(3):
        await server.restart()
    after = await load_stored(server)
    assert (after.sessions, after.subscriptions) == (before.sessions, before.subscriptions)
    await expect_messages(await reconnect(server), b"1", b"2")


async def test_permissions_for_queued_messages_are_checked_once_per_topic_and_only_if_changed(
    server: RunningBroker,
) -> None:
    await disconnect(await server.subscriber("viewer", REPORTS, clean=False))
    topics = [report(), report(kind="heartbeat")]
    for topic in topics:
        await publish(await server.gateway(), *[b"{}"] * 10, topic=topic)

    def check(permissions: RecordingPermissions) -> tuple[list[str], int]:
        opened = server.broker.sessions.open("user viewer", "viewer", permissions, clean=False)
        return permissions.checked, len(opened.session)

    assert check(RecordingPermissions()) == ([], 20)
    await server.restart()
    assert check(RecordingPermissions()) == ([REPORTS, *topics], 20)
    assert check(RecordingPermissions()) == ([], 20)
    assert check(RecordingPermissions("another/prefix")) == ([REPORTS, *topics], 0)
