"""A conversation over a WebSocket: what a client may say, and what comes of what it may not."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.node import NODE
from tests.row_tables import each_row
from tests.service.ingest.messages import A, D, E, temperature

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

PROGRAM = """
const [url, token, device] = process.argv.slice(1);
const socket = new WebSocket(url);
socket.onopen = () => {
  socket.send(JSON.stringify({token}));
  socket.send(JSON.stringify({subscribe: {Types: ["device"], Ids: [device]}, lastEventId: ""}));
};
socket.onmessage = ({data}) => console.log(data);
socket.onclose = ({code, reason}) => console.log(JSON.stringify({code, reason}));
"""


@pytest.mark.rule("rest-151", "rest-152", "rest-153")
def test_subscriptions_add_up_and_can_be_taken_away_one_by_one(stage: LiveService) -> None:
    now = stage.clock()
    with stage.open_authenticated() as talk:
        talk.subscribe(Types=["report"], Ids=[f"bmac-{D}"])
        talk.subscribe(TYPES=["report"], ids=[f"bmac-{E}"])
        stage.ingest(temperature(now, 1), temperature(now, 2, device=E))
        assert {talk.next()["data"]["value"] for _ in range(2)} == {1, 2}
        talk.send(unsubscribe={"ids": [f"bmac-{D}"], "types": ["report"]})
        talk.subscribe(Types=["job"])  # what was said before is done when this is answered
        stage.ingest(temperature(now + 1, 3), temperature(now + 1, 4, device=E))
        assert talk.next()["data"]["value"] == 4


def test_an_event_comes_once_however_many_subscriptions_want_it(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        talk.subscribe(Types=["report"])
        talk.subscribe(Types=["report"], Gateway=[A])
        stage.ingest(temperature(stage.clock(), 1))
        stage.ingest(temperature(stage.clock() + 1, 2))
        assert [talk.next()["data"]["value"] for _ in range(2)] == [1, 2]


def test_a_filter_without_values_chooses_nothing(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        talk.subscribe(Types=["report"], Ids=[])
        stage.ingest(temperature(stage.clock(), 1))
        talk.subscribe(Types=["report"])
        stage.ingest(temperature(stage.clock() + 1, 2))
        assert talk.next()["data"]["value"] == 2


@pytest.mark.rule("rest-206")
@each_row("text", ["", "still there?", 'é\u2028\0"\\', "\N{ELECTRIC LIGHT BULB}" * 64])
def test_a_ping_is_answered_with_its_text_and_nothing_else(stage: LiveService, text: str) -> None:
    before = stage.call_in_loop(lambda: stage.api.live.hub.resyncs)
    with stage.open_authenticated() as talk:
        talk.send(ping=text)
        assert talk.next() == {"pong": text}
        talk.subscribe(Types=["report"])
        talk.send(ping="again")
        assert talk.next() == {"pong": "again"}
        stage.ingest(temperature(stage.clock(), 1))
        assert talk.next()["data"]["value"] == 1
    # Only the subscription, which came with an id that nobody knows, is a loss to be told.
    assert stage.call_in_loop(lambda: stage.api.live.hub.resyncs) == before + 1


@pytest.mark.rule("rest-151")
def test_the_web_socket_of_node_hears_what_happens(stage: LiveService) -> None:
    device = stage.new_device()
    url = f"ws{stage.url.removeprefix('http')}/api/v1/live"
    command = [str(NODE), "--experimental-websocket", "-e", PROGRAM, url, stage.key, device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["type"] == "resync"
        stage.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"})
        event = json.loads(program.stdout.readline())
        program.kill()
    assert (event["type"], event["data"]["friendlyName"]) == ("device", "Kuno")


@pytest.mark.rule("rest-152")
@each_row(
    ("frames", "code"),
    [
        (["garbage"], 4400),
        ([""], 4400),
        (["[]"], 4400),
        (["{}"], 4400),
        (["[" * 50_000], 4400),
        ([b"\x00\x01"], 4400),
        (['{"token": 7}'], 4400),
        (['{"token": "a", "subscribe": {}}'], 4400),
        (['{"tokken": "a"}'], 4400),
        (['{"token": "a", "ping": "b"}'], 4400),
        (['{"subscribe": {}}'], 4401),
        (['{"ping": "a"}'], 4401),
        (['{"token": ""}'], 4401),
        (['{"token": "garbage"}'], 4401),
        (['{"token": "' + "x" * 60_000 + '"}'], 4401),
        (['{"token": "é\\u0000"}'], 4401),
    ],
)
def test_who_does_not_begin_with_a_token_is_told_why_and_shown_out(
    stage: LiveService, frames: list[str | bytes], code: int
) -> None:
    with stage.open_websocket() as talk:
        for frame in frames:
            talk.connection.send(frame)
        ended, last = talk.read_close()
    assert (ended, set(last["error"])) == (code, {"code", "detail", "errors"})


@pytest.mark.rule("rest-152", "rest-153")
@each_row(
    ("frame", "field"),
    [
        ({"subscribe": {"Typez": ["report"]}}, "Typez"),
        ({"subscribe": {"Types": ["nonsense"]}}, "Types"),
        ({"subscribe": {"Types": ["report"], "types": ["report"]}}, "Types"),
        ({"subscribe": {"Ids": ["c0ffee"]}}, "Ids"),
        ({"subscribe": {"Ids": f"bmac-{D}"}}, "subscribe[...]"),
        ({"subscribe": {"Ids": [f"bmac-{n:012x}" for n in range(1001)]}}, "Ids"),
        ({"subscribe": []}, "subscribe"),
        ({"unsubscribe": {"Types": ["report"]}}, "unsubscribe"),
        ({"unsubscribe": {}, "lastEventId": "x"}, "lastEventId"),
        ({"subscribe": {}, "lastEventId": 7}, "lastEventId"),
        ({"ping": 7}, "ping"),
        ({"ping": None}, "ping"),
        ({"ping": {"text": "a"}}, "ping"),
        ({"ping": "x" * 65}, "ping"),
        ({"ping": "a", "unsubscribe": {}}, "frame"),
        ({"ping": "a", "lastEventId": ""}, "lastEventId"),
        ({"pong": "a"}, "pong"),
        ({"shout": {}}, "shout"),
    ],
)
def test_a_wrong_frame_is_refused_by_what_is_wrong_with_it(
    stage: LiveService, frame: dict[str, Any], field: str
) -> None:
    with stage.open_authenticated() as talk:
        talk.send(**frame)
        code, last = talk.read_close()
    assert (code, [each["field"] for each in last["error"]["errors"]]) == (4400, [field])


def test_a_token_in_the_address_is_refused(stage: LiveService) -> None:
    with stage.open_websocket(f"/api/v1/live?token={stage.key}") as talk:
        code, last = talk.read_close()
    assert code == 4400
    assert stage.key not in str(last)


def test_ten_thousand_subscriptions_are_too_many(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        with suppress(ConnectionClosed):
            for number in range(10_000):
                talk.send(subscribe={"Ids": [f"bmac-{number:012x}"]})
        code, last = talk.read_close()
    assert (code, last["error"]["code"]) == (4429, "too-many-subscriptions")
    assert "100 subscriptions" in last["error"]["detail"]


def test_subscriptions_that_name_too_many_devices_together_are_refused(stage: LiveService) -> None:
    with stage.open_authenticated() as talk:
        for start in range(0, 6000, 1000):
            talk.send(subscribe={"Ids": [f"bmac-{start + each:012x}" for each in range(1000)]})
        assert talk.read_close()[0] == 4429
