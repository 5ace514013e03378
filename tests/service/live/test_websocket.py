"""WebSocket sessions: valid frames, and how invalid ones are refused."""

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

NODE_SCRIPT = """
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
def test_subscriptions_add_up_and_can_be_ended_one_by_one(service: LiveService) -> None:
    now = service.clock()
    with service.open_authenticated() as websocket:
        websocket.subscribe(Types=["report"], Ids=[f"bmac-{D}"])
        websocket.subscribe(TYPES=["report"], ids=[f"bmac-{E}"])
        service.ingest(temperature(now, 1), temperature(now, 2, device=E))
        assert {websocket.next()["data"]["value"] for _ in range(2)} == {1, 2}
        websocket.send(unsubscribe={"ids": [f"bmac-{D}"], "types": ["report"]})
        websocket.subscribe(Types=["job"])  # the unsubscribe is done when this is answered
        service.ingest(temperature(now + 1, 3), temperature(now + 1, 4, device=E))
        assert websocket.next()["data"]["value"] == 4


def test_an_event_is_sent_once_if_several_subscriptions_match(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        websocket.subscribe(Types=["report"])
        websocket.subscribe(Types=["report"], Gateway=[A])
        service.ingest(temperature(service.clock(), 1))
        service.ingest(temperature(service.clock() + 1, 2))
        assert [websocket.next()["data"]["value"] for _ in range(2)] == [1, 2]


def test_a_filter_without_values_matches_nothing(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        websocket.subscribe(Types=["report"], Ids=[])
        service.ingest(temperature(service.clock(), 1))
        websocket.subscribe(Types=["report"])
        service.ingest(temperature(service.clock() + 1, 2))
        assert websocket.next()["data"]["value"] == 2


@pytest.mark.rule("rest-206")
@each_row("text", ["", "still there?", 'é\u2028\0"\\', "\N{ELECTRIC LIGHT BULB}" * 64])
def test_a_ping_is_answered_with_its_text_and_nothing_else(service: LiveService, text: str) -> None:
    resyncs_before = service.call_in_loop(lambda: service.api.live.hub.resyncs)
    with service.open_authenticated() as websocket:
        websocket.send(ping=text)
        assert websocket.next() == {"pong": text}
        websocket.subscribe(Types=["report"])
        websocket.send(ping="again")
        assert websocket.next() == {"pong": "again"}
        service.ingest(temperature(service.clock(), 1))
        assert websocket.next()["data"]["value"] == 1
    # Only the subscription, which had an unknown event id, causes a resync.
    assert service.call_in_loop(lambda: service.api.live.hub.resyncs) == resyncs_before + 1


@pytest.mark.rule("rest-151")
def test_the_websocket_of_node_receives_events(service: LiveService) -> None:
    device = service.new_device()
    url = f"ws{service.url.removeprefix('http')}/api/v1/live"
    command = [str(NODE), "--experimental-websocket", "-e", NODE_SCRIPT, url, service.key, device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["type"] == "resync"
        service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"})
        event = json.loads(process.stdout.readline())
        process.kill()
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
def test_a_session_without_a_valid_token_is_closed_with_a_reason(
    service: LiveService, frames: list[str | bytes], code: int
) -> None:
    with service.open_websocket() as websocket:
        for frame in frames:
            websocket.connection.send(frame)
        close_code, last_frame = websocket.read_close()
    assert (close_code, set(last_frame["error"])) == (code, {"code", "detail", "errors"})


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
def test_an_invalid_frame_is_refused_with_the_name_of_the_field(
    service: LiveService, frame: dict[str, Any], field: str
) -> None:
    with service.open_authenticated() as websocket:
        websocket.send(**frame)
        code, last_frame = websocket.read_close()
    assert (code, [each["field"] for each in last_frame["error"]["errors"]]) == (4400, [field])


def test_a_token_in_the_url_is_refused(service: LiveService) -> None:
    with service.open_websocket(f"/api/v1/live?token={service.key}") as websocket:
        code, last_frame = websocket.read_close()
    assert code == 4400
    assert service.key not in str(last_frame)


def test_ten_thousand_subscriptions_are_too_many(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        with suppress(ConnectionClosed):
            for number in range(10_000):
                websocket.send(subscribe={"Ids": [f"bmac-{number:012x}"]})
        code, last_frame = websocket.read_close()
    assert (code, last_frame["error"]["code"]) == (4429, "too-many-subscriptions")
    assert "100 subscriptions" in last_frame["error"]["detail"]


def test_subscriptions_with_too_many_devices_in_total_are_refused(service: LiveService) -> None:
    with service.open_authenticated() as websocket:
        for start in range(0, 6000, 1000):
            websocket.send(subscribe={"Ids": [f"bmac-{start + each:012x}" for each in range(1000)]})
        assert websocket.read_close()[0] == 4429
