"""Fetches firmware images: asks the service for an image's URL, then downloads the image (firmware-21)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from msgspec import UNSET, Struct

from meshfleet.emulator.runtime.diagnostics import DiagnosticsConnection
from meshfleet.emulator.runtime.http_download import download_image
from meshfleet.errors.emulator import ImageBroken, ImageUnavailable
from meshfleet.errors.mqtt import MqttError
from meshfleet.errors.protocol import MalformedImage, MalformedInput
from meshfleet.mqtt.client import MqttOptions
from meshfleet.protocol.diagnostics import (
    decode_image_response,
    encode_image_request,
    format_image_request_topic,
)
from meshfleet.protocol.firmware_image import inspect_image

if TYPE_CHECKING:
    from asyncio import Future

    from httpx import AsyncClient

    from meshfleet.mqtt.client import BrokerAddress, MqttClient
    from meshfleet.protocol.diagnostics import ImageLocation, ImageRequest
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3


class ImageFetchOptions(Struct, frozen=True, kw_only=True):
    """Limits and TLS settings for fetching firmware images. Several gateways may share one instance."""

    idle_timeout: float = 10.0
    """Maximum seconds to wait for a response of the service, or for data of the image server."""
    total_timeout: float = 300.0
    """Maximum seconds for the whole download of a firmware image."""
    max_bytes: int = 256 * 1024 * 1024
    """Maximum size of a firmware image in bytes: that of the service, because RAUC bundles are large."""
    tls: SSLContext | None = None
    """TLS settings of the diagnostics connection; None for the certificate authorities of the system."""


_DEFAULTS: Final = ImageFetchOptions()


class GatewayImageFetcher:
    """Fetches firmware images for one gateway.

    `main_client` is the MQTT client of the gateway's main connection. It is used only if the MAC has no
    letters (see module `diagnostics`). Its owner then passes messages on the response topic to
    `on_image_response`.
    """

    def __init__(
        self,
        address: BrokerAddress,
        gateway: Mac,
        *,
        main_client: MqttClient | None,
        http: AsyncClient,
        fetch_options: ImageFetchOptions = _DEFAULTS,
    ) -> None:
        self._gateway = gateway
        self._http = http
        self._fetch_options = fetch_options
        self._pending: dict[str, Future[ImageLocation | None]] = {}
        options = MqttOptions(timeout=fetch_options.idle_timeout, tls=fetch_options.tls)
        self._diagnostics = DiagnosticsConnection(
            address,
            gateway,
            main_client=main_client,
            on_image_response=self.on_image_response,
            options=options,
        )

    async def fetch(self, image_request: ImageRequest) -> ImageInfo:
        """Ask the service for the URL of a firmware image, download the image and check it.

        Raise `ImageUnavailable` if the image cannot be fetched now, and `ImageBroken` if its size, hash or
        format is wrong. Cancellation closes the connections.
        """
        location = await self._request_location(image_request)
        if location is None:
            raise ImageUnavailable(f"the service has no image {_describe_image(image_request)}")
        options = self._fetch_options
        data = await download_image(
            self._http,
            location.uri,
            max_bytes=options.max_bytes,
            idle_timeout=options.idle_timeout,
            total_timeout=options.total_timeout,
        )
        _check_image(data, location)
        try:
            return inspect_image(data)
        except MalformedImage as error:
            raise ImageBroken(
                f"the image {_describe_image(image_request)} cannot be read: {error}"
            ) from error

    def on_image_response(self, payload: bytes) -> None:
        """Handle a response to an image request. Ignore late, unknown and malformed responses."""
        try:
            request_id, location = decode_image_response(payload)
        except MalformedInput as error:
            _log.debug("%s ignores a malformed response to an image request: %s", self._gateway, error)
            return
        future = self._pending.get(request_id)
        if future is None or future.done():
            _log.debug("%s ignores a response without a pending image request", self._gateway)
        else:
            future.set_result(location)

    async def _request_location(self, image_request: ImageRequest) -> ImageLocation | None:
        """Ask the service for the location of an image. Return None if the service has no such image."""
        request_id = str(uuid4())  # firmware-15
        location: Future[ImageLocation | None] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = location
        try:
            async with self._diagnostics.acquire() as connection:
                is_answered = await self._publish_until_answered(
                    connection, encode_image_request(request_id, image_request), location
                )
                if not is_answered:
                    reason = self._diagnostics.problem or "the service does not respond"
                    raise ImageUnavailable(
                        f"cannot request the image {_describe_image(image_request)}: {reason}"
                    )
        except MqttError as error:
            raise ImageUnavailable(
                f"cannot request the image {_describe_image(image_request)}: {error}"
            ) from error
        finally:
            del self._pending[request_id]
        return location.result()

    async def _publish_until_answered(
        self, connection: Future[MqttClient], image_request: bytes, location: Future[ImageLocation | None]
    ) -> bool:
        """Publish an image request up to three times, until `location` is done. Return whether it is done."""
        for _ in range(_MAX_ATTEMPTS):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._fetch_options.idle_timeout):
                    client = await asyncio.shield(connection)
                    await client.publish(format_image_request_topic(self._gateway), image_request)
                    await asyncio.shield(location)
            if location.done():
                return True
        return False


def _describe_image(image_request: ImageRequest) -> str:
    return f"of model {image_request.model_number} in version {image_request.version}"


def _check_image(data: bytes, location: ImageLocation) -> None:
    """Raise `ImageBroken` if size or hash of an image differ from what the service announced."""
    if location.size is not UNSET and location.size != len(data):
        raise ImageBroken(f"the image has {len(data)} bytes, the service announced {location.size}")
    if location.sha256 is not UNSET and location.sha256 != hashlib.sha256(data).hexdigest():
        raise ImageBroken("the SHA-256 of the image is not the one that the service announced")
