"""What tests of firmware images share: a question, the image it is about, and the other side of the talk."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshfleet.gateway.online.images import Terms
from meshfleet.link import Link, Options
from meshfleet.wire.diagnostics import (
    QUESTIONS,
    FirmwareAnswer,
    FirmwareQuestion,
    FirmwareType,
    answer_topic,
    decode_question,
    encode_answer,
    parse_question_topic,
)
from meshfleet.wire.ids import Mac, ModelNumber, Version
from meshfleet.wire.mqtt.packets import Publish
from meshfleet.wire.package import pack, read_image
from tests.link.proxy import fresh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from meshfleet.link import Address
    from tests.link.scripted import Broker, Peer

QUESTION = FirmwareQuestion(
    model_number=ModelNumber("2011"),
    version=Version.parse("1.2.3-beta.4"),
    firmware_type=FirmwareType.NORDIC_PACKAGE,
)
OTHER = replace(QUESTION, model_number=ModelNumber("000F"))
PACKAGE = pack(b"firmware" * 1000, model_number=QUESTION.model_number, version=QUESTION.version)
IMAGE = read_image(PACKAGE)
GATEWAY, NUMBER = Mac("d0cf5e0000a1"), Mac("100000000001")
LONG = Terms(patience=30)
"""Reached only when something is broken."""
SHORT = Terms(patience=0.3)


def found(uri: str, **checks: Any) -> FirmwareAnswer:
    return FirmwareAnswer(uri=uri, file_name="a.zip", firmware_type=FirmwareType.NORDIC_PACKAGE, **checks)


@asynccontextmanager
async def service(
    broker: Address,
    replies: Callable[[str], list[bytes]],
    options: Options = Options(),  # noqa: B008 # frozen
) -> AsyncIterator[list[str]]:
    """The other side of the broker: answers each question by what `replies` makes of its id."""
    asked: list[str] = []

    async def serve(link: Link) -> None:
        async for batch in link:
            for message in batch.messages:
                question_id, _ = decode_question(message.payload)
                asked.append(question_id)
                for reply in replies(question_id):
                    await link.publish(answer_topic(parse_question_topic(message.topic)), reply)
            batch.acknowledge()

    async with Link(broker, fresh("service"), clean=True, options=options) as link:
        await link.subscribe(QUESTIONS)
        serving = asyncio.create_task(serve(link))
        try:
            yield asked
        finally:
            serving.cancel()
            await asyncio.wait((serving,))


async def line(broker: Broker, gateway: Mac = GATEWAY) -> Peer:
    """The diagnostics connection on a scripted broker, with its subscription granted."""
    peer = await broker.accept()
    asked = await peer.grant()
    assert asked.filters == ((answer_topic(gateway), 1),)
    return peer


async def question(peer: Peer) -> str:
    """The id of the next question, which is acknowledged."""
    message = await peer.expect(Publish)
    peer.acknowledge([message])
    return decode_question(message.payload)[0]


def tell(peer: Peer, question_id: str, told: FirmwareAnswer | None, gateway: Mac = GATEWAY) -> None:
    peer.send(Publish(answer_topic(gateway), encode_answer(question_id, told), qos=1, packet_id=1))


def at_work() -> list[str]:
    """Tasks of ours."""
    return [task.get_name() for task in asyncio.all_tasks() if "diagnostics" in task.get_name()]
