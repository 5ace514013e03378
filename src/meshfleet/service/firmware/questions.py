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
from meshfleet.errors import FleetError, WireError
from meshfleet.service.firmware import store
from meshfleet.wire import diagnostics
from meshfleet.wire.diagnostics import FirmwareAnswer, FirmwareQuestion, FirmwareType
from meshfleet.wire.hextext import Hex
from meshfleet.wire.ids import Mac, mac_number
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.firmware.addresses import Addresses
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.wire.rest import Firmware

_log = logging.getLogger(__name__)

_WAITING: Final = 1000
"""Questions; what comes then is dropped."""

_AT_ONCE: Final = 4


class _Asked(NamedTuple):
    gateway: Mac
    id: str
    question: FirmwareQuestion


class Questions:
    """Hears questions, and answers a few at a time."""

    def __init__(self, database: Database, carrier: Carrier, addresses: Addresses) -> None:
        self._database = database
        self._carrier = carrier
        self._addresses = addresses
        self._waiting: asyncio.Queue[_Asked] = asyncio.Queue(_WAITING)
        self.outcomes: Counter[str] = Counter()
        """How many were answered, were about what is unknown, could not be read, or were dropped."""
        carrier.listen(diagnostics.QUESTIONS, self._hear)

    async def run(self) -> None:
        """Answer until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(_AT_ONCE):
                tasks.create_task(self._keep_answering(), name=f"firmware.questions {number}")

    def _hear(self, message: Publish) -> None:
        try:
            gateway = diagnostics.parse_question_topic(message.topic)
            asked = _Asked(gateway, *diagnostics.decode_question(message.payload))
        except WireError as exc:
            self.outcomes["malformed"] += 1
            _log.debug("a question for firmware cannot be read: %s", exc)
            return
        try:
            self._waiting.put_nowait(asked)
        except asyncio.QueueFull:
            self.outcomes["dropped"] += 1

    async def _keep_answering(self) -> None:
        while True:
            asked = await self._waiting.get()
            try:
                await self._answer(asked)
            except FleetError as exc:
                self.outcomes["dropped"] += 1
                _log.warning("a question for firmware stays unanswered: %s", exc)

    async def _answer(self, asked: _Asked) -> None:
        found = await self._database.read(_find, asked)
        answer = None if found is None else self._told(found, asked.gateway)
        payload = diagnostics.encode_answer(asked.id, answer)
        self._carrier.send([Publish(diagnostics.answer_topic(asked.gateway), payload, qos=1)])
        self.outcomes["unknown" if found is None else "answered"] += 1

    def _told(self, found: Firmware, gateway: Mac) -> FirmwareAnswer:
        return FirmwareAnswer(
            uri=self._addresses.write(found, gateway),
            file_name=found.file_name,
            firmware_type=FirmwareType(found.type),
            sha256=Hex(found.sha256),
            size=found.size,
        )


def _find(connection: Connection, asked: _Asked) -> Firmware | None:
    mine = gateways.c.device == mac_number(asked.gateway)
    if connection.execute(select(gateways.c.device).where(mine)).first() is None:
        return None
    return store.find_released(connection, asked.question)
