"""Connection of one gateway to a broker: its messages, its shutdown and its reconnects."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.emulator import Faults, generate_site
from meshfleet.emulator.context import CloseConnection
from meshfleet.mqtt.codec.packets import Connect, Disconnect, Publish, Subscribe
from tests.emulator.runtime.fleet_builder import QUICK_RECONNECT, FleetBuilder, fresh_mac, run_listener
from tests.eventually import TIMEOUT_SECONDS, eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import wait_until_stable, with_timeout
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

    from meshfleet.emulator import EmulatedFleet, Site
    from meshfleet.mqtt.client import BrokerAddress
    from meshfleet.protocol.ids import Mac

pytestmark = pytest.mark.anyio


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


def _build_large_site(mac: Mac) -> Site:
    return generate_site(mac, devices=20, seed=1)


def _list_distinct(messages: list[Publish]) -> list[tuple[str, bytes]]:
    return list(dict.fromkeys((message.topic, message.payload) for message in messages))


def _count_reports(fleet: EmulatedFleet) -> int:
    (uplink,) = fleet.uplinks
    return uplink.gateway.report_count


# Messages


@pytest.mark.rule("gateway-1", "gateway-4", "gateway-6", "gateway-8")
async def test_a_gateway_connects_with_its_mac_and_subscribes_to_its_requests(
    proxy: Proxy, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http)
    mac = builder.add(replace(proxy.address, user="user-1", password="secret"), fresh_mac())  # noqa: S106 # dummy
    async with builder.run():
        passage = proxy.connections[0]
        (connect,) = passage.client_packets(Connect)
        assert connect.client_id == mac == mac.lower()
        assert (connect.user, connect.password) == ("user-1", b"secret")
        assert b"\x00\x04MQTT\x04" in passage.up  # protocol name and level of MQTT 3.1.1
        topic_filters = {
            topic_filter for each in passage.client_packets(Subscribe) for topic_filter, _ in each.filters
        }
        assert topic_filters == {f"mt/gateway/{mac}/request/#", "mt/gateways/#"}


@pytest.mark.rule("gateway-2", "gateway-3", "gateway-9")
async def test_all_messages_have_qos_1_and_no_retain_and_topics_of_the_gateway(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=200.0)
    mac = builder.add(proxy.address)
    async with run_listener(mosquitto) as listener, builder.run():
        await listener.request(mac, f"{mac}/read/8001")
        await eventually_async(lambda: len(listener.messages_from(mac)) > 100)
    messages = proxy.connections[0].client_packets(Publish)
    assert {(message.qos, message.retain) for message in messages} == {(1, False)}
    topic_prefixes = {"/".join(message.topic.split("/")[:4]) for message in messages}
    assert topic_prefixes == {f"mt/gateway/{mac}/device", f"mt/gateway/{mac}/response"}


@pytest.mark.rule("gateway-12")
async def test_every_topic_has_the_prefix_in_both_directions(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=200.0)
    mac = builder.add(mosquitto, topic_prefix="a/b")
    async with run_listener(mosquitto, "#") as listener, builder.run():
        await listener.link.publish(f"a/b/mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await listener.link.publish("a/b/mt/gateways/request/ffffffffffff/read/8003", b'{"id":"2"}')
        await eventually_async(lambda: len(listener.messages_from(mac, "/response/")) == 2)
        await eventually_async(lambda: len(listener.messages_from(mac)) > 20)
    topics = [message.topic for message in listener.messages if "/request/" not in message.topic]
    assert {topic[: len("a/b/mt/gateway/")] for topic in topics} == {"a/b/mt/gateway/"}


@pytest.mark.rule("gateway-13")
async def test_a_gateway_with_disable_subscribe_reports_but_does_not_respond(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=200.0)
    mac = builder.add(proxy.address, disable_subscribe=True)
    async with run_listener(mosquitto) as listener, builder.run():
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
    assert proxy.connections[0].client_packets(Subscribe) == []
    assert listener.messages_from(mac, "/response/") == []


@pytest.mark.rule("gateway-13")
async def test_queued_requests_do_not_reach_a_gateway_with_disable_subscribe(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    first_builder, second_builder = FleetBuilder(http), FleetBuilder(http, speed=200.0)
    mac = first_builder.add(mosquitto)
    async with first_builder.run():
        pass
    async with run_listener(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        second_builder.add(mosquitto, mac, disable_subscribe=True)
        async with second_builder.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
            assert fleet.uplinks[0].received == 0
        assert listener.messages_from(mac, "/response/") == []


async def test_requests_queued_while_a_gateway_was_disconnected_are_served(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    first_builder, second_builder = FleetBuilder(http), FleetBuilder(http)
    mac = first_builder.add(mosquitto)
    async with first_builder.run():
        pass
    async with run_listener(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"late"}')
        second_builder.add(mosquitto, mac)
        async with second_builder.run():
            await eventually_async(lambda: listener.messages_from(mac, "/response/"))


async def test_a_request_that_is_too_long_is_rejected(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http)
    mac = builder.add(mosquitto)
    async with run_listener(mosquitto, f"mt/gateway/{mac}/response/#") as listener, builder.run() as fleet:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b" " * 2_000_000)
        await eventually_async(lambda: listener.messages_from(mac, "/response/"))
        assert json.loads(listener.messages[0].payload)["status"] == 2
        assert fleet.uplinks[0].is_connected


# Shutdown and reconnects


async def test_a_clean_shutdown_disconnects_and_loses_nothing(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=2000.0)
    mac = fresh_mac()
    builder.add(proxy.address, mac, site=_build_large_site(mac))
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            await eventually_async(lambda: fleet.report_count > 2000)
        assert proxy.connections[0].client_packets(Disconnect) == [Disconnect()]
        report_count = _count_reports(builder.fleet)
        await eventually_async(lambda: len(listener.messages_from(mac)) >= report_count)
        assert len(listener.messages_from(mac)) == report_count


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_report_is_lost_by_a_restart_of_the_broker(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient, signal_number: signal.Signals
) -> None:
    builder = FleetBuilder(http, speed=500.0)
    mac = builder.add(mosquitto)
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 50)
            broker.stop(signal_number)
            report_count = _count_reports(fleet)
            await eventually_async(lambda: _count_reports(fleet) > report_count + 50)
            broker.start()
            received_count = len(listener.messages_from(mac))
            await eventually_async(lambda: len(listener.messages_from(mac)) > received_count + 200)
            assert fleet.uplinks[0].dropped == 0
        if signal_number is signal.SIGTERM:  # a killed broker loses messages that it has acknowledged
            report_count = _count_reports(builder.fleet)
            await eventually_async(lambda: len(_list_distinct(listener.messages_from(mac))) >= report_count)
            assert len(_list_distinct(listener.messages_from(mac))) == report_count


async def test_no_report_is_lost_by_a_broken_connection(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=500.0)
    mac = builder.add(proxy.address)
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            for n in range(1, 4):
                await eventually_async(lambda n=n: len(listener.messages_from(mac)) > 50 * n)  # type: ignore[misc]
                await proxy.cut()
            await eventually_async(lambda: len(listener.messages_from(mac)) > 250)
            assert len(proxy.connections) >= 4
            assert fleet.uplinks[0].connections == 1, "the MQTT client reconnects by itself"
        report_count = _count_reports(builder.fleet)
        await eventually_async(lambda: len(_list_distinct(listener.messages_from(mac))) >= report_count)
        distinct_messages = _list_distinct(listener.messages_from(mac))
        assert len(distinct_messages) == report_count
        assert len(listener.messages_from(mac)) <= report_count + 3 * QUICK_RECONNECT.window


async def test_the_oldest_reports_are_dropped_and_counted_in_a_long_outage(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=1000.0)
    mac = fresh_mac()
    builder.add(mosquitto, mac, site=_build_large_site(mac))
    builder.fleet.uplinks[0].max_queued = 300
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            await eventually_async(lambda: len(listener.messages_from(mac)) > 10)
            broker.stop()
            await eventually_async(lambda: fleet.uplinks[0].dropped > 500)
            assert not fleet.uplinks[0].is_connected
            assert fleet.uplinks[0].disconnect_reason
            broker.start()
            received_count = len(listener.messages_from(mac))
            await eventually_async(lambda: len(listener.messages_from(mac)) > received_count + 100)
        uplink = builder.fleet.uplinks[0]
        await eventually_async(
            lambda: (
                len(_list_distinct(listener.messages_from(mac)))
                >= uplink.gateway.report_count - uplink.dropped
            )
        )
        assert (
            len(_list_distinct(listener.messages_from(mac))) == uplink.gateway.report_count - uplink.dropped
        )


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_gateway_that_restarts_disconnects_and_reconnects(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient, *, crashes: bool
) -> None:
    builder = FleetBuilder(http, speed=20.0)
    faults = Faults(crash=0.5) if crashes else Faults()
    mac = builder.add(proxy.address, faults=faults)
    async with run_listener(mosquitto) as listener, builder.run() as fleet:
        uplink = fleet.uplinks[0]
        if not crashes:
            assert (await listener.request(mac, f"{mac}/write/8300", value=""))["status"] == 0
        await proxy.until(lambda: proxy.connections[0].over)
        assert len(proxy.connections[0].client_packets(Disconnect)) == (not crashes)
        await eventually_async(lambda: uplink.connections == 2)
        first, second, *_ = proxy.connections
        assert second.client_packets(Connect)[0].client_id == mac
        assert second.client_packets(Connect)[0] == first.client_packets(Connect)[0]
        if not crashes:
            response = await listener.request(mac, f"{mac}/read/8102")
            assert response["value"] == "04"


async def test_a_restarting_gateway_is_not_connected_and_has_a_reason(
    proxy: Proxy, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http)
    mac = builder.add(proxy.address)
    async with run_listener(mosquitto) as listener, builder.run() as fleet:
        uplink = fleet.uplinks[0]
        assert uplink.disconnect_reason == ""
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/write/8300", b'{"value":""}')
        await eventually_async(lambda: uplink.gateway.is_restarting)
        assert uplink.disconnect_reason == "the gateway is restarting"
        await proxy.until(lambda: proxy.connections[0].over)
        await eventually_async(lambda: not uplink.is_connected)
        received_count = len(listener.messages_from(mac))
        assert await wait_until_stable(lambda: len(listener.messages_from(mac))) == received_count
        assert uplink.gateway.is_restarting
        builder.set_speed(200.0)
        await eventually_async(lambda: uplink.is_connected)
        await eventually_async(lambda: len(listener.messages_from(mac)) > received_count)


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_gateway_can_be_stopped_at_any_moment_of_its_restart(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, *, crashed: bool
) -> None:
    hanging_turns = []
    for turns in range(12):
        builder = FleetBuilder(http)
        builder.add(mosquitto)
        fleet_task = asyncio.create_task(builder.fleet.run())
        await with_timeout(builder.fleet.all_connected.wait())
        await eventually_async(lambda builder=builder: builder.fleet.uplinks[0].is_connected)  # type: ignore[misc]
        builder.fleet.uplinks[0].perform(CloseConnection(crashed=crashed))
        for _ in range(turns):
            await asyncio.sleep(0)
        fleet_task.cancel()
        done, _ = await asyncio.wait((fleet_task,), timeout=TIMEOUT_SECONDS)
        if not done:
            hanging_turns.append(turns)
            for task in asyncio.all_tasks():
                if task.get_name().startswith("gateway "):
                    task.cancel()  # a hanging task is not ended by canceling the fleet once more
            await with_timeout(asyncio.wait((fleet_task,)))
    assert hanging_turns == []


async def test_a_gateway_that_crashes_repeatedly_reconnects_each_time(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=100.0)
    mac = builder.add(mosquitto, faults=Faults(crash=0.2))
    async with run_listener(mosquitto) as listener, builder.run() as fleet:
        uplink = fleet.uplinks[0]
        await eventually_async(lambda: uplink.connections >= 5)
        received_count = len(listener.messages_from(mac))
        await eventually_async(lambda: len(listener.messages_from(mac)) > received_count)


async def test_shutdown_does_not_hang_while_the_broker_is_down(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=500.0, options=replace(QUICK_RECONNECT, timeout=0.2))
    builder.add(mosquitto)
    fleet_task = asyncio.create_task(builder.fleet.run())
    await with_timeout(builder.fleet.all_connected.wait())
    await eventually_async(lambda: builder.fleet.report_count > 20)
    broker.stop()
    await eventually_async(lambda: not builder.fleet.uplinks[0].is_connected)
    fleet_task.cancel()
    done, _ = await asyncio.wait((fleet_task,), timeout=TIMEOUT_SECONDS)
    assert done
