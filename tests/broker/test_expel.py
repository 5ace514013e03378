"""Accounts that are shut out: at once, and with their sessions if they are gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.broker import Account, Kind
from meshfleet.wire.mqtt.packets import Connack, Disconnect, Puback, Publish, Suback, Subscribe, Will
from meshfleet.wire.rest import Role
from tests.broker.mail import arrive, publish, written
from tests.broker.stage import REPORTS, G, afresh, connect, report, request
from tests.tables import each_row

if TYPE_CHECKING:
    from tests.broker.stage import Stage

pytestmark = pytest.mark.anyio

GATEWAY = Account(kind=Kind.GATEWAY, name=G)
VIEWER = Account(kind=Kind.PERSON, name="viewer", role=Role.VIEWER)
OTHER = "02005e000002"


@each_row("forget", [True, False])
@each_row("clean", [True, False])
@afresh
async def test_who_is_connected_is_cut_off_and_its_will_is_not_published(
    stage: Stage, *, clean: bool, forget: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS)
    will = Will(report(), b"will", 1)
    gateways = [await stage.client(G, client_id=each, clean=clean, will=will) for each in (G, G.upper())]
    stage.broker.expel(GATEWAY, forget=forget)
    for gateway in gateways:
        assert await gateway.until_end() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    await arrive(viewer, b"marker")
    assert stage.broker.crowd.of(str(GATEWAY)) == []


@each_row("is_there", [True, False])
@each_row("forget", [True, False])
@afresh
async def test_its_sessions_are_forgotten_only_if_asked(
    stage: Stage, *, forget: bool, is_there: bool
) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    if not is_there:
        viewer.send(Disconnect())
        assert await viewer.until_end() == []
    await publish(gateway, b"before")
    stage.broker.expel(VIEWER, forget=forget)
    await publish(gateway, b"afterwards")
    saved = await written(stage)
    kept = 0 if forget else 1
    assert (len(saved.sessions), len(saved.subscriptions), len(saved.messages)) == (kept, kept, 2 * kept)
    back = await stage.stranger()
    back.send(connect("viewer", clean=False))
    assert await back.expect(Connack) == Connack(session_present=not forget)
    await arrive(back, *([] if forget else [b"before", b"afterwards"]))


async def test_nobody_else_is_touched(stage: Stage) -> None:
    names = ("viewer-1", "viewer-2", "viewer", "viewer ")
    others = [await stage.client(name, client_id="same", clean=False) for name in names]
    shut_out = await stage.client("viewer-", client_id="same", clean=False)
    gone = Account(kind=Kind.PERSON, name="viewer-")
    stage.broker.expel(gone, forget=True)
    assert await shut_out.until_end() == []
    for other in others:
        assert await other.until_pong() == []
    assert {session.account for session in stage.broker.sessions} == {f"user {name}" for name in names}


async def test_a_person_with_the_name_of_a_gateway_is_somebody_else(stage: Stage) -> None:
    gateway = await stage.gateway()
    stage.broker.expel(Account(kind=Kind.PERSON, name=G), forget=True)
    assert await gateway.until_pong() == []


async def test_who_is_unknown_can_be_expelled(stage: Stage) -> None:
    stage.broker.expel(GATEWAY, forget=True)
    assert await (await stage.gateway()).until_pong() == []


async def test_what_it_said_before_counts_but_is_not_acknowledged_any_more(stage: Stage) -> None:
    gateway = await stage.gateway()
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"before", 1, packet_id=1))
    assert await gateway.until_pong() == []
    gateway.send(Publish(report(), b"not read yet", 1, packet_id=2))
    stage.broker.expel(GATEWAY, forget=True)
    stage.consumer.open.set()
    assert await gateway.until_end() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    assert [message.payload for message in stage.consumer.messages] == [b"before", b"marker"]


async def test_a_session_may_be_forgotten_while_it_is_being_written_down(stage: Stage) -> None:
    stage.consumer.open.clear()
    viewer = await stage.stranger()
    viewer.send(connect("viewer", clean=False), Subscribe(1, ((REPORTS, 1),)))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    stage.broker.expel(VIEWER, forget=True)
    assert await viewer.until_end() == []
    assert viewer.bytes == b""
    stage.consumer.open.set()
    await publish(await stage.gateway(), b"afterwards")
    assert (await written(stage))[:4] == ({}, [], [], [])


async def test_messages_for_a_forgotten_session_may_be_on_their_way_to_the_database(stage: Stage) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway(clean=False)
    stage.consumer.open.clear()
    gateway.send(Publish(report(), b"1", 1, packet_id=1))
    gateway.send(Publish(report(), b"2", 2, packet_id=2))
    gateway.send(Subscribe(3, ((f"mt/gateway/{G}/#", 1),)))
    assert (await viewer.expect(Publish)).payload == b"1"
    assert await gateway.until_pong() == []
    stage.broker.expel(VIEWER, forget=True)
    stage.broker.expel(GATEWAY, forget=True)
    stage.consumer.open.set()
    assert await gateway.until_end() == []
    await publish(await stage.gateway(OTHER), b"marker", topic=report(OTHER))
    assert (await written(stage))[:4] == ({}, [], [], [])
    assert stage.broker.stock.size == 0
    await stage.restart()
    assert len(stage.broker.sessions) == 0


async def test_who_was_forgotten_begins_anew(stage: Stage) -> None:
    gateway = await stage.gateway(clean=False)
    gateway.send(Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await gateway.expect(Suback)
    stage.broker.expel(GATEWAY, forget=True)
    again = await stage.stranger()
    again.send(connect(G, clean=False))
    assert await again.expect(Connack) == Connack()
    await stage.broker.publish(request(), b"{}")
    assert await again.until_pong() == []
    again.send(Publish(report(), b"{}", 1, packet_id=1))
    assert await again.expect(Puback) == Puback(1)
    assert len((await written(stage)).sessions) == 1


async def test_a_session_that_is_forgotten_while_a_message_goes_round_gets_nothing(stage: Stage) -> None:
    stage.broker.listen(REPORTS, lambda _: stage.broker.expel(VIEWER, forget=True))
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, b"1", b"2")
    assert {type(packet) for packet in await viewer.until_end()} <= {Publish}
    assert (await written(stage))[:4] == ({}, [], [], [])
    assert stage.broker.stock.size == 0


async def test_who_is_let_in_after_its_account_was_shut_out_shows_in_the_count(stage: Stage) -> None:
    """The door may have looked before the change: whoever watches accounts has to look again."""
    stage.door.holds = True
    gateway = await stage.stranger()
    gateway.send(connect(G))
    await stage.until(lambda: len(stage.door.waiting) == 1)
    before = stage.broker.lobby.admitted
    stage.broker.expel(GATEWAY, forget=True)
    stage.door.waiting[0].set()
    assert await gateway.expect(Connack) == Connack()
    assert stage.broker.lobby.admitted == before + 1
    assert stage.broker.accounts() == [GATEWAY]
    stage.broker.expel(stage.broker.accounts()[0], forget=True)
    assert await gateway.until_end() == []
    assert stage.broker.accounts() == []


async def test_accounts_are_those_of_connections_and_of_sessions(stage: Stage) -> None:
    absent = await stage.client("viewer-2", clean=False)
    absent.send(Disconnect())
    assert await absent.until_end() == []
    await stage.client("viewer")
    await stage.gateway()
    assert {str(account) for account in stage.broker.accounts()} == {
        "user viewer",
        "user viewer-2",
        f"gateway {G}",
    }
    assert VIEWER in stage.broker.accounts()


async def test_an_older_proof_of_an_account_is_not_hidden_by_a_newer_one(stage: Stage) -> None:
    """Else who came with the old password stays, once somebody has come with the new one."""
    for number in range(8):
        stage.door.proof = bytes([number])
        await stage.client("viewer", client_id=f"{number}")
    assert sorted(account.proof for account in stage.broker.accounts()) == [bytes([n]) for n in range(8)]


async def test_what_a_forgotten_account_retained_is_gone(stage: Stage) -> None:
    gateway, other = await stage.gateway(), await stage.gateway("02005e000002")
    gateway.send(Publish(report(), b"mine", 1, retain=True, packet_id=1))
    other.send(Publish(report("02005e000002"), b"other", 1, retain=True, packet_id=1))
    assert await gateway.expect(Puback) == await other.expect(Puback) == Puback(1)
    stage.broker.expel(Account(kind=Kind.GATEWAY, name=G), forget=True)
    assert await gateway.until_end() == []
    await stage.restart()
    assert len(stage.broker.retained) == 1
    viewer = await stage.client("viewer")
    viewer.send(Subscribe(1, ((REPORTS, 1),)))
    assert (await viewer.expect(Publish)).payload == b"other"
