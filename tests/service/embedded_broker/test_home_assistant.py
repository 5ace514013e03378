"""API keys for Home Assistant at the embedded broker: their topics, their limits, and hostile use of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace
from paho.mqtt.client import MQTT_ERR_SUCCESS, Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.broker import (
    Account,
    AccountKind,
    HomeAssistantTopics,
    TopicPermissions,
    load_stored_state,
)
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.packets import (
    SUBACK_FAILURE,
    Connack,
    ConnectReturnCode,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from meshfleet.rest.accounts import Role
from meshfleet.settings import Settings
from meshfleet.settings.model import HomeAssistantSettings
from tests.eventually import eventually_async
from tests.row_tables import each_row
from tests.service.embedded_broker.running_broker import RunningBroker, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.mqtt.broker.raw_client import RawClient
    from tests.service.embedded_broker.mqtt_accounts import Credentials, MqttAccounts

pytestmark = pytest.mark.anyio

D: Final = "02005e0000aa"
G: Final = "02005e000001"
STATUS: Final = "homeassistant/status"
BIRTH: Final = Will(STATUS, b"offline")
COMMAND: Final = f"meshfleet/{D}/set/alarm"

WITH_COMMANDS: Final = Settings(homeassistant=HomeAssistantSettings(broker="embedded", commands=True))

COMPONENTS: Final = (
    *("alarm_control_panel", "binary_sensor", "button", "camera", "climate", "cover", "device_automation"),
    *(
        "device_tracker",
        "event",
        "fan",
        "humidifier",
        "image",
        "lawn_mower",
        "light",
        "lock",
        "notify",
        "number",
    ),
    *(
        "scene",
        "select",
        "sensor",
        "siren",
        "switch",
        "tag",
        "text",
        "update",
        "vacuum",
        "valve",
        "water_heater",
    ),
)
OTHER_INTEGRATIONS: Final = (
    *("drop_connect/discovery/#", "dsmr/#", "esphome/discover/#", "fully/deviceInfo/+", "inels/status/#"),
    *("pglab/discovery/#", "cloudapp/QBUSMQTTGW/+/state", "tasmota/discovery/#"),
)
"""Filters of Home Assistant 2026.2 for other integrations, besides those for discovery."""

DISCOVERY: Final = (
    *(f"homeassistant/{each}/+/config" for each in COMPONENTS),
    *(f"homeassistant/{each}/+/+/config" for each in COMPONENTS),
)

MAY_READ: Final = (
    *DISCOVERY,
    *("homeassistant/#", "homeassistant/device/+/config", STATUS),
    *(
        "meshfleet/#",
        "meshfleet/status",
        f"meshfleet/{D}/state",
        f"meshfleet/{D}/availability",
        "meshfleet/+/+",
    ),
)
MAY_NOT_READ: Final = (
    *OTHER_INTEGRATIONS,
    *("#", "+/#", "+/status", "mt/#", "mt/gateway/+/device/#", f"mt/gateway/{G}/request/#", "mt/gateways/#"),
    *("meshtech/#", "meshtech/diagnostics/+/#", "$SYS/#", "homeassistan", "homeassistant2/#", "/meshfleet/#"),
    *("zigbee2mqtt/#", "meshfleet2/#", "+/+/state"),
)
MAY_NOT_PUBLISH: Final = (
    *(
        "homeassistant/sensor/x/config",
        f"homeassistant/device/meshfleet_{D}/config",
        "homeassistant/status/x",
    ),
    *(
        "homeassistant",
        "meshfleet/status",
        f"meshfleet/{D}/state",
        f"meshfleet/{D}/availability",
        "meshfleet/sync",
    ),
    *(
        f"meshfleet/{D}/set",
        f"meshfleet/{D}/set/a/b",
        "meshfleet/all/set/alarm",
        f"meshfleet/{D.upper()}/set/a",
    ),
    *(f"mt/gateway/{G}/request/{D}/write/alarm", f"mt/gateways/request/{D}/write/alarm"),
    *(f"mt/gateway/{G}/device/{D}/heartbeat", f"meshtech/diagnostics/{G}/x", "$SYS/x", "x"),
)


def permissions(
    role: Role = Role.OPERATOR,
    prefix: str = "",
    topics: HomeAssistantTopics = HomeAssistantTopics(has_commands=True),  # noqa: B008 # immutable
) -> TopicPermissions:
    return TopicPermissions(Account(kind=AccountKind.HOME_ASSISTANT, name="ha", role=role), prefix, topics)


# Topics


@pytest.mark.rule("broker-31")
@each_row("role", [Role.VIEWER, Role.OPERATOR])
@each_row("topic_filter", MAY_READ)
def test_home_assistant_may_read_discovery_messages_and_states(role: Role, topic_filter: str) -> None:
    assert permissions(role).may_read(topic_filter)


@pytest.mark.rule("broker-31")
@each_row("topic_filter", MAY_NOT_READ)
def test_home_assistant_may_not_read_other_topics(topic_filter: str) -> None:
    assert not permissions().may_read(topic_filter)


@pytest.mark.rule("broker-31")
@each_row("topic", MAY_NOT_PUBLISH)
def test_home_assistant_may_not_publish_to_other_topics(topic: str) -> None:
    assert not permissions().may_publish(topic)


@pytest.mark.rule("broker-31", "broker-32")
@each_row(
    ("role", "has_commands", "expected"),
    [
        (Role.OPERATOR, True, True),
        (Role.OPERATOR, False, False),
        (Role.VIEWER, True, False),
        (Role.VIEWER, False, False),
    ],
)
def test_commands_need_the_role_operator_and_the_setting(
    role: Role,
    *,
    has_commands: bool,
    expected: bool,
) -> None:
    mine = permissions(role, topics=HomeAssistantTopics(has_commands=has_commands))
    assert mine.may_publish(COMMAND) is expected
    assert mine.may_publish(STATUS)


@pytest.mark.rule("broker-31")
def test_the_settings_give_other_topics() -> None:
    mine = permissions(topics=HomeAssistantTopics("ha/find", "site/fleet", has_commands=True))
    assert mine.may_read("ha/find/#")
    assert mine.may_read("site/fleet/#")
    assert mine.may_publish("ha/find/status")
    assert mine.may_publish(STATUS), "the topic of births has a setting of its own in Home Assistant"
    assert mine.may_publish(f"site/fleet/{D}/set/alarm")
    for other in ("homeassistant/#", "meshfleet/#", "site/#", "ha/#"):
        assert not mine.may_read(other)
    assert not mine.may_publish(COMMAND)


@pytest.mark.rule("broker-31", "broker-20")
@each_row(
    ("prefix", "topics"),
    [
        ("meshfleet", HomeAssistantTopics()),
        ("homeassistant", HomeAssistantTopics()),
        ("meshfleet/a", HomeAssistantTopics()),
        ("", HomeAssistantTopics(entities="mt")),
        ("", HomeAssistantTopics(entities="mt/gateway")),
        ("", HomeAssistantTopics("meshtech")),
        ("site", HomeAssistantTopics(entities="site")),
    ],
)
def test_no_topic_prefix_lets_home_assistant_read_topics_of_gateways(
    prefix: str, topics: HomeAssistantTopics
) -> None:
    topics = topics._replace(has_commands=True)
    mine, start = permissions(prefix=prefix, topics=topics), f"{prefix}/" if prefix else ""
    for filters in (f"{start}#", f"{start}mt/#", f"{start}mt/gateway/+/request/#", f"{start}+/gateway/#"):
        assert not mine.may_read(filters)
    assert not mine.may_read("meshtech/diagnostics/#")
    assert not mine.may_publish(f"{start}mt/gateway/{G}/request/{D}/write/alarm")


@pytest.mark.rule("broker-31")
@each_row("kind", [AccountKind.USER, AccountKind.API_KEY, AccountKind.GATEWAY])
def test_no_other_account_may_use_the_topics_of_home_assistant(kind: AccountKind) -> None:
    other = TopicPermissions(
        Account(kind=kind, name=G, role=Role.ADMIN), "", HomeAssistantTopics(has_commands=True)
    )
    for topic in (STATUS, COMMAND, "meshfleet/status", "homeassistant/#", "meshfleet/#"):
        assert not other.may_publish(topic)
        assert not other.may_read(topic)


# Through the broker


async def subscribe(client: RawClient, filters: Sequence[str], packet_id: int = 1) -> tuple[int, ...]:
    """Subscribe in one packet, and return the code of each filter. Retained messages are discarded."""
    client.send(Subscribe(packet_id, tuple((each, 0) for each in filters)))
    while not isinstance(packet := await client.receive(), Suback):
        assert isinstance(packet, Publish)
    return packet.codes


@pytest.mark.rule("broker-11", "broker-30", "broker-33", "broker-34")
async def test_the_untouched_defaults_of_home_assistant_work_with_paho(accounts: MqttAccounts) -> None:
    """Connect as Home Assistant does: will, more than 68 filters, among them those of other integrations."""
    credentials = accounts.home_assistant()
    connected, granted, received = list[bool](), list[int](), dict[str, bytes]()
    client = Client(CallbackAPIVersion.VERSION2, "ha")
    client.username_pw_set(*credentials)
    client.will_set(STATUS, b"offline")
    client.on_connect = lambda *arguments: connected.append(not arguments[3].is_failure)
    client.on_subscribe = lambda *arguments: granted.extend(each.value for each in arguments[3])
    client.on_message = lambda _, __, message: received.update({message.topic: bytes(message.payload)})
    async with RunningBroker(accounts) as running:
        await running.broker.publish("meshfleet/status", b"online", retain=True)
        client.connect("127.0.0.1", running.port, keepalive=60)
        client.loop_start()
        try:
            await until(lambda: connected == [True])
            entities = ("meshfleet/status", *(f"meshfleet/{number:012x}/state" for number in range(400)))
            filters = (*DISCOVERY, *OTHER_INTEGRATIONS, *entities)
            assert client.subscribe([(each, 0) for each in filters])[0] == MQTT_ERR_SUCCESS
            await until(lambda: len(granted) == len(filters))
            refused = [name for name, code in zip(filters, granted, strict=True) if code == SUBACK_FAILURE]
            assert refused == list(OTHER_INTEGRATIONS)
            await until(lambda: received.get("meshfleet/status") == b"online")
            await running.broker.publish(f"meshfleet/{1:012x}/state", b"{}")
            await until(lambda: received.get(f"meshfleet/{1:012x}/state") == b"{}")
        finally:
            client.disconnect()
            client.loop_stop()
    assert accounts.denied_access_rows() == []


@pytest.mark.rule("broker-30")
async def test_the_will_of_home_assistant_is_published_on_its_status_topic_only(
    accounts: MqttAccounts,
) -> None:
    credentials = accounts.home_assistant()
    statuses = list[bytes]()
    async with RunningBroker(accounts) as running:
        running.broker.subscribe(STATUS, lambda message: statuses.append(message.payload))
        client = await running.connect(credentials, will=BIRTH)
        client.send(Publish(STATUS, b"online"))
        await client.receive_until_pong()
        await client.close()
        await until(lambda: statuses == [b"online", b"offline"])
        for topic in (COMMAND, "meshfleet/status", f"mt/gateway/{G}/response/{D}/read/8000", "x"):
            _, connack = await running.client(credentials, will=Will(topic, b"x"))
            assert connack == Connack(code=ConnectReturnCode.NOT_AUTHORIZED)


@pytest.mark.rule("broker-31")
async def test_a_discovery_message_that_home_assistant_clears_is_acknowledged_and_stays(
    accounts: MqttAccounts,
) -> None:
    topics = ("homeassistant/device/meshfleet_1/config", "homeassistant/sensor/meshfleet_1/8800/config")
    async with RunningBroker(accounts) as running:
        for topic in topics:
            await running.broker.publish(topic, b"{}", retain=True)
        client = await running.connect(accounts.home_assistant())
        for number, topic in enumerate(topics, 1):
            client.send(Publish(topic, b"", 0, retain=True))
            client.send(Publish(topic, b"", 1, retain=True, packet_id=number))
            assert await client.expect(Puback) == Puback(number)
        assert len(running.broker.retained) == len(topics)
        client.send(Publish("homeassistant/sensor/config", b"", 1, packet_id=9))
        assert await client.receive_until_closed() == []


@pytest.mark.rule("broker-34")
async def test_attempts_to_read_the_fleet_are_audited_and_those_for_other_integrations_are_not(
    accounts: MqttAccounts,
) -> None:
    async with RunningBroker(accounts) as running:
        client = await running.connect(accounts.home_assistant())
        assert set(await subscribe(client, [*OTHER_INTEGRATIONS, "$SYS/#", "zigbee2mqtt/#"])) == {
            SUBACK_FAILURE
        }
        assert await subscribe(client, ["homeassistant/#"]) == (0,)
        assert await subscribe(client, ["mt/gateway/+/device/#"]) == (SUBACK_FAILURE,)
        await until(accounts.denied_access_rows)
        (row,) = accounts.denied_access_rows()
        assert (row.action, row.target) == ("mqtt.forbidden-subscribe", "mt/gateway/+/device/#")
        assert row.actor.startswith("api-key: ")


@pytest.mark.rule("broker-32")
async def test_a_command_reaches_the_service_once_and_is_never_retained(accounts: MqttAccounts) -> None:
    commands = list[Publish]()
    async with RunningBroker(accounts, WITH_COMMANDS) as running:
        running.broker.subscribe("meshfleet/+/set/+", commands.append)
        client = await running.connect(accounts.home_assistant(Role.OPERATOR))
        for number, topic in enumerate([COMMAND, f"meshfleet/{D}/set/status"], 1):
            client.send(Publish(topic, b"0", 1, retain=True, packet_id=number))
            assert await client.expect(Puback) == Puback(number)
        assert [each.payload for each in commands] == [b"0", b"0"]
        assert len(running.broker.retained) == 0
        other = await running.connect(accounts.home_assistant(Role.VIEWER))
        other.send(Publish(COMMAND, b"0", 1, packet_id=1))
        assert await other.receive_until_closed() == []
        assert len(commands) == 2


@pytest.mark.rule("broker-32")
async def test_clients_are_disconnected_when_commands_are_turned_off(accounts: MqttAccounts) -> None:
    async with RunningBroker(accounts, WITH_COMMANDS) as running:
        credentials, operator = accounts.home_assistant(Role.OPERATOR), accounts.person(Role.OPERATOR)
        client, other = await running.connect(credentials), await running.connect(operator)
        running.broker.set_home_assistant_topics(HomeAssistantTopics())
        assert await client.receive_until_closed() == []
        assert await other.receive_until_pong() == []
        again = await running.connect(credentials)
        again.send(Publish(COMMAND, b"0"))
        assert await again.receive_until_closed() == []


@pytest.mark.rule("broker-33")
async def test_home_assistant_may_have_many_filters_in_one_packet(accounts: MqttAccounts) -> None:
    """Home Assistant before 2024.6 subscribes to all entities in one packet when it reconnects."""
    filters = [f"meshfleet/{number:012x}/{'state' * 20}" for number in range(2500)]
    async with RunningBroker(accounts) as running:
        client = await running.connect(accounts.home_assistant(), clean=False)
        assert set(await subscribe(client, filters)) == {0}
        client.send(Unsubscribe(2, tuple(filters)))
        assert await client.expect(Unsuback) == Unsuback(2)
    stored = accounts.database.read_now(load_stored_state)
    assert (stored.sessions, stored.subscriptions) == ({}, []), "the session is always clean"


@pytest.mark.rule("broker-33")
def test_the_limits_of_home_assistant_are_its_own() -> None:
    account, limits = Account(kind=AccountKind.HOME_ASSISTANT, name="ha"), BrokerLimits()
    assert account.adapt_limits(limits).subscriptions == 20_000
    assert account.adapt_limits(BrokerLimits(subscriptions=50_000)).subscriptions == 50_000
    assert Account(kind=AccountKind.API_KEY, name="ha").adapt_limits(limits) == limits


@pytest.mark.rule("broker-33")
async def test_a_key_for_home_assistant_has_at_most_five_connections(accounts: MqttAccounts) -> None:
    credentials = accounts.home_assistant()
    async with RunningBroker(accounts) as running:
        for number in range(5):
            await running.connect(credentials, client_id=f"ha {number}")
        _, connack = await running.client(credentials, client_id="ha 6")
        assert connack == Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)


@pytest.mark.rule("broker-35")
async def test_retained_messages_of_the_service_take_no_space_of_clients(
    accounts: MqttAccounts,
) -> None:
    settings = Settings(limits=BrokerLimits(retained=10))
    gateway = accounts.gateway()
    own = f"mt/gateway/{gateway.user}/x"
    async with RunningBroker(accounts, settings) as running:
        for number in range(50):
            await running.broker.publish(f"meshfleet/{number:012x}/state", bytes(5_000), retain=True)
        client = await running.connect(gateway)
        client.send(Publish(own, b"kept", 1, retain=True, packet_id=1))
        assert await client.expect(Puback) == Puback(1)
        assert len(running.broker.retained) == 51
        reader = await running.connect(accounts.home_assistant())
        reader.send(Subscribe(1, (("meshfleet/#", 0),)))
        assert len(await reader.receive_until_pong()) == 50 + 1
    async with RunningBroker(accounts, settings) as running:
        assert len(running.broker.retained) == 51, "they survive a restart"


@pytest.mark.rule("broker-31", "broker-33")
async def test_a_flood_of_retained_messages_and_wide_filters_leaves_the_others_alone(
    accounts: MqttAccounts,
) -> None:
    credentials, gateway = accounts.home_assistant(Role.OPERATOR), accounts.gateway()
    settings = replace(WITH_COMMANDS, limits=BrokerLimits(publish_rate=50))
    async with RunningBroker(accounts, settings) as running:
        for number in range(100):
            running.broker.publish_soon(Publish(f"meshfleet/{number:012x}/state", b"{}", retain=True))
        flood = await running.connect(credentials)
        for number in range(40):
            flood.send(Publish(f"meshfleet/{number:012x}/set/alarm", b"x", retain=True))
        codes = await subscribe(flood, ["meshfleet/#"] * 200)
        assert SUBACK_FAILURE in codes, "so many retained messages are not sent at once"
        assert len(running.broker.retained) == 100
        other = await running.connect(gateway)
        other.send(Publish(f"mt/gateway/{gateway.user}/device/{D}/heartbeat", b"{}", 1, packet_id=1))
        assert await other.expect(Puback) == Puback(1)


@pytest.mark.rule("broker-19", "broker-30")
async def test_a_revoked_key_for_home_assistant_is_disconnected(accounts: MqttAccounts) -> None:
    credentials: Credentials = accounts.home_assistant()
    async with RunningBroker(accounts) as running:
        client = await running.connect(credentials, will=BIRTH)
        accounts.revoke(credentials)
        assert await client.receive_until_closed() == []
        _, connack = await running.client(credentials)
        assert connack.code == ConnectReturnCode.BAD_CREDENTIALS
        await eventually_async(lambda: not running.broker.accounts(), "no connection of the key")


@pytest.mark.rule("broker-30")
async def test_a_key_for_home_assistant_ends_at_its_expiry(accounts: MqttAccounts) -> None:
    credentials = accounts.home_assistant(seconds=60)
    async with RunningBroker(accounts) as running:
        client = await running.connect(credentials)
        accounts.clock.move(seconds=61)
        assert await client.receive_until_closed() == []
