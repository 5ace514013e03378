"""Shared parts of the tests of firmware images: a image_request, its image, and a firmware service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.emulator.runtime.image_fetcher import ImageFetchOptions
from meshfleet.mqtt.client import MqttClient, MqttOptions
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.diagnostics import (
    IMAGE_REQUEST_FILTER,
    FirmwareType,
    ImageLocation,
    ImageRequest,
    decode_image_request,
    encode_image_response,
    format_image_response_topic,
    parse_image_request_topic,
)
from meshfleet.protocol.firmware_image import build_package, inspect_image
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from tests.mqtt.client.proxy import unique_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from meshfleet.mqtt.client import BrokerAddress
    from tests.mqtt.client.scripted_broker import Peer, ScriptedBroker

IMAGE_REQUEST = ImageRequest(
    model_number=ModelNumber("2011"),
    version=Version.parse("1.2.3-beta.4"),
    firmware_type=FirmwareType.NORDIC_PACKAGE,
)
OTHER_IMAGE_REQUEST = replace(IMAGE_REQUEST, model_number=ModelNumber("000F"))
PACKAGE = build_package(
    b"firmware" * 1000, model_number=IMAGE_REQUEST.model_number, version=IMAGE_REQUEST.version
)
IMAGE = inspect_image(PACKAGE)
GATEWAY, DIGITS_ONLY_MAC = Mac("d0cf5e0000a1"), Mac("100000000001")
LONG_TIMEOUT = ImageFetchOptions(idle_timeout=30)
"""Timeout that is reached only if something is broken."""
SHORT_TIMEOUT = ImageFetchOptions(idle_timeout=0.3)


def build_image_location(uri: str, **checks: Any) -> ImageLocation:
    return ImageLocation(uri=uri, file_name="a.zip", firmware_type=FirmwareType.NORDIC_PACKAGE, **checks)


@asynccontextmanager
async def run_firmware_service(
    broker: BrokerAddress,
    replies: Callable[[str], list[bytes]],
    options: MqttOptions = MqttOptions(),  # noqa: B008 # frozen
) -> AsyncIterator[list[str]]:
    """Run a service that publishes the results of `replies(request_id)`. Yield the ids of its requests."""
    request_ids: list[str] = []

    async def serve(link: MqttClient) -> None:
        async for batch in link:
            for message in batch.messages:
                request_id, _ = decode_image_request(message.payload)
                request_ids.append(request_id)
                for reply in replies(request_id):
                    await link.publish(
                        format_image_response_topic(parse_image_request_topic(message.topic)), reply
                    )
            batch.acknowledge()

    async with MqttClient(broker, unique_name("service"), clean=True, options=options) as link:
        await link.subscribe(IMAGE_REQUEST_FILTER)
        task = asyncio.create_task(serve(link))
        try:
            yield request_ids
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def accept_diagnostics(broker: ScriptedBroker, gateway: Mac = GATEWAY) -> Peer:
    """Accept the diagnostics connection on a scripted broker and grant its subscription."""
    peer = await broker.accept()
    subscribe = await peer.grant()
    assert subscribe.filters == ((format_image_response_topic(gateway), 1),)
    return peer


async def receive_image_request(peer: Peer) -> str:
    """Receive and acknowledge the next image_request. Return its id."""
    message = await peer.expect(Publish)
    peer.acknowledge([message])
    return decode_image_request(message.payload)[0]


def send_image_response(
    peer: Peer, request_id: str, answer: ImageLocation | None, gateway: Mac = GATEWAY
) -> None:
    peer.send(
        Publish(
            format_image_response_topic(gateway),
            encode_image_response(request_id, answer),
            qos=1,
            packet_id=1,
        )
    )


def diagnostics_tasks() -> list[str]:
    """Return the names of the running diagnostics tasks."""
    return [task.get_name() for task in asyncio.all_tasks() if "diagnostics" in task.get_name()]
