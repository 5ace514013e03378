"""One gateway on a broker: what it says on its connection, and how that ends and comes back."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.gateway import Faults, generate
from meshfleet.gateway.core import GoDown
from meshfleet.wire.mqtt.packets import Connect, Disconnect, Publish, Subscribe
from tests.eventually import PATIENCE, eventually_async
from tests.gateway.online.running import QUICK, Crew, fresh_mac, listening
from tests.link.proxy import Proxy
from tests.link.proxy import address as at
from tests.link.scripted import settled, soon
from tests.servers import TRUSTING_NOBODY, Mosquitto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.gateway import Fleet, Site
    from meshfleet.link import Address
    from meshfleet.wire.ids import Mac

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def broker(tmp_path: Path) -> Mosquitto:
    settings = ("set_tcp_nodelay true", "max_queued_messages 0", "persistence true", "autosave_interval 0")
    return Mosquitto(tmp_path, *settings)


@pytest.fixture
async def mosquitto(broker: Mosquitto) -> AsyncIterator[Address]:
    with broker:
        yield at(broker.address)


@pytest.fixture
async def proxy(broker: Mosquitto, mosquitto: Address) -> AsyncIterator[Proxy]:
    assert mosquitto.port == broker.address.port
    async with Proxy(broker.address) as proxy:
        yield proxy


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=TRUSTING_NOBODY, trust_env=False) as client:
        yield client


def _large(mac: Mac) -> Site:
    return generate(mac, devices=20, seed=1)


def _distinct(messages: list[Publish]) -> list[tuple[str, bytes]]:
    return list(dict.fromkeys((each.topic, each.payload) for each in messages))


def _told(fleet: Fleet) -> int:
    (one,) = fleet.uplinks
    return one.gateway.reports


# What it says


@pytest.mark.rule("gateway-1", "gateway-4", "gateway-6", "gateway-8")
async def test_a_gateway_introduces_itself_and_asks_for_its_requests(
    proxy: Proxy, http: httpx.AsyncClient
) -> None:
    crew = Crew(http)
    mac = crew.add(replace(proxy.address, user="somebody", password="secret"), fresh_mac())  # noqa: S106 # of nobody
    async with crew.run():
        passage = proxy.passages[0]
        (connect,) = passage.said(Connect)
        assert connect.client_id == mac == mac.lower()
        assert (connect.user, connect.password) == ("somebody", b"secret")
        assert b"\x00\x04MQTT\x04" in passage.up  # the name and level of 3.1.1
        asked = {wanted for each in passage.said(Subscribe) for wanted, _ in each.filters}
        assert asked == {f"mt/gateway/{mac}/request/#", "mt/gateways/#"}


@pytest.mark.rule("gateway-2", "gateway-3", "gateway-9")
async def test_everything_is_published_at_qos_1_without_retain_below_its_own_topics(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=200.0)
    mac = crew.add(proxy.address)
    async with listening(mosquitto) as listener, crew.run():
        await listener.ask(mac, f"{mac}/read/8001")
        await eventually_async(lambda: len(listener.of(mac)) > 100)
    said = proxy.passages[0].said(Publish)
    assert {(each.qos, each.retain) for each in said} == {(1, False)}
    fronts = {"/".join(each.topic.split("/")[:4]) for each in said}
    assert fronts == {f"mt/gateway/{mac}/device", f"mt/gateway/{mac}/response"}


@pytest.mark.rule("gateway-12")
async def test_a_prefix_stands_in_front_of_everything_both_ways(
    mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=200.0)
    mac = crew.add(mosquitto, topic_prefix="a/b")
    async with listening(mosquitto, "#") as listener, crew.run():
        await listener.link.publish(f"a/b/mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await listener.link.publish("a/b/mt/gateways/request/ffffffffffff/read/8003", b'{"id":"2"}')
        await eventually_async(lambda: len(listener.of(mac, "/response/")) == 2)
        await eventually_async(lambda: len(listener.of(mac)) > 20)
    own = [each.topic for each in listener.heard if "/request/" not in each.topic]
    assert {topic[: len("a/b/mt/gateway/")] for topic in own} == {"a/b/mt/gateway/"}


@pytest.mark.rule("gateway-13")
async def test_without_subscribing_a_gateway_reports_and_serves_nothing(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=200.0)
    mac = crew.add(proxy.address, disable_subscribe=True)
    async with listening(mosquitto) as listener, crew.run():
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        await eventually_async(lambda: len(listener.of(mac)) > 50)
    assert proxy.passages[0].said(Subscribe) == []
    assert listener.of(mac, "/response/") == []


@pytest.mark.rule("gateway-13")
async def test_requests_of_an_earlier_life_do_not_reach_a_gateway_that_serves_none(
    mosquitto: Address, http: httpx.AsyncClient
) -> None:
    first, second = Crew(http), Crew(http, speed=200.0)
    mac = first.add(mosquitto)
    async with first.run():
        pass
    async with listening(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"1"}')
        second.add(mosquitto, mac, disable_subscribe=True)
        async with second.run() as fleet:
            await eventually_async(lambda: len(listener.of(mac)) > 50)
            assert fleet.uplinks[0].received == 0
        assert listener.of(mac, "/response/") == []


async def test_requests_that_came_while_a_gateway_was_away_are_served(
    mosquitto: Address, http: httpx.AsyncClient
) -> None:
    first, second = Crew(http), Crew(http)
    mac = first.add(mosquitto)
    async with first.run():
        pass
    async with listening(mosquitto) as listener:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b'{"id":"late"}')
        second.add(mosquitto, mac)
        async with second.run():
            await eventually_async(lambda: listener.of(mac, "/response/"))


async def test_a_request_too_long_to_be_read_is_refused(mosquitto: Address, http: httpx.AsyncClient) -> None:
    crew = Crew(http)
    mac = crew.add(mosquitto)
    async with listening(mosquitto, f"mt/gateway/{mac}/response/#") as listener, crew.run() as fleet:
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/read/8003", b" " * 2_000_000)
        await eventually_async(lambda: listener.of(mac, "/response/"))
        assert json.loads(listener.heard[0].payload)["status"] == 2
        assert fleet.uplinks[0].is_connected


# How it ends and comes back


async def test_a_clean_end_says_good_bye_and_loses_nothing(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=2000.0)
    mac = fresh_mac()
    crew.add(proxy.address, mac, site=_large(mac))
    async with listening(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: fleet.reports > 2000)
        assert proxy.passages[0].said(Disconnect) == [Disconnect()]
        made = _told(crew.fleet)
        await eventually_async(lambda: len(listener.of(mac)) >= made)
        assert len(listener.of(mac)) == made


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_after_a_restart_of_the_broker_reports_go_on_and_none_is_missing(
    broker: Mosquitto, mosquitto: Address, http: httpx.AsyncClient, how: signal.Signals
) -> None:
    crew = Crew(http, speed=500.0)
    mac = crew.add(mosquitto)
    async with listening(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: len(listener.of(mac)) > 50)
            broker.stop(how)
            made = _told(fleet)
            await eventually_async(lambda: _told(fleet) > made + 50)
            broker.start()
            after = len(listener.of(mac))
            await eventually_async(lambda: len(listener.of(mac)) > after + 200)
            assert fleet.uplinks[0].dropped == 0
        if how is signal.SIGTERM:  # else the broker itself forgets what it had taken
            made = _told(crew.fleet)
            await eventually_async(lambda: len(_distinct(listener.of(mac))) >= made)
            assert len(_distinct(listener.of(mac))) == made


async def test_a_connection_that_is_cut_loses_nothing_and_repeats_what_was_not_acknowledged(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=500.0)
    mac = crew.add(proxy.address)
    async with listening(mosquitto) as listener:
        async with crew.run() as fleet:
            for n in range(1, 4):
                await eventually_async(lambda n=n: len(listener.of(mac)) > 50 * n)  # type: ignore[misc]
                await proxy.cut()
            await eventually_async(lambda: len(listener.of(mac)) > 250)
            assert len(proxy.passages) >= 4
            assert fleet.uplinks[0].connections == 1, "the link comes back by itself"
        made = _told(crew.fleet)
        await eventually_async(lambda: len(_distinct(listener.of(mac))) >= made)
        heard = _distinct(listener.of(mac))
        assert len(heard) == made
        assert len(listener.of(mac)) <= made + 3 * QUICK.window


async def test_while_the_broker_is_away_for_long_the_oldest_reports_give_way_and_are_counted(
    broker: Mosquitto, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=1000.0)
    mac = fresh_mac()
    crew.add(mosquitto, mac, site=_large(mac))
    crew.fleet.uplinks[0].most_waiting = 300
    async with listening(mosquitto) as listener:
        async with crew.run() as fleet:
            await eventually_async(lambda: len(listener.of(mac)) > 10)
            broker.stop()
            await eventually_async(lambda: fleet.uplinks[0].dropped > 500)
            assert not fleet.uplinks[0].is_connected
            assert fleet.uplinks[0].trouble
            broker.start()
            heard = len(listener.of(mac))
            await eventually_async(lambda: len(listener.of(mac)) > heard + 100)
        one = crew.fleet.uplinks[0]
        await eventually_async(lambda: len(_distinct(listener.of(mac))) >= one.gateway.reports - one.dropped)
        assert len(_distinct(listener.of(mac))) == one.gateway.reports - one.dropped


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_gateway_that_restarts_is_gone_from_the_broker_and_comes_back(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient, *, crashes: bool
) -> None:
    crew = Crew(http, speed=20.0)
    faults = Faults(crash=0.5) if crashes else Faults()
    mac = crew.add(proxy.address, faults=faults)
    async with listening(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        if not crashes:
            assert (await listener.ask(mac, f"{mac}/write/8300", value=""))["status"] == 0
        await proxy.until(lambda: proxy.passages[0].over)
        assert len(proxy.passages[0].said(Disconnect)) == (not crashes)
        await eventually_async(lambda: one.connections == 2)
        first, second, *_ = proxy.passages
        assert second.said(Connect)[0].client_id == mac
        assert second.said(Connect)[0] == first.said(Connect)[0]
        if not crashes:
            answer = await listener.ask(mac, f"{mac}/read/8102")
            assert answer["value"] == "04"


async def test_while_a_gateway_restarts_it_is_not_connected_and_says_why(
    proxy: Proxy, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http)
    mac = crew.add(proxy.address)
    async with listening(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        assert one.trouble == ""
        await listener.link.publish(f"mt/gateway/{mac}/request/{mac}/write/8300", b'{"value":""}')
        await eventually_async(lambda: one.gateway.is_down)
        assert one.trouble == "the gateway is restarting"
        await proxy.until(lambda: proxy.passages[0].over)
        await eventually_async(lambda: not one.is_connected)
        heard = len(listener.of(mac))
        assert await settled(lambda: len(listener.of(mac))) == heard
        assert one.gateway.is_down
        crew.hurry(200.0)
        await eventually_async(lambda: one.is_connected)
        await eventually_async(lambda: len(listener.of(mac)) > heard)


@pytest.mark.parametrize("crashed", [False, True])
async def test_a_gateway_can_be_stopped_at_any_moment_of_its_restart(
    mosquitto: Address, http: httpx.AsyncClient, *, crashed: bool
) -> None:
    hanging = []
    for turns in range(12):
        crew = Crew(http)
        crew.add(mosquitto)
        running = asyncio.create_task(crew.fleet.run())
        await soon(crew.fleet.is_complete.wait())
        await eventually_async(lambda crew=crew: crew.fleet.uplinks[0].is_connected)  # type: ignore[misc]
        crew.fleet.uplinks[0].do(GoDown(crashed=crashed))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait((running,), timeout=PATIENCE)
        if not done:
            hanging.append(turns)
            for task in asyncio.all_tasks():
                if task.get_name().startswith("gateway "):
                    task.cancel()  # who stands for ever is not moved by asking the fleet once more
            await soon(asyncio.wait((running,)))
    assert hanging == []


async def test_a_gateway_that_crashes_again_and_again_is_connected_in_between(
    mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=100.0)
    mac = crew.add(mosquitto, faults=Faults(crash=0.2))
    async with listening(mosquitto) as listener, crew.run() as fleet:
        one = fleet.uplinks[0]
        await eventually_async(lambda: one.connections >= 5)
        heard = len(listener.of(mac))
        await eventually_async(lambda: len(listener.of(mac)) > heard)


async def test_a_gateway_that_is_stopped_while_its_broker_is_away_does_not_hang(
    broker: Mosquitto, mosquitto: Address, http: httpx.AsyncClient
) -> None:
    crew = Crew(http, speed=500.0, options=replace(QUICK, patience=0.2))
    crew.add(mosquitto)
    running = asyncio.create_task(crew.fleet.run())
    await soon(crew.fleet.is_complete.wait())
    await eventually_async(lambda: crew.fleet.reports > 20)
    broker.stop()
    await eventually_async(lambda: not crew.fleet.uplinks[0].is_connected)
    running.cancel()
    done, _ = await asyncio.wait((running,), timeout=PATIENCE)
    assert done
