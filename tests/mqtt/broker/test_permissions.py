"""Who may publish and read what. The table is checked as one, and a few of its rules through a broker."""

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
from meshfleet.rest import Role
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
"""A gateway beside G."""

LETTERS: Final = "abcdef000001"
"""A gateway whose MAC can be written in more than two ways."""

GATEWAY: Final = Account(kind=AccountKind.GATEWAY, name=G)
VIEWER: Final = Account(kind=AccountKind.USER, name="vera", role=Role.VIEWER)
OPERATOR: Final = Account(kind=AccountKind.API_KEY, name="operate", role=Role.OPERATOR)
ADMIN: Final = Account(kind=AccountKind.USER, name="ada", role=Role.ADMIN)
NOT_GATEWAYS: Final = (VIEWER, OPERATOR, ADMIN)

PREFIXES: Final = ("site", "a/b", "a.c", "mt", "mt/gateway", "(x|y)", "meshtech/diagnostics", "$x", "[^/]")

ALL_GATEWAYS: Final = f"mt/gateways/request/{D}/read/8000"
DIAGNOSTICS: Final = f"meshtech/diagnostics/{G}/firmware"

MINE: Final = (
    f"mt/gateway/{G}/device/{D}/heartbeat",
    f"mt/gateway/{G}/response/{D}/read/8000",
    f"mt/gateway/{G}/of/a/later/version",
    f"mt/gateway/{G}/x",
    f"mt/gateway/{G}//",
    DIAGNOSTICS,
)
"""Where a gateway may publish, and what it may read."""

NOT_MINE: Final = (
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
    "mt",
    "mt/gateway",
    "elsewhere",
)
"""Where a gateway neither publishes nor reads."""

REQUESTS: Final = (request(), request(OTHER), ALL_GATEWAYS, f"mt/gateways/request/{D}/of/a/later/version")

NO_REQUESTS: Final = (
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
)
"""Where nobody but a gateway publishes, if anybody."""

READABLE: Final = (
    REPORTS,
    f"mt/gateway/{G}/device/#",
    f"mt/gateway/{G}/device",
    "mt/gateway/+/device/+/heartbeat",
    "mt/gateway/+/response/#",
    report(),
    response(),
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
    "meshtech/#",
    f"meshtech/diagnostics/{G}/#",
    "$SYS/#",
    "$SYS/broker",
    "/mt/gateway/+/device/#",
    request(),
    ALL_GATEWAYS,
)
"""What nobody reads but a gateway, if anybody."""


def may_publish(account: Account, topic: str, prefix: str = "") -> bool:
    return TopicPermissions(account, prefix).may_publish(topic)


def may_read(account: Account, wanted: str, prefix: str = "") -> bool:
    return TopicPermissions(account, prefix).may_read(wanted)


# Gateways


@pytest.mark.rule("broker-7", "broker-9")
@each_row("topic", MINE)
def test_a_gateway_publishes_anything_below_its_own_places(topic: str) -> None:
    assert may_publish(GATEWAY, topic)


@pytest.mark.rule("broker-7")
@each_row("topic", [*NOT_MINE, *REQUESTS[1:], f"mt/gateway/{G}", "mt/gateways/x", "mt/gateways"])
def test_a_gateway_publishes_nowhere_else(topic: str) -> None:
    assert not may_publish(GATEWAY, topic)


@pytest.mark.rule("broker-8", "broker-9")
@each_row(
    "wanted",
    [
        *MINE,
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
def test_a_gateway_reads_its_own_places_and_what_is_for_all_gateways(wanted: str) -> None:
    assert may_read(GATEWAY, wanted)


@pytest.mark.rule("broker-8")
@each_row(
    "wanted",
    [
        *NOT_MINE,
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
        "meshtech/#",
        "meshtech/diagnostics/+/#",
        "meshtech/diagnostics/#",
        "$SYS/#",
    ],
)
def test_a_gateway_reads_nothing_else(wanted: str) -> None:
    assert not may_read(GATEWAY, wanted)


# People and programs


@pytest.mark.rule("broker-12")
@each_row("topic", [*REQUESTS, *NO_REQUESTS, *MINE, *NOT_MINE])
def test_a_viewer_publishes_nothing(topic: str) -> None:
    assert not may_publish(VIEWER, topic)


@pytest.mark.rule("broker-12")
@each_row("account", NOT_GATEWAYS)
@each_row("wanted", READABLE)
def test_reports_and_responses_are_for_viewers_and_all_who_may_more(account: Account, wanted: str) -> None:
    assert may_read(account, wanted)


@pytest.mark.rule("broker-14", "broker-15")
@each_row("account", NOT_GATEWAYS)
@each_row("wanted", UNREADABLE)
def test_nobody_else_reads_requests_or_what_is_not_for_them(account: Account, wanted: str) -> None:
    assert not may_read(account, wanted)


@pytest.mark.rule("broker-13")
@each_row("account", [OPERATOR, ADMIN])
@each_row("topic", REQUESTS)
def test_operators_and_admins_publish_requests(account: Account, topic: str) -> None:
    assert may_publish(account, topic)


@pytest.mark.rule("broker-13", "broker-15")
@each_row("account", [OPERATOR, ADMIN])
@each_row("topic", NO_REQUESTS)
def test_they_publish_nothing_else(account: Account, topic: str) -> None:
    assert not may_publish(account, topic)


@pytest.mark.rule("broker-15")
@each_row(
    "account", [None, Account(kind=AccountKind.USER, name=G), Account(kind=AccountKind.API_KEY, name=G)]
)
@each_row("topic", [*MINE, *REQUESTS, *READABLE])
def test_who_has_no_role_and_is_no_gateway_may_nothing(account: Account | None, topic: str) -> None:
    access = TopicPermissions(account)
    assert not access.may_publish(topic)
    assert not access.may_read(topic)


@pytest.mark.rule("broker-15")
@each_row("role", Role)
@each_row("topic", [*REQUESTS[1:], OTHER])
def test_a_gateway_with_a_role_is_a_gateway_all_the_same(role: Role, topic: str) -> None:
    assert not may_publish(Account(kind=AccountKind.GATEWAY, name=G, role=role), topic)


# The prefix


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_the_prefix_stands_in_front_of_mt_topics(prefix: str) -> None:
    assert may_publish(GATEWAY, f"{prefix}/{report()}", prefix)
    assert may_read(GATEWAY, f"{prefix}/mt/gateway/{G}/#", prefix)
    assert may_read(GATEWAY, f"{prefix}/mt/gateways/#", prefix)
    assert may_read(VIEWER, f"{prefix}/{REPORTS}", prefix)
    assert all(may_publish(OPERATOR, f"{prefix}/{topic}", prefix) for topic in REQUESTS)


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_without_its_prefix_nobody_gets_at_an_mt_topic(prefix: str) -> None:
    assert not may_publish(GATEWAY, report(), prefix)
    assert not may_read(GATEWAY, f"mt/gateway/{G}/#", prefix)
    assert not may_read(VIEWER, REPORTS, prefix)
    assert not any(may_publish(OPERATOR, topic, prefix) for topic in REQUESTS)


@pytest.mark.rule("broker-20")
@each_row("prefix", PREFIXES)
def test_the_prefix_does_not_stand_in_front_of_diagnostics(prefix: str) -> None:
    assert may_publish(GATEWAY, DIAGNOSTICS, prefix)
    assert may_read(GATEWAY, f"meshtech/diagnostics/{G}/#", prefix)
    assert not may_publish(GATEWAY, f"{prefix}/{DIAGNOSTICS}", prefix)
    assert not may_read(GATEWAY, f"{prefix}/meshtech/diagnostics/{G}/#", prefix)


@pytest.mark.rule("broker-20")
def test_a_prefix_is_no_pattern() -> None:
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
async def test_a_forbidden_message_ends_the_connection_and_reaches_nobody(
    stage: RunningBroker, user: str, topic: str, qos: int
) -> None:
    heard: list[Publish] = []
    stage.broker.subscribe("#", heard.append)
    client = await stage.client(user)
    client.send(Publish(topic, b"{}", qos, retain=True, packet_id=1 if qos else 0))
    assert await client.receive_until_closed() == []
    kind = "gateway" if user == G else "user"
    assert stage.authenticator.denials == [Denial(f"{kind} {user}", "publish", topic)]
    await (await stage.gateway(OTHER)).receive_until_pong()
    assert heard == stage.consumer.messages == []
    assert len(stage.broker.retained) == 0


@pytest.mark.anyio
@pytest.mark.rule("broker-16")
async def test_what_came_before_a_forbidden_message_counts_and_what_came_after_does_not(
    stage: RunningBroker,
) -> None:
    gateway = await stage.gateway()
    first, last = (Publish(report(), mark, 1, packet_id=1) for mark in (b"first", b"last"))
    gateway.send(first, Publish(report(OTHER), b"no", 1, packet_id=2), last)
    await gateway.receive_until_closed()
    await stage.until(lambda: bool(stage.consumer.messages))
    assert [message.payload for message in stage.consumer.messages] == [b"first"]


@pytest.mark.anyio
@pytest.mark.rule("broker-17")
@each_row(
    ("user", "wanted"), [(G, "mt/gateway/+/#"), ("viewer", request()), ("admin", "#"), ("operator", "$SYS/#")]
)
@with_fresh_broker
async def test_a_forbidden_subscription_gets_0x80_and_the_client_stays(
    stage: RunningBroker, user: str, wanted: str
) -> None:
    client = await stage.client(user)
    client.send(Subscribe(9, ((wanted, 1),)))
    assert await client.expect(Suback) == Suback(9, (SUBACK_FAILURE,))
    assert [deed.topic for deed in stage.authenticator.denials] == [wanted]
    await stage.broker.publish(request(), b"{}", qos=0)
    assert await client.receive_until_pong() == []


@pytest.mark.anyio
@pytest.mark.rule("broker-15")
async def test_a_forbidden_will_is_refused_at_the_door(stage: RunningBroker) -> None:
    client = await stage.raw_client()
    client.send(connect("viewer", will=Will(report(), b"{}")))
    assert await client.expect(Connack) == Connack(code=ConnectReturnCode.NOT_AUTHORIZED)
    assert await client.receive_until_closed() == []
    assert [deed.action for deed in stage.authenticator.denials] == ["will"]
    assert len(stage.broker.connections) == len(stage.broker.sessions) == 0


@pytest.mark.anyio
@pytest.mark.rule("broker-5")
@each_row("client_id", ["", "x", G, f"{LETTERS} ", "ABcdef000001"])
async def test_a_gateway_comes_with_its_mac_as_client_id_or_not_at_all(
    stage: RunningBroker, client_id: str
) -> None:
    client = await stage.raw_client()
    client.send(Connect(client_id, user=LETTERS, password=PASSWORD))
    assert await client.expect(Connack) == Connack(code=ConnectReturnCode.IDENTIFIER_REJECTED)
    assert await client.receive_until_closed() == []


@pytest.mark.anyio
@pytest.mark.rule("broker-5", "broker-6")
async def test_both_connections_of_a_gateway_stay_and_have_its_rights(stage: RunningBroker) -> None:
    own = await stage.client(G, client_id=G)
    diagnostics = await stage.client(G, client_id=G.upper())
    for client in (own, diagnostics):
        client.send(Subscribe(1, ((f"mt/gateway/{G}/#", 0), (f"meshtech/diagnostics/{G}/#", 0))))
        assert (await client.expect(Suback)).codes == (0, 0)
    await stage.broker.publish(DIAGNOSTICS, b"1", qos=0)
    for client in (own, diagnostics):
        assert [type(packet) for packet in await client.receive_until_pong()] == [Publish]
    assert {session.client_id for session in stage.broker.sessions} == {G, G.upper()}
