"""Requests of the service, through a real broker, to gateways of another make and to our own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.errors import GatewayOffline, GatewayTimeout, MalformedResponse
from meshfleet.link import Address
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.codes import Operation, Priority, Status
from meshfleet.wire.exchange import Fate
from meshfleet.wire.hextext import Secret
from meshfleet.wire.ids import Identifier, Mac, Version
from meshfleet.wire.mqtt.packets import Puback, Publish, Suback, Subscribe
from meshfleet.wire.requests import ApiVersion, Read
from meshfleet.wire.responses import ApiVersionResponse, ReadResponse
from meshfleet.wire.topics import RequestTopic, Topics
from tests.broker.stage import PASSWORD, D, G, Stage
from tests.eventually import LIMITS
from tests.gateway.online.running import Crew, fresh_mac
from tests.service.requests.third_party import Said, gateway, nothing
from tests.tables import each_row

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.requests.asking import Answer
    from tests.service.requests.third_party import Asked

pytestmark = pytest.mark.anyio

GATEWAY, DEVICE = Mac(G), Mac(D)
MODEL = Identifier("8000")
LONG = 30.0
"""Reached only when something is broken."""


def asking_on(stage: Stage, at_once: int = 16) -> Asking:
    return Asking(stage.broker, Topics(stage.prefix), stage.clock, at_once=at_once)


async def read(asking: Asking, device: Mac = DEVICE, *, timeout: float = LONG) -> Answer:  # noqa: ASYNC109
    return await asking.ask(RequestTopic(GATEWAY, device, Operation.READ, MODEL), Read(), timeout=timeout)


@pytest.mark.rule("request-26", "request-27", "request-35")
async def test_an_answer_comes_with_the_moments_around_it(stage: Stage) -> None:
    asking, before = asking_on(stage), stage.clock()
    async with gateway(stage.port, lambda asked: [asked.answer(value="2011")]) as third:
        response, sent, received = await read(asking)
    assert isinstance(response, ReadResponse)
    assert (response.status, response.value) == (Status.OK, "2011")
    assert before <= sent <= received <= stage.clock()
    (asked,) = third.asked
    assert (asked.end, asked.qos, asked.retain) == (f"{D}/read/8000", 1, False)
    assert asked.body.keys() == {"id"}
    assert asking.pending == 0


@pytest.mark.rule("request-28")
async def test_an_answer_that_comes_too_late_is_passed_on_once(stage: Stage) -> None:
    asking = asking_on(stage)
    late: list[Answer] = []
    topic = RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL)
    async with gateway(stage.port, nothing) as third:
        with pytest.raises(GatewayTimeout):
            await asking.ask(topic, Read(), timeout=0.2, late=late.append)
        await stage.until(lambda: bool(third.asked))
        third.say(*(third.asked[0].answer(value=value) for value in ("2011", "2012")))
        await stage.until(lambda: asking.heard[Fate.LATE] == 2)
    [(response, _, _)] = late
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"


async def test_the_status_of_an_answer_is_for_the_caller(stage: Stage) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port, lambda asked: [asked.answer(status=77, errorMessage="no")]):
        assert (await read(asking)).response.status == 77


async def test_requests_and_answers_have_the_prefix(sqlite_database: Database) -> None:
    async with Stage(sqlite_database, prefix="site/7") as stage:
        raw = await stage.gateway()
        raw.send(Subscribe(1, ((f"site/7/mt/gateway/{G}/request/#", 1),)))
        await raw.expect(Suback)
        reading = asyncio.create_task(read(asking_on(stage)))
        request = await raw.expect(Publish)
        assert request.topic == f"site/7/mt/gateway/{G}/request/{D}/read/8000"
        body = {"id": json.loads(request.payload)["id"], "time": "2020-01-01T00:00Z", "status": 10}
        topic = request.topic.replace("/request/", "/response/")
        raw.send(Puback(request.packet_id), Publish(topic, json.dumps(body).encode(), 1, packet_id=1))
        assert (await reading).response.status == Status.UNREACHABLE
    sqlite_database.close()


@pytest.mark.rule("request-26", "request-27")
async def test_many_at_once_each_get_their_own_answer_in_whatever_order(stage: Stage) -> None:
    asking, waiting = asking_on(stage, 50), list[Said]()

    def last_first(asked: Asked) -> list[Said]:
        waiting.append(asked.answer(value=asked.end[8:12]))
        return waiting[::-1] if len(waiting) == 50 else []

    devices = [Mac(f"02005e00{number:04x}") for number in range(50)]
    async with gateway(stage.port, last_first) as third:
        answers = await asyncio.gather(*(read(asking, device) for device in devices))
    assert [answer.response.value for answer in answers if isinstance(answer.response, ReadResponse)] == [
        device[8:] for device in devices
    ]
    assert len({asked.body["id"] for asked in third.asked}) == 50


# --- Gateways that misbehave ---


@pytest.mark.rule("request-28")
async def test_who_never_answers_times_out_and_leaves_nothing_behind(stage: Stage) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port, nothing) as third:
        with pytest.raises(GatewayTimeout, match=f"gateway {G} did not answer within 0.2 s") as raised:
            await read(asking, timeout=0.2)
        assert (raised.value.code, raised.value.http) == ("gateway-timeout", 504)
        assert asking.pending == 0
        await stage.until(lambda: bool(third.asked))
        third.say(third.asked[0].answer(value="2011"))
        await stage.until(lambda: asking.heard[Fate.LATE] == 1)


@pytest.mark.rule("request-28")
async def test_the_second_of_two_answers_is_recognised(stage: Stage) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port, lambda asked: [asked.answer(value="2011"), asked.answer(value="ffff")]):
        response = (await read(asking)).response
        assert isinstance(response, ReadResponse)
        assert response.value == "2011"
        await stage.until(lambda: asking.heard[Fate.REPEATED] == 1)
    assert asking.heard[Fate.ANSWER] == 1


@each_row(
    "fields",
    [{}, {"value": "abc"}, {"value": "2011", "status": "fine"}, {"value": "2011", "time": "yesterday"}],
)
async def test_an_answer_that_nobody_can_read_is_an_error(stage: Stage, fields: dict[str, str]) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port, lambda asked: [asked.answer(**fields)]):
        with pytest.raises(MalformedResponse) as raised:
            await read(asking)
    assert (raised.value.code, raised.value.http) == ("malformed-response", 502)
    assert asking.pending == 0


async def test_what_is_no_json_where_an_answer_was_due_is_told_as_that(stage: Stage) -> None:
    noises = {
        Mac(f"c0ffee{number:06x}"): noise
        for number, noise in enumerate([b"\xff\xfe", b"{", b"[]", b'{"id": NaN}'])
    }

    def answer(asked: Asked) -> list[Said]:
        return [Said(asked.answer().topic, noises[Mac(asked.end.partition("/")[0])])]

    asking, told = asking_on(stage), list[object]()
    async with gateway(stage.port, answer) as third:
        for limit in LIMITS:  # what cannot be assigned to a request is told when its time is over
            waiting = [read(asking, device, timeout=limit) for device in noises]
            told = [*await asyncio.gather(*waiting, return_exceptions=True)]
            if not any(isinstance(each, GatewayTimeout) for each in told):
                break
        assert third.asked
        for each in told:
            with pytest.raises(MalformedResponse, match="no JSON"):
                raise each if isinstance(each, BaseException) else AssertionError(each)


async def test_noise_of_others_does_not_disturb_an_answer_and_old_noise_says_nothing(stage: Stage) -> None:
    asking, said = asking_on(stage), list[object]()

    def answer(asked: Asked) -> list[Said]:
        said.append(asked)
        noise = Said(asked.answer().topic, b"noise")
        return [noise, asked.answer(value="2011")] if len(said) == 1 else []

    async with gateway(stage.port, answer):
        assert (await read(asking)).response.status == Status.OK
        with pytest.raises(GatewayTimeout):
            await read(asking, timeout=0.3)


@pytest.mark.rule("request-28", "request-29")
async def test_answers_to_others_and_rubbish_disturb_nobody(stage: Stage) -> None:
    def others_first(asked: Asked) -> list[Said]:
        right = asked.answer(value="2011")
        return [
            right._replace(topic=right.topic.replace("/8000", "/8001")),
            right._replace(topic=right.topic.replace(D, G)),
            right._replace(topic=right.topic.replace("/read/", "/read-decoded/")),
            right._replace(topic=right.topic.replace("/read/8000", "/reboot")),
            asked.answer(id="somebody-else", value="ffff"),
            Said(right.topic, b"{not json"),
            Said(right.topic, b"\xff"),
            Said(right.topic, b""),
            Said(right.topic, b'{"time":"2020-01-01T00:00:00Z","status":0,"value":"ffff"}'),
            right,
        ]

    asking = asking_on(stage)
    async with gateway(stage.port, others_first):
        response = (await read(asking)).response
    assert isinstance(response, ReadResponse)
    assert response.value == "2011"
    assert asking.heard == {Fate.FOREIGN: 8, Fate.ANSWER: 1}


async def test_nobody_can_answer_for_another_gateway(stage: Stage) -> None:
    asking = asking_on(stage)
    other = f"{int(G, 16) + 1:012x}"
    async with gateway(stage.port, nothing) as third, gateway(stage.port, nothing, other) as liar:
        reading = asyncio.create_task(read(asking))
        await stage.until(lambda: bool(third.asked))
        right = third.asked[0].answer(value="2011")
        liar.say(right._replace(topic=right.topic.replace(G, other)))
        await stage.until(lambda: asking.heard[Fate.FOREIGN] == 1)
        assert not reading.done()
        third.say(right)
        await reading


async def test_a_gateway_that_is_not_connected_is_told_of_at_once_and_nothing_is_sent(stage: Stage) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port) as third:
        other = Mac(f"{int(G, 16) + 1:012x}")
        with pytest.raises(GatewayOffline, match=f"gateway {other} is not connected") as raised:
            await asking.ask(RequestTopic(other, other, Operation.APIVERSION), ApiVersion(), timeout=LONG)
        assert (raised.value.code, raised.value.http) == ("gateway-offline", 503)
        third.say(Said(f"mt/gateway/{G}/response/{G}/apiversion", b"{}"))
        await stage.until(lambda: asking.heard.total() == 1)
        assert third.asked == []
    await stage.until(lambda: not stage.broker.gateways())
    with pytest.raises(GatewayOffline):
        await read(asking)
    assert asking.pending == 0


async def test_who_is_cancelled_leaves_nothing_behind(stage: Stage) -> None:
    asking = asking_on(stage)
    async with gateway(stage.port) as third:
        reading = asyncio.create_task(read(asking))
        await stage.until(lambda: bool(third.asked))
        assert asking.pending == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert asking.pending == 0
        third.say(third.asked[0].answer(value="2011"))
        await stage.until(lambda: asking.heard[Fate.LATE] == 1)


@pytest.mark.rule("request-32")
async def test_keys_are_sent_and_never_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    secret = "5ec2e7" * 5
    asking = asking_on(stage)
    caplog.set_level("DEBUG")

    def refuse(asked: Asked) -> list[Said]:
        return [asked.answer(status="broken")]

    async with gateway(stage.port, refuse) as third:
        request = Read(key=Secret(bytes.fromhex(secret)), priority=Priority.HIGH)
        with pytest.raises(MalformedResponse) as malformed:
            await asking.ask(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=LONG)
        third.manner = nothing
        with pytest.raises(GatewayTimeout) as late:
            await asking.ask(RequestTopic(GATEWAY, DEVICE, Operation.READ, MODEL), request, timeout=0.1)
        await stage.until(lambda: len(third.asked) == 2)
    assert [asked.body["key"] for asked in third.asked] == [secret, secret]
    assert secret not in f"{caplog.text} {malformed.value!r} {late.value!r}"


# --- Our own gateway ---


@pytest.mark.rule("request-26", "request-27")
async def test_an_emulated_gateway_answers_for_itself_and_its_devices(stage: Stage) -> None:
    asking, mac = asking_on(stage), fresh_mac()
    place = Address(host="127.0.0.1", port=stage.port, user=mac, password=PASSWORD.decode())
    async with httpx.AsyncClient(trust_env=False) as http:
        crew = Crew(http, speed=100.0)
        crew.add(place, mac)
        async with crew.run():
            await stage.until(lambda: mac in stage.broker.gateways())
            told = (
                await asking.ask(RequestTopic(mac, mac, Operation.APIVERSION), ApiVersion(), timeout=LONG)
            ).response
            assert isinstance(told, ApiVersionResponse)
            assert told.version == Version(2, 4, 0)
            model = (
                await asking.ask(RequestTopic(mac, mac, Operation.READ, MODEL), Read(), timeout=LONG)
            ).response
            assert isinstance(model, ReadResponse)
            assert model.status == Status.OK
            stranger = await asking.ask(
                RequestTopic(mac, DEVICE, Operation.READ, MODEL), Read(), timeout=LONG
            )
            assert stranger.response.status == Status.UNREACHABLE
