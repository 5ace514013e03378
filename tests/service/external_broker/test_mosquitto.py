"""A real mosquitto with the files that we write for it: who gets in, and who may do what."""

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

A, B, LATER = Mac("02005e000001"), Mac("02005e00000b"), Mac("02005e00000c")
D = "02005e0000aa"


class Site:
    """A mosquitto that knows the service and two gateways."""

    def __init__(self, database: Database, folder: Path, prefix: str) -> None:
        self._database = database
        self._folder = folder
        self._prefix = prefix
        self.passwords: dict[str, str] = {SERVICE_USER: database.write_now(load_service_password)}
        for mac in (A, B):
            self.claim(mac)
        self.configure()
        # The tests' own line about access comes first, and means the same.
        self.broker = Mosquitto(folder, "allow_anonymous false", f"include_dir {folder / 'ours'}")

    def claim(self, mac: Mac) -> None:
        password = self._database.write_now(store.claim_gateway, mac, name=None, by=COMMAND_LINE, now=1)
        self.passwords[mac] = password

    def configure(self) -> None:
        ours = self._folder / "ours"
        ours.mkdir(exist_ok=True)
        hashes = self._database.read_now(store.load_broker_hashes)
        known = {mac: hashed for mac, hashed in hashes.items() if hashed is not None}
        (ours / "passwords").write_text(build_password_file(self.passwords[SERVICE_USER], known))
        (ours / "acl").write_text(build_acl_file(self._prefix))
        (ours / "ours.conf").write_text(build_config_file(passwords=ours / "passwords", acl=ours / "acl"))
        for name in ("passwords", "acl"):
            (ours / name).chmod(0o600)

    def mt(self, rest: str) -> str:
        """A topic of ours, below the prefix."""
        return f"{self._prefix}/mt/{rest}" if self._prefix else f"mt/{rest}"

    def link(self, user: str | None, password: str | None = None) -> MqttClient:
        """Somebody's link; with the password that they have, or another."""
        if user is not None and password is None:
            password = self.passwords[user]
        host, port = self.broker.address
        there = BrokerAddress(host=host, port=port, user=user, password=password)
        # Mosquitto closes the connection of who published where it may not; it has acknowledged it before.
        return MqttClient(there, unique_name("client"), clean=True, options=FAST_RECONNECT)


@pytest.fixture(params=["", "site one/7"])
async def site(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(database, tmp_path, request.param)
    with made.broker:
        yield made


async def heard(listener: MqttClient, *, publisher: MqttClient, topics: list[str], end: str) -> list[str]:
    """Which of these topics a listener hears when somebody publishes on them, and then on the last."""
    for topic in (*topics, end):
        await publisher.publish(topic, topic.encode())
    found: list[str] = []
    while end not in found:
        batch = await with_timeout(listener.receive())
        batch.acknowledge()
        found += [message.topic for message in batch.messages]
    return found[:-1]


@pytest.mark.rule("broker-23")
async def test_the_service_and_gateways_get_in_and_nobody_else(site: Site) -> None:
    for user in (SERVICE_USER, A, B):
        async with site.link(user):
            pass
    for user, password in (
        (A, "guess"),
        (A, site.passwords[B]),
        (SERVICE_USER, site.passwords[A]),
        (LATER, "x"),
    ):
        with pytest.raises(ConnectionRefused, match="not authorized"):
            await site.link(user, password).__aenter__()
    with pytest.raises(ConnectionRefused, match="not authorized"):
        await site.link(None).__aenter__()


@pytest.mark.rule("broker-23")
async def test_a_gateway_publishes_its_own_topics_and_no_others(site: Site) -> None:
    own = [
        site.mt(f"gateway/{A}/device/{D}/measurement/8800"),
        site.mt(f"gateway/{A}/response/{D}/read/8800"),
    ]
    own += [f"meshtech/diagnostics/{A}/server-command/firmware"]
    others = [each.replace(A, B) for each in own]
    others += [site.mt(f"gateways/response/{D}"), f"other/{own[0]}", f"x{own[0]}"]
    end = site.mt(f"gateway/{A}/device/{D}/heartbeat")
    async with site.link(SERVICE_USER) as service, site.link(A) as gateway:
        await service.subscribe("#")
        assert await heard(service, publisher=gateway, topics=[*others, *own], end=end) == own


@pytest.mark.rule("broker-23")
async def test_a_gateway_reads_what_is_for_it_and_for_all(site: Site) -> None:
    own = [site.mt(f"gateway/{A}/request/{D}/read/8800"), site.mt(f"gateways/request/{D}/read/8800")]
    own += [f"meshtech/diagnostics/{A}/server-response/firmware"]
    others = [site.mt(f"gateway/{B}/request/{D}/read/8800")]
    others += [f"meshtech/diagnostics/{B}/server-response/firmware"]
    end = site.mt(f"gateway/{A}/request/{D}/read/8801")
    async with site.link(SERVICE_USER) as service, site.link(A) as gateway:
        await gateway.subscribe("#")
        assert await heard(gateway, publisher=service, topics=[*others, *own], end=end) == own


async def test_the_service_cannot_make_reports_up(site: Site) -> None:
    made_up = site.mt(f"gateway/{A}/device/{D}/measurement/8800")
    async with site.link(SERVICE_USER) as service, site.link(A) as gateway:
        await gateway.subscribe("#")
        end = site.mt(f"gateways/request/{D}/read/8800")
        assert await heard(gateway, publisher=service, topics=[made_up], end=end) == []


async def test_after_a_signal_who_was_claimed_later_gets_in_and_who_was_released_does_not(
    site: Site, database: Database
) -> None:
    site.claim(LATER)
    database.write_now(store.release_gateway, B, by=COMMAND_LINE, now=2)
    with pytest.raises(ConnectionRefused):
        await site.link(LATER).__aenter__()
    site.configure()
    site.broker.reload()
    await eventually_async(partial(is_let_in, site, LATER), "a login after the signal")
    with pytest.raises(ConnectionRefused):
        await site.link(B).__aenter__()


async def is_let_in(site: Site, user: str) -> bool:
    try:
        async with site.link(user):
            return True
    except ConnectionRefused:
        return False
