"""One gateway on a broker: what it says on its connection, and how that ends and comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.emulator import Faults, generate_site
from meshfleet.emulator.context import CloseConnection
from meshfleet.mqtt.codec.packets import Connect, Disconnect, Publish, Subscribe
from tests.emulator.runtime.fleet_builder import QUICK, FleetBuilder, fresh_mac, run_listener
from tests.eventually import TIMEOUT_SECONDS, eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import wait_until_stable, with_timeout
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.emulator import EmulatedFleet, Site
    from meshfleet.mqtt.client import BrokerAddress
    from meshfleet.protocol.ids import Mac

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def broker(tmp_path: Path) -> Mosquitto:
    settings = ("set_tcp_nodelay true", "max_queued_messages 0", "persistence true", "autosave_interval 0")
    return Mosquitto(tmp_path, *settings)


@pytest.fixture
async def mosquitto(broker: Mosquitto) -> AsyncIterator[BrokerAddress]:
    with broker:
        yield at(broker.address)


@pytest.fixture
async def proxy(broker: Mosquitto, mosquitto: BrokerAddress) -> AsyncIterator[Proxy]:
    assert mosquitto.port == broker.address.port
    async with Proxy(broker.address) as proxy:
        yield proxy


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


def _large(mac: Mac) -> Site:
    return generate_site(mac, devices=20, seed=1)


def _distinct(messages: list[Publish]) -> list[tuple[str, bytes]]:
    return list(dict.fromkeys((each.topic, each.payload) for each in messages))


def _told(fleet: EmulatedFleet) -> int:
    (one,) = fleet.uplinks
    return one.gateway.report_count


# What it says


@pytest.mark.rule("gateway-1", "gateway-4", "gateway-6", "gateway-8")
async def test_a_gateway_introduces_itself_and_asks_for_its_requests(
    proxy: Proxy, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http)
    mac = crew.add(replace(proxy.address, user="somebody", password="secret"), fresh_mac())  # noqa: S106 # of nobody
    async with crew.run():
        passage = proxy.connections[0]
        (connect,) = passage.client_packets(Connect)
        assert connect.client_id == mac == mac.lower()
        assert (connect.user, connect.password) == ("somebody", b"secret")
        assert b"\x00\x04MQTT\x04" in passage.up  # the name and level of 3.1.1
        asked = {wanted for each in passage.client_packets(Subscribe) for wanted, _ in each.filters}
        assert asked == {f"mt/gateway/{mac}/request/#", "mt/gateways/#"}


@pytest.mark.rule("gateway-2", "gateway-3", "gateway-9")
async def test_everything_is_published_at_qos_1_without_retain_below_its_own_topics(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=200.0)
    mac = crew.add(proxy.address)
    async with run_listener(mosquitto) as listener, crew.run():
        await listener.request(mac, f"{mac}/read/8001")
        await eventually_async(lambda: len(listener.messages_from(mac)) > 100)
    said = proxy.connections[0].client_packets(Publish)
    assert {(each.qos, each.retain) for each in said} == {(1, False)}
    fronts = {"/".join(each.topic.split("/")[:4]) for each in said}
    assert fronts == {f"mt/gateway/{mac}/device", f"mt/gateway/{mac}/response"}


@pytest.mark.rule("gateway-12")
async def test_a_prefix_stands_in_front_of_everything_both_ways(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=200.0)
    mac = crew.add(mosquitto, topic_prefix="a/b")
    async with run_listener(mosquitto, "#") as listener, crew.run():
        await listener.link.publish(f"a/b/mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await listener.link.publish("a/b/mt/gateways/request/ffffffffffff/read/8003", b'{"id":"2"}')
        await eventually_async(lambda: len(listener.messages_from(mac, "/response/")) == 2)
        await eventually_async(lambda: len(listener.messages_from(mac)) > 20)
    own = [each.topic for each in listener.messages if "/request/" not in each.topic]
    assert {topic[: len("a/b/mt/gateway/")] for topic in own} == {"a/b/mt/gateway/"}


@pytest.mark.rule("gateway-13")
async def test_without_subscribing_a_gateway_reports_and_serves_nothing(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=200.0)
    mac = crew.add(proxy.address, disable_subscribe=True)
    async with run_listener(mosquitto) as listener, crew.run():
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
    assert proxy.connections[0].client_packets(Subscribe) == []
    assert listener.messages_from(mac, "/response/") == []


@pytest.mark.rule("gateway-13")
async def test_requests_of_an_earlier_life_do_not_reach_a_gateway_that_serves_none(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    first, second = FleetBuilder(http), FleetBuilder(http, speed=200.0)
    mac = first.add(mosquitto)
    async with first.run():
        pass
    async with run_listener(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        second.add(mosquitto, mac, disable_subscribe=True)
        async with second.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
            assert fleet.uplinks[0].received == 0
        assert listener.messages_from(mac, "/response/") == []


async def test_requests_that_came_while_a_gateway_was_away_are_served(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    first, second = FleetBuilder(http), FleetBuilder(http)
    mac = first.add(mosquitto)
    async with first.run():
        pass
    async with run_listener(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"late"}')
        second.add(mosquitto, mac)
        async with second.run():
            await eventually_async(lambda: listener.messages_from(mac, "/response/"))


async def test_a_request_too_long_to_be_read_is_refused(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http)
    mac = crew.add(mosquitto)
    async with run_listener(mosquitto, f"mt/gateway/{mac}/response/#") as listener, crew.run() as fleet:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b" " * 2_000_000)
        await eventually_async(lambda: listener.messages_from(mac, "/response/"))
        assert json.loads(listener.messages[0].payload)["status"] == 2
        assert fleet.uplinks[0].is_connected


# How it ends and comes back


async def test_a_clean_end_says_good_bye_and_loses_nothing(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=2000.0)
    mac = fresh_mac()
    crew.add(proxy.address, mac, site=_large(mac))
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: fleet.report_count > 2000)
        assert proxy.connections[0].client_packets(Disconnect) == [Disconnect()]
        made = _told(crew.fleet)
        await eventually_async(lambda: len(listener.messages_from(mac)) >= made)
        assert len(listener.messages_from(mac)) == made


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_after_a_restart_of_the_broker_reports_go_on_and_none_is_missing(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, how: signal.Signals
) -> None:
    crew = FleetBuilder(http, speed=500.0)
    mac = crew.add(mosquitto)
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
            broker.stop(how)
            made = _told(fleet)
            await eventually_async(lambda: _told(fleet) > made + 50)
            broker.start()
            after = len(listener.messages_from(mac))
            await eventually_async(lambda: len(listener.messages_from(mac)) > after + 200)
            assert fleet.uplinks[0].dropped == 0
        if how is signal.SIGTERM:  # else the broker itself forgets what it had taken
            made = _told(crew.fleet)
            await eventually_async(lambda: len(_distinct(listener.messages_from(mac))) >= made)
            assert len(_distinct(listener.messages_from(mac))) == made


async def test_a_connection_that_is_cut_loses_nothing_and_repeats_what_was_not_acknowledged(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=500.0)
    mac = crew.add(proxy.address)
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            for n in range(1, 4):
                await eventually_async(lambda n=n: len(listener.messages_from(mac)) > 50 * n)  # type: ignore[misc]
                await proxy.cut()
            await eventually_async(lambda: len(listener.messages_from(mac)) > 250)
            assert len(proxy.connections) >= 4
            assert fleet.uplinks[0].connections == 1, "the link comes back by itself"
        made = _told(crew.fleet)
        await eventually_async(lambda: len(_distinct(listener.messages_from(mac))) >= made)
        heard = _distinct(listener.messages_from(mac))
        assert len(heard) == made
        assert len(listener.messages_from(mac)) <= made + 3 * QUICK.window


async def test_while_the_broker_is_away_for_long_the_oldest_reports_give_way_and_are_counted(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=1000.0)
    mac = fresh_mac()
    crew.add(mosquitto, mac, site=_large(mac))
    crew.fleet.uplinks[0].max_queued = 300
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 10)
            broker.stop()
            await eventually_async(lambda: fleet.uplinks[0].dropped > 500)
            assert not fleet.uplinks[0].is_connected
            assert fleet.uplinks[0].disconnect_reason
            broker.start()
            heard = len(listener.messages_from(mac))
            await eventually_async(lambda: len(listener.messages_from(mac)) > heard + 100)
        one = crew.fleet.uplinks[0]
        await eventually_async(
            lambda: len(_distinct(listener.messages_from(mac))) >= one.gateway.report_count - one.dropped
        )
        assert len(_distinct(listener.messages_from(mac))) == one.gateway.report_count - one.dropped


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_gateway_that_restarts_is_gone_from_the_broker_and_comes_back(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient, *, crashes: bool
) -> None:
    crew = FleetBuilder(http, speed=20.0)
    faults = Faults(crash=0.5) if crashes else Faults()
    mac = crew.add(proxy.address, faults=faults)
    async with run_listener(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        if not crashes:
            assert (await listener.request(mac, f"{mac}/write/8300", value=""))["status"] == 0
        await proxy.until(lambda: proxy.connections[0].over)
        assert len(proxy.connections[0].client_packets(Disconnect)) == (not crashes)
        await eventually_async(lambda: one.connections == 2)
        first, second, *_ = proxy.connections
        assert second.client_packets(Connect)[0].client_id == mac
        assert second.client_packets(Connect)[0] == first.client_packets(Connect)[0]
        if not crashes:
            answer = await listener.request(mac, f"{mac}/read/8102")
            assert answer["value"] == "04"


async def test_while_a_gateway_restarts_it_is_not_connected_and_says_why(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http)
    mac = crew.add(proxy.address)
    async with run_listener(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        assert one.disconnect_reason == ""
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/write/8300", b'{"value":""}')
        await eventually_async(lambda: one.gateway.is_down)
        assert one.disconnect_reason == "the gateway is restarting"
        await proxy.until(lambda: proxy.connections[0].over)
        await eventually_async(lambda: not one.is_connected)
        heard = len(listener.messages_from(mac))
        assert await wait_until_stable(lambda: len(listener.messages_from(mac))) == heard
        assert one.gateway.is_down
        crew.set_speed(200.0)
        await eventually_async(lambda: one.is_connected)
        await eventually_async(lambda: len(listener.messages_from(mac)) > heard)


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_gateway_can_be_stopped_at_any_moment_of_its_restart(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, *, crashed: bool
) -> None:
    hanging = []
    for turns in range(12):
        crew = FleetBuilder(http)
        crew.add(mosquitto)
        running = asyncio.create_task(crew.fleet.run())
        await with_timeout(crew.fleet.all_connected.wait())
        await eventually_async(lambda crew=crew: crew.fleet.uplinks[0].is_connected)  # type: ignore[misc]
        crew.fleet.uplinks[0].perform(CloseConnection(crashed=crashed))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait((running,), timeout=TIMEOUT_SECONDS)
        if not done:
            hanging.append(turns)
            for task in asyncio.all_tasks():
                if task.get_name().startswith("gateway "):
                    task.cancel()  # who stands for ever is not moved by asking the fleet once more
            await with_timeout(asyncio.wait((running,)))
    assert hanging == []


async def test_a_gateway_that_crashes_again_and_again_is_connected_in_between(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=100.0)
    mac = crew.add(mosquitto, faults=Faults(crash=0.2))
    async with run_listener(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        await eventually_async(lambda: one.connections >= 5)
        heard = len(listener.messages_from(mac))
        await eventually_async(lambda: len(listener.messages_from(mac)) > heard)


async def test_a_gateway_that_is_stopped_while_its_broker_is_away_does_not_hang(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=500.0, options=replace(QUICK, timeout=0.2))
    crew.add(mosquitto)
    running = asyncio.create_task(crew.fleet.run())
    await with_timeout(crew.fleet.all_connected.wait())
    await eventually_async(lambda: crew.fleet.report_count > 20)
    broker.stop()
    await eventually_async(lambda: not crew.fleet.uplinks[0].is_connected)
    running.cancel()
    done, _ = await asyncio.wait((running,), timeout=TIMEOUT_SECONDS)
    assert done
