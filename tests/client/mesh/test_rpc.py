"""Gateways that misbehave, other clients beside us, and brokers that do not let us."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.rpc import MeshRpcClient
from meshfleet.errors import GatewayTimeout, MalformedResponse, TooManyRequests
from meshfleet.errors.mqtt import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    LinkClosed,
    SubscriptionRefused,
)
from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.codes import Operation, Status
from meshfleet.protocol.ids import Identifier, Mac
from meshfleet.protocol.request_tracker import ResponseMatch
from meshfleet.protocol.requests import ReadRequest
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from tests.client.mesh.gateways import DEVICE, GATEWAY, LONG, gateway_on
from tests.client.mesh.paho_client import connected_paho_client
from tests.eventually import RETRY_TIMEOUTS
from tests.mqtt.broker.running_broker import RunningBroker
from tests.mqtt.client.scripted_broker import wait_until
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port
from tests.service.requests.scripted_gateway import OutgoingMessage, connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from meshfleet.db import Database
    from tests.service.requests.scripted_gateway import IncomingRequest

pytestmark = pytest.mark.anyio


def port_of(broker: str) -> int:
    return BrokerAddress.parse(broker).port


MAX_PENDING = 20


@pytest.fixture
async def asking(broker: str) -> AsyncIterator[MeshRpcClient]:
    """What is below a mesh, where it can be seen what came."""
    made = MeshRpcClient(
        BrokerAddress.parse(broker), "asking", TopicCodec(), MqttOptions(), max_pending=MAX_PENDING
    )
    await made.start()
    yield made
    await made.close()


async def read(asking: MeshRpcClient, *, device: Mac = DEVICE, timeout: float = LONG) -> object:  # noqa: ASYNC109
    topic = RequestTopic(GATEWAY, device, Operation.READ, Identifier("8000"))
    return await asking.request(topic, ReadRequest(), is_repeatable=True, timeout=timeout)


# --- Gateways ---


@pytest.mark.rule("request-4")
async def test_every_request_has_an_id_of_its_own_and_is_sent_at_qos_1(broker: str) -> None:
    async with (
        connect_gateway(port_of(broker), lambda asked: [asked.build_response(value="2011")]) as third,
        Mesh(broker) as mesh,
        Mesh(broker) as other,
    ):
        for each in (mesh, other, mesh):
            await each.read(GATEWAY, DEVICE, "8000", timeout=LONG)
    assert len({asked.body["id"] for asked in third.requests}) == 3
    assert {(asked.topic_suffix, asked.qos, asked.retain) for asked in third.requests} == {
        (f"{DEVICE}/read/8000", 1, False)
    }


async def test_nobody_answers_and_that_is_told_in_time(broker: str) -> None:
    async with connect_gateway(port_of(broker), never_respond), Mesh(broker) as mesh:
        with pytest.raises(GatewayTimeout, match=f"gateway {GATEWAY} did not answer within 0.2 s") as raised:
            await mesh.read(GATEWAY, DEVICE, "8000", timeout=0.2)
        assert raised.value.code == "gateway-timeout"
        assert mesh.pending == 0


@each_row("fields", [{}, {"value": "abc"}, {"value": "00", "status": "fine"}, {"time": "now"}])
async def test_an_answer_that_nobody_can_read_is_an_error(broker: str, fields: dict[str, str]) -> None:
    async with (
        connect_gateway(port_of(broker), lambda asked: [asked.build_response(**fields)]),
        Mesh(broker) as mesh,
    ):
        with pytest.raises(MalformedResponse, match=f"gateway {GATEWAY} answered"):
            await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)
        assert mesh.pending == 0


RUBBISH = {
    "02005e0000a1": b"\xff",
    "02005e0000a2": b"",
    "02005e0000a3": b'{"id": NaN}',
    "02005e0000a4": b"[" * 5000,
    "02005e0000a5": b'{"id": "' + b"x" * 70_000 + b'"}',
}
"""Answers without an id that can be read, by device."""


async def test_who_waits_for_an_answer_that_has_not_even_an_id_is_told_so_in_the_end(broker: str) -> None:
    def rubbish(asked: IncomingRequest) -> list[OutgoingMessage]:
        return [OutgoingMessage(asked.build_response().topic, RUBBISH[asked.topic_suffix.partition("/")[0]])]

    async with connect_gateway(port_of(broker), rubbish), Mesh(broker) as mesh:
        told: list[object] = []
        for limit in RETRY_TIMEOUTS:
            reading = [mesh.read(GATEWAY, device, "8000", timeout=limit) for device in RUBBISH]
            told = [*await asyncio.gather(*reading, return_exceptions=True)]
            if not any(isinstance(each, GatewayTimeout | BrokerUnreachable) for each in told):
                break
        kinds = dict(zip(RUBBISH, map(type, told), strict=True))
        assert kinds == dict.fromkeys(RUBBISH, MalformedResponse)
        assert [str(error) for error in told if "cannot be read" not in str(error)] == []
        assert mesh.pending == 0


async def test_answers_as_other_gateways_write_them_are_understood(broker: str) -> None:
    quirks = {"status": 0.0, "time": "2020-11-04T11:07:20.5851234+01:00", "value": "2011", "more": [1]}
    async with (
        connect_gateway(port_of(broker), lambda asked: [asked.build_response(**quirks)]),
        Mesh(broker) as mesh,
    ):
        answer = await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)
    assert (answer.status, answer.value, answer.time.hour, answer.time.microsecond) == (0, "2011", 10, 585000)


async def test_a_status_that_nobody_knows_passes_through(broker: str) -> None:
    async with (
        connect_gateway(port_of(broker), lambda asked: [asked.build_response(status=77)]),
        Mesh(broker) as mesh,
    ):
        assert (await mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=LONG)).status == 77


async def test_late_and_repeated_answers_are_recognised(broker: str, asking: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as third:
        with pytest.raises(GatewayTimeout):
            await read(asking, timeout=0.2)
        await wait_until(lambda: third.requests)
        third.publish(third.requests[0].build_response(value="2011"))
        await wait_until(lambda: asking.response_counts[ResponseMatch.LATE] == 1)
        third.responder = lambda asked: [asked.build_response(value="2011")] * 2
        await read(asking)
        await wait_until(lambda: asking.response_counts[ResponseMatch.REPEATED] == 1)
    assert asking.response_counts == {
        ResponseMatch.LATE: 1,
        ResponseMatch.ANSWER: 1,
        ResponseMatch.REPEATED: 1,
    }
    assert asking.pending == 0


async def test_a_cancelled_request_leaves_nothing_behind(broker: str, asking: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as third:
        reading = asyncio.create_task(read(asking))
        await wait_until(lambda: third.requests)
        assert asking.pending == 1
        reading.cancel()
        await asyncio.wait((reading,))
        assert reading.cancelled()
        assert asking.pending == 0
        third.publish(third.requests[0].build_response(value="2011"))
        await wait_until(lambda: asking.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-29")
async def test_answers_to_others_and_rubbish_disturb_nobody(broker: str, asking: MeshRpcClient) -> None:
    def others_first(asked: IncomingRequest) -> list[OutgoingMessage]:
        right = asked.build_response(value="2011")
        return [
            right._replace(topic=right.topic.replace("/8000", "/8001")),
            right._replace(topic=right.topic.replace("/read/8000", "/reboot")),
            asked.build_response(id="somebody-else", value="ffff"),
            OutgoingMessage(right.topic, b"{not json"),
            OutgoingMessage(right.topic, b"\xff"),
            OutgoingMessage(right.topic, b""),
            right,
        ]

    async with connect_gateway(port_of(broker), others_first):
        answer = await read(asking)
    assert getattr(answer, "value", None) == "2011"
    assert asking.response_counts == {ResponseMatch.FOREIGN: 5, ResponseMatch.ANSWER: 1}


@pytest.mark.rule("request-29")
async def test_another_client_on_the_same_topics_is_not_disturbed(broker: str) -> None:
    async with (
        gateway_on(broker) as real,
        Mesh(broker) as mesh,
        connected_paho_client(port_of(broker), real.mac) as other,
    ):
        device, count = real.devices[0], 30
        asked = [other.request(f"{device}/read/8000", f"other-{number}") for number in range(count)]
        answers = await asyncio.gather(
            *(mesh.read(real.mac, device, "8000", timeout=LONG) for _ in range(count))
        )
        await wait_until(lambda: set(asked) <= set(other.response_ids()))
        assert {answer.status for answer in answers} == {Status.OK}
        await wait_until(lambda: {str(answer.id) for answer in answers} <= set(other.response_ids()))


async def test_requests_in_flight_are_bounded(broker: str, asking: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as third:
        waiting = [asyncio.create_task(read(asking)) for _ in range(MAX_PENDING)]
        await wait_until(lambda: len(third.requests) == MAX_PENDING)
        with pytest.raises(TooManyRequests):
            await read(asking)
        assert asking.pending == MAX_PENDING
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert asking.pending == 0


@pytest.mark.rule("request-32")
async def test_keys_are_sent_and_never_logged(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "5ec2e7" * 5
    caplog.set_level("DEBUG")
    async with (
        connect_gateway(port_of(broker), lambda asked: [asked.build_response(status="?")]) as third,
        Mesh(broker) as mesh,
    ):
        with pytest.raises(MalformedResponse) as malformed:
            await mesh.read(GATEWAY, DEVICE, "8000", key=secret, public_key=secret, timeout=LONG)
        third.responder = never_respond
        with pytest.raises(GatewayTimeout) as late:
            await mesh.write(GATEWAY, DEVICE, "9802", "00", key=secret, timeout=0.1)
        await wait_until(lambda: len(third.requests) == 2)
    assert [asked.body["key"] for asked in third.requests] == [secret, secret]
    assert secret not in f"{caplog.text} {malformed.value!r} {late.value!r} {mesh!r}"


# --- Brokers ---


@pytest.fixture
async def stage(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    """The embedded broker with people of all roles."""
    async with RunningBroker(sqlite_database) as running:
        yield running
    sqlite_database.close()


def url(stage: RunningBroker, user: str, password: str = "correct") -> str:  # noqa: S107 # that of everybody
    return f"mqtt://{user}:{password}@127.0.0.1:{stage.port}"


async def test_wrong_credentials_are_told_at_the_door(stage: RunningBroker) -> None:
    with pytest.raises(ConnectionRefused, match="wrong user name or password"):
        async with Mesh(url(stage, "operator", "wrong")):
            pass


async def test_an_operator_may_ask(stage: RunningBroker) -> None:
    async with (
        connect_gateway(stage.port, lambda asked: [asked.build_response(value="2011")]),
        Mesh(url(stage, "operator")) as mesh,
    ):
        assert (await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)).value == "2011"


async def test_a_viewer_may_not_ask_and_is_told_so_long_before_the_time_is_up(stage: RunningBroker) -> None:
    async with connect_gateway(stage.port) as third, Mesh(url(stage, "viewer")) as mesh:
        for deed in (
            mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=600),
            mesh.read(GATEWAY, DEVICE, "8000", timeout=600),
        ):
            with pytest.raises(ConnectionLost, match="who may not send requests"):
                await asyncio.wait_for(deed, LONG)
        assert third.requests == []
        assert mesh.pending == 0


async def test_a_subscription_that_is_refused_is_told_and_nothing_is_sent(stage: RunningBroker) -> None:
    """Gateways read their own topics alone."""
    user = f"{int(GATEWAY, 16) + 1:012x}"
    async with connect_gateway(stage.port) as third:
        asking = MeshRpcClient(BrokerAddress.parse(url(stage, user)), user, TopicCodec(), MqttOptions())
        await asking.start()
        with pytest.raises(SubscriptionRefused, match=f"mt/gateway/{GATEWAY}/response/#"):
            await read(asking)
        await asking.close()
        assert third.requests == []


async def test_no_broker_is_told_at_the_door() -> None:
    with pytest.raises(BrokerUnreachable):
        async with Mesh(f"mqtt://127.0.0.1:{free_port()}"):
            pass


async def test_a_broker_that_has_gone_is_told_and_that_nothing_was_sent(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        async with Mesh(f"mqtt://127.0.0.1:{mosquitto.address.port}") as mesh:
            await asyncio.to_thread(mosquitto.stop)
            for deed in (
                mesh.read(GATEWAY, DEVICE, "8000", timeout=1.0),
                mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=1.0),
            ):
                with pytest.raises(BrokerUnreachable, match=f"nothing was sent to gateway {GATEWAY}") as lost:
                    await deed
                assert str(lost.value).count(f":{mosquitto.address.port}") == 1
            assert mesh.pending == 0


async def test_a_mesh_that_is_closed_or_was_never_opened_says_so(broker: str) -> None:
    mesh = Mesh(broker)
    with pytest.raises(LinkClosed):
        await mesh.read(GATEWAY, DEVICE, "8000")
    with pytest.raises(LinkClosed):
        await anext(mesh.reports())
    async with connect_gateway(port_of(broker)) as third:
        async with mesh:
            waiting = asyncio.create_task(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
            await wait_until(lambda: third.requests)
        with pytest.raises(LinkClosed, match="may have been carried out"):
            await waiting
    with pytest.raises(LinkClosed):
        await mesh.read(GATEWAY, DEVICE, "8000")
    with pytest.raises(LinkClosed, match="Mesh is opened once"):
        await mesh.__aenter__()
    assert mesh.pending == 0
