"""Requests of `Mesh` to misbehaving gateways, beside other clients, and on brokers that refuse access."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.client.mesh.rpc import MeshRpcClient
from meshfleet.errors import GatewayTimeout, MalformedResponse, TooManyRequests
from meshfleet.errors.mqtt import (
    BrokerUnreachable,
    ConnectionClosed,
    ConnectionLost,
    ConnectionRefused,
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
async def rpc(broker: str) -> AsyncIterator[MeshRpcClient]:
    """RPC client below `Mesh`, which counts the responses that it matched."""
    client = MeshRpcClient(
        BrokerAddress.parse(broker), "rpc", TopicCodec(), MqttOptions(), max_pending=MAX_PENDING
    )
    await client.start()
    yield client
    await client.close()


async def read(rpc: MeshRpcClient, *, device: Mac = DEVICE, timeout: float = LONG) -> object:  # noqa: ASYNC109
    topic = RequestTopic(GATEWAY, device, Operation.READ, Identifier("8000"))
    return await rpc.request(topic, ReadRequest(), is_repeatable=True, timeout=timeout)


# --- Gateways ---


@pytest.mark.rule("request-4")
async def test_every_request_has_its_own_id_and_is_sent_at_qos_1(broker: str) -> None:
    async with (
        connect_gateway(
            port_of(broker), lambda request: [request.build_response(value="2011")]
        ) as fake_gateway,
        Mesh(broker) as mesh,
        Mesh(broker) as other,
    ):
        for client in (mesh, other, mesh):
            await client.read(GATEWAY, DEVICE, "8000", timeout=LONG)
    assert len({request.body["id"] for request in fake_gateway.requests}) == 3
    assert {(request.topic_suffix, request.qos, request.retain) for request in fake_gateway.requests} == {
        (f"{DEVICE}/read/8000", 1, False)
    }


async def test_a_missing_response_raises_gateway_timeout(broker: str) -> None:
    async with connect_gateway(port_of(broker), never_respond), Mesh(broker) as mesh:
        with pytest.raises(GatewayTimeout, match=f"gateway {GATEWAY} did not respond within 0.2 s") as raised:
            await mesh.read(GATEWAY, DEVICE, "8000", timeout=0.2)
        assert raised.value.code == "gateway-timeout"
        assert mesh.pending == 0


@each_row("fields", [{}, {"value": "abc"}, {"value": "00", "status": "fine"}, {"time": "now"}])
async def test_an_undecodable_response_raises_malformed_response(broker: str, fields: dict[str, str]) -> None:
    async with (
        connect_gateway(port_of(broker), lambda request: [request.build_response(**fields)]),
        Mesh(broker) as mesh,
    ):
        with pytest.raises(MalformedResponse, match=f"gateway {GATEWAY} sent a response"):
            await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)
        assert mesh.pending == 0


UNDECODABLE_RESPONSES = {
    "02005e0000a1": b"\xff",
    "02005e0000a2": b"",
    "02005e0000a3": b'{"id": NaN}',
    "02005e0000a4": b"[" * 5000,
    "02005e0000a5": b'{"id": "' + b"x" * 70_000 + b'"}',
}
"""Responses without a readable id, by device."""


async def test_a_response_without_a_readable_id_raises_malformed_response_at_the_timeout(broker: str) -> None:
    def respond(request: IncomingRequest) -> list[OutgoingMessage]:
        return [
            OutgoingMessage(
                request.build_response().topic, UNDECODABLE_RESPONSES[request.topic_suffix.partition("/")[0]]
            )
        ]

    async with connect_gateway(port_of(broker), respond), Mesh(broker) as mesh:
        outcomes: list[object] = []
        for limit in RETRY_TIMEOUTS:
            reading = [mesh.read(GATEWAY, device, "8000", timeout=limit) for device in UNDECODABLE_RESPONSES]
            outcomes = [*await asyncio.gather(*reading, return_exceptions=True)]
            if not any(isinstance(each, GatewayTimeout | BrokerUnreachable) for each in outcomes):
                break
        kinds = dict(zip(UNDECODABLE_RESPONSES, map(type, outcomes), strict=True))
        assert kinds == dict.fromkeys(UNDECODABLE_RESPONSES, MalformedResponse)
        assert [str(error) for error in outcomes if "is not JSON" not in str(error)] == []
        assert mesh.pending == 0


async def test_responses_in_formats_of_other_gateways_are_decoded(broker: str) -> None:
    quirks = {"status": 0.0, "time": "2020-11-04T11:07:20.5851234+01:00", "value": "2011", "more": [1]}
    async with (
        connect_gateway(port_of(broker), lambda request: [request.build_response(**quirks)]),
        Mesh(broker) as mesh,
    ):
        response = await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)
    assert (response.status, response.value, response.time.hour, response.time.microsecond) == (
        0,
        "2011",
        10,
        585000,
    )


async def test_an_unknown_status_is_returned(broker: str) -> None:
    async with (
        connect_gateway(port_of(broker), lambda request: [request.build_response(status=77)]),
        Mesh(broker) as mesh,
    ):
        assert (await mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=LONG)).status == 77


async def test_late_and_repeated_responses_are_recognized(broker: str, rpc: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as fake_gateway:
        with pytest.raises(GatewayTimeout):
            await read(rpc, timeout=0.2)
        await wait_until(lambda: fake_gateway.requests)
        fake_gateway.publish(fake_gateway.requests[0].build_response(value="2011"))
        await wait_until(lambda: rpc.response_counts[ResponseMatch.LATE] == 1)
        fake_gateway.responder = lambda request: [request.build_response(value="2011")] * 2
        await read(rpc)
        await wait_until(lambda: rpc.response_counts[ResponseMatch.REPEATED] == 1)
    assert rpc.response_counts == {
        ResponseMatch.LATE: 1,
        ResponseMatch.ANSWER: 1,
        ResponseMatch.REPEATED: 1,
    }
    assert rpc.pending == 0


async def test_a_canceled_request_is_no_longer_pending(broker: str, rpc: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as fake_gateway:
        reading = asyncio.create_task(read(rpc))
        await wait_until(lambda: fake_gateway.requests)
        assert rpc.pending == 1
        reading.cancel()
        await asyncio.wait((reading,))
        assert reading.cancelled()
        assert rpc.pending == 0
        fake_gateway.publish(fake_gateway.requests[0].build_response(value="2011"))
        await wait_until(lambda: rpc.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-29")
async def test_responses_to_other_clients_and_malformed_ones_are_ignored(
    broker: str, rpc: MeshRpcClient
) -> None:
    def respond_to_others_first(request: IncomingRequest) -> list[OutgoingMessage]:
        right = request.build_response(value="2011")
        return [
            right._replace(topic=right.topic.replace("/8000", "/8001")),
            right._replace(topic=right.topic.replace("/read/8000", "/reboot")),
            request.build_response(id="other-client", value="ffff"),
            OutgoingMessage(right.topic, b"{not json"),
            OutgoingMessage(right.topic, b"\xff"),
            OutgoingMessage(right.topic, b""),
            right,
        ]

    async with connect_gateway(port_of(broker), respond_to_others_first):
        response = await read(rpc)
    assert getattr(response, "value", None) == "2011"
    assert rpc.response_counts == {ResponseMatch.FOREIGN: 5, ResponseMatch.ANSWER: 1}


@pytest.mark.rule("request-29")
async def test_another_client_on_the_same_topics_is_not_disturbed(broker: str) -> None:
    async with (
        gateway_on(broker) as gateway,
        Mesh(broker) as mesh,
        connected_paho_client(port_of(broker), gateway.mac) as other,
    ):
        device, count = gateway.devices[0], 30
        request_ids = [other.request(f"{device}/read/8000", f"other-{number}") for number in range(count)]
        responses = await asyncio.gather(
            *(mesh.read(gateway.mac, device, "8000", timeout=LONG) for _ in range(count))
        )
        await wait_until(lambda: set(request_ids) <= set(other.response_ids()))
        assert {response.status for response in responses} == {Status.OK}
        await wait_until(lambda: {str(response.id) for response in responses} <= set(other.response_ids()))


async def test_pending_requests_are_limited(broker: str, rpc: MeshRpcClient) -> None:
    async with connect_gateway(port_of(broker), never_respond) as fake_gateway:
        tasks = [asyncio.create_task(read(rpc)) for _ in range(MAX_PENDING)]
        await wait_until(lambda: len(fake_gateway.requests) == MAX_PENDING)
        with pytest.raises(TooManyRequests):
            await read(rpc)
        assert rpc.pending == MAX_PENDING
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert rpc.pending == 0


@pytest.mark.rule("request-32")
async def test_keys_are_sent_and_never_logged(broker: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "5ec2e7" * 5
    caplog.set_level("DEBUG")
    async with (
        connect_gateway(
            port_of(broker), lambda request: [request.build_response(status="?")]
        ) as fake_gateway,
        Mesh(broker) as mesh,
    ):
        with pytest.raises(MalformedResponse) as malformed:
            await mesh.read(GATEWAY, DEVICE, "8000", key=secret, public_key=secret, timeout=LONG)
        fake_gateway.responder = never_respond
        with pytest.raises(GatewayTimeout) as timeout:
            await mesh.write(GATEWAY, DEVICE, "9802", "00", key=secret, timeout=0.1)
        await wait_until(lambda: len(fake_gateway.requests) == 2)
    assert [request.body["key"] for request in fake_gateway.requests] == [secret, secret]
    assert secret not in f"{caplog.text} {malformed.value!r} {timeout.value!r} {mesh!r}"


# --- Brokers ---


@pytest.fixture
async def embedded_broker(sqlite_database: Database) -> AsyncIterator[RunningBroker]:
    """Run the embedded broker with accounts of all roles."""
    async with RunningBroker(sqlite_database) as running:
        yield running


def url_of(embedded_broker: RunningBroker, user: str, password: str = "correct") -> str:  # noqa: S107 # the password of every account
    return f"mqtt://{user}:{password}@127.0.0.1:{embedded_broker.port}"


async def test_wrong_credentials_are_reported_on_entering(embedded_broker: RunningBroker) -> None:
    with pytest.raises(ConnectionRefused, match="wrong user name or password"):
        async with Mesh(url_of(embedded_broker, "operator", "wrong")):
            pass


async def test_an_operator_may_send_requests(embedded_broker: RunningBroker) -> None:
    async with (
        connect_gateway(embedded_broker.port, lambda request: [request.build_response(value="2011")]),
        Mesh(url_of(embedded_broker, "operator")) as mesh,
    ):
        assert (await mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)).value == "2011"


async def test_a_request_of_a_viewer_fails_long_before_its_timeout(embedded_broker: RunningBroker) -> None:
    async with (
        connect_gateway(embedded_broker.port) as fake_gateway,
        Mesh(url_of(embedded_broker, "viewer")) as mesh,
    ):
        for call in (
            mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=600),
            mesh.read(GATEWAY, DEVICE, "8000", timeout=600),
        ):
            with pytest.raises(ConnectionLost, match="not allowed to send requests"):
                await asyncio.wait_for(call, LONG)
        assert fake_gateway.requests == []
        assert mesh.pending == 0


async def test_a_refused_subscription_is_reported_and_nothing_is_sent(embedded_broker: RunningBroker) -> None:
    """Send a request as another gateway, which may read its own topics only."""
    user = f"{int(GATEWAY, 16) + 1:012x}"
    async with connect_gateway(embedded_broker.port) as fake_gateway:
        rpc = MeshRpcClient(
            BrokerAddress.parse(url_of(embedded_broker, user)), user, TopicCodec(), MqttOptions()
        )
        await rpc.start()
        with pytest.raises(SubscriptionRefused, match=f"mt/gateway/{GATEWAY}/response/#"):
            await read(rpc)
        await rpc.close()
        assert fake_gateway.requests == []


async def test_an_unreachable_broker_is_reported_on_entering() -> None:
    with pytest.raises(BrokerUnreachable):
        async with Mesh(f"mqtt://127.0.0.1:{free_port()}"):
            pass


async def test_a_stopped_broker_is_reported_and_nothing_is_sent(tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        async with Mesh(f"mqtt://127.0.0.1:{mosquitto.address.port}") as mesh:
            await asyncio.to_thread(mosquitto.stop)
            for call in (
                mesh.read(GATEWAY, DEVICE, "8000", timeout=1.0),
                mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=1.0),
            ):
                with pytest.raises(BrokerUnreachable, match=f"nothing was sent to gateway {GATEWAY}") as lost:
                    await call
                assert str(lost.value).count(f":{mosquitto.address.port}") == 1
            assert mesh.pending == 0


async def test_a_closed_or_unopened_mesh_raises_link_closed(broker: str) -> None:
    mesh = Mesh(broker)
    with pytest.raises(ConnectionClosed):
        await mesh.read(GATEWAY, DEVICE, "8000")
    with pytest.raises(ConnectionClosed):
        await anext(mesh.reports())
    async with connect_gateway(port_of(broker)) as fake_gateway:
        async with mesh:
            reading = asyncio.create_task(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
            await wait_until(lambda: fake_gateway.requests)
        with pytest.raises(ConnectionClosed, match="may have been carried out"):
            await reading
    with pytest.raises(ConnectionClosed):
        await mesh.read(GATEWAY, DEVICE, "8000")
    with pytest.raises(ConnectionClosed, match="Mesh can be opened only once"):
        await mesh.__aenter__()
    assert mesh.pending == 0
