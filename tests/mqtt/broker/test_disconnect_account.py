"""Accounts that are shut out: at once, and with their sessions if they are gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Connack, Disconnect, Puback, Publish, Suback, Subscribe, Will
from meshfleet.rest import Role
from tests.mqtt.broker.messages import expect_messages, load_stored, publish
from tests.mqtt.broker.running_broker import REPORTS, G, connect, report, request, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

GATEWAY = Account(kind=AccountKind.GATEWAY, name=G)
VIEWER = Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER)
OTHER = "02005e000002"


@each_row("forget", [True, False])
@each_row("clean", [True, False])
@with_fresh_broker
async def test_who_is_connected_is_cut_off_and_its_will_is_not_published(
    stage: RunningBroker, *, clean: bool, forget: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    will = Will(report(), b"will", 1)
    gateways = [await stage.client(G, client_id=each, clean=clean, will=will) for each in (G, G.upper())]
    stage.broker.disconnect_account(GATEWAY, delete_sessions=forget)
    for gateway in gateways:
        assert await gateway.receive_until_closed() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    await expect_messages(viewer, b"marker")
    assert stage.broker.connections.of_account(str(GATEWAY)) == []


@each_row("is_there", [True, False])
@each_row("forget", [True, False])
@with_fresh_broker
async def test_its_sessions_are_forgotten_only_if_asked(
    stage: RunningBroker, *, forget: bool, is_there: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    if not is_there:
        viewer.send(Disconnect())
        assert await viewer.receive_until_closed() == []
    await publish(gateway, b"before")
    stage.broker.disconnect_account(VIEWER, delete_sessions=forget)
    await publish(gateway, b"afterwards")
    saved = await load_stored(stage)
    kept = 0 if forget else 1
    assert (len(saved.sessions), len(saved.subscriptions), len(saved.messages)) == (kept, kept, 2 * kept)
    back = await stage.raw_client()
    back.send(connect("viewer", clean=False))
    assert await back.expect(Connack) == Connack(session_present=not forget)
    await expect_messages(back, *([] if forget else [b"before", b"afterwards"]))


async def test_nobody_else_is_touched(stage: RunningBroker) -> None:
    names = ("viewer-1", "viewer-2", "viewer", "viewer ")
    others = [await stage.client(name, client_id="same", clean=False) for name in names]
    shut_out = await stage.client("viewer-", client_id="same", clean=False)
    gone = Account(kind=AccountKind.USER, name="viewer-")
    stage.broker.disconnect_account(gone, delete_sessions=True)
    assert await shut_out.receive_until_closed() == []
    for other in others:
        assert await other.receive_until_pong() == []
    assert {session.account for session in stage.broker.sessions} == {f"user {name}" for name in names}


async def test_a_person_with_the_name_of_a_gateway_is_somebody_else(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    stage.broker.disconnect_account(Account(kind=AccountKind.USER, name=G), delete_sessions=True)
    assert await gateway.receive_until_pong() == []


async def test_who_is_unknown_can_be_expelled(stage: RunningBroker) -> None:
    stage.broker.disconnect_account(GATEWAY, delete_sessions=True)
    assert await (await stage.gateway()).receive_until_pong() == []


async def test_what_it_said_before_counts_but_is_not_acknowledged_any_more(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"before", 1, packet_id=1))
    assert await gateway.receive_until_pong() == []
    gateway.send(Publish(report(), b"not read yet", 1, packet_id=2))
    stage.broker.disconnect_account(GATEWAY, delete_sessions=True)
    stage.consumer.open.set()
    assert await gateway.receive_until_closed() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    assert [message.payload for message in stage.consumer.messages] == [b"before", b"marker"]


async def test_a_session_may_be_forgotten_while_it_is_being_written_down(stage: RunningBroker) -> None:
    stage.consumer.open.clear()
    viewer = await stage.raw_client()
    viewer.send(connect("viewer", clean=False), Subscribe(1, ((REPORTS, 1),)))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    stage.broker.disconnect_account(VIEWER, delete_sessions=True)
    assert await viewer.receive_until_closed() == []
    assert viewer.bytes == b""
    stage.consumer.open.set()
    await publish(await stage.gateway(), b"afterwards")
    assert (await load_stored(stage))[:4] == ({}, [], [], [])


async def test_messages_for_a_forgotten_session_may_be_on_their_way_to_the_database(
    stage: RunningBroker,
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway(clean=False)
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1))
    gateway.send(Publish(report(), b"2", 2, packet_id=2))
    gateway.send(Subscribe(3, ((f"mt/gateway/{G}/#", 1),)))
    assert (await viewer.expect(Publish)).payload == b"1"
    assert await gateway.receive_until_pong() == []
    stage.broker.disconnect_account(VIEWER, delete_sessions=True)
    stage.broker.disconnect_account(GATEWAY, delete_sessions=True)
    stage.consumer.open.set()
    assert await gateway.receive_until_closed() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    assert (await load_stored(stage))[:4] == ({}, [], [], [])
    assert stage.broker.quotas.queued_bytes == 0
    await stage.restart()
    assert len(stage.broker.sessions) == 0


async def test_who_was_forgotten_begins_anew(stage: RunningBroker) -> None:
    gateway = await stage.gateway(clean=False)
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await gateway.expect(Suback)
    stage.broker.disconnect_account(GATEWAY, delete_sessions=True)
    again = await stage.raw_client()
    again.send(connect(G, clean=False))
    assert await again.expect(Connack) == Connack()
    await stage.broker.publish(request(), b"{}")
    assert await again.receive_until_pong() == []
    again.send(Publish(report(), b"{}", 1, packet_id=1))
    assert await again.expect(Puback) == Puback(1)
    assert len((await load_stored(stage)).sessions) == 1


async def test_a_session_that_is_forgotten_while_a_message_goes_round_gets_nothing(
    stage: RunningBroker,
) -> None:
    stage.broker.subscribe(REPORTS, lambda _: stage.broker.disconnect_account(VIEWER, delete_sessions=True))
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, b"1", b"2")
    assert {type(packet) for packet in await viewer.receive_until_closed()} <= {Publish}
    assert (await load_stored(stage))[:4] == ({}, [], [], [])
    assert stage.broker.quotas.queued_bytes == 0


async def test_who_is_let_in_after_its_account_was_shut_out_shows_in_the_count(stage: RunningBroker) -> None:
    """The door may have looked before the change: whoever watches accounts has to look again."""
    stage.authenticator.holds = True
    gateway = await stage.raw_client()
    gateway.send(connect(G))
    await stage.until(lambda: len(stage.authenticator.waiting) == 1)
    before = stage.broker.connect_handler.admitted_count
    stage.broker.disconnect_account(GATEWAY, delete_sessions=True)
    stage.authenticator.waiting[0].set()
    assert await gateway.expect(Connack) == Connack()
    assert stage.broker.connect_handler.admitted_count == before + 1
    assert stage.broker.accounts() == [GATEWAY]
    stage.broker.disconnect_account(stage.broker.accounts()[0], delete_sessions=True)
    assert await gateway.receive_until_closed() == []
    assert stage.broker.accounts() == []


async def test_accounts_are_those_of_connections_and_of_sessions(stage: RunningBroker) -> None:
    absent = await stage.client("viewer-2", clean=False)
    absent.send(Disconnect())
    assert await absent.receive_until_closed() == []
    await stage.client("viewer")
    await stage.gateway()
    assert {str(account) for account in stage.broker.accounts()} == {
        "user viewer",
        "user viewer-2",
        f"gateway {G}",
    }
    assert VIEWER in stage.broker.accounts()


async def test_an_older_proof_of_an_account_is_not_hidden_by_a_newer_one(stage: RunningBroker) -> None:
    """Else who came with the old password stays, once somebody has come with the new one."""
    for number in range(8):
        stage.authenticator.credential_digest = bytes([number])
        await stage.client("viewer", client_id=f"{number}")
    assert sorted(account.credential_digest for account in stage.broker.accounts()) == [
        bytes([n]) for n in range(8)
    ]


async def test_what_a_forgotten_account_retained_is_gone(stage: RunningBroker) -> None:
    gateway, other = await stage.gateway(), await stage.gateway("02005e000002")
    gateway.send(Publish(report(), b"mine", 1, retain=True, packet_id=1))
    other.send(Publish(report("02005e000002"), b"other", 1, retain=True, packet_id=1))
    assert await gateway.expect(Puback) == await other.expect(Puback) == Puback(1)
    stage.broker.disconnect_account(Account(kind=AccountKind.GATEWAY, name=G), delete_sessions=True)
    assert await gateway.receive_until_closed() == []
    await stage.restart()
    assert len(stage.broker.retained) == 1
    viewer = await stage.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await viewer.expect(Publish)).payload == b"other"
