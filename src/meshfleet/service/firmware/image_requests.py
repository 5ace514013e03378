"""Answers MQTT requests of gateways for the URL of a firmware image (firmware-15 to firmware-20).

Gateways repeat a request that gets no response, so requests that cannot be answered now are dropped. On an
external broker any MQTT client could send a request in the name of a gateway. This is harmless: the URL is
sent only to claimed gateways, on the response topic of the gateway.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import FleetError
from meshfleet.errors.protocol import MalformedInput
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol import diagnostics
from meshfleet.protocol.diagnostics import FirmwareType, ImageLocation, ImageRequest
from meshfleet.protocol.hex import Hex
from meshfleet.service.firmware import store

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from meshfleet.rest.firmware import Firmware
    from meshfleet.service.firmware.signed_urls import ImageUrlSigner
    from meshfleet.service.transport import Transport

_log = logging.getLogger(__name__)

_QUEUE_LIMIT: Final = 1000
"""Maximum number of queued image requests. Further image requests are dropped."""

_WORKERS: Final = 4


class _QueuedRequest(NamedTuple):
    """Image request of a gateway that waits for a worker task."""

    gateway: Mac
    id: str
    image: ImageRequest


class ImageRequestHandler:
    """Answers requests of gateways for image URLs, with a limited queue and a few worker tasks."""

    def __init__(self, database: Database, transport: Transport, url_signer: ImageUrlSigner) -> None:
        self._database = database
        self._transport = transport
        self._url_signer = url_signer
        self._queue: asyncio.Queue[_QueuedRequest] = asyncio.Queue(_QUEUE_LIMIT)
        self.outcomes: Counter[str] = Counter()
        """Number of image requests by outcome: answered, malformed, dropped, unknown firmware or gateway."""
        transport.subscribe(diagnostics.IMAGE_REQUEST_FILTER, self._on_message)

    async def run(self) -> None:
        """Answer image requests until this task is canceled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(_WORKERS):
                tasks.create_task(self._run_worker(), name=f"firmware.image_requests {number}")

    def _on_message(self, message: Publish) -> None:
        """Queue the image request in an MQTT message. Drop a malformed request, or if the queue is full."""
        try:
            gateway = diagnostics.parse_image_request_topic(message.topic)
            request = _QueuedRequest(gateway, *diagnostics.decode_image_request(message.payload))
        except MalformedInput as exc:
            self.outcomes["malformed"] += 1
            _log.debug("malformed firmware image request: %s", exc)
            return
        try:
            self._queue.put_nowait(request)
        except asyncio.QueueFull:
            self.outcomes["dropped"] += 1

    async def _run_worker(self) -> None:
        """Answer queued image requests one after another. Drop a request that cannot be answered now."""
        while True:
            request = await self._queue.get()
            try:
                await self._answer_request(request)
            except FleetError as exc:
                self.outcomes["dropped"] += 1
                _log.warning("firmware image request dropped: %s", exc)

    async def _answer_request(self, request: _QueuedRequest) -> None:
        """Send the image URL, or that there is no such firmware, to the gateway that requested the image."""
        firmware = await self._database.read(store.find_requested_firmware, request.gateway, request.image)
        response = None if firmware is None else self._build_response(firmware, request.gateway)
        payload = diagnostics.encode_image_response(request.id, response)
        self._transport.send(
            [Publish(diagnostics.format_image_response_topic(request.gateway), payload, qos=1)]
        )
        self.outcomes["unknown" if firmware is None else "answered"] += 1

    def _build_response(self, firmware: Firmware, gateway: Mac) -> ImageLocation:
        """Build the response with the signed image URL for a gateway."""
        return ImageLocation(
            uri=self._url_signer.build_url(firmware, gateway),
            file_name=firmware.file_name,
            firmware_type=FirmwareType(firmware.type),
            sha256=Hex(firmware.sha256),
            size=firmware.size,
        )
