"""Disconnecting an account: at once, and with its sessions if it was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish, Suback, Subscribe, Will
from meshfleet.rest.accounts import Role
from tests.mqtt.broker.messages import expect_messages, load_stored, publish
from tests.mqtt.broker.running_broker import REPORTS, G, connect, report, request, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

GATEWAY = Account(kind=AccountKind.GATEWAY, name=G)
VIEWER = Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER)
OTHER = "02005e000002"


@each_row("delete_sessions", [True, False])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_connections_of_the_account_are_closed_and_their_wills_are_not_published(
    server: RunningBroker, *, clean: bool, delete_sessions: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    will = Will(report(), b"will", 1)
    gateways = [await server.client(G, client_id=each, clean=clean, will=will) for each in (G, G.upper())]
    server.broker.disconnect_account(GATEWAY, delete_sessions=delete_sessions)
    for gateway in gateways:
        assert await gateway.receive_until_closed() == []
    await publish(await server.gateway(OTHER), b"marker", topic=report(OTHER))
    await expect_messages(viewer, b"marker")
    assert server.broker.connections.find_by_account(str(GATEWAY)) == []


@each_row("is_connected", [True, False])
@each_row("delete_sessions", [True, False])
@with_fresh_broker
async def test_sessions_of_the_account_are_deleted_only_on_request(
    server: RunningBroker, *, delete_sessions: bool, is_connected: bool
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    if not is_connected:
        viewer.send(Disconnect())
        assert await viewer.receive_until_closed() == []
    await publish(gateway, b"before")
    server.broker.disconnect_account(VIEWER, delete_sessions=delete_sessions)
    await publish(gateway, b"afterwards")
    stored = await load_stored(server)
    kept = 0 if delete_sessions else 1
    assert (len(stored.sessions), len(stored.subscriptions), len(stored.messages)) == (kept, kept, 2 * kept)
    resumed = await server.raw_client()
    resumed.send(connect("viewer", clean=False))
    assert await resumed.expect(Connack) == Connack(session_present=not delete_sessions)
    await expect_messages(resumed, *([] if delete_sessions else [b"before", b"afterwards"]))


async def test_other_accounts_are_not_affected(server: RunningBroker) -> None:
    names = ("viewer-1", "viewer-2", "viewer", "viewer ")
    others = [await server.client(name, client_id="same", clean=False) for name in names]
    disconnected = await server.client("viewer-", client_id="same", clean=False)
    account = Account(kind=AccountKind.USER, name="viewer-")
    server.broker.disconnect_account(account, delete_sessions=True)
    assert await disconnected.receive_until_closed() == []
    for other in others:
        assert await other.receive_until_pong() == []
    assert {session.account for session in server.broker.sessions} == {f"user {name}" for name in names}


async def test_a_user_with_the_name_of_a_gateway_is_another_account(server: RunningBroker) -> None:
    gateway = await server.gateway()
    server.broker.disconnect_account(Account(kind=AccountKind.USER, name=G), delete_sessions=True)
    assert await gateway.receive_until_pong() == []


async def test_an_account_without_connections_can_be_disconnected(server: RunningBroker) -> None:
    server.broker.disconnect_account(GATEWAY, delete_sessions=True)
    assert await (await server.gateway()).receive_until_pong() == []


async def test_messages_received_before_are_committed_but_not_acknowledged(server: RunningBroker) -> None:
    gateway = await server.gateway()
    server.consumer.open.clear()
    gateway.send(Publish(report(), b"before", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.send(Publish(report(), b"not read yet", 1, packet_id=2))
    server.broker.disconnect_account(GATEWAY, delete_sessions=True)
    server.consumer.open.set()
    assert await gateway.receive_until_closed() == []
    await publish(await server.gateway(OTHER), b"marker", topic=report(OTHER))
    assert [message.payload for message in server.consumer.messages] == [b"before", b"marker"]


async def test_a_session_can_be_deleted_while_it_is_being_committed(server: RunningBroker) -> None:
    server.consumer.open.clear()
    viewer = await server.raw_client()
    viewer.send(connect("viewer", clean=False), Subscribe(1, ((REPORTS, 1),)))
    await server.until(lambda: len(server.broker.sessions) == 1)
    server.broker.disconnect_account(VIEWER, delete_sessions=True)
    assert await viewer.receive_until_closed() == []
    assert viewer.bytes == b""
    server.consumer.open.set()
    await publish(await server.gateway(), b"afterwards")
    assert (await load_stored(server))[:4] == ({}, [], [], [])


async def test_a_session_can_be_deleted_while_its_messages_are_being_committed(
    server: RunningBroker,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway(clean=False)
    server.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1))
    gateway.send(Publish(report(), b"2", 2, packet_id=2))
    gateway.send(Subscribe(3, ((f"mt/gateway/{G}/#", 1),)))
    assert (await viewer.expect(Publish)).payload == b"1"
    assert await gateway.receive_until_pong() == []
    server.broker.disconnect_account(VIEWER, delete_sessions=True)
    server.broker.disconnect_account(GATEWAY, delete_sessions=True)
    server.consumer.open.set()
    assert await gateway.receive_until_closed() == []
    await publish(await server.gateway(OTHER), b"marker", topic=report(OTHER))
    assert (await load_stored(server))[:4] == ({}, [], [], [])
    assert server.broker.quotas.queued_bytes == 0
    await server.restart()
    assert len(server.broker.sessions) == 0


async def test_a_client_whose_session_was_deleted_starts_with_a_new_one(server: RunningBroker) -> None:
    gateway = await server.gateway(clean=False)
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await gateway.expect(Suback)
    server.broker.disconnect_account(GATEWAY, delete_sessions=True)
    again = await server.raw_client()
    again.send(connect(G, clean=False))
    assert await again.expect(Connack) == Connack()
    await server.broker.publish(request(), b"{}")
    assert await again.receive_until_pong() == []
    again.send(Publish(report(), b"{}", 1, packet_id=1))
    assert await again.expect(Puback) == Puback(1)
    assert len((await load_stored(server)).sessions) == 1


async def test_a_session_that_is_deleted_while_a_message_is_routed_gets_nothing(
    server: RunningBroker,
) -> None:
    server.broker.subscribe(REPORTS, lambda _: server.broker.disconnect_account(VIEWER, delete_sessions=True))
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, b"1", b"2")
    assert {type(packet) for packet in await viewer.receive_until_closed()} <= {Publish}
    assert (await load_stored(server))[:4] == ({}, [], [], [])
    assert server.broker.quotas.queued_bytes == 0


async def test_a_client_accepted_after_its_account_was_disconnected_increases_the_count(
    server: RunningBroker,
) -> None:
    """Authentication may have read the account before the change, so it must be checked again."""
    server.authenticator.holds = True
    gateway = await server.raw_client()
    gateway.send(connect(G))
    await server.until(lambda: len(server.authenticator.waiting) == 1)
    before = server.broker.connect_handler.admitted_count
    server.broker.disconnect_account(GATEWAY, delete_sessions=True)
    server.authenticator.waiting[0].set()
    assert await gateway.expect(Connack) == Connack()
    assert server.broker.connect_handler.admitted_count == before + 1
    assert server.broker.accounts() == [GATEWAY]
    server.broker.disconnect_account(server.broker.accounts()[0], delete_sessions=True)
    assert await gateway.receive_until_closed() == []
    assert server.broker.accounts() == []


async def test_accounts_include_those_of_connections_and_of_sessions(server: RunningBroker) -> None:
    absent = await server.client("viewer-2", clean=False)
    absent.send(Disconnect())
    assert await absent.receive_until_closed() == []
    await server.client("viewer")
    await server.gateway()
    assert {str(account) for account in server.broker.accounts()} == {
        "user viewer",
        "user viewer-2",
        f"gateway {G}",
    }
    assert VIEWER in server.broker.accounts()


async def test_accounts_lists_each_credential_of_an_account(server: RunningBroker) -> None:
    """Keep connections with an old password visible after one with the new password has logged in."""
    for number in range(8):
        server.authenticator.credential_digest = bytes([number])
        await server.client("viewer", client_id=f"{number}")
    assert sorted(account.credential_digest for account in server.broker.accounts()) == [
        bytes([n]) for n in range(8)
    ]


async def test_retained_messages_of_a_deleted_account_are_deleted(server: RunningBroker) -> None:
    gateway, other = await server.gateway(), await server.gateway("02005e000002")
    gateway.send(Publish(report(), b"mine", 1, retain=True, packet_id=1))
    other.send(Publish(report("02005e000002"), b"other", 1, retain=True, packet_id=1))
    assert await gateway.expect(Puback) == await other.expect(Puback) == Puback(1)
    server.broker.disconnect_account(Account(kind=AccountKind.GATEWAY, name=G), delete_sessions=True)
    assert await gateway.receive_until_closed() == []
    await server.restart()
    assert len(server.broker.retained) == 1
    viewer = await server.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await viewer.expect(Publish)).payload == b"other"
