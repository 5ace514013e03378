"""Topics that each account may publish and read: the table of rules, and some rules through a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from meshfleet.mqtt.broker import Account, AccountKind, TopicPermissions
from meshfleet.mqtt.codec.packets import (
    SUBACK_FAILURE,
    Connack,
    Connect,
    ConnectReturnCode,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from meshfleet.rest.accounts import Role
from tests.mqtt.broker.running_broker import (
    PASSWORD,
    REPORTS,
    D,
    Denial,
    G,
    connect,
    report,
    request,
    response,
    with_fresh_broker,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

OTHER: Final = "02005e000002"
"""Another gateway than G."""

MAC_WITH_LETTERS: Final = "abcdef000001"
"""A gateway whose MAC can be spelled in more than two ways."""

GATEWAY: Final = Account(kind=AccountKind.GATEWAY, name=G)
VIEWER: Final = Account(kind=AccountKind.USER, name="vera", role=Role.VIEWER)
OPERATOR: Final = Account(kind=AccountKind.API_KEY, name="operate", role=Role.OPERATOR)
ADMIN: Final = Account(kind=AccountKind.USER, name="ada", role=Role.ADMIN)
NOT_GATEWAYS: Final = (VIEWER, OPERATOR, ADMIN)

PREFIXES: Final = ("site", "a/b", "a.c", "mt", "mt/gateway", "(x|y)", "meshtech/diagnostics", "$x", "[^/]")

ALL_GATEWAYS: Final = f"mt/gateways/request/{D}/read/8000"
DIAGNOSTICS: Final = f"meshtech/diagnostics/{G}/firmware"

OWN_TOPICS: Final = (
    f"mt/gateway/{G}/device/{D}/heartbeat",
    f"mt/gateway/{G}/response/{D}/read/8000",
    f"mt/gateway/{G}/of/a/later/version",
    f"mt/gateway/{G}/x",
    f"mt/gateway/{G}//",
    DIAGNOSTICS,
)
"""Topics that a gateway may publish to and read."""

FOREIGN_TOPICS: Final = (
    f"mt/gateway/{OTHER}/device/{D}/heartbeat",
    f"mt/gateway/{OTHER}/request/{D}/read/8000",
    f"mt/gateway/{G.upper()}/device/{D}/heartbeat",
    f"mt/gateway/{G}0/device/{D}/heartbeat",
    f"mt/gateway//{G}/x",
    f"/mt/gateway/{G}/x",
    f"MT/gateway/{G}/x",
    f"site/mt/gateway/{G}/x",
    f"meshtech/diagnostics/{OTHER}/x",
    f"meshtech/{G}/x",
    f"$SYS/mt/gateway/{G}/x",
    "$SYS/broker/clients",
    "meshfleet/alarms/alarm-12",
    "mt",
    "mt/gateway",
    "elsewhere",
)
"""Topics that a gateway may neither publish to nor read."""

REQUESTS: Final = (request(), request(OTHER), ALL_GATEWAYS, f"mt/gateways/request/{D}/of/a/later/version")

OTHER_TOPICS: Final = (
    report(),
    response(),
    f"mt/gateway/{G}/x/{D}/read/8000",
    f"mt/gateway/{G}/request",
    f"mt/gateway/{G}/request/{D}",
    f"mt/gateway/{G}/request/read/8000",
    f"mt/gateway/{G}/request/{D.upper()}/read/8000",
    f"mt/gateway/{G.upper()}/request/{D}/read/8000",
    f"mt/gateway/all/request/{D}/read/8000",
    f"mt/gateways/{D}/read/8000",
    f"mt/gateways/response/{D}/read/8000",
    f"mt/gateways/request/{D}",
    "mt/gateways/request/all/read/8000",
    "mt/gateways",
    DIAGNOSTICS,
    "$SYS/x",
    "x",
    "meshfleet/alarms/alarm-12",
)
"""Topics that only gateways may publish to, if any account may."""

READABLE: Final = (
    REPORTS,
    f"mt/gateway/{G}/device/#",
    f"mt/gateway/{G}/device",
    "mt/gateway/+/device/+/heartbeat",
    "mt/gateway/+/response/#",
    report(),
    response(),
    "meshfleet/alarms/+",
    "meshfleet/alarms/alarm-12",
)

UNREADABLE: Final = (
    "#",
    "+/#",
    "+",
    "mt/#",
    "mt/+/#",
    "mt/gateway/#",
    "mt/gateway/+",
    "mt/gateway/+/#",
    "mt/gateway/+/+",
    f"mt/gateway/+/+/{D}/read/8000",
    f"mt/gateway/{G}/+/#",
    f"mt/gateway/{G}/#",
    f"mt/gateway/{G}/request/#",
    f"+/gateway/{G}/device/#",
    f"mt/gateway/{G.upper()}/device/#",
    "mt/gateways/#",
    "mt/gateways/request/#",
    "meshfleet/#",
    "meshfleet/alarms/#",
    "meshtech/#",
    f"meshtech/diagnostics/{G}/#",
    "$SYS/#",
    "$SYS/broker",
    "/mt/gateway/+/device/#",
    request(),
    ALL_GATEWAYS,
)
"""Filters that only gateways may subscribe to, if any account may."""


def may_publish(account: Account, topic: str, prefix: str = "") -> bool:
    return TopicPermissions(account, prefix).may_publish(topic)


def may_read(account: Account, topic_filter: str, prefix: str = "") -> bool:
    return TopicPermissions(account, prefix).may_read(topic_filter)


# Gateways


@pytest.mark.rule("broker-7", "broker-9")
@each_row("topic", OWN_TOPICS)
def test_a_gateway_may_publish_to_any_topic_below_its_own(topic: str) -> None:
    assert may_publish(GATEWAY, topic)


@pytest.mark.rule("broker-7")
@each_row("topic", [*FOREIGN_TOPICS, *REQUESTS[1:], f"mt/gateway/{G}", "mt/gateways/x", "mt/gateways"])
def test_a_gateway_may_not_publish_to_other_topics(topic: str) -> None:
    assert not may_publish(GATEWAY, topic)


@pytest.mark.rule("broker-8", "broker-9")
@each_row(
    "topic_filter",
    [
        *OWN_TOPICS,
        request(),
        f"mt/gateway/{G}",
        f"mt/gateway/{G}/#",
        f"mt/gateway/{G}/request/#",
        f"mt/gateway/{G}/+",
        f"mt/gateway/{G}/+/+/#",
        "mt/gateways",
        "mt/gateways/#",
        "mt/gateways/+/+",
        ALL_GATEWAYS,
        f"meshtech/diagnostics/{G}/#",
        f"meshtech/diagnostics/{G}/+",
    ],
)
def test_a_gateway_may_read_its_own_topics_and_those_for_all_gateways(topic_filter: str) -> None:
    assert may_read(GATEWAY, topic_filter)


@pytest.mark.rule("broker-8")
@each_row(
    "topic_filter",
    [
        *FOREIGN_TOPICS,
        "#",
        "+/#",
        "mt/#",
        "mt/+/#",
        "mt/gateway/#",
        "mt/gateway/+/#",
        "mt/gateway/+",
        f"+/gateway/{G}/#",
        f"mt/+/{G}/#",
        f"mt/gateway/{OTHER}/#",
        "meshfleet/#",
        "meshfleet/alarms/#",
        "meshtech/#",
        "meshtech/diagnostics/+/#",
        "meshtech/diagnostics/#",
        "$SYS/#",
    ],
)
def test_a_gateway_may_not_read_other_topics(topic_filter: str) -> None:
    assert not may_read(GATEWAY, topic_filter)


# Users and API keys


@pytest.mark.rule("broker-12")
@each_row("topic", [*REQUESTS, *OTHER_TOPICS, *OWN_TOPICS, *FOREIGN_TOPICS])
def test_a_viewer_may_publish_nothing(topic: str) -> None:
    assert not may_publish(VIEWER, topic)


@pytest.mark.rule("broker-12")
@each_row("account", NOT_GATEWAYS)
@each_row("topic_filter", READABLE)
def test_viewers_and_higher_roles_may_read_reports_and_responses(account: Account, topic_filter: str) -> None:
    assert may_read(account, topic_filter)


@pytest.mark.rule("broker-14", "broker-15")
@each_row("account", NOT_GATEWAYS)
@each_row("topic_filter", UNREADABLE)
def test_users_may_not_read_requests_or_other_topics(account: Account, topic_filter: str) -> None:
    assert not may_read(account, topic_filter)


@pytest.mark.rule("broker-13")
@each_row("account", [OPERATOR, ADMIN])
@each_row("topic", REQUESTS)
def test_operators_and_admins_may_publish_requests(account: Account, topic: str) -> None:
    assert may_publish(account, topic)


@pytest.mark.rule("broker-13", "broker-15")
@each_row("account", [OPERATOR, ADMIN])
@each_row("topic", OTHER_TOPICS)
def test_operators_and_admins_may_publish_nothing_else(account: Account, topic: str) -> None:
    assert not may_publish(account, topic)


@pytest.mark.rule("broker-15")
@each_row(
    "account", [None, Account(kind=AccountKind.USER, name=G), Account(kind=AccountKind.API_KEY, name=G)]
)
@each_row("topic", [*OWN_TOPICS, *REQUESTS, *READABLE])
def test_an_account_without_a_role_that_is_no_gateway_may_do_nothing(
    account: Account | None, topic: str
) -> None:
    permissions = TopicPermissions(account)
    assert not permissions.may_publish(topic)
    assert not permissions.may_read(topic)


@pytest.mark.rule("broker-15")
@each_row("role", Role)
@each_row("topic", [*REQUESTS[1:], OTHER])
def test_the_role_of_a_gateway_account_is_ignored(role: Role, topic: str) -> None:
    assert not may_publish(Account(kind=AccountKind.GATEWAY, name=G, role=role), topic)


# Topic prefix


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_the_prefix_applies_to_mt_topics(prefix: str) -> None:
    assert may_publish(GATEWAY, f"{prefix}/{report()}", prefix)
    assert may_read(GATEWAY, f"{prefix}/mt/gateway/{G}/#", prefix)
    assert may_read(GATEWAY, f"{prefix}/mt/gateways/#", prefix)
    assert may_read(VIEWER, f"{prefix}/{REPORTS}", prefix)
    assert all(may_publish(OPERATOR, f"{prefix}/{topic}", prefix) for topic in REQUESTS)


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_mt_topics_without_the_prefix_are_forbidden(prefix: str) -> None:
    assert not may_publish(GATEWAY, report(), prefix)
    assert not may_read(GATEWAY, f"mt/gateway/{G}/#", prefix)
    assert not may_read(VIEWER, REPORTS, prefix)
    assert not any(may_publish(OPERATOR, topic, prefix) for topic in REQUESTS)


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_the_prefix_does_not_apply_to_diagnostics(prefix: str) -> None:
    assert may_publish(GATEWAY, DIAGNOSTICS, prefix)
    assert may_read(GATEWAY, f"meshtech/diagnostics/{G}/#", prefix)
    assert not may_publish(GATEWAY, f"{prefix}/{DIAGNOSTICS}", prefix)
    assert not may_read(GATEWAY, f"{prefix}/meshtech/diagnostics/{G}/#", prefix)


@pytest.mark.rule("broker-20")
def test_a_prefix_is_not_a_regular_expression() -> None:
    assert not may_publish(GATEWAY, f"abc/{report()}", "a.c")
    assert not may_publish(GATEWAY, f"x/{report()}", "(x|y)")
    assert not may_read(VIEWER, f"aXc/{REPORTS}", "a.c")


# Through a broker


@pytest.mark.anyio
@pytest.mark.rule("broker-16")
@each_row(
    ("user", "topic"),
    [
        (G, report(OTHER)),
        (G, ALL_GATEWAYS),
        ("viewer", request()),
        ("operator", report()),
        ("admin", response()),
        ("admin", "$SYS/x"),
    ],
)
@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_forbidden_message_closes_the_connection_and_is_not_delivered(
    server: RunningBroker, user: str, topic: str, qos: int
) -> None:
    delivered: list[Publish] = []
    server.broker.subscribe("#", delivered.append)
    client = await server.client(user)
    client.send(Publish(topic, b"{}", qos, retain=True, packet_id=1 if qos else 0))
    assert await client.receive_until_closed() == []
    kind = "gateway" if user == G else "user"
    assert server.authenticator.denials == [Denial(f"{kind} {user}", "publish", topic)]
    await (await server.gateway(OTHER)).receive_until_pong()
    assert delivered == server.consumer.messages == []
    assert len(server.broker.retained) == 0


@pytest.mark.anyio
@pytest.mark.rule("broker-16")
async def test_messages_before_a_forbidden_one_are_handled_and_later_ones_are_not(
    server: RunningBroker,
) -> None:
    gateway = await server.gateway()
    first, last = (Publish(report(), mark, 1, packet_id=1) for mark in (b"first", b"last"))
    gateway.send(first, Publish(report(OTHER), b"no", 1, packet_id=2), last)
    await gateway.receive_until_closed()
    await server.until(lambda: bool(server.consumer.messages))
    assert [message.payload for message in server.consumer.messages] == [b"first"]


@pytest.mark.anyio
@pytest.mark.rule("broker-17")
@each_row(
    ("user", "topic_filter"),
    [(G, "mt/gateway/+/#"), ("viewer", request()), ("admin", "#"), ("operator", "$SYS/#")],
)
@with_fresh_broker
async def test_a_forbidden_subscription_gets_0x80_and_the_client_stays_connected(
    server: RunningBroker, user: str, topic_filter: str
) -> None:
    client = await server.client(user)
    client.send(Subscribe(9, ((topic_filter, 1),)))
    assert await client.expect(Suback) == Suback(9, (SUBACK_FAILURE,))
    assert [denial.topic for denial in server.authenticator.denials] == [topic_filter]
    await server.broker.publish(request(), b"{}", qos=0)
    assert await client.receive_until_pong() == []


@pytest.mark.anyio
@pytest.mark.rule("broker-15")
async def test_a_connect_with_a_forbidden_will_is_refused(server: RunningBroker) -> None:
    client = await server.raw_client()
    client.send(connect("viewer", will=Will(report(), b"{}")))
    assert await client.expect(Connack) == Connack(code=ConnectReturnCode.NOT_AUTHORIZED)
    assert await client.receive_until_closed() == []
    assert [denial.action for denial in server.authenticator.denials] == ["will"]
    assert len(server.broker.connections) == len(server.broker.sessions) == 0


@pytest.mark.anyio
@pytest.mark.rule("broker-5")
@each_row("client_id", ["", "x", G, f"{MAC_WITH_LETTERS} ", "ABcdef000001"])
async def test_a_gateway_is_refused_unless_its_client_id_is_its_mac(
    server: RunningBroker, client_id: str
) -> None:
    client = await server.raw_client()
    client.send(Connect(client_id, user=MAC_WITH_LETTERS, password=PASSWORD))
    assert await client.expect(Connack) == Connack(code=ConnectReturnCode.IDENTIFIER_REJECTED)
    assert await client.receive_until_closed() == []


@pytest.mark.anyio
@pytest.mark.rule("broker-5", "broker-6")
async def test_both_connections_of_a_gateway_stay_open_with_its_permissions(server: RunningBroker) -> None:
    main = await server.client(G, client_id=G)
    diagnostics = await server.client(G, client_id=G.upper())
    for client in (main, diagnostics):
        client.send(Subscribe(1, ((f"mt/gateway/{G}/#", 0), (f"meshtech/diagnostics/{G}/#", 0))))
        assert (await client.expect(Suback)).codes == (0, 0)
    await server.broker.publish(DIAGNOSTICS, b"1", qos=0)
    for client in (main, diagnostics):
        assert [type(packet) for packet in await client.receive_until_pong()] == [Publish]
    assert {session.client_id for session in server.broker.sessions} == {G, G.upper()}
