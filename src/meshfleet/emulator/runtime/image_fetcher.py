"""How a gateway gets a firmware image: it asks where the image is, and fetches it there (firmware-21)."""

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
from meshfleet.errors.mqtt import LinkError
from meshfleet.errors.protocol import MalformedImage, WireError
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
    """How images are got; many gateways may share these."""

    idle_timeout: float = 10.0
    """Seconds without a word, from the service or from the server of an image."""
    total_timeout: float = 300.0
    """Seconds that fetching an image may take."""
    max_bytes: int = MAX_PACKAGE_BYTES
    """Bytes of an image."""
    tls: SSLContext | None = None
    """Whom to trust on the diagnostics connection; without it the authorities that the system trusts."""


_DEFAULTS: Final = ImageFetchOptions()


class GatewayImageFetcher:
    """Gets firmware images for one gateway.

    `link` is the gateway's own, and needed for a MAC without letters alone: see `diagnostics`. Its owner
    then passes what arrives there on the topic of answers to `answer_came`.
    """

    def __init__(
        self,
        address: BrokerAddress,
        gateway: Mac,
        *,
        link: MqttClient | None,
        http: AsyncClient,
        fetch_options: ImageFetchOptions = _DEFAULTS,
    ) -> None:
        self._gateway = gateway
        self._http = http
        self._fetch_options = fetch_options
        self._pending: dict[str, Future[FirmwareAnswer | None]] = {}
        options = MqttOptions(timeout=fetch_options.idle_timeout, tls=fetch_options.tls)
        self._diagnostics = DiagnosticsConnection(
            address, gateway, shared=link, on_answer=self.on_answer, options=options
        )

    async def fetch(self, question: FirmwareQuestion) -> ImageInfo:
        """Ask for an image, fetch it, and check it.

        Raises ImageUnavailable when it cannot be had now, and ImageBroken when it is not what was promised.
        Cancelling leaves nothing behind.
        """
        answer = await self._request_location(question)
        if answer is None:
            raise ImageUnavailable(f"there is no image {_describe_image(question)}")
        terms = self._fetch_options
        data = await download_image(
            self._http,
            answer.uri,
            max_bytes=terms.max_bytes,
            idle_timeout=terms.idle_timeout,
            total_timeout=terms.total_timeout,
        )
        _check_image(data, answer)
        try:
            return inspect_image(data)
        except MalformedImage as problem:
            raise ImageBroken(f"the image {_describe_image(question)} cannot be read: {problem}") from problem

    def on_answer(self, payload: bytes) -> None:
        """Take an answer. Late, foreign and malformed ones are nobody's."""
        try:
            question_id, answer = decode_answer(payload)
        except WireError as problem:
            _log.debug("%s ignores a malformed answer: %s", self._gateway, problem)
            return
        waiting = self._pending.get(question_id)
        if waiting is None or waiting.done():
            _log.debug("%s ignores an answer that it does not wait for", self._gateway)
        else:
            waiting.set_result(answer)

    async def _request_location(self, question: FirmwareQuestion) -> FirmwareAnswer | None:
        """Where the image is; None: there is none."""
        question_id = str(uuid4())  # firmware-15
        answer: Future[FirmwareAnswer | None] = asyncio.get_running_loop().create_future()
        self._pending[question_id] = answer
        try:
            async with self._diagnostics.acquire() as line:
                told = await self._publish_until_answered(
                    line, encode_question(question_id, question), answer
                )
                if not told:
                    reason = self._diagnostics.problem or "nobody answers"
                    raise ImageUnavailable(f"cannot ask for the image {_describe_image(question)}: {reason}")
        except LinkError as problem:
            raise ImageUnavailable(
                f"cannot ask for the image {_describe_image(question)}: {problem}"
            ) from problem
        finally:
            del self._pending[question_id]
        return answer.result()

    async def _publish_until_answered(
        self, line: Future[MqttClient], question: bytes, answer: Future[FirmwareAnswer | None]
    ) -> bool:
        """Ask up to three times, always under the same id: an answer to any of them will do."""
        for _ in range(_MAX_ATTEMPTS):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._fetch_options.idle_timeout):
                    link = await asyncio.shield(line)
                    await link.publish(format_question_topic(self._gateway), question)
                    await asyncio.shield(answer)
            if answer.done():
                return True
        return False


def _describe_image(question: FirmwareQuestion) -> str:
    return f"of model {question.model_number} in version {question.version}"


def _check_image(data: bytes, answer: FirmwareAnswer) -> None:
    """Hold it against what the answer promised."""
    if answer.size is not UNSET and answer.size != len(data):
        raise ImageBroken(f"the image has {len(data)} bytes; {answer.size} were promised")
    if answer.sha256 is not UNSET and answer.sha256 != hashlib.sha256(data).hexdigest():
        raise ImageBroken("the image does not have the SHA-256 that was promised")
