"""Account changes apply to connected MQTT clients and to sessions of disconnected ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.codec.packets import Connack, ConnectReturnCode, Disconnect, Puback, Publish, Will
from meshfleet.rest.accounts import Role
from meshfleet.service.audit import log as audit
from meshfleet.service.gateways import store as gateways
from tests.service.embedded_broker.mqtt_accounts import Credentials, MqttAccounts, database_outage
from tests.service.embedded_broker.running_broker import RunningBroker, build_connect, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


pytestmark = pytest.mark.anyio

DEVICE = "02005e0000aa"
REPORTS = "mt/gateway/+/device/#"

Create: TypeAlias = "Callable[[MqttAccounts], Credentials]"
Change: TypeAlias = "Callable[[MqttAccounts, Credentials], Credentials | None]"


@pytest.fixture
async def running(accounts: MqttAccounts) -> AsyncIterator[RunningBroker]:
    async with RunningBroker(accounts) as running:
        yield running


def gateway(accounts: MqttAccounts) -> Credentials:
    return accounts.gateway()


def person(accounts: MqttAccounts) -> Credentials:
    return accounts.person()


def program(accounts: MqttAccounts) -> Credentials:
    return accounts.program(seconds=100)


def expire(accounts: MqttAccounts, _: Credentials) -> None:
    accounts.clock.move(seconds=100)


def report(credentials: Credentials) -> str:
    return f"mt/gateway/{credentials.user}/device/{DEVICE}/measurement/8100"


REMOVALS: dict[str, tuple[Create, Change]] = {
    "released": (gateway, lambda accounts, credentials: accounts.release(credentials)),
    "removed": (person, lambda accounts, credentials: accounts.remove(credentials)),
    "revoked": (program, lambda accounts, credentials: accounts.revoke(credentials)),
    "expired": (program, expire),
}
"""Changes after which an account no longer exists."""

CHANGES: dict[str, tuple[Create, Change]] = {
    "rotated": (gateway, lambda accounts, credentials: accounts.rotate(credentials)),
    "role changed": (person, lambda accounts, credentials: accounts.change_role(credentials)),
    "password changed": (person, lambda accounts, credentials: accounts.change_password(credentials)),
}
"""Changes after which an account has other credentials or another role."""

each_removal = pytest.mark.parametrize(("create", "change"), REMOVALS.values(), ids=REMOVALS)
each_change = pytest.mark.parametrize(("create", "change"), CHANGES.values(), ids=CHANGES)
each_removal_or_change = pytest.mark.parametrize(
    ("create", "change"), [*REMOVALS.values(), *CHANGES.values()], ids=[*REMOVALS, *CHANGES]
)


@each_removal_or_change
@pytest.mark.both_databases
@pytest.mark.rule("broker-19")
async def test_only_clients_of_a_changed_account_are_disconnected(
    accounts: MqttAccounts, running: RunningBroker, create: Create, change: Change
) -> None:
    credentials = create(accounts)
    others = [
        await running.connect(each) for each in (accounts.gateway(), accounts.person(), accounts.program())
    ]
    clients = [
        await running.connect(credentials, clean=clean) for clean in (True, False)
    ]  # the second one takes over the session of the first
    if credentials.user.startswith("person"):
        clients.append(await running.connect(credentials, client_id="another"))
    change(accounts, credentials)
    for client in clients:
        assert await client.receive_until_closed() == []
    for other in others:
        assert await other.receive_until_pong() == []
    assert len(running.broker.connections) == len(others)


@pytest.mark.rule("broker-19")
@pytest.mark.parametrize("kind", ["released", "rotated"])
async def test_a_revoked_client_publishes_nothing_more_and_no_will(
    accounts: MqttAccounts, running: RunningBroker, kind: str
) -> None:
    """Deliver messages sent before the revocation, but not the will."""
    credentials, trusted = accounts.gateway(), accounts.gateway()
    viewer = await running.subscriber(accounts.person(Role.VIEWER), REPORTS)
    client = await running.connect(credentials, will=Will(report(credentials), b"will", 1))
    client.send(Publish(report(credentials), b"before", 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)
    assert (await viewer.expect(Publish)).payload == b"before"
    {**REMOVALS, **CHANGES}[kind][1](accounts, credentials)
    assert await client.receive_until_closed() == []
    marker = await running.connect(trusted)
    marker.send(Publish(report(trusted), b"marker", 1, packet_id=1))
    assert await marker.expect(Puback) == Puback(1)
    assert (await viewer.expect(Publish)).payload == b"marker"
    _, connack = await running.client(credentials)
    assert connack.code == ConnectReturnCode.BAD_CREDENTIALS


@each_removal
async def test_sessions_of_a_removed_account_are_deleted(
    accounts: MqttAccounts, running: RunningBroker, create: Create, change: Change
) -> None:
    credentials, other = create(accounts), accounts.gateway()
    for each in (credentials, other):
        client = await running.connect(each, clean=False)
        client.send(Disconnect())
        assert await client.receive_until_closed() == []
    change(accounts, credentials)
    await until(lambda: len(running.broker.sessions) == 1)
    await until(lambda: _list_stored_sessions(accounts) == [f"gateway {other.user}"])
    _, connack = await running.client(other, clean=False)
    assert connack == Connack(session_present=True)


async def test_a_reclaimed_gateway_does_not_inherit_the_old_session(
    accounts: MqttAccounts, running: RunningBroker
) -> None:
    before = accounts.gateway()
    client = await running.subscriber(before, f"mt/gateway/{before.user}/request/#", clean=False)
    accounts.release(before)
    assert await client.receive_until_closed() == []
    await until(lambda: len(running.broker.sessions) == 0)
    _, connack = await running.client(accounts.claim(before.user), clean=False)
    assert connack == Connack(session_present=False)


@each_change
async def test_a_client_with_new_credentials_resumes_its_session(
    accounts: MqttAccounts, running: RunningBroker, create: Create, change: Change
) -> None:
    credentials = create(accounts)
    client = await running.connect(credentials, clean=False)
    current = change(accounts, credentials) or credentials
    assert await client.receive_until_closed() == []
    reconnected, connack = await running.client(current, clean=False)
    assert connack == Connack(session_present=True)
    another = accounts.gateway()
    other_client = await running.connect(another)
    accounts.release(another)
    assert await other_client.receive_until_closed() == [], "a check has run"
    assert await reconnected.receive_until_pong() == []


async def test_clients_with_old_credentials_are_disconnected_after_the_owner_connects(
    accounts: MqttAccounts, running: RunningBroker
) -> None:
    """Connect with a stolen password, then let the owner change it and connect at once."""
    for number in range(1, 6):
        before = accounts.person()
        thieves = [await running.connect(before, client_id=f"thief {each}") for each in range(number)]
        after = accounts.change_password(before)
        owner = await running.connect(after, client_id="owner")
        for thief in thieves:
            assert await thief.receive_until_closed() == []
        await owner.close()


async def test_a_client_with_new_credentials_stays_connected(
    accounts: MqttAccounts, running: RunningBroker
) -> None:
    before = accounts.person()
    thief = await running.connect(before, client_id="thief")
    after = accounts.change_password(before)
    owner = await running.connect(after, client_id="owner")
    assert await thief.receive_until_closed() == []
    assert await owner.receive_until_pong() == []


@pytest.mark.both_databases
async def test_changes_during_downtime_apply_at_the_next_start(accounts: MqttAccounts) -> None:
    credentials = [accounts.gateway(), accounts.person(), accounts.program()]
    async with RunningBroker(accounts) as running:
        for each in credentials:
            await running.connect(each, clean=False)
    assert len(_list_stored_sessions(accounts)) == 3
    accounts.release(credentials[0])
    accounts.remove(credentials[1])
    async with RunningBroker(accounts) as running:
        await until(lambda: len(running.broker.sessions) == 1)
        assert [each.account.split()[0] for each in running.broker.sessions] == ["api-key"]


@pytest.mark.rule("broker-19")
async def test_a_client_accepted_while_its_account_is_removed_is_disconnected(
    accounts: MqttAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release the gateway after its password was checked but before the client is accepted."""
    credentials = accounts.gateway()
    checked, may_continue, checks = asyncio.Event(), asyncio.Event(), 0
    read = accounts.database.read

    async def read_slowly(work: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal checks
        connack = await read(work, *args, **kwargs)
        if work is gateways.load_password_digests:
            checked.set()
            await may_continue.wait()
        checks += work is audit.load_log_state
        return connack

    monkeypatch.setattr(accounts.database, "read", read_slowly)
    async with RunningBroker(accounts) as running:
        client = await running.open_unauthenticated()
        client.send(build_connect(credentials))
        await checked.wait()
        accounts.release(credentials)
        checks_before = checks
        await until(lambda: checks >= checks_before + 3)
        may_continue.set()
        assert await client.receive_until_closed() == [Connack()]


@pytest.mark.rule("broker-19")
async def test_an_already_verified_client_is_disconnected(
    accounts: MqttAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials, checks, read = accounts.gateway(), 0, accounts.database.read

    async def read_and_count(work: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal checks
        checks += work is audit.load_log_state
        return await read(work, *args, **kwargs)

    monkeypatch.setattr(accounts.database, "read", read_and_count)
    async with RunningBroker(accounts) as running:
        client = await running.connect(credentials)
        checks_before = checks
        await until(lambda: checks >= checks_before + 3)
        accounts.release(credentials)
        assert await client.receive_until_closed() == []


@pytest.mark.both_databases
@pytest.mark.rule("broker-19")
async def test_changes_apply_after_a_database_outage(
    accounts: MqttAccounts, running: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    credentials, other = accounts.gateway(), accounts.gateway()
    client, other_client = await running.connect(credentials), await running.connect(other)
    with database_outage(accounts.database):
        await until(lambda: "cannot check for revoked accounts" in caplog.text)
        assert await client.receive_until_pong() == []
    accounts.release(credentials)
    assert await client.receive_until_closed() == []
    assert await other_client.receive_until_pong() == []


def _list_stored_sessions(accounts: MqttAccounts) -> list[str]:
    return [row.account for row in accounts.database.read_now(load_stored_state).sessions.values()]
