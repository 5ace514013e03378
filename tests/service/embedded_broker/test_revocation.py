"""Changes of accounts take effect on MQTT clients that are connected, and on sessions of the absent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.codec.packets import Connack, ConnectReturnCode, Disconnect, Puback, Publish, Will
from meshfleet.rest import Role
from meshfleet.service.audit import log as audit
from meshfleet.service.gateways import store as gateways
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.embedded_broker.running_broker import RunningBroker, build_connect, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.service.embedded_broker.mqtt_accounts import Credentials, MqttAccounts

pytestmark = pytest.mark.anyio

D = "02005e0000aa"
REPORTS = "mt/gateway/+/device/#"

Make: TypeAlias = "Callable[[MqttAccounts], Credentials]"
Change: TypeAlias = "Callable[[MqttAccounts, Credentials], Credentials | None]"


@pytest.fixture
async def site(house: MqttAccounts) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(house) as running:
        yield running


def gateway(house: MqttAccounts) -> Credentials:
    return house.gateway()


def person(house: MqttAccounts) -> Credentials:
    return house.person()


def program(house: MqttAccounts) -> Credentials:
    return house.program(seconds=100)


def expire(house: MqttAccounts, _: Credentials) -> None:
    house.clock.move(seconds=100)


def report(who: Credentials) -> str:
    return f"mt/gateway/{who.user}/device/{D}/measurement/8100"


GONE: dict[str, tuple[Make, Change]] = {
    "released": (gateway, lambda house, who: house.release(who)),
    "removed": (person, lambda house, who: house.remove(who)),
    "revoked": (program, lambda house, who: house.revoke(who)),
    "expired": (program, expire),
}
"""After these an account is no more."""

CHANGED: dict[str, tuple[Make, Change]] = {
    "rotated": (gateway, lambda house, who: house.rotate(who)),
    "role changed": (person, lambda house, who: house.change_role(who)),
    "password changed": (person, lambda house, who: house.change_password(who)),
}
"""After these it holds with other credentials or rights."""

gone = pytest.mark.parametrize(("make", "change"), GONE.values(), ids=GONE)
changed = pytest.mark.parametrize(("make", "change"), CHANGED.values(), ids=CHANGED)
anything = pytest.mark.parametrize(
    ("make", "change"), [*GONE.values(), *CHANGED.values()], ids=[*GONE, *CHANGED]
)


@anything
@pytest.mark.both_databases
@pytest.mark.rule("broker-19")
async def test_who_lost_something_is_cut_off_and_nobody_else_is(
    house: MqttAccounts, site: RunningBroker, make: Make, change: Change
) -> None:
    who = make(house)
    others = [await site.connect(each) for each in (house.gateway(), house.person(), house.program())]
    clients = [await site.connect(who, clean=clean) for clean in (True, False)]  # the second ends the first
    if who.user.startswith("person"):
        clients.append(await site.connect(who, client_id="another"))
    change(house, who)
    for client in clients:
        assert await client.receive_until_closed() == []
    for other in others:
        assert await other.receive_until_pong() == []
    assert len(site.broker.connections) == len(others)


@pytest.mark.rule("broker-19")
@pytest.mark.parametrize("kind", ["released", "rotated"])
async def test_the_word_of_who_is_cut_off_no_longer_counts(
    house: MqttAccounts, site: RunningBroker, kind: str
) -> None:
    """Its will is no exception. What it said while it could, was said."""
    who, trusted = house.gateway(), house.gateway()
    viewer = await site.subscriber(house.person(Role.VIEWER), REPORTS)
    client = await site.connect(who, will=Will(report(who), b"will", 1))
    client.send(Publish(report(who), b"before", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    assert (await viewer.expect(Publish)).payload == b"before"
    {**GONE, **CHANGED}[kind][1](house, who)
    assert await client.receive_until_closed() == []
    marker = await site.connect(trusted)
    marker.send(Publish(report(trusted), b"marker", 1, packet_id=1))
    assert await marker.expect(Puback) == Puback(1)
    assert (await viewer.expect(Publish)).payload == b"marker"
    _, answer = await site.client(who)
    assert answer.code == ConnectReturnCode.BAD_CREDENTIALS


@gone
async def test_sessions_of_an_account_that_is_no_more_are_forgotten(
    house: MqttAccounts, site: RunningBroker, make: Make, change: Change
) -> None:
    who, other = make(house), house.gateway()
    for each in (who, other):
        client = await site.connect(each, clean=False)
        client.send(Disconnect())
        assert await client.receive_until_closed() == []
    change(house, who)
    await until(lambda: len(site.broker.sessions) == 1)
    await until(lambda: _written(house) == [f"gateway {other.user}"])
    _, answer = await site.client(other, clean=False)
    assert answer == Connack(session_present=True)


async def test_who_gets_a_name_anew_gets_no_session_of_the_one_before(
    house: MqttAccounts, site: RunningBroker
) -> None:
    before = house.gateway()
    client = await site.subscriber(before, f"mt/gateway/{before.user}/request/#", clean=False)
    house.release(before)
    assert await client.receive_until_closed() == []
    await until(lambda: len(site.broker.sessions) == 0)
    _, answer = await site.client(house.claim(before.user), clean=False)
    assert answer == Connack(session_present=False)


@changed
async def test_who_comes_back_with_what_holds_now_finds_its_session(
    house: MqttAccounts, site: RunningBroker, make: Make, change: Change
) -> None:
    who = make(house)
    client = await site.connect(who, clean=False)
    now = change(house, who) or who
    assert await client.receive_until_closed() == []
    back, answer = await site.client(now, clean=False)
    assert answer == Connack(session_present=True)
    another = house.gateway()
    stays = await site.connect(another)
    house.release(another)
    assert await stays.receive_until_closed() == [], "a look has passed"
    assert await back.receive_until_pong() == []


async def test_old_credentials_do_not_hide_behind_new_ones(house: MqttAccounts, site: RunningBroker) -> None:
    """Whoever stole a password is connected with it; its owner changes it, and connects at once."""
    for number in range(1, 6):
        before = house.person()
        thieves = [await site.connect(before, client_id=f"thief {each}") for each in range(number)]
        after = house.change_password(before)
        owner = await site.connect(after, client_id="owner")
        for thief in thieves:
            assert await thief.receive_until_closed() == []
        await owner.close()


async def test_who_came_with_new_credentials_stays_when_the_old_ones_are_cut_off(
    house: MqttAccounts, site: RunningBroker
) -> None:
    before = house.person()
    thief = await site.connect(before, client_id="thief")
    after = house.change_password(before)
    owner = await site.connect(after, client_id="owner")
    assert await thief.receive_until_closed() == []
    assert await owner.receive_until_pong() == []


@pytest.mark.both_databases
async def test_what_changed_while_the_service_was_down_counts_when_it_is_up(house: MqttAccounts) -> None:
    people = [house.gateway(), house.person(), house.program()]
    async with RunningBroker(house) as site:
        for each in people:
            await site.connect(each, clean=False)
    assert len(_written(house)) == 3
    house.release(people[0])
    house.remove(people[1])
    async with RunningBroker(house) as site:
        await until(lambda: len(site.broker.sessions) == 1)
        assert [each.account.split()[0] for each in site.broker.sessions] == ["api-key"]


@pytest.mark.rule("broker-19")
async def test_who_is_let_in_while_its_account_ends_is_cut_off_too(
    house: MqttAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database says yes, the gateway is released, and only then the client is in."""
    who = house.gateway()
    asked, goes_on, looks = asyncio.Event(), asyncio.Event(), 0
    read = house.database.read

    async def slow(work: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        answer = await read(work, *args, **kwargs)
        if work is gateways.load_password_digests:
            asked.set()
            await goes_on.wait()
        looks += work is audit.load_mark
        return answer

    monkeypatch.setattr(house.database, "read", slow)
    async with RunningBroker(house) as site:
        client = await site.open_unauthenticated()
        client.send(build_connect(who))
        await asked.wait()
        house.release(who)
        seen = looks
        await until(lambda: looks >= seen + 3)
        goes_on.set()
        assert await client.receive_until_closed() == [Connack()]


@pytest.mark.rule("broker-19")
async def test_who_has_stood_at_looks_before_is_cut_off_too(
    house: MqttAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    who, looks, read = house.gateway(), 0, house.database.read

    async def counted(work: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += work is audit.load_mark
        return await read(work, *args, **kwargs)

    monkeypatch.setattr(house.database, "read", counted)
    async with RunningBroker(house) as site:
        client = await site.connect(who)
        seen = looks
        await until(lambda: looks >= seen + 3)
        house.release(who)
        assert await client.receive_until_closed() == []


@pytest.mark.both_databases
@pytest.mark.rule("broker-19")
async def test_changes_take_effect_although_the_database_was_away(
    house: MqttAccounts, site: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    who, other = house.gateway(), house.gateway()
    client, stays = await site.connect(who), await site.connect(other)
    with database_outage(house.database):
        await until(lambda: "cannot check for revoked accounts" in caplog.text)
        assert await client.receive_until_pong() == []
    house.release(who)
    assert await client.receive_until_closed() == []
    assert await stays.receive_until_pong() == []


def _written(house: MqttAccounts) -> list[str]:
    return [row.account for row in house.database.read_now(load_stored_state).sessions.values()]
