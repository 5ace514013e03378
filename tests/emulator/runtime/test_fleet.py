"""Many gateways in one process, on a real broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.emulator import ReportRatePace, generate_site
from meshfleet.emulator.runtime.simulation_pace import read_wall_clock_ms
from meshfleet.errors.mqtt import ConnectionRefused
from meshfleet.mqtt.client import MqttOptions
from meshfleet.protocol.times import parse_time, to_millis
from tests.emulator.runtime.fleet_builder import QUICK, FleetBuilder, fresh_mac, run_listener
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import Proxy
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import wait_until_stable, with_timeout
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(
        tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true", "max_queued_messages 0"
    ) as it:
        yield it


@pytest.fixture
def mosquitto(broker: Mosquitto) -> BrokerAddress:
    return at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.mark.rule("gateway-43")
async def test_two_hundred_gateways_connect_and_report(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=60.0)
    macs = [crew.add(mosquitto) for _ in range(200)]
    async with run_listener(mosquitto) as listener, crew.run() as fleet:
        assert fleet.all_connected.is_set()
        assert all(session.is_connected for session in fleet.uplinks)

        def heard() -> bool:
            return {each.topic.split("/")[2] for each in listener.messages} >= set(macs)

        await eventually_async(heard)
        assert sum(session.published for session in fleet.uplinks) > 0


async def test_each_gateway_answers_for_itself(mosquitto: BrokerAddress, http: httpx.AsyncClient) -> None:
    crew = FleetBuilder(http)
    macs = [crew.add(mosquitto) for _ in range(5)]
    async with run_listener(mosquitto) as listener, crew.run():
        for mac in macs:
            answer = await listener.request(mac, f"{mac}/read/8003")
            assert answer["value"] == mac
        assert {len(listener.messages_from(mac, "/response/")) for mac in macs} == {1}


async def test_every_report_that_was_made_is_counted_and_arrives(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=2000.0)
    macs = [crew.add(mosquitto) for _ in range(3)]
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            for _ in range(20):
                await listener.request(macs[0], f"{macs[0]}/read/8003")
            await eventually_async(lambda: fleet.report_count > 1000)
        made = {session.gateway.settings.mac: session.gateway.report_count for session in crew.fleet.uplinks}
        await eventually_async(lambda: all(len(listener.messages_from(mac)) >= made[mac] for mac in macs))
        assert {mac: len(listener.messages_from(mac)) for mac in macs} == made
        assert crew.fleet.report_count == sum(made.values())


@pytest.mark.rule("gateway-42")
async def test_reports_follow_the_real_clock_however_fast_the_world_is(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=600.0)
    mac = crew.add(mosquitto)
    before = read_wall_clock_ms()
    async with run_listener(mosquitto) as listener, crew.run():
        await eventually_async(lambda: len(listener.messages_from(mac, "/heartbeat")) > 20)
    times = [to_millis(parse_time(json.loads(each.payload)["time"])) for each in listener.messages_from(mac)]
    late_by_hops = 1000
    assert before - late_by_hops < min(times)
    assert max(times) <= read_wall_clock_ms()


async def test_by_rate_no_more_reports_are_made_than_the_rate_asks_for(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http)
    rate = 200.0
    crew.use_pace(ReportRatePace(crew.clock, rate), http)
    for _ in range(4):
        crew.add(mosquitto)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with crew.run() as fleet:
        await eventually_async(lambda: fleet.report_count >= 300)
        # A beat is never cut into two; and the two clocks may differ by a little.
        assert fleet.report_count <= (loop.time() - began) * rate + 100
    assert sum(session.gateway.report_count for session in fleet.uplinks) == fleet.report_count


async def test_a_wrong_password_ends_the_fleet_with_the_reason(
    tmp_path: Path, http: httpx.AsyncClient
) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    passwords.chmod(0o600)
    with Mosquitto(tmp_path, f"password_file {passwords}") as closed:
        crew = FleetBuilder(http)
        crew.add(at(closed.address))
        crew.add(at(closed.address))
        with pytest.raises(ExceptionGroup) as caught:
            await with_timeout(crew.fleet.run())
    assert caught.value.subgroup(ConnectionRefused) is not None
    assert caught.value.split(ConnectionRefused)[1] is None


async def test_requests_that_come_before_all_gateways_are_there_do_not_start_the_world(
    broker: Mosquitto, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    """So slow a world that its whole past would be half an hour, which a gateway would make up for."""
    crew = FleetBuilder(http, speed=1e-6)
    early = crew.add(mosquitto)
    async with Proxy(broker.address) as proxy, run_listener(mosquitto) as listener:
        proxy.stall()
        crew.add(proxy.address)
        running = asyncio.create_task(crew.fleet.run())
        await eventually_async(lambda: crew.fleet.uplinks[0].is_connected)
        await listener.link.publish(f"mt/gateway/{early}/request/{early}/apiversion", b'{"id":"early"}')
        await wait_until_stable(lambda: crew.fleet.uplinks[0].received)
        assert listener.messages_from(early) == []
        assert crew.fleet.uplinks[0].gateway.report_count == 0
        proxy.resume()
        await with_timeout(crew.fleet.all_connected.wait())
        await eventually_async(lambda: listener.messages_from(early, "/response/"))
        (answer,) = listener.messages_from(early, "/response/")
        assert json.loads(answer.payload)["time"] > "2020"
        running.cancel()
        await asyncio.wait((running,))


async def test_gateways_with_different_brokers_run_side_by_side(
    tmp_path_factory: pytest.TempPathFactory, mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    with Mosquitto(tmp_path_factory.mktemp("other")) as other:
        crew = FleetBuilder(http)
        here, there = crew.add(mosquitto), crew.add(at(other.address))
        async with run_listener(mosquitto) as near, run_listener(at(other.address)) as far, crew.run():
            assert (await near.request(here, f"{here}/read/8003"))["value"] == here
            assert (await far.request(there, f"{there}/read/8003"))["value"] == there
            assert near.messages_from(there) == [] == far.messages_from(here)


async def test_a_small_window_loses_nothing_at_the_end(
    mosquitto: BrokerAddress, http: httpx.AsyncClient
) -> None:
    crew = FleetBuilder(http, speed=4000.0, options=MqttOptions(window=2, backoff=QUICK.backoff))
    mac = fresh_mac()
    crew.add(mosquitto, mac, site=generate_site(mac, devices=20, seed=1))
    async with run_listener(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: fleet.report_count > 500)
        made = crew.fleet.uplinks[0].gateway.report_count - crew.fleet.uplinks[0].dropped
        assert await wait_until_stable(lambda: len(listener.messages_from(mac))) == made
