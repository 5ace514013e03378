"""Answers gateways that ask where the image of some firmware is (firmware-15 to firmware-20).

They ask again when nobody answers, so what cannot be answered now is dropped. On another broker anybody might
ask in the name of a gateway; the answer goes to that gateway, and none that is not claimed gets an address.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import select

from meshfleet.db.tables import gateway as gateways
from meshfleet.errors import FleetError
from meshfleet.errors.protocol import WireError
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol import diagnostics
from meshfleet.protocol.diagnostics import FirmwareAnswer, FirmwareQuestion, FirmwareType
from meshfleet.protocol.hex import Hex
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.firmware import store

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.rest import Firmware
    from meshfleet.service.firmware.signed_urls import ImageUrlSigner
    from meshfleet.service.transport import Transport

_log = logging.getLogger(__name__)

_QUEUE_LIMIT: Final = 1000
"""Questions; what comes then is dropped."""

_WORKERS: Final = 4


class _ImageRequest(NamedTuple):
    gateway: Mac
    id: str
    question: FirmwareQuestion


class ImageRequestHandler:
    """Hears questions, and answers a few at a time."""

    def __init__(self, database: Database, transport: Transport, url_signer: ImageUrlSigner) -> None:
        self._database = database
        self._transport = transport
        self._url_signer = url_signer
        self._queue: asyncio.Queue[_ImageRequest] = asyncio.Queue(_QUEUE_LIMIT)
        self.outcomes: Counter[str] = Counter()
        """How many were answered, were about what is unknown, could not be read, or were dropped."""
        transport.subscribe(diagnostics.QUESTION_FILTER, self._on_message)

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(_WORKERS):
                tasks.create_task(self._run_worker(), name=f"firmware.questions {number}")

    def _on_message(self, message: Publish) -> None:
        try:
            gateway = diagnostics.parse_question_topic(message.topic)
            asked = _ImageRequest(gateway, *diagnostics.decode_question(message.payload))
        except WireError as exc:
            self.outcomes["malformed"] += 1
            _log.debug("a question for firmware cannot be read: %s", exc)
            return
        try:
            self._queue.put_nowait(asked)
        except asyncio.QueueFull:
            self.outcomes["dropped"] += 1

    async def _run_worker(self) -> None:
        while True:
            asked = await self._queue.get()
            try:
                await self._answer(asked)
            except FleetError as exc:
                self.outcomes["dropped"] += 1
                _log.warning("a question for firmware stays unanswered: %s", exc)

    async def _answer(self, request: _ImageRequest) -> None:
        found = await self._database.read(_find_firmware, request)
        answer = None if found is None else self._build_answer(found, request.gateway)
        payload = diagnostics.encode_answer(request.id, answer)
        self._transport.send([Publish(diagnostics.format_answer_topic(request.gateway), payload, qos=1)])
        self.outcomes["unknown" if found is None else "answered"] += 1

    def _build_answer(self, found: Firmware, gateway: Mac) -> FirmwareAnswer:
        return FirmwareAnswer(
            uri=self._url_signer.build_url(found, gateway),
            file_name=found.file_name,
            firmware_type=FirmwareType(found.type),
            sha256=Hex(found.sha256),
            size=found.size,
        )


def _find_firmware(connection: Connection, request: _ImageRequest) -> Firmware | None:
    mine = gateways.c.device == mac_to_int(request.gateway)
    if connection.execute(select(gateways.c.device).where(mine)).first() is None:
        return None
    return store.find_released_firmware(connection, request.question)
