"""The connection for questions comes, is shared and goes, whatever becomes of the questions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from msgspec.structs import replace

from meshfleet.errors import ImageUnavailable
from meshfleet.gateway.online.images import Images, Terms
from meshfleet.link import Link
from meshfleet.wire.diagnostics import answer_topic, decode_question, encode_answer, question_topic
from meshfleet.wire.mqtt.packets import Disconnect, Puback, Publish, Subscribe, Unsuback, Unsubscribe
from tests.eventually import eventually_async
from tests.gateway.online.asking import (
    GATEWAY,
    IMAGE,
    LONG,
    NUMBER,
    OTHER,
    PACKAGE,
    QUESTION,
    SHORT,
    at_work,
    found,
    line,
    question,
    service,
    tell,
)
from tests.gateway.online.web import Web, answer
from tests.link.proxy import address as at
from tests.link.scripted import Broker, settled, soon
from tests.selection import backend
from tests.servers import TRUSTING_NOBODY, Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.link import Address

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend(event_loop: str) -> tuple[str, dict[str, bool]]:
    return backend(event_loop)


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        yield at(broker.address)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=TRUSTING_NOBODY, trust_env=False) as client:
        yield client


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web.of({"/image": answer(200, PACKAGE)}) as web:
        yield web


@pytest.mark.rule("gateway-5", "topic-9")
async def test_the_diagnostics_connection_is_a_second_one_in_upper_case(
    http: httpx.AsyncClient, web: Web
) -> None:
    async with Broker() as broker:
        address = replace(broker.address, user="me", password="")
        getting = asyncio.create_task(
            Images(address, GATEWAY, link=None, http=http, terms=LONG).get(QUESTION)
        )
        peer = await line(broker)
        message = await peer.expect(Publish)
        question_id, asked = decode_question(message.payload)
        assert (message.topic, message.qos, message.retain) == (question_topic(GATEWAY), 1, False)
        assert asked == QUESTION
        peer.acknowledge([message])
        tell(peer, question_id, found(f"{web.url}/image"))
        assert await soon(getting) == IMAGE
        connect: Any = peer.received[0]
        assert (connect.client_id, connect.keep_alive, connect.clean) == ("D0CF5E0000A1", 15, True)
        assert (connect.user, connect.password, connect.will) == ("me", b"", None)
        assert [type(packet) for packet in peer.unread] == [Puback, Disconnect]
        await eventually_async(lambda: peer.gone)


async def test_questions_at_the_same_time_share_a_connection(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        first = asyncio.create_task(images.get(QUESTION))
        peer = await line(broker)
        first_id = await question(peer)
        second = asyncio.create_task(images.get(OTHER))
        second_id = await question(peer)
        tell(peer, second_id, None)
        with pytest.raises(ImageUnavailable, match="no image of model 000F"):
            await soon(second)
        assert not peer.finished
        tell(peer, first_id, found(f"{web.url}/image"))
        assert await soon(first) == IMAGE
        await eventually_async(lambda: peer.gone)
        assert len(broker.peers) == 1


async def test_every_next_question_has_a_connection_again(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        for _ in range(3):
            getting = asyncio.create_task(images.get(QUESTION))
            peer = await line(broker)
            tell(peer, await question(peer), found(f"{web.url}/image"))
            assert await soon(getting) == IMAGE
            assert peer.finished


async def test_the_next_connection_waits_until_the_last_is_gone(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        first = asyncio.create_task(images.get(QUESTION))
        peer = await line(broker)
        peer.lingers = True
        tell(peer, await question(peer), found(f"{web.url}/image"))
        await eventually_async(lambda: peer.finished)
        second = asyncio.create_task(images.get(QUESTION))
        await eventually_async(lambda: len(at_work()) == 2)
        assert await settled(lambda: len(broker.peers)) == 1
        peer.close()
        assert await soon(first) == IMAGE
        next_peer = await line(broker)
        tell(next_peer, await question(next_peer), found(f"{web.url}/image"))
        assert await soon(second) == IMAGE


async def test_without_an_answer_the_question_is_put_three_times(http: httpx.AsyncClient) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=Terms(patience=1))
        getting = asyncio.create_task(images.get(QUESTION))
        peer = await line(broker)
        asked = [await question(peer) for _ in range(3)]
        with pytest.raises(
            ImageUnavailable, match=r"of model 2011 in version 1\.2\.3-beta\.4: nobody answers"
        ):
            await soon(getting)
        assert len(set(asked)) == 1
        assert isinstance(await peer.next(), Disconnect)
        assert at_work() == []


async def test_a_late_answer_to_an_earlier_try_will_do(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=Terms(patience=1))
        getting = asyncio.create_task(images.get(QUESTION))
        peer = await line(broker)
        first = await question(peer)
        await question(peer)
        tell(peer, first, found(f"{web.url}/image"))
        assert await soon(getting) == IMAGE


async def test_a_mac_without_letters_asks_over_its_own_link(
    mosquitto: Address, http: httpx.AsyncClient, web: Web
) -> None:
    told = found(f"{web.url}/image")
    async with (
        service(mosquitto, lambda asked: [b"nonsense", encode_answer(asked, told)]),
        Link(mosquitto, NUMBER, clean=True) as link,
    ):
        images = Images(mosquitto, NUMBER, link=link, http=http, terms=LONG)

        async def own() -> None:
            async for batch in link:
                for message in batch.messages:
                    assert message.topic == answer_topic(NUMBER)
                    images.answer_came(message.payload)
                batch.acknowledge()

        owning = asyncio.create_task(own())
        assert await soon(images.get(QUESTION)) == IMAGE
        assert at_work() == []
        owning.cancel()
        await asyncio.wait((owning,))


async def test_a_mac_without_letters_has_one_connection_and_takes_its_subscription_back(
    http: httpx.AsyncClient,
) -> None:
    async with Broker() as broker, Link(broker.address, NUMBER, clean=True) as link:
        peer = await broker.accept()
        images = Images(broker.address, NUMBER, link=link, http=http, terms=LONG)
        getting = asyncio.create_task(images.get(QUESTION))
        asked = await peer.grant()
        assert asked.filters == ((answer_topic(NUMBER), 1),)
        told = encode_answer(await question(peer), None)
        images.answer_came(told)
        images.answer_came(told)  # again, before anybody has looked at the first
        goodbye = await peer.expect(Unsubscribe)
        assert goodbye.filters == (answer_topic(NUMBER),)
        peer.send(Unsuback(goodbye.packet_id))
        with pytest.raises(ImageUnavailable):
            await soon(getting)
        assert len(broker.peers) == 1
        assert link.trouble is None


async def test_a_mac_without_letters_needs_a_link(http: httpx.AsyncClient) -> None:
    async with Broker() as broker:
        with pytest.raises(ValueError, match="no letters"):
            Images(broker.address, NUMBER, link=None, http=http)


async def test_a_closed_link_makes_the_image_unavailable(http: httpx.AsyncClient) -> None:
    async with Broker() as broker:
        async with Link(broker.address, NUMBER, clean=True) as link:
            images = Images(broker.address, NUMBER, link=link, http=http, terms=LONG)
        with pytest.raises(ImageUnavailable, match="closed"):
            await soon(images.get(QUESTION))
        assert at_work() == []


@pytest.mark.parametrize("stage", ["connecting", "subscribing", "asking", "waiting"])
async def test_a_cancelled_question_leaves_nothing_behind(http: httpx.AsyncClient, stage: str) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=replace(LONG, patience=1))
        if stage == "connecting":
            broker.welcome = None
        getting = asyncio.create_task(images.get(QUESTION))
        peer = await broker.accept()
        if stage == "subscribing":
            await peer.expect(Subscribe)
        elif stage != "connecting":
            await peer.grant()
            await (question(peer) if stage == "waiting" else peer.expect(Publish))
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(getting)
        assert at_work() == []
        await eventually_async(lambda: peer.gone)
        assert len(broker.peers) == 1


async def test_a_cancelled_question_leaves_the_others_alone(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        first, second = (asyncio.create_task(images.get(each)) for each in (QUESTION, OTHER))
        peer = await line(broker)
        asked = [await question(peer), await question(peer)]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(first)
        assert not peer.finished
        for question_id in asked:
            tell(peer, question_id, found(f"{web.url}/image"))
        assert await soon(second) == IMAGE


async def test_a_cancelled_question_on_the_own_link_takes_its_subscription_back(
    http: httpx.AsyncClient,
) -> None:
    async with Broker() as broker, Link(broker.address, NUMBER, clean=True) as link:
        peer = await broker.accept()
        images = Images(broker.address, NUMBER, link=link, http=http, terms=LONG)
        getting = asyncio.create_task(images.get(QUESTION))
        await peer.grant()
        await question(peer)
        getting.cancel()
        goodbye = await peer.expect(Unsubscribe)
        peer.send(Unsuback(goodbye.packet_id))
        with pytest.raises(asyncio.CancelledError):
            await soon(getting)
        assert at_work() == []


async def test_a_broker_that_is_not_there_is_the_reason(http: httpx.AsyncClient, mosquitto: Address) -> None:
    nowhere = replace(mosquitto, port=free_port())
    with pytest.raises(ImageUnavailable, match="onnection refused"):
        await soon(Images(nowhere, GATEWAY, link=None, http=http, terms=SHORT).get(QUESTION))
    assert at_work() == []


async def test_a_broker_that_refuses_us_is_the_reason(http: httpx.AsyncClient) -> None:
    async with Broker() as broker:
        broker.refuse()
        with pytest.raises(ImageUnavailable, match="refuses the connection"):
            await soon(Images(broker.address, GATEWAY, link=None, http=http, terms=SHORT).get(QUESTION))


async def test_a_subscription_that_is_not_granted_is_the_reason(http: httpx.AsyncClient) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        getting = asyncio.create_task(images.get(QUESTION))
        peer = await broker.accept()
        await peer.grant(0x80)
        with pytest.raises(ImageUnavailable, match="does not grant"):
            await soon(getting)
        await eventually_async(lambda: peer.gone)
        assert at_work() == []


async def test_a_lost_connection_comes_back_and_asks_again(http: httpx.AsyncClient, web: Web) -> None:
    async with Broker() as broker:
        images = Images(broker.address, GATEWAY, link=None, http=http, terms=LONG)
        getting = asyncio.create_task(images.get(QUESTION))
        peer = await line(broker)
        await peer.expect(Publish)
        peer.close()
        peer = await line(broker)
        tell(peer, await question(peer), found(f"{web.url}/image"))
        assert await soon(getting) == IMAGE
