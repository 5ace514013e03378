"""Requests of the service, through a real broker, to gateways of another make and to our own."""

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
from tests.service.requests.scripted_gateway import OutgoingMessage, connect_gateway, never_respond

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.requests.rpc import RpcResponse
    from tests.service.requests.scripted_gateway import IncomingRequest

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = Mac(G), Mac(D)
MODEL = Identifier("8000")
LONG = 30.0
"""Reached only when something is broken."""


def rpc_client(stage: RunningBroker, at_once: int = 16) -> RpcClient:
    return RpcClient(stage.broker, TopicCodec(stage.prefix), stage.clock, max_concurrent=at_once)


async def read(asking: RpcClient, device: Mac = DEVICE, *, timeout: float = LONG) -> RpcResponse:  # noqa: ASYNC109
    return await asking.request(
        RequestTopic(GATEWAY, device, Operation.READ, MODEL), ReadRequest(), timeout=timeout
    )


@pytest.mark.rule("request-26", "request-27", "request-35")
async def test_an_answer_comes_with_the_moments_around_it(stage: RunningBroker) -> None:
    asking, before = rpc_client(stage), stage.clock()
    async with connect_gateway(stage.port, lambda asked: [asked.build_response(value="2011")]) as third:
        response, sent, received = await read(asking)
    assert isinstance(response, ReadResponse)
    assert (response.status, response.value) == (Status.OK, "2011")
    assert before <= sent <= received <= stage.clock()
    (asked,) = third.requests
    assert (asked.topic_suffix, asked.qos, asked.retain) == (f"{D}/read/8000", 1, False)
    assert asked.body.keys() == {"id"}
    assert asking.pending == 0


@pytest.mark.rule("request-28")
async def test_an_answer_that_comes_too_late_is_passed_on_once(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    late: list[RpcResponse] = []
    topic = RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL)
    async with connect_gateway(stage.port, never_respond) as third:
        with pytest.raises(GatewayTimeout):
            await asking.request(topic, ReadRequest(), timeout=0.2, on_late_response=late.append)
        await stage.until(lambda: bool(third.requests))
        third.publish(*(third.requests[0].build_response(value=value) for value in ("2011", "2012")))
        await stage.until(lambda: asking.response_counts[ResponseMatch.LATE] == 2)
    [(response, _, _)] = late
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"


async def test_the_status_of_an_answer_is_for_the_caller(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(
        stage.port, lambda asked: [asked.build_response(status=77, errorMessage="no")]
    ):
        assert (await read(asking)).response.status == 77


async def test_requests_and_answers_have_the_prefix(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, prefix="site/7") as stage:
        raw = await stage.gateway()
        raw.send(Subscribe(1, ((f"site/7/mt/gateway/{G}/request/#", 1),)))
        await raw.expect(Suback)
        reading = asyncio.create_task(read(rpc_client(stage)))
        request = await raw.expect(Publish)
        assert request.topic == f"site/7/mt/gateway/{G}/request/{D}/read/8000"
        body = {"id": json.loads(request.payload)["id"], "time": "2020-01-01T00:00Z", "status": 10}
        topic = request.topic.replace("/request/", "/response/")
        raw.send(Puback(request.packet_id), Publish(topic, json.dumps(body).encode(), 1, packet_id=1))
        assert (await reading).response.status == Status.UNREACHABLE
    sqlite_database.close()


@pytest.mark.rule("request-26", "request-27")
async def test_many_at_once_each_get_their_own_answer_in_whatever_order(stage: RunningBroker) -> None:
    asking, waiting = rpc_client(stage, 50), list[OutgoingMessage]()

    def last_first(asked: IncomingRequest) -> list[OutgoingMessage]:
        waiting.append(asked.build_response(value=asked.topic_suffix[8:12]))
        return waiting[::-1] if len(waiting) == 50 else []

    devices = [Mac(f"02005e00{number:04x}") for number in range(50)]
    async with connect_gateway(stage.port, last_first) as third:
        answers = await asyncio.gather(*(read(asking, device) for device in devices))
    assert [answer.response.value for answer in answers if isinstance(answer.response, ReadResponse)] == [
        device[8:] for device in devices
    ]
    assert len({asked.body["id"] for asked in third.requests}) == 50


# --- Gateways that misbehave ---


@pytest.mark.rule("request-28")
async def test_who_never_answers_times_out_and_leaves_nothing_behind(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port, never_respond) as third:
        with pytest.raises(GatewayTimeout, match=f"gateway {G} did not respond within 0.2 s") as raised:
            await read(asking, timeout=0.2)
        assert (raised.value.code, raised.value.http) == ("gateway-timeout", 504)
        assert asking.pending == 0
        await stage.until(lambda: bool(third.requests))
        third.publish(third.requests[0].build_response(value="2011"))
        await stage.until(lambda: asking.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-28")
async def test_the_second_of_two_answers_is_recognised(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(
        stage.port, lambda asked: [asked.build_response(value="2011"), asked.build_response(value="ffff")]
    ):
        response = (await read(asking)).response
        assert isinstance(response, ReadResponse)
        assert response.value == "2011"
        await stage.until(lambda: asking.response_counts[ResponseMatch.REPEATED] == 1)
    assert asking.response_counts[ResponseMatch.ANSWER] == 1


@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": "2011", "status": "fine"}, {"value": "2011", "time": "yesterday"}],
)
async def test_an_answer_that_nobody_can_read_is_an_error(
    stage: RunningBroker, fields: dict[str, str]
) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port, lambda asked: [asked.build_response(**fields)]):
        with pytest.raises(MalformedResponse) as raised:
            await read(asking)
    assert (raised.value.code, raised.value.http) == ("malformed-response", 502)
    assert asking.pending == 0


async def test_what_is_no_json_where_an_answer_was_due_is_told_as_that(stage: RunningBroker) -> None:
    noises = {
        Mac(f"c0ffee{number:06x}"): noise
        for number, noise in enumerate([b"\xff\xfe", b"{", b"[]", b'{"id": NaN}'])
    }

    def answer(asked: IncomingRequest) -> list[OutgoingMessage]:
        return [
            OutgoingMessage(asked.build_response().topic, noises[Mac(asked.topic_suffix.partition("/")[0])])
        ]

    asking, told = rpc_client(stage), list[object]()
    async with connect_gateway(stage.port, answer) as third:
        for limit in RETRY_TIMEOUTS:  # what cannot be assigned to a request is told when its time is over
            waiting = [read(asking, device, timeout=limit) for device in noises]
            told = [*await asyncio.gather(*waiting, return_exceptions=True)]
            if not any(isinstance(each, GatewayTimeout) for each in told):
                break
        assert third.requests
        for each in told:
            with pytest.raises(MalformedResponse, match="not a JSON object"):
                raise each if isinstance(each, BaseException) else AssertionError(each)


async def test_noise_of_others_does_not_disturb_an_answer_and_old_noise_says_nothing(
    stage: RunningBroker,
) -> None:
    asking, said = rpc_client(stage), list[object]()

    def answer(asked: IncomingRequest) -> list[OutgoingMessage]:
        said.append(asked)
        noise = OutgoingMessage(asked.build_response().topic, b"noise")
        return [noise, asked.build_response(value="2011")] if len(said) == 1 else []

    async with connect_gateway(stage.port, answer):
        assert (await read(asking)).response.status == Status.OK
        with pytest.raises(GatewayTimeout):
            await read(asking, timeout=0.3)


@pytest.mark.rule("request-28", "request-29")
async def test_answers_to_others_and_rubbish_disturb_nobody(stage: RunningBroker) -> None:
    def others_first(asked: IncomingRequest) -> list[OutgoingMessage]:
        right = asked.build_response(value="2011")
        return [
            right._replace(topic=right.topic.replace("/8000", "/8001")),
            right._replace(topic=right.topic.replace(D, G)),
            right._replace(topic=right.topic.replace("/read/", "/read-decoded/")),
            right._replace(topic=right.topic.replace("/read/8000", "/reboot")),
            asked.build_response(id="somebody-else", value="ffff"),
            OutgoingMessage(right.topic, b"{not json"),
            OutgoingMessage(right.topic, b"\xff"),
            OutgoingMessage(right.topic, b""),
            OutgoingMessage(right.topic, b'{"time":"2020-01-01T00:00:00Z","status":0,"value":"ffff"}'),
            right,
        ]

    asking = rpc_client(stage)
    async with connect_gateway(stage.port, others_first):
        response = (await read(asking)).response
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"
    assert asking.response_counts == {ResponseMatch.FOREIGN: 8, ResponseMatch.ANSWER: 1}


async def test_nobody_can_answer_for_another_gateway(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    other = f"{int(G, 16) + 1:012x}"
    async with (
        connect_gateway(stage.port, never_respond) as third,
        connect_gateway(stage.port, never_respond, other) as liar,
    ):
        reading = asyncio.create_task(read(asking))
        await stage.until(lambda: bool(third.requests))
        right = third.requests[0].build_response(value="2011")
        liar.publish(right._replace(topic=right.topic.replace(G, other)))
        await stage.until(lambda: asking.response_counts[ResponseMatch.FOREIGN] == 1)
        assert not reading.done()
        third.publish(right)
        await reading


async def test_a_gateway_that_is_not_connected_is_told_of_at_once_and_nothing_is_sent(
    stage: RunningBroker,
) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port) as third:
        other = Mac(f"{int(G, 16) + 1:012x}")
        with pytest.raises(GatewayOffline, match=f"gateway {other} is not connected") as raised:
            await asking.request(
                RequestTopic(other, other, Operation.APIVERSION), ApiVersionRequest(), timeout=LONG
            )
        assert (raised.value.code, raised.value.http) == ("gateway-offline", 503)
        third.publish(OutgoingMessage(f"mt/gateway/{G}/response/{G}/apiversion", b"{}"))
        await stage.until(lambda: asking.response_counts.total() == 1)
        assert third.requests == []
    await stage.until(lambda: not stage.broker.connected_gateways())
    with pytest.raises(GatewayOffline):
        await read(asking)
    assert asking.pending == 0


async def test_who_is_cancelled_leaves_nothing_behind(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port) as third:
        reading = asyncio.create_task(read(asking))
        await stage.until(lambda: bool(third.requests))
        assert asking.pending == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert asking.pending == 0
        third.publish(third.requests[0].build_response(value="2011"))
        await stage.until(lambda: asking.response_counts[ResponseMatch.LATE] == 1)


@pytest.mark.rule("request-32")
async def test_keys_are_sent_and_never_logged(stage: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    secret = "5ec2e7" * 5
    asking = rpc_client(stage)
    caplog.set_level("DEBUG")

    def refuse(asked: IncomingRequest) -> list[OutgoingMessage]:
        return [asked.build_response(status="broken")]

    async with connect_gateway(stage.port, refuse) as third:
        request = ReadRequest(key=Secret(bytes.fromhex(secret)), priority=Priority.HIGH)
        with pytest.raises(MalformedResponse) as malformed:
            await asking.request(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=LONG)
        third.responder = never_respond
        with pytest.raises(GatewayTimeout) as late:
            await asking.request(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=0.1)
        await stage.until(lambda: len(third.requests) == 2)
    assert [asked.body["key"] for asked in third.requests] == [secret, secret]
    assert secret not in f"{caplog.text} {malformed.value!r} {late.value!r}"


# --- Our own gateway ---


@pytest.mark.rule("request-26", "request-27")
async def test_an_emulated_gateway_answers_for_itself_and_its_devices(stage: RunningBroker) -> None:
    asking, mac = rpc_client(stage), fresh_mac()
    place = BrokerAddress(host="127.0.0.1", port=stage.port, user=mac, password=PASSWORD.decode())
    async with httpx.AsyncClient(trust_env=False) as http:
        crew = FleetBuilder(http, speed=100.0)
        crew.add(place, mac)
        async with crew.run():
            await stage.until(lambda: mac in stage.broker.connected_gateways())
            told = (
                await asking.request(
                    RequestTopic(mac, mac, Operation.APIVERSION), ApiVersionRequest(), timeout=LONG
                )
            ).response
            assert isinstance(told, ApiVersionResponse)
            assert told.version == Version(2, 4, 0)
            model = (
                await asking.request(
                    RequestTopic(mac, mac, Operation.READ, MODEL), ReadRequest(), timeout=LONG
                )
            ).response
            assert isinstance(model, ReadResponse)
            assert model.status == Status.OK
            stranger = await asking.request(
                RequestTopic(mac, DEVICE, Operation.READ, MODEL), ReadRequest(), timeout=LONG
            )
            assert stranger.response.status == Status.UNREACHABLE
