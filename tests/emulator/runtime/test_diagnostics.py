"""The connection for questions comes, is shared and goes, whatever becomes of the questions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.emulator.runtime.image_fetcher import GatewayImageFetcher, ImageFetchOptions
from meshfleet.errors.emulator import ImageUnavailable
from meshfleet.mqtt.client import MqttClient
from meshfleet.mqtt.codec.packets import Disconnect, Puback, Publish, Subscribe, Unsuback, Unsubscribe
from meshfleet.protocol.diagnostics import (
    decode_question,
    encode_answer,
    format_answer_topic,
    format_question_topic,
)
from tests.emulator.runtime.firmware_service import (
    DIGITS_ONLY_MAC,
    GATEWAY,
    IMAGE,
    LONG,
    OTHER,
    PACKAGE,
    QUESTION,
    SHORT,
    accept_diagnostics,
    build_answer,
    diagnostics_tasks,
    receive_question,
    run_firmware_service,
    send_answer,
)
from tests.emulator.runtime.http_server import ScriptedHttpServer, build_response
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import to_address as at
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until_stable, with_timeout
from tests.selection import backend_for_loop
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.mqtt.client import BrokerAddress

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerAddress]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        yield at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[ScriptedHttpServer]:
    async with ScriptedHttpServer.serving({"/image": build_response(200, PACKAGE)}) as web:
        yield web


@pytest.mark.rule("gateway-5", "topic-9")
async def test_the_diagnostics_connection_is_a_second_one_in_upper_case(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        address = replace(broker.address, user="me", password="")
        getting = asyncio.create_task(
            GatewayImageFetcher(address, GATEWAY, link=None, http=http, fetch_options=LONG).fetch(QUESTION)
        )
        peer = await accept_diagnostics(broker)
        message = await peer.expect(Publish)
        question_id, asked = decode_question(message.payload)
        assert (message.topic, message.qos, message.retain) == (format_question_topic(GATEWAY), 1, False)
        assert asked == QUESTION
        peer.acknowledge([message])
        send_answer(peer, question_id, build_answer(f"{web.url}/image"))
        assert await with_timeout(getting) == IMAGE
        connect: Any = peer.received[0]
        assert (connect.client_id, connect.keep_alive, connect.clean) == ("D0CF5E0000A1", 15, True)
        assert (connect.user, connect.password, connect.will) == ("me", b"", None)
        assert [type(packet) for packet in peer.unread] == [Puback, Disconnect]
        await eventually_async(lambda: peer.gone)


async def test_questions_at_the_same_time_share_a_connection(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        first = asyncio.create_task(images.fetch(QUESTION))
        peer = await accept_diagnostics(broker)
        first_id = await receive_question(peer)
        second = asyncio.create_task(images.fetch(OTHER))
        second_id = await receive_question(peer)
        send_answer(peer, second_id, None)
        with pytest.raises(ImageUnavailable, match="no image of model 000F"):
            await with_timeout(second)
        assert not peer.finished
        send_answer(peer, first_id, build_answer(f"{web.url}/image"))
        assert await with_timeout(first) == IMAGE
        await eventually_async(lambda: peer.gone)
        assert len(broker.peers) == 1


async def test_every_next_question_has_a_connection_again(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        for _ in range(3):
            getting = asyncio.create_task(images.fetch(QUESTION))
            peer = await accept_diagnostics(broker)
            send_answer(peer, await receive_question(peer), build_answer(f"{web.url}/image"))
            assert await with_timeout(getting) == IMAGE
            assert peer.finished


async def test_the_next_connection_waits_until_the_last_is_gone(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        first = asyncio.create_task(images.fetch(QUESTION))
        peer = await accept_diagnostics(broker)
        peer.lingers = True
        send_answer(peer, await receive_question(peer), build_answer(f"{web.url}/image"))
        await eventually_async(lambda: peer.finished)
        second = asyncio.create_task(images.fetch(QUESTION))
        await eventually_async(lambda: len(diagnostics_tasks()) == 2)
        assert await wait_until_stable(lambda: len(broker.peers)) == 1
        peer.close()
        assert await with_timeout(first) == IMAGE
        next_peer = await accept_diagnostics(broker)
        send_answer(next_peer, await receive_question(next_peer), build_answer(f"{web.url}/image"))
        assert await with_timeout(second) == IMAGE


async def test_without_an_answer_the_question_is_put_three_times(http: httpx.AsyncClient) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(
            broker.address, GATEWAY, link=None, http=http, fetch_options=ImageFetchOptions(idle_timeout=1)
        )
        getting = asyncio.create_task(images.fetch(QUESTION))
        peer = await accept_diagnostics(broker)
        asked = [await receive_question(peer) for _ in range(3)]
        with pytest.raises(
            ImageUnavailable, match=r"of model 2011 in version 1\.2\.3-beta\.4: nobody answers"
        ):
            await with_timeout(getting)
        assert len(set(asked)) == 1
        assert isinstance(await peer.next(), Disconnect)
        assert diagnostics_tasks() == []


async def test_a_late_answer_to_an_earlier_try_will_do(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(
            broker.address, GATEWAY, link=None, http=http, fetch_options=ImageFetchOptions(idle_timeout=1)
        )
        getting = asyncio.create_task(images.fetch(QUESTION))
        peer = await accept_diagnostics(broker)
        first = await receive_question(peer)
        await receive_question(peer)
        send_answer(peer, first, build_answer(f"{web.url}/image"))
        assert await with_timeout(getting) == IMAGE


async def test_a_mac_without_letters_asks_over_its_own_link(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    told = build_answer(f"{web.url}/image")
    async with (
        run_firmware_service(mosquitto, lambda asked: [b"nonsense", encode_answer(asked, told)]),
        MqttClient(mosquitto, DIGITS_ONLY_MAC, clean=True) as link,
    ):
        images = GatewayImageFetcher(mosquitto, DIGITS_ONLY_MAC, link=link, http=http, fetch_options=LONG)

        async def own() -> None:
            async for batch in link:
                for message in batch.messages:
                    assert message.topic == format_answer_topic(DIGITS_ONLY_MAC)
                    images.on_answer(message.payload)
                batch.acknowledge()

        owning = asyncio.create_task(own())
        assert await with_timeout(images.fetch(QUESTION)) == IMAGE
        assert diagnostics_tasks() == []
        owning.cancel()
        await asyncio.wait((owning,))


async def test_a_mac_without_letters_has_one_connection_and_takes_its_subscription_back(
    http: httpx.AsyncClient,
) -> None:
    async with ScriptedBroker() as broker, MqttClient(broker.address, DIGITS_ONLY_MAC, clean=True) as link:
        peer = await broker.accept()
        images = GatewayImageFetcher(
            broker.address, DIGITS_ONLY_MAC, link=link, http=http, fetch_options=LONG
        )
        getting = asyncio.create_task(images.fetch(QUESTION))
        asked = await peer.grant()
        assert asked.filters == ((format_answer_topic(DIGITS_ONLY_MAC), 1),)
        told = encode_answer(await receive_question(peer), None)
        images.on_answer(told)
        images.on_answer(told)  # again, before anybody has looked at the first
        goodbye = await peer.expect(Unsubscribe)
        assert goodbye.filters == (format_answer_topic(DIGITS_ONLY_MAC),)
        peer.send(Unsuback(goodbye.packet_id))
        with pytest.raises(ImageUnavailable):
            await with_timeout(getting)
        assert len(broker.peers) == 1
        assert link.connection_error is None


async def test_a_mac_without_letters_needs_a_link(http: httpx.AsyncClient) -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(ValueError, match="no letters"):
            GatewayImageFetcher(broker.address, DIGITS_ONLY_MAC, link=None, http=http)


async def test_a_closed_link_makes_the_image_unavailable(http: httpx.AsyncClient) -> None:
    async with ScriptedBroker() as broker:
        async with MqttClient(broker.address, DIGITS_ONLY_MAC, clean=True) as link:
            images = GatewayImageFetcher(
                broker.address, DIGITS_ONLY_MAC, link=link, http=http, fetch_options=LONG
            )
        with pytest.raises(ImageUnavailable, match="closed"):
            await with_timeout(images.fetch(QUESTION))
        assert diagnostics_tasks() == []


@pytest.mark.parametrize("stage", ["connecting", "subscribing", "asking", "waiting"])
async def test_a_cancelled_question_leaves_nothing_behind(http: httpx.AsyncClient, stage: str) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(
            broker.address, GATEWAY, link=None, http=http, fetch_options=replace(LONG, idle_timeout=1)
        )
        if stage == "connecting":
            broker.connack = None
        getting = asyncio.create_task(images.fetch(QUESTION))
        peer = await broker.accept()
        if stage == "subscribing":
            await peer.expect(Subscribe)
        elif stage != "connecting":
            await peer.grant()
            await (receive_question(peer) if stage == "waiting" else peer.expect(Publish))
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(getting)
        assert diagnostics_tasks() == []
        await eventually_async(lambda: peer.gone)
        assert len(broker.peers) == 1


async def test_a_cancelled_question_leaves_the_others_alone(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        first, second = (asyncio.create_task(images.fetch(each)) for each in (QUESTION, OTHER))
        peer = await accept_diagnostics(broker)
        asked = [await receive_question(peer), await receive_question(peer)]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(first)
        assert not peer.finished
        for question_id in asked:
            send_answer(peer, question_id, build_answer(f"{web.url}/image"))
        assert await with_timeout(second) == IMAGE


async def test_a_cancelled_question_on_the_own_link_takes_its_subscription_back(
    http: httpx.AsyncClient,
) -> None:
    async with ScriptedBroker() as broker, MqttClient(broker.address, DIGITS_ONLY_MAC, clean=True) as link:
        peer = await broker.accept()
        images = GatewayImageFetcher(
            broker.address, DIGITS_ONLY_MAC, link=link, http=http, fetch_options=LONG
        )
        getting = asyncio.create_task(images.fetch(QUESTION))
        await peer.grant()
        await receive_question(peer)
        getting.cancel()
        goodbye = await peer.expect(Unsubscribe)
        peer.send(Unsuback(goodbye.packet_id))
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(getting)
        assert diagnostics_tasks() == []


async def test_a_broker_that_is_not_there_is_the_reason(
    http: httpx.AsyncClient, mosquitto: BrokerAddress
) -> None:
    nowhere = replace(mosquitto, port=free_port())
    with pytest.raises(ImageUnavailable, match="onnection refused"):
        await with_timeout(
            GatewayImageFetcher(nowhere, GATEWAY, link=None, http=http, fetch_options=SHORT).fetch(QUESTION)
        )
    assert diagnostics_tasks() == []


async def test_a_broker_that_refuses_us_is_the_reason(http: httpx.AsyncClient) -> None:
    async with ScriptedBroker() as broker:
        broker.refuse()
        with pytest.raises(ImageUnavailable, match="refuses the connection"):
            await with_timeout(
                GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=SHORT).fetch(
                    QUESTION
                )
            )


async def test_a_subscription_that_is_not_granted_is_the_reason(http: httpx.AsyncClient) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        getting = asyncio.create_task(images.fetch(QUESTION))
        peer = await broker.accept()
        await peer.grant(0x80)
        with pytest.raises(ImageUnavailable, match="refused the subscription"):
            await with_timeout(getting)
        await eventually_async(lambda: peer.gone)
        assert diagnostics_tasks() == []


async def test_a_lost_connection_comes_back_and_asks_again(
    http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    async with ScriptedBroker() as broker:
        images = GatewayImageFetcher(broker.address, GATEWAY, link=None, http=http, fetch_options=LONG)
        getting = asyncio.create_task(images.fetch(QUESTION))
        peer = await accept_diagnostics(broker)
        await peer.expect(Publish)
        peer.close()
        peer = await accept_diagnostics(broker)
        send_answer(peer, await receive_question(peer), build_answer(f"{web.url}/image"))
        assert await with_timeout(getting) == IMAGE
