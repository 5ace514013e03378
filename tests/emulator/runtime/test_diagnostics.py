"""The diagnostics connection is opened, shared and closed, whatever the result of the image requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from meshfleet.emulator.runtime.image_fetcher import GatewayImageFetcher, ImageFetchOptions
from meshfleet.errors.emulator import ImageUnavailable
from meshfleet.mqtt.client import MqttClient
from meshfleet.mqtt.codec.packets import Disconnect, Puback, Publish, Subscribe, Unsuback, Unsubscribe
from meshfleet.protocol.diagnostics import (
    decode_image_request,
    encode_image_response,
    format_image_request_topic,
    format_image_response_topic,
)
from tests.emulator.runtime.firmware_service import (
    DIGITS_ONLY_MAC,
    GATEWAY,
    IMAGE,
    IMAGE_REQUEST,
    LONG_TIMEOUT,
    OTHER_IMAGE_REQUEST,
    SHORT_TIMEOUT,
    accept_diagnostics,
    build_image_location,
    diagnostics_tasks,
    receive_image_request,
    run_firmware_service,
    send_image_response,
)
from tests.eventually import eventually_async
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until_stable, with_timeout
from tests.selection import backend_for_loop
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from meshfleet.mqtt.client import BrokerAddress
    from tests.emulator.runtime.http_server import ScriptedHttpServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend_for_loop(event_loop)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def fetcher(scripted: ScriptedBroker, http: httpx.AsyncClient) -> GatewayImageFetcher:
    """Return a fetcher with a diagnostics connection of its own to the scripted broker."""
    return GatewayImageFetcher(
        scripted.address, GATEWAY, main_client=None, http=http, fetch_options=LONG_TIMEOUT
    )


@pytest.mark.rule("gateway-5", "topic-9")
async def test_the_diagnostics_connection_is_separate_and_its_client_id_is_in_upper_case(
    scripted: ScriptedBroker, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    address = replace(scripted.address, user="me", password="")
    fetch_task = asyncio.create_task(
        GatewayImageFetcher(address, GATEWAY, main_client=None, http=http, fetch_options=LONG_TIMEOUT).fetch(
            IMAGE_REQUEST
        )
    )
    peer = await accept_diagnostics(scripted)
    message = await peer.expect(Publish)
    request_id, image_request = decode_image_request(message.payload)
    assert (message.topic, message.qos, message.retain) == (format_image_request_topic(GATEWAY), 1, False)
    assert image_request == IMAGE_REQUEST
    peer.acknowledge([message])
    send_image_response(peer, request_id, build_image_location(f"{web.url}/image"))
    assert await with_timeout(fetch_task) == IMAGE
    connect: Any = peer.received[0]
    assert (connect.client_id, connect.keep_alive, connect.clean) == ("D0CF5E0000A1", 15, True)
    assert (connect.user, connect.password, connect.will) == ("me", b"", None)
    assert [type(packet) for packet in peer.unread] == [Puback, Disconnect]
    await eventually_async(lambda: peer.gone)


async def test_image_requests_at_the_same_time_share_a_connection(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    first = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await accept_diagnostics(scripted)
    first_id = await receive_image_request(peer)
    second = asyncio.create_task(fetcher.fetch(OTHER_IMAGE_REQUEST))
    second_id = await receive_image_request(peer)
    send_image_response(peer, second_id, None)
    with pytest.raises(ImageUnavailable, match="no image of model 000F"):
        await with_timeout(second)
    assert not peer.finished
    send_image_response(peer, first_id, build_image_location(f"{web.url}/image"))
    assert await with_timeout(first) == IMAGE
    await eventually_async(lambda: peer.gone)
    assert len(scripted.peers) == 1


async def test_every_later_image_request_opens_a_connection_again(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    for _ in range(3):
        fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
        peer = await accept_diagnostics(scripted)
        send_image_response(peer, await receive_image_request(peer), build_image_location(f"{web.url}/image"))
        assert await with_timeout(fetch_task) == IMAGE
        assert peer.finished


async def test_the_next_connection_waits_until_the_previous_one_is_closed(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    first = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await accept_diagnostics(scripted)
    peer.lingers = True
    send_image_response(peer, await receive_image_request(peer), build_image_location(f"{web.url}/image"))
    await eventually_async(lambda: peer.finished)
    second = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    await eventually_async(lambda: len(diagnostics_tasks()) == 2)
    assert await wait_until_stable(lambda: len(scripted.peers)) == 1
    peer.close()
    assert await with_timeout(first) == IMAGE
    next_peer = await accept_diagnostics(scripted)
    send_image_response(
        next_peer, await receive_image_request(next_peer), build_image_location(f"{web.url}/image")
    )
    assert await with_timeout(second) == IMAGE


async def test_an_image_request_without_an_answer_is_sent_three_times(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    fetcher = GatewayImageFetcher(
        scripted.address,
        GATEWAY,
        main_client=None,
        http=http,
        fetch_options=ImageFetchOptions(idle_timeout=1),
    )
    fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await accept_diagnostics(scripted)
    request_ids = [await receive_image_request(peer) for _ in range(3)]
    with pytest.raises(
        ImageUnavailable, match=r"of model 2011 in version 1\.2\.3-beta\.4: the service does not respond"
    ):
        await with_timeout(fetch_task)
    assert len(set(request_ids)) == 1
    assert isinstance(await peer.next(), Disconnect)
    assert diagnostics_tasks() == []


async def test_a_late_answer_to_an_earlier_attempt_is_accepted(
    scripted: ScriptedBroker, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    fetcher = GatewayImageFetcher(
        scripted.address,
        GATEWAY,
        main_client=None,
        http=http,
        fetch_options=ImageFetchOptions(idle_timeout=1),
    )
    fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await accept_diagnostics(scripted)
    first = await receive_image_request(peer)
    await receive_image_request(peer)
    send_image_response(peer, first, build_image_location(f"{web.url}/image"))
    assert await with_timeout(fetch_task) == IMAGE


async def test_a_gateway_whose_mac_has_no_letters_uses_its_main_connection(
    mosquitto: BrokerAddress, http: httpx.AsyncClient, web: ScriptedHttpServer
) -> None:
    answer = build_image_location(f"{web.url}/image")
    async with (
        run_firmware_service(
            mosquitto, lambda request_id: [b"nonsense", encode_image_response(request_id, answer)]
        ),
        MqttClient(mosquitto, DIGITS_ONLY_MAC, clean=True) as link,
    ):
        fetcher = GatewayImageFetcher(
            mosquitto, DIGITS_ONLY_MAC, main_client=link, http=http, fetch_options=LONG_TIMEOUT
        )

        async def pass_on_answers() -> None:
            async for batch in link:
                for message in batch.messages:
                    assert message.topic == format_image_response_topic(DIGITS_ONLY_MAC)
                    fetcher.on_image_response(message.payload)
                batch.acknowledge()

        task = asyncio.create_task(pass_on_answers())
        assert await with_timeout(fetcher.fetch(IMAGE_REQUEST)) == IMAGE
        assert diagnostics_tasks() == []
        task.cancel()
        await asyncio.wait((task,))


async def test_a_gateway_whose_mac_has_no_letters_unsubscribes_afterwards(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    async with MqttClient(scripted.address, DIGITS_ONLY_MAC, clean=True) as link:
        peer = await scripted.accept()
        fetcher = GatewayImageFetcher(
            scripted.address, DIGITS_ONLY_MAC, main_client=link, http=http, fetch_options=LONG_TIMEOUT
        )
        fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
        subscribe = await peer.grant()
        assert subscribe.filters == ((format_image_response_topic(DIGITS_ONLY_MAC), 1),)
        answer = encode_image_response(await receive_image_request(peer), None)
        fetcher.on_image_response(answer)
        fetcher.on_image_response(answer)  # again, before the first one is processed
        unsubscribe = await peer.expect(Unsubscribe)
        assert unsubscribe.filters == (format_image_response_topic(DIGITS_ONLY_MAC),)
        peer.send(Unsuback(unsubscribe.packet_id))
        with pytest.raises(ImageUnavailable):
            await with_timeout(fetch_task)
        assert len(scripted.peers) == 1
        assert link.connection_error is None


async def test_a_gateway_whose_mac_has_no_letters_needs_its_main_connection(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    with pytest.raises(ValueError, match="no letters"):
        GatewayImageFetcher(scripted.address, DIGITS_ONLY_MAC, main_client=None, http=http)


async def test_a_closed_link_makes_the_image_unavailable(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    async with MqttClient(scripted.address, DIGITS_ONLY_MAC, clean=True) as link:
        fetcher = GatewayImageFetcher(
            scripted.address, DIGITS_ONLY_MAC, main_client=link, http=http, fetch_options=LONG_TIMEOUT
        )
    with pytest.raises(ImageUnavailable, match="closed"):
        await with_timeout(fetcher.fetch(IMAGE_REQUEST))
    assert diagnostics_tasks() == []


@pytest.mark.parametrize("phase", ["connecting", "subscribing", "asking", "waiting"])
async def test_a_canceled_image_request_closes_the_connection(
    scripted: ScriptedBroker, http: httpx.AsyncClient, phase: str
) -> None:
    fetcher = GatewayImageFetcher(
        scripted.address,
        GATEWAY,
        main_client=None,
        http=http,
        fetch_options=replace(LONG_TIMEOUT, idle_timeout=1),
    )
    if phase == "connecting":
        scripted.connack = None
    fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await scripted.accept()
    if phase == "subscribing":
        await peer.expect(Subscribe)
    elif phase != "connecting":
        await peer.grant()
        await (receive_image_request(peer) if phase == "waiting" else peer.expect(Publish))
    fetch_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(fetch_task)
    assert diagnostics_tasks() == []
    await eventually_async(lambda: peer.gone)
    assert len(scripted.peers) == 1


async def test_a_canceled_image_request_does_not_affect_others(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    first, second = (
        asyncio.create_task(fetcher.fetch(image_request))
        for image_request in (IMAGE_REQUEST, OTHER_IMAGE_REQUEST)
    )
    peer = await accept_diagnostics(scripted)
    request_ids = [await receive_image_request(peer), await receive_image_request(peer)]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(first)
    assert not peer.finished
    for request_id in request_ids:
        send_image_response(peer, request_id, build_image_location(f"{web.url}/image"))
    assert await with_timeout(second) == IMAGE


async def test_a_canceled_image_request_on_the_main_connection_is_unsubscribed(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    async with MqttClient(scripted.address, DIGITS_ONLY_MAC, clean=True) as link:
        peer = await scripted.accept()
        fetcher = GatewayImageFetcher(
            scripted.address, DIGITS_ONLY_MAC, main_client=link, http=http, fetch_options=LONG_TIMEOUT
        )
        fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
        await peer.grant()
        await receive_image_request(peer)
        fetch_task.cancel()
        unsubscribe = await peer.expect(Unsubscribe)
        peer.send(Unsuback(unsubscribe.packet_id))
        with pytest.raises(asyncio.CancelledError):
            await with_timeout(fetch_task)
        assert diagnostics_tasks() == []


async def test_the_error_says_that_the_broker_is_unreachable(
    http: httpx.AsyncClient, mosquitto: BrokerAddress
) -> None:
    unreachable = replace(mosquitto, port=free_port())
    with pytest.raises(ImageUnavailable, match="onnection refused"):
        await with_timeout(
            GatewayImageFetcher(
                unreachable, GATEWAY, main_client=None, http=http, fetch_options=SHORT_TIMEOUT
            ).fetch(IMAGE_REQUEST)
        )
    assert diagnostics_tasks() == []


async def test_the_error_says_that_the_broker_refuses_the_connection(
    scripted: ScriptedBroker, http: httpx.AsyncClient
) -> None:
    scripted.refuse()
    with pytest.raises(ImageUnavailable, match="refuses the connection"):
        await with_timeout(
            GatewayImageFetcher(
                scripted.address, GATEWAY, main_client=None, http=http, fetch_options=SHORT_TIMEOUT
            ).fetch(IMAGE_REQUEST)
        )


async def test_the_error_says_that_the_subscription_is_not_granted(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher
) -> None:
    fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await scripted.accept()
    await peer.grant(0x80)
    with pytest.raises(ImageUnavailable, match="refused the subscription"):
        await with_timeout(fetch_task)
    await eventually_async(lambda: peer.gone)
    assert diagnostics_tasks() == []


async def test_an_image_request_is_sent_again_after_a_reconnect(
    scripted: ScriptedBroker, fetcher: GatewayImageFetcher, web: ScriptedHttpServer
) -> None:
    fetch_task = asyncio.create_task(fetcher.fetch(IMAGE_REQUEST))
    peer = await accept_diagnostics(scripted)
    await peer.expect(Publish)
    peer.close()
    peer = await accept_diagnostics(scripted)
    send_image_response(peer, await receive_image_request(peer), build_image_location(f"{web.url}/image"))
    assert await with_timeout(fetch_task) == IMAGE
