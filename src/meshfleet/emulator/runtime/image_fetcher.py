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
from meshfleet.protocol.diagnostics import decode_answer, encode_question, format_question_topic
from meshfleet.protocol.firmware_image import MAX_PACKAGE_BYTES, inspect_image

if TYPE_CHECKING:
    from asyncio import Future

    from httpx import AsyncClient

    from meshfleet.mqtt.client import BrokerAddress, MqttClient
    from meshfleet.protocol.diagnostics import FirmwareAnswer, FirmwareQuestion
    from meshfleet.protocol.firmware_image import ImageInfo
    from meshfleet.protocol.ids import Mac

_log = logging.getLogger(__name__)

_MAX_ATTEMPTS: Final = 3


class ImageFetchOptions(Struct, frozen=True, kw_only=True):
    """Limits and TLS settings for fetching firmware images. Several gateways may share one instance."""

    idle_timeout: float = 10.0
    """Maximum seconds to wait for an answer of the service, or for data of the image server."""
    total_timeout: float = 300.0
    """Maximum seconds for the whole download of a firmware image."""
    max_bytes: int = MAX_PACKAGE_BYTES
    """Maximum size of a firmware image in bytes."""
    tls: SSLContext | None = None
    """TLS settings of the diagnostics connection; None for the certificate authorities of the system."""


_DEFAULTS: Final = ImageFetchOptions()


class GatewayImageFetcher:
    """Fetches firmware images for one gateway.

    `main_client` is the MQTT client of the gateway's main connection. It is used only if the MAC has no
    letters (see module `diagnostics`); its owner then passes messages on the answer topic to `on_answer`.
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
        self._pending: dict[str, Future[FirmwareAnswer | None]] = {}
        options = MqttOptions(timeout=fetch_options.idle_timeout, tls=fetch_options.tls)
        self._diagnostics = DiagnosticsConnection(
            address, gateway, main_client=main_client, on_answer=self.on_answer, options=options
        )

    async def fetch(self, question: FirmwareQuestion) -> ImageInfo:
        """Ask the service for the URL of a firmware image, download the image and check it.

        Raise `ImageUnavailable` if the image cannot be fetched now, and `ImageBroken` if its size, hash or
        format is wrong. Cancellation closes the connections.
        """
        answer = await self._request_location(question)
        if answer is None:
            raise ImageUnavailable(f"the service has no image {_describe_image(question)}")
        options = self._fetch_options
        data = await download_image(
            self._http,
            answer.uri,
            max_bytes=options.max_bytes,
            idle_timeout=options.idle_timeout,
            total_timeout=options.total_timeout,
        )
        _check_image(data, answer)
        try:
            return inspect_image(data)
        except MalformedImage as error:
            raise ImageBroken(f"the image {_describe_image(question)} cannot be read: {error}") from error

    def on_answer(self, payload: bytes) -> None:
        """Handle an answer of the service to an image request. Ignore late, unknown and malformed answers."""
        try:
            question_id, answer = decode_answer(payload)
        except MalformedInput as error:
            _log.debug("%s ignores a malformed answer: %s", self._gateway, error)
            return
        future = self._pending.get(question_id)
        if future is None or future.done():
            _log.debug("%s ignores an answer without a pending question", self._gateway)
        else:
            future.set_result(answer)

    async def _request_location(self, question: FirmwareQuestion) -> FirmwareAnswer | None:
        """Ask the service for the location of an image. Return None if the service has no such image."""
        question_id = str(uuid4())  # firmware-15
        answer: Future[FirmwareAnswer | None] = asyncio.get_running_loop().create_future()
        self._pending[question_id] = answer
        try:
            async with self._diagnostics.acquire() as connection:
                is_answered = await self._publish_until_answered(
                    connection, encode_question(question_id, question), answer
                )
                if not is_answered:
                    reason = self._diagnostics.problem or "the service does not respond"
                    raise ImageUnavailable(f"cannot request the image {_describe_image(question)}: {reason}")
        except MqttError as error:
            raise ImageUnavailable(
                f"cannot request the image {_describe_image(question)}: {error}"
            ) from error
        finally:
            del self._pending[question_id]
        return answer.result()

    async def _publish_until_answered(
        self, connection: Future[MqttClient], question: bytes, answer: Future[FirmwareAnswer | None]
    ) -> bool:
        """Publish an image request up to three times, until `answer` is done. Return whether it is done."""
        for _ in range(_MAX_ATTEMPTS):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._fetch_options.idle_timeout):
                    client = await asyncio.shield(connection)
                    await client.publish(format_question_topic(self._gateway), question)
                    await asyncio.shield(answer)
            if answer.done():
                return True
        return False


def _describe_image(question: FirmwareQuestion) -> str:
    return f"of model {question.model_number} in version {question.version}"


def _check_image(data: bytes, answer: FirmwareAnswer) -> None:
    """Raise `ImageBroken` if size or hash of an image differ from the answer of the service."""
    if answer.size is not UNSET and answer.size != len(data):
        raise ImageBroken(f"the image has {len(data)} bytes, the service announced {answer.size}")
    if answer.sha256 is not UNSET and answer.sha256 != hashlib.sha256(data).hexdigest():
        raise ImageBroken("the SHA-256 of the image is not the one that the service announced")
