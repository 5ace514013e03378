"""Many gateways in one process, on a real broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from meshfleet.emulator import ReportRatePace, generate_site
from meshfleet.emulator.runtime.simulation_pace import read_wall_clock_ms
from meshfleet.errors.mqtt import ConnectionRefused
from meshfleet.mqtt.client import MqttOptions
from meshfleet.protocol.times import parse_time, to_millis
from tests.emulator.runtime.fleet_builder import QUICK_RECONNECT, FleetBuilder, fresh_mac, run_listener
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import wait_until_stable, with_timeout
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio


@pytest.mark.rule("gateway-43")
async def test_two_hundred_gateways_connect_and_report(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=60.0)
    macs = [builder.add(mosquitto) for _ in range(200)]
    async with run_listener(mosquitto) as listener, builder.run() as fleet:
        assert fleet.all_connected.is_set()
        assert all(uplink.is_connected for uplink in fleet.uplinks)

        def have_all_reported() -> bool:
            return {message.topic.split("/")[2] for message in listener.messages} >= set(macs)

        await eventually_async(have_all_reported)
        assert sum(uplink.published for uplink in fleet.uplinks) > 0


async def test_each_gateway_responds_to_its_own_requests(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http)
    macs = [builder.add(mosquitto) for _ in range(5)]
    async with run_listener(mosquitto) as listener, builder.run():
        for mac in macs:
            response = await listener.request(mac, f"{mac}/read/8003")
            assert response["value"] == mac
        assert {len(listener.messages_from(mac, "/response/")) for mac in macs} == {1}


async def test_every_report_is_counted_and_published(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=2000.0)
    macs = [builder.add(mosquitto) for _ in range(3)]
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            for _ in range(20):
                await listener.request(macs[0], f"{macs[0]}/read/8003")
            await eventually_async(lambda: fleet.report_count > 1000)
        report_counts = {
            uplink.gateway.settings.mac: uplink.gateway.report_count for uplink in builder.fleet.uplinks
        }
        await eventually_async(
            lambda: all(len(listener.messages_from(mac)) >= report_counts[mac] for mac in macs)
        )
        assert {mac: len(listener.messages_from(mac)) for mac in macs} == report_counts
        assert builder.fleet.report_count == sum(report_counts.values())


@pytest.mark.parametrize("turns", range(3))
async def test_a_fleet_stops_although_a_gateway_becomes_due_in_the_same_moment(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, turns: int
) -> None:
    builder = FleetBuilder(http)
    builder.add(mosquitto)
    running = asyncio.create_task(builder.fleet.run())
    await eventually_async(builder.fleet.all_connected.is_set)
    uplink = builder.fleet.uplinks[0]
    await wait_until_stable(lambda: uplink.published)
    uplink.on_activity(uplink)
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    _, unfinished = await asyncio.wait({running}, timeout=30)
    assert not unfinished


@pytest.mark.rule("gateway-42")
async def test_reports_have_wall_clock_times_at_any_speed(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=600.0)
    mac = builder.add(mosquitto)
    before = read_wall_clock_ms()
    async with run_listener(mosquitto) as listener, builder.run():
        await eventually_async(lambda: len(listener.messages_from(mac, "/heartbeat")) > 20)
    times = [
        to_millis(parse_time(json.loads(message.payload)["time"])) for message in listener.messages_from(mac)
    ]
    hop_latency_ms = 1000
    assert before - hop_latency_ms < min(times)
    assert max(times) <= read_wall_clock_ms()


async def test_a_report_rate_is_not_exceeded(mosquitto: BrokerAddress, http: httpx.AsyncClient) -> None:
    builder = FleetBuilder(http)
    rate = 200.0
    builder.use_pace(ReportRatePace(builder.clock, rate), http)
    for _ in range(4):
        builder.add(mosquitto)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with builder.run() as fleet:
        await eventually_async(lambda: fleet.report_count >= 300)
        # A heartbeat cycle is never split, and the two clocks may differ slightly.
        assert fleet.report_count <= (loop.time() - started) * rate + 100
    assert sum(uplink.gateway.report_count for uplink in fleet.uplinks) == fleet.report_count


async def test_a_wrong_password_ends_the_fleet_with_an_error(tmp_path: Path, http: httpx.AsyncClient) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    passwords.chmod(0o600)
    with Mosquitto(tmp_path, f"password_file {passwords}") as broker:
        builder = FleetBuilder(http)
        builder.add(at(broker.address))
        builder.add(at(broker.address))
        with pytest.raises(ExceptionGroup) as caught:
            await with_timeout(builder.fleet.run())
    assert caught.value.subgroup(ConnectionRefused) is not None
    assert caught.value.split(ConnectionRefused)[1] is None


async def test_requests_before_all_gateways_have_connected_do_not_start_the_simulation(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    """Use a speed at which the time since 1970 is half an hour, which an early start would simulate."""
    builder = FleetBuilder(http, speed=1e-6)
    mac = builder.add(mosquitto)
    async with Proxy(broker.address) as proxy, run_listener(mosquitto) as listener:
        proxy.stall()
        builder.add(proxy.address)
        fleet_task = asyncio.create_task(builder.fleet.run())
        await eventually_async(lambda: builder.fleet.uplinks[0].is_connected)
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/apiversion", b'{"id":"early"}')
        await wait_until_stable(lambda: builder.fleet.uplinks[0].received)
        assert listener.messages_from(mac) == []
        assert builder.fleet.uplinks[0].gateway.report_count == 0
        proxy.resume()
        await with_timeout(builder.fleet.all_connected.wait())
        await eventually_async(lambda: listener.messages_from(mac, "/response/"))
        (response,) = listener.messages_from(mac, "/response/")
        assert json.loads(response.payload)["time"] > "2020"
        fleet_task.cancel()
        await asyncio.wait((fleet_task,))


async def test_gateways_with_different_brokers_run_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    with Mosquitto(tmp_path_factory.mktemp("other")) as other:
        builder = FleetBuilder(http)
        first_mac, second_mac = builder.add(mosquitto), builder.add(at(other.address))
        async with (
            run_listener(mosquitto) as first_listener,
            run_listener(at(other.address)) as second_listener,
            builder.run(),
        ):
            assert (await first_listener.request(first_mac, f"{first_mac}/read/8003"))["value"] == first_mac
            assert (await second_listener.request(second_mac, f"{second_mac}/read/8003"))[
                "value"
            ] == second_mac
            assert first_listener.messages_from(second_mac) == [] == second_listener.messages_from(first_mac)


async def test_a_small_in_flight_window_loses_nothing_on_shutdown(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    builder = FleetBuilder(http, speed=4000.0, options=MqttOptions(window=2, backoff=QUICK_RECONNECT.backoff))
    mac = fresh_mac()
    builder.add(mosquitto, mac, site=generate_site(mac, devices=20, seed=1))
    async with run_listener(mosquitto) as listener:
        async with builder.run() as fleet:
            await eventually_async(lambda: fleet.report_count > 500)
        expected_count = builder.fleet.uplinks[0].gateway.report_count - builder.fleet.uplinks[0].dropped
        assert await wait_until_stable(lambda: len(listener.messages_from(mac))) == expected_count
