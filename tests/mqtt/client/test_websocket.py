"""MQTT inside a WebSocket: with mosquitto, and with servers that know nothing of it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trustme
from msgspec.structs import replace

from meshfleet import tls
from meshfleet.errors.mqtt import BrokerUnreachable, UntrustedBroker
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions, Publish, Will
from tests.eventually import RETRY_TIMEOUTS, eventually
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Cut,
    Proxy,
    impatient_link,
    receive_messages,
    receive_messages_until,
    unique_name,
)
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port
from tests.servers import ServerAddress as Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from ssl import SSLContext

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

AT_ONCE = MqttOptions(backoff=ExponentialBackoff(initial=0.001, maximum=0.002))


class Broker(NamedTuple):
    """One broker that listens in three ways."""

    ws: BrokerAddress
    wss: BrokerAddress
    mqtt: BrokerAddress
    trust: SSLContext

    @property
    def options(self) -> MqttOptions:
        return MqttOptions(tls=self.trust, backoff=FAST_RECONNECT.backoff)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("mosquitto")
    authority = trustme.CA()
    trusted, shown = folder / "authority.pem", folder / "broker.pem"
    authority.cert_pem.write_to_path(str(trusted))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(shown))
    plain, secure = free_port(), free_port()
    settings = (
        *("protocol websockets", f"listener {plain} 127.0.0.1"),
        *(f"listener {secure} 127.0.0.1", "protocol websockets", f"certfile {shown}", f"keyfile {shown}"),
        *("max_inflight_messages 0", "max_queued_messages 0", "set_tcp_nodelay true"),  # 0 is no limit
    )
    with Mosquitto(folder, *settings) as mosquitto:
        wait_for(plain)
        wait_for(secure)
        ws = BrokerAddress(host="127.0.0.1", port=mosquitto.address.port, path="/mqtt")
        wss = replace(ws, port=secure, tls=True)
        mqtt = BrokerAddress(host="127.0.0.1", port=plain)
        yield Broker(ws, wss, mqtt, tls.create_tls_context(authorities=trusted))


def wait_for(port: int) -> None:
    """The first listener of a broker may be there before its others."""
    with closing(socket.socket()) as probe:
        eventually(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)


@pytest.fixture
async def awake(broker: Broker) -> AsyncIterator[None]:
    """Mosquitto looks at its WebSockets ten times a second, and whenever something else happens: let it."""
    async with MqttClient(broker.mqtt, unique_name("neighbour"), clean=True) as link:
        talking = asyncio.create_task(talk_on(link))
        yield
        talking.cancel()
        await asyncio.wait((talking,))


async def talk_on(link: MqttClient) -> None:
    while True:
        await link.publish("nobody/listens", b"")
        await asyncio.sleep(0.002)  # often enough, and the processor is left to others


@pytest.fixture(params=["ws", "wss"])
def there(broker: Broker, request: pytest.FixtureRequest) -> BrokerAddress:
    address: BrokerAddress = getattr(broker, request.param)
    return address


@pytest.fixture
def topic() -> str:
    return unique_name("topic")


def behind(proxy: Proxy) -> BrokerAddress:
    return replace(proxy.address, path="/mqtt")


def place(address: BrokerAddress) -> Place:
    return Place(address.host, address.port)


@pytest.mark.usefixtures("awake")
async def test_messages_pass_both_ways_between_a_websocket_and_plain_mqtt(
    broker: Broker, there: BrokerAddress, topic: str
) -> None:
    async with (
        MqttClient(there, unique_name("web"), clean=True, options=broker.options) as web,
        MqttClient(broker.mqtt, unique_name("plain"), clean=True) as plain,
    ):
        await web.subscribe(f"{topic}/web")
        await plain.subscribe(f"{topic}/plain")
        for qos in (0, 1):
            await web.publish(f"{topic}/plain", b"\x00\xff", qos=qos)
            await plain.publish(f"{topic}/web", b"\xff\x00", qos=qos)
            assert [(each.payload, each.qos) for each in await receive_messages(plain, 1)] == [
                (b"\x00\xff", qos)
            ]
            assert [(each.payload, each.qos) for each in await receive_messages(web, 1)] == [
                (b"\xff\x00", qos)
            ]


@pytest.mark.usefixtures("awake")
@each_row("size", [0, 100, 126, 65_000, 65_536, 300_000])
async def test_a_payload_of_any_size_arrives_whole(
    broker: Broker, there: BrokerAddress, topic: str, size: int
) -> None:
    payload = bytes(number * 7 % 251 for number in range(size))
    async with MqttClient(there, unique_name("web"), clean=True, options=broker.options) as link:
        await link.subscribe(topic)
        await link.publish_all([Publish(topic, payload, 1)] * 3)
        assert [message.payload for message in await receive_messages(link, 3)] == [payload] * 3


@pytest.mark.usefixtures("awake")
async def test_thousands_of_messages_arrive_once_and_in_order(
    broker: Broker, there: BrokerAddress, topic: str
) -> None:
    messages = [Publish(topic, b"%d" % number, 1) for number in range(5000)]
    async with MqttClient(there, unique_name("web"), options=broker.options) as link:
        await link.subscribe(topic)
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(receive_messages(link, 5000))
            await link.publish_all(messages)
    assert [message.payload for message in listening.result()] == [each.payload for each in messages]


@pytest.mark.usefixtures("awake")
async def test_who_takes_leave_has_no_last_will(broker: Broker, there: BrokerAddress, topic: str) -> None:
    async with MqttClient(broker.mqtt, unique_name("heir"), clean=True) as heir:
        await heir.subscribe(topic)
        will = Will(topic, b"gone", 1)
        async with MqttClient(
            there, unique_name("web"), clean=True, will=will, options=broker.options
        ) as web:
            await web.publish(topic, b"farewell", qos=0)
        await heir.publish(topic, b"end")
        assert [message.payload for message in await receive_messages_until(heir, b"end")] == [b"farewell"]


@pytest.mark.usefixtures("awake")
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_websocket_that_is_cut_here_and_there_loses_nothing(
    broker: Broker, topic: str, direction: str
) -> None:
    messages = [Publish(topic, b"%d" % number, 1) for number in range(100)]
    async with (
        Proxy(place(broker.ws)) as proxy,
        MqttClient(behind(proxy), unique_name("web"), options=AT_ONCE) as link,
    ):
        await link.subscribe(topic)
        proxy.plan(*(Cut(**{direction: count}) for count in range(0, 700, 7)))
        await proxy.cut()
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(receive_messages_until(link, b"end"))
            for message in messages:
                await link.publish_all([message])
            while proxy.planned:
                await link.publish(topic, messages[-1].payload)
            await link.publish(topic, b"end")
    came = dict.fromkeys(message.payload for message in listening.result())
    assert list(came) == [message.payload for message in messages]


async def test_an_upgrade_that_is_never_answered_is_given_up_and_closed(broker: Broker) -> None:
    async with Proxy(place(broker.ws)) as proxy:
        for limit in RETRY_TIMEOUTS:
            proxy.stall()
            with pytest.raises(BrokerUnreachable, match="did not respond within"):
                await MqttClient(
                    behind(proxy), unique_name("web"), options=MqttOptions(timeout=limit)
                ).__aenter__()
            proxy.resume()
            await proxy.until(lambda: all(each.over for each in proxy.connections))
            if any(each.up for each in proxy.connections):
                break
        sent = [bytes(each.up) for each in proxy.connections if each.up]
        assert sent
        assert all(each.endswith(b"\r\n\r\n") for each in sent), "it went on behind the request"


async def test_an_unknown_authority_is_not_trusted(broker: Broker) -> None:
    with pytest.raises(UntrustedBroker):
        await MqttClient(broker.wss, unique_name("web")).__aenter__()


async def test_a_plain_listener_is_no_websocket_and_the_other_way_round(broker: Broker) -> None:
    for wrong in (replace(broker.mqtt, path="/mqtt"), replace(broker.ws, path=None)):
        with pytest.raises(BrokerUnreachable, match=f"^{wrong}: .+"):
            await MqttClient(wrong, unique_name("web")).__aenter__()


class Old(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.0"


class New(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


@contextmanager
def web_server(folder: Path, kind: type[SimpleHTTPRequestHandler]) -> Iterator[BrokerAddress]:
    """A server that shows the files of a folder."""
    show = partial(kind, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), show) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield BrokerAddress(host="127.0.0.1", port=server.server_port, path="/mqtt")
        finally:
            server.shutdown()
            thread.join()


@each_row(
    ("kind", "file", "words"),
    [(New, "index.html", "HTTP 404"), (New, "mqtt", "HTTP 200"), (Old, "mqtt", "HTTP")],
)
async def test_a_server_that_knows_nothing_of_websockets_is_no_broker(
    tmp_path: Path, kind: type[SimpleHTTPRequestHandler], file: str, words: str
) -> None:
    (tmp_path / file).write_text("welcome")
    with web_server(tmp_path, kind) as there, pytest.raises(BrokerUnreachable, match=f"^{there}: .*{words}"):
        await MqttClient(there, unique_name("web")).__aenter__()


@pytest.mark.usefixtures("awake")
async def test_a_batch_acknowledged_while_the_link_takes_leave_does_no_harm(
    broker: Broker, topic: str
) -> None:
    async with Proxy(place(broker.ws)) as proxy:
        link = await impatient_link(behind(proxy))
        await link.subscribe(topic)
        await link.publish(topic, b"late")
        async with asyncio.timeout(TIMEOUT):
            batch = await link.receive()
        proxy.stall(up=False)  # the broker's good-bye does not come
        said = len(proxy.connections[-1].up)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.close())
            await proxy.until(lambda: len(proxy.connections[-1].up) > said)
            batch.acknowledge()
