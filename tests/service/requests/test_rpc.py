"""Requests of the service through a real broker, to scripted and to emulated gateways."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.errors import GatewayOffline, GatewayTimeout, MalformedResponse
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.mqtt.codec.packets import Puback, Publish, Suback, Subscribe
from meshfleet.protocol.codes import Operation, Priority, Status
from meshfleet.protocol.hex import Secret
from meshfleet.protocol.ids import Identifier, Mac, Version
from meshfleet.protocol.request_tracker import ResponseMatch
from meshfleet.protocol.requests import ApiVersionRequest, ReadRequest
from meshfleet.protocol.responses import ApiVersionResponse, ReadResponse
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from meshfleet.service.requests.rpc import RpcClient
from tests.emulator.runtime.fleet_builder import FleetBuilder, fresh_mac
from tests.eventually import RETRY_TIMEOUTS
from tests.mqtt.broker.running_broker import PASSWORD, D, G, RunningBroker
from tests.row_tables import each_row
from tests.servers import NO_TRUSTED_AUTHORITIES
from tests.service.requests.scripted_gateway import OutgoingMessage, connect_gateway, never_respond

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.requests.rpc import RpcResponse
    from tests.service.requests.scripted_gateway import IncomingRequest

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = Mac(G), Mac(D)
MODEL = Identifier("8000")
LONG = 30.0
"""Seconds; reached only on failure."""


def rpc_client(broker: RunningBroker, max_concurrent: int = 16) -> RpcClient:
    return RpcClient(broker.broker, TopicCodec(broker.prefix), broker.clock, max_concurrent=max_concurrent)


async def read(rpc: RpcClient, device: Mac = DEVICE, *, timeout: float = LONG) -> RpcResponse:  # noqa: ASYNC109
    return await rpc.request(
        RequestTopic(GATEWAY, device, Operation.READ, MODEL), ReadRequest(), timeout=timeout
    )


@pytest.mark.rule("request-26", "request-27", "request-35")
async def test_a_response_has_the_times_when_it_was_requested_and_received(broker: RunningBroker) -> None:
    rpc, before = rpc_client(broker), broker.clock()
    async with connect_gateway(
        broker.port, lambda request: [request.build_response(value="2011")]
    ) as gateway:
        response, sent_at, received_at = await read(rpc)
    assert isinstance(response, ReadResponse)
    assert (response.status, response.value) == (Status.OK, "2011")
    assert before <= sent_at <= received_at <= broker.clock()
    (request,) = gateway.requests
    assert (request.topic_suffix, request.qos, request.retain) == (f"{D}/read/8000", 1, False)
    assert request.body.keys() == {"id"}
    assert rpc.pending == 0


@pytest.mark.rule("request-28")
async def test_a_late_response_is_passed_on_once(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    late_responses: list[RpcResponse] = []
    topic = RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL)
    async with connect_gateway(broker.port, never_respond) as gateway:
        with pytest.raises(GatewayTimeout):
            await rpc.request(topic, ReadRequest(), timeout=0.2, on_late_response=late_responses.append)
        await broker.until(lambda: bool(gateway.requests))
        gateway.publish(*(gateway.requests[0].build_response(value=value) for value in ("2011", "2012")))
        await broker.until(lambda: rpc.response_counts[ResponseMatch.LATE] == 2)
    [(response, _, _)] = late_responses
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"


async def test_a_response_with_an_error_status_is_returned(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(
        broker.port, lambda request: [request.build_response(status=77, errorMessage="no")]
    ):
        assert (await read(rpc)).response.status == 77


async def test_requests_and_responses_have_the_topic_prefix(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, prefix="site/7") as broker:
        client = await broker.gateway()
        client.send(Subscribe(1, ((f"site/7/mt/gateway/{G}/request/#", 1),)))
        await client.expect(Suback)
        reading = asyncio.create_task(read(rpc_client(broker)))
        request = await client.expect(Publish)
        assert request.topic == f"site/7/mt/gateway/{G}/request/{D}/read/8000"
        body = {"id": json.loads(request.payload)["id"], "time": "2020-01-01T00:00Z", "status": 10}
        topic = request.topic.replace("/request/", "/response/")
        client.send(Puback(request.packet_id), Publish(topic, json.dumps(body).encode(), 1, packet_id=1))
        assert (await reading).response.status == Status.UNREACHABLE


@pytest.mark.rule("request-26", "request-27")
async def test_concurrent_requests_get_their_own_responses_in_any_order(broker: RunningBroker) -> None:
    rpc, responses = rpc_client(broker, 50), list[OutgoingMessage]()

    def respond_in_reverse(request: IncomingRequest) -> list[OutgoingMessage]:
        responses.append(request.build_response(value=request.topic_suffix[8:12]))
        return responses[::-1] if len(responses) == 50 else []

    devices = [Mac(f"02005e00{number:04x}") for number in range(50)]
    async with connect_gateway(broker.port, respond_in_reverse) as gateway:
        replies = await asyncio.gather(*(read(rpc, device) for device in devices))
    assert [reply.response.value for reply in replies if isinstance(reply.response, ReadResponse)] == [
        device[8:] for device in devices
    ]
    assert len({request.body["id"] for request in gateway.requests}) == 50


# --- Gateways that misbehave ---


@pytest.mark.rule("request-28")
async def test_a_request_without_response_times_out_and_is_not_pending_any_more(
    broker: RunningBroker,
) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port, never_respond) as gateway:
        with pytest.raises(GatewayTimeout, match=f"gateway {G} did not respond within 0.2 s") as raised:
            await read(rpc, timeout=0.2)
        assert (raised.value.code, raised.value.http) == ("gateway-timeout", 504)
        assert rpc.pending == 0
        await broker.until(lambda: bool(gateway.requests))
        gateway.publish(gateway.requests[0].build_response(value="2011"))
        await broker.until(lambda: rpc.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-28")
async def test_a_repeated_response_is_ignored(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(
        broker.port,
        lambda request: [request.build_response(value="2011"), request.build_response(value="ffff")],
    ):
        response = (await read(rpc)).response
        assert isinstance(response, ReadResponse)
        assert response.value == "2011"
        await broker.until(lambda: rpc.response_counts[ResponseMatch.REPEATED] == 1)
    assert rpc.response_counts[ResponseMatch.ANSWER] == 1


@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": "2011", "status": "fine"}, {"value": "2011", "time": "yesterday"}],
)
async def test_a_malformed_response_is_an_error(broker: RunningBroker, fields: dict[str, str]) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port, lambda request: [request.build_response(**fields)]):
        with pytest.raises(MalformedResponse) as raised:
            await read(rpc)
    assert (raised.value.code, raised.value.http) == ("malformed-response", 502)
    assert rpc.pending == 0


async def test_a_response_that_is_not_json_is_reported_as_malformed(broker: RunningBroker) -> None:
    payloads = {
        Mac(f"c0ffee{number:06x}"): payload
        for number, payload in enumerate([b"\xff\xfe", b"{", b"[]", b'{"id": NaN}'])
    }

    def respond(request: IncomingRequest) -> list[OutgoingMessage]:
        return [
            OutgoingMessage(
                request.build_response().topic, payloads[Mac(request.topic_suffix.partition("/")[0])]
            )
        ]

    rpc, errors = rpc_client(broker), list[object]()
    async with connect_gateway(broker.port, respond) as gateway:
        for limit in RETRY_TIMEOUTS:  # a payload without a request id is reported when the request times out
            reads = [read(rpc, device, timeout=limit) for device in payloads]
            errors = [*await asyncio.gather(*reads, return_exceptions=True)]
            if not any(isinstance(each, GatewayTimeout) for each in errors):
                break
        assert gateway.requests
        for each in errors:
            with pytest.raises(MalformedResponse, match="not a JSON object"):
                raise each if isinstance(each, BaseException) else AssertionError(each)


async def test_unreadable_messages_before_a_response_or_a_request_are_ignored(
    broker: RunningBroker,
) -> None:
    rpc, received = rpc_client(broker), list[object]()

    def respond(request: IncomingRequest) -> list[OutgoingMessage]:
        received.append(request)
        noise = OutgoingMessage(request.build_response().topic, b"noise")
        return [noise, request.build_response(value="2011")] if len(received) == 1 else []

    async with connect_gateway(broker.port, respond):
        assert (await read(rpc)).response.status == Status.OK
        with pytest.raises(GatewayTimeout):
            await read(rpc, timeout=0.3)


@pytest.mark.rule("request-28", "request-29")
async def test_responses_to_other_requests_and_malformed_messages_are_ignored(broker: RunningBroker) -> None:
    def respond_with_foreign_messages_first(request: IncomingRequest) -> list[OutgoingMessage]:
        correct = request.build_response(value="2011")
        return [
            correct._replace(topic=correct.topic.replace("/8000", "/8001")),
            correct._replace(topic=correct.topic.replace(D, G)),
            correct._replace(topic=correct.topic.replace("/read/", "/read-decoded/")),
            correct._replace(topic=correct.topic.replace("/read/8000", "/reboot")),
            request.build_response(id="other-request", value="ffff"),
            OutgoingMessage(correct.topic, b"{not json"),
            OutgoingMessage(correct.topic, b"\xff"),
            OutgoingMessage(correct.topic, b""),
            OutgoingMessage(correct.topic, b'{"time":"2020-01-01T00:00:00Z","status":0,"value":"ffff"}'),
            correct,
        ]

    rpc = rpc_client(broker)
    async with connect_gateway(broker.port, respond_with_foreign_messages_first):
        response = (await read(rpc)).response
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"
    assert rpc.response_counts == {ResponseMatch.FOREIGN: 8, ResponseMatch.ANSWER: 1}


async def test_a_gateway_cannot_respond_for_another_gateway(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    other = f"{int(G, 16) + 1:012x}"
    async with (
        connect_gateway(broker.port, never_respond) as gateway,
        connect_gateway(broker.port, never_respond, other) as impostor,
    ):
        reading = asyncio.create_task(read(rpc))
        await broker.until(lambda: bool(gateway.requests))
        correct = gateway.requests[0].build_response(value="2011")
        impostor.publish(correct._replace(topic=correct.topic.replace(G, other)))
        await broker.until(lambda: rpc.response_counts[ResponseMatch.FOREIGN] == 1)
        assert not reading.done()
        gateway.publish(correct)
        await reading


async def test_a_request_to_a_disconnected_gateway_fails_at_once_and_is_not_sent(
    broker: RunningBroker,
) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port) as gateway:
        other = Mac(f"{int(G, 16) + 1:012x}")
        with pytest.raises(GatewayOffline, match=f"gateway {other} is not connected") as raised:
            await rpc.request(
                RequestTopic(other, other, Operation.APIVERSION), ApiVersionRequest(), timeout=LONG
            )
        assert (raised.value.code, raised.value.http) == ("gateway-offline", 503)
        gateway.publish(OutgoingMessage(f"mt/gateway/{G}/response/{G}/apiversion", b"{}"))
        await broker.until(lambda: rpc.response_counts.total() == 1)
        assert gateway.requests == []
    await broker.until(lambda: not broker.broker.connected_gateways())
    with pytest.raises(GatewayOffline):
        await read(rpc)
    assert rpc.pending == 0


async def test_a_canceled_request_is_not_pending_any_more(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port) as gateway:
        reading = asyncio.create_task(read(rpc))
        await broker.until(lambda: bool(gateway.requests))
        assert rpc.pending == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert rpc.pending == 0
        gateway.publish(gateway.requests[0].build_response(value="2011"))
        await broker.until(lambda: rpc.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-32")
async def test_keys_are_sent_and_never_logged(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "5ec2e7" * 5
    rpc = rpc_client(broker)
    caplog.set_level("DEBUG")

    def respond_malformed(request: IncomingRequest) -> list[OutgoingMessage]:
        return [request.build_response(status="broken")]

    async with connect_gateway(broker.port, respond_malformed) as gateway:
        request = ReadRequest(key=Secret(bytes.fromhex(secret)), priority=Priority.HIGH)
        with pytest.raises(MalformedResponse) as malformed:
            await rpc.request(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=LONG)
        gateway.responder = never_respond
        with pytest.raises(GatewayTimeout) as timeout:
            await rpc.request(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=0.1)
        await broker.until(lambda: len(gateway.requests) == 2)
    assert [request.body["key"] for request in gateway.requests] == [secret, secret]
    assert secret not in f"{caplog.text} {malformed.value!r} {timeout.value!r}"


# --- The emulated gateway ---


@pytest.mark.rule("request-26", "request-27")
async def test_an_emulated_gateway_responds_for_itself_and_its_devices(broker: RunningBroker) -> None:
    rpc, mac = rpc_client(broker), fresh_mac()
    address = BrokerAddress(host="127.0.0.1", port=broker.port, user=mac, password=PASSWORD.decode())
    async with httpx.AsyncClient(verify=NO_TRUSTED_AUTHORITIES, trust_env=False) as http:
        fleet = FleetBuilder(http, speed=100.0)
        fleet.add(address, mac)
        async with fleet.run():
            await broker.until(lambda: mac in broker.broker.connected_gateways())
            version_response = (
                await rpc.request(
                    RequestTopic(mac, mac, Operation.APIVERSION), ApiVersionRequest(), timeout=LONG
                )
            ).response
            assert isinstance(version_response, ApiVersionResponse)
            assert version_response.version == Version(2, 4, 0)
            model_response = (
                await rpc.request(RequestTopic(mac, mac, Operation.READ, MODEL), ReadRequest(), timeout=LONG)
            ).response
            assert isinstance(model_response, ReadResponse)
            assert model_response.status == Status.OK
            unknown_device = await rpc.request(
                RequestTopic(mac, DEVICE, Operation.READ, MODEL), ReadRequest(), timeout=LONG
            )
            assert unknown_device.response.status == Status.UNREACHABLE
