"""A real mosquitto with the generated configuration: authentication and access rules."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.mqtt import ConnectionRefused
from meshfleet.mqtt.client import BrokerAddress, MqttClient
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.external_broker.mosquitto import (
    SERVICE_USER,
    build_acl_file,
    build_config_file,
    build_password_file,
    load_service_password,
)
from meshfleet.service.gateways import store
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import FAST_RECONNECT, unique_name
from tests.mqtt.client.scripted_broker import with_timeout
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

GATEWAY_A, GATEWAY_B, NEW_GATEWAY = Mac("02005e000001"), Mac("02005e00000b"), Mac("02005e00000c")
DEVICE = "02005e0000aa"


class ConfiguredMosquitto:
    """Mosquitto that is configured for the service and two gateways."""

    def __init__(self, database: Database, folder: Path, prefix: str) -> None:
        self._database = database
        self._folder = folder
        self.prefix = prefix
        self.passwords: dict[str, str] = {SERVICE_USER: database.write_now(load_service_password)}
        for mac in (GATEWAY_A, GATEWAY_B):
            self.claim(mac)
        self.configure()
        # `Mosquitto` writes an access setting of its own, with the same meaning, first.
        self.broker = Mosquitto(folder, "allow_anonymous false", f"include_dir {folder / 'config'}")

    def claim(self, mac: Mac) -> None:
        password = self._database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=1)
        self.passwords[mac] = password

    def configure(self) -> None:
        config = self._folder / "config"
        config.mkdir(exist_ok=True)
        hashes = self._database.read_now(store.load_broker_hashes)
        known = {mac: hashed for mac, hashed in hashes.items() if hashed is not None}
        (config / "passwords").write_text(build_password_file(self.passwords[SERVICE_USER], known))
        (config / "acl").write_text(build_acl_file(self.prefix))
        (config / "meshfleet.conf").write_text(
            build_config_file(passwords=config / "passwords", acl=config / "acl")
        )
        for name in ("passwords", "acl"):
            (config / name).chmod(0o600)

    def format_topic(self, rest: str) -> str:
        """Return an `mt` topic below the prefix."""
        return f"{self.prefix}/mt/{rest}" if self.prefix else f"mt/{rest}"

    def build_client(self, user: str | None, password: str | None = None) -> MqttClient:
        """Return a client of this user, with the user's password or another one."""
        if user is not None and password is None:
            password = self.passwords[user]
        host, port = self.broker.address
        address = BrokerAddress(host=host, port=port, user=user, password=password)
        # Mosquitto acknowledges a forbidden publish and then closes the connection.
        return MqttClient(address, unique_name("client"), clean=True, options=FAST_RECONNECT)


@pytest.fixture(params=["", "site one/7"])
async def mosquitto(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> AsyncIterator[ConfiguredMosquitto]:
    created = ConfiguredMosquitto(database, tmp_path, request.param)
    with created.broker:
        yield created


async def list_received_topics(
    receiver: MqttClient, *, publisher: MqttClient, topics: list[str], end: str
) -> list[str]:
    """Publish to these topics and then to `end`; return those that the receiver gets before `end`."""
    for topic in (*topics, end):
        await publisher.publish(topic, topic.encode())
    topics_received: list[str] = []
    while end not in topics_received:
        batch = await with_timeout(receiver.receive())
        batch.acknowledge()
        topics_received += [message.topic for message in batch.messages]
    return topics_received[:-1]


@pytest.mark.rule("broker-23")
async def test_only_the_service_and_claimed_gateways_are_authenticated(
    mosquitto: ConfiguredMosquitto,
) -> None:
    for user in (SERVICE_USER, GATEWAY_A, GATEWAY_B):
        async with mosquitto.build_client(user):
            pass
    for user, password in (
        (GATEWAY_A, "guess"),
        (GATEWAY_A, mosquitto.passwords[GATEWAY_B]),
        (SERVICE_USER, mosquitto.passwords[GATEWAY_A]),
        (NEW_GATEWAY, "x"),
    ):
        with pytest.raises(ConnectionRefused, match="not authorized"):
            await mosquitto.build_client(user, password).__aenter__()
    with pytest.raises(ConnectionRefused, match="not authorized"):
        await mosquitto.build_client(None).__aenter__()


@pytest.mark.rule("broker-23")
async def test_a_gateway_can_publish_only_to_its_own_topics(mosquitto: ConfiguredMosquitto) -> None:
    own = [
        mosquitto.format_topic(f"gateway/{GATEWAY_A}/device/{DEVICE}/measurement/8800"),
        mosquitto.format_topic(f"gateway/{GATEWAY_A}/response/{DEVICE}/read/8800"),
    ]
    own += [f"meshtech/diagnostics/{GATEWAY_A}/server-command/firmware"]
    others = [each.replace(GATEWAY_A, GATEWAY_B) for each in own]
    others += [mosquitto.format_topic(f"gateways/response/{DEVICE}"), f"other/{own[0]}", f"x{own[0]}"]
    end = mosquitto.format_topic(f"gateway/{GATEWAY_A}/device/{DEVICE}/heartbeat")
    async with mosquitto.build_client(SERVICE_USER) as service, mosquitto.build_client(GATEWAY_A) as gateway:
        await service.subscribe("#")
        assert await list_received_topics(service, publisher=gateway, topics=[*others, *own], end=end) == own


@pytest.mark.rule("broker-23")
async def test_a_gateway_reads_its_own_and_broadcast_topics(mosquitto: ConfiguredMosquitto) -> None:
    own = [
        mosquitto.format_topic(f"gateway/{GATEWAY_A}/request/{DEVICE}/read/8800"),
        mosquitto.format_topic(f"gateways/request/{DEVICE}/read/8800"),
    ]
    own += [f"meshtech/diagnostics/{GATEWAY_A}/server-response/firmware"]
    others = [mosquitto.format_topic(f"gateway/{GATEWAY_B}/request/{DEVICE}/read/8800")]
    others += [f"meshtech/diagnostics/{GATEWAY_B}/server-response/firmware"]
    end = mosquitto.format_topic(f"gateway/{GATEWAY_A}/request/{DEVICE}/read/8801")
    async with mosquitto.build_client(SERVICE_USER) as service, mosquitto.build_client(GATEWAY_A) as gateway:
        await gateway.subscribe("#")
        assert await list_received_topics(gateway, publisher=service, topics=[*others, *own], end=end) == own


async def test_the_service_cannot_publish_reports(mosquitto: ConfiguredMosquitto) -> None:
    forged = mosquitto.format_topic(f"gateway/{GATEWAY_A}/device/{DEVICE}/measurement/8800")
    async with mosquitto.build_client(SERVICE_USER) as service, mosquitto.build_client(GATEWAY_A) as gateway:
        await gateway.subscribe("#")
        end = mosquitto.format_topic(f"gateways/request/{DEVICE}/read/8800")
        assert await list_received_topics(gateway, publisher=service, topics=[forged], end=end) == []


async def test_the_service_publishes_alarms_and_gateways_do_not(mosquitto: ConfiguredMosquitto) -> None:
    alarm = f"{mosquitto.format_topic('').removesuffix('mt/')}meshfleet/alarms/alarm-1"
    end = mosquitto.format_topic(f"gateway/{GATEWAY_A}/device/{DEVICE}/heartbeat")
    acl = build_acl_file(mosquitto.prefix)
    assert f"topic write {alarm.removesuffix('alarm-1')}+" in acl.splitlines()
    async with mosquitto.build_client(SERVICE_USER) as service, mosquitto.build_client(GATEWAY_A) as gateway:
        await service.subscribe("#")
        assert await list_received_topics(service, publisher=gateway, topics=[alarm], end=end) == []


async def test_claims_and_releases_apply_after_a_reload(
    mosquitto: ConfiguredMosquitto, database: Database
) -> None:
    mosquitto.claim(NEW_GATEWAY)
    database.write_now(store.release_gateway, GATEWAY_B, by=COMMAND_LINE, now=2)
    with pytest.raises(ConnectionRefused):
        await mosquitto.build_client(NEW_GATEWAY).__aenter__()
    mosquitto.configure()
    mosquitto.broker.reload()
    await eventually_async(partial(is_authenticated, mosquitto, NEW_GATEWAY), "a login after the reload")
    with pytest.raises(ConnectionRefused):
        await mosquitto.build_client(GATEWAY_B).__aenter__()


async def is_authenticated(mosquitto: ConfiguredMosquitto, user: str) -> bool:
    try:
        async with mosquitto.build_client(user):
            return True
    except ConnectionRefused:
        return False
