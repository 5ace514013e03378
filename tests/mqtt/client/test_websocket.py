"""MQTT inside a WebSocket: with mosquitto, and with servers that do not support it."""

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
    connect_with_short_timeout,
    receive_messages,
    receive_messages_until,
    unique_name,
)
from tests.row_tables import each_row
from tests.servers import Mosquitto, ServerAddress, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path
    from ssl import SSLContext

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

AT_ONCE = MqttOptions(backoff=ExponentialBackoff(initial=0.001, maximum=0.002))


class Broker(NamedTuple):
    """Addresses of one broker with three listeners."""

    ws: BrokerAddress
    wss: BrokerAddress
    mqtt: BrokerAddress
    trust: SSLContext

    @property
    def options(self) -> MqttOptions:
        return MqttOptions(tls=self.trust, backoff=FAST_RECONNECT.backoff)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("mosquitto")
    authority = trustme.CA()
    authority_file, certificate_file = directory / "authority.pem", directory / "broker.pem"
    authority.cert_pem.write_to_path(str(authority_file))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate_file))
    plain, secure = free_port(), free_port()
    settings = (
        *("protocol websockets", f"listener {plain} 127.0.0.1"),
        *(
            f"listener {secure} 127.0.0.1",
            "protocol websockets",
            f"certfile {certificate_file}",
            f"keyfile {certificate_file}",
        ),
        *("max_inflight_messages 0", "max_queued_messages 0", "set_tcp_nodelay true"),  # 0: unlimited
    )
    with Mosquitto(directory, *settings) as mosquitto:
        wait_for_listener(plain)
        wait_for_listener(secure)
        ws = BrokerAddress(host="127.0.0.1", port=mosquitto.address.port, path="/mqtt")
        wss = replace(ws, port=secure, tls=True)
        mqtt = BrokerAddress(host="127.0.0.1", port=plain)
        yield Broker(ws, wss, mqtt, tls.create_tls_context(authorities=authority_file))


def wait_for_listener(port: int) -> None:
    """Wait for a listener: the first one of a broker may be ready before its others."""
    with closing(socket.socket()) as probe:
        eventually(lambda: probe.connect_ex(("127.0.0.1", port)) == 0)


@pytest.fixture
async def busy_broker(broker: Broker) -> AsyncIterator[None]:
    """Publish all the time: mosquitto checks its WebSockets ten times a second, or at any other event."""
    async with MqttClient(broker.mqtt, unique_name("busy"), clean=True) as client:
        publishing = asyncio.create_task(publish_forever(client))
        yield
        publishing.cancel()
        await asyncio.wait((publishing,))


async def publish_forever(client: MqttClient) -> None:
    while True:
        await client.publish("not/subscribed", b"")
        await asyncio.sleep(0.002)  # often enough without using the processor fully


@pytest.fixture(params=["ws", "wss"])
def address(broker: Broker, request: pytest.FixtureRequest) -> BrokerAddress:
    address: BrokerAddress = getattr(broker, request.param)
    return address


def proxy_address(proxy: Proxy) -> BrokerAddress:
    return replace(proxy.address, path="/mqtt")


def server_address(address: BrokerAddress) -> ServerAddress:
    return ServerAddress(address.host, address.port)


@pytest.mark.usefixtures("busy_broker")
async def test_messages_are_exchanged_between_a_websocket_and_plain_mqtt(
    broker: Broker, address: BrokerAddress, topic: str
) -> None:
    async with (
        MqttClient(address, unique_name("web"), clean=True, options=broker.options) as web,
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


@pytest.mark.usefixtures("busy_broker")
@each_row("size", [0, 100, 126, 65_000, 65_536, 300_000])
async def test_a_payload_of_any_size_arrives_complete(
    broker: Broker, address: BrokerAddress, topic: str, size: int
) -> None:
    payload = bytes(number * 7 % 251 for number in range(size))
    async with MqttClient(address, unique_name("web"), clean=True, options=broker.options) as client:
        await client.subscribe(topic)
        await client.publish_all([Publish(topic, payload, 1)] * 3)
        assert [message.payload for message in await receive_messages(client, 3)] == [payload] * 3


@pytest.mark.usefixtures("busy_broker")
async def test_thousands_of_messages_arrive_once_and_in_order(
    broker: Broker, address: BrokerAddress, topic: str
) -> None:
    messages = [Publish(topic, b"%d" % number, 1) for number in range(5000)]
    async with MqttClient(address, unique_name("web"), options=broker.options) as client:
        await client.subscribe(topic)
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(receive_messages(client, 5000))
            await client.publish_all(messages)
    assert [message.payload for message in receiving.result()] == [each.payload for each in messages]


@pytest.mark.usefixtures("busy_broker")
async def test_the_will_is_not_published_after_disconnect(
    broker: Broker, address: BrokerAddress, topic: str
) -> None:
    async with MqttClient(broker.mqtt, unique_name("subscriber"), clean=True) as subscriber:
        await subscriber.subscribe(topic)
        will = Will(topic, b"gone", 1)
        async with MqttClient(
            address, unique_name("web"), clean=True, will=will, options=broker.options
        ) as web:
            await web.publish(topic, b"farewell", qos=0)
        await subscriber.publish(topic, b"end")
        assert [message.payload for message in await receive_messages_until(subscriber, b"end")] == [
            b"farewell"
        ]


@pytest.mark.usefixtures("busy_broker")
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_websocket_that_is_cut_repeatedly_loses_nothing(
    broker: Broker, topic: str, direction: str
) -> None:
    messages = [Publish(topic, b"%d" % number, 1) for number in range(100)]
    async with (
        Proxy(server_address(broker.ws)) as proxy,
        MqttClient(proxy_address(proxy), unique_name("web"), options=AT_ONCE) as client,
    ):
        await client.subscribe(topic)
        proxy.plan(*(Cut(**{direction: count}) for count in range(0, 700, 7)))
        await proxy.cut()
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(receive_messages_until(client, b"end"))
            for message in messages:
                await client.publish_all([message])
            while proxy.planned:
                await client.publish(topic, messages[-1].payload)
            await client.publish(topic, b"end")
    received = dict.fromkeys(message.payload for message in receiving.result())
    assert list(received) == [message.payload for message in messages]


async def test_an_upgrade_without_a_response_times_out_and_is_closed(broker: Broker) -> None:
    async with Proxy(server_address(broker.ws)) as proxy:
        for limit in RETRY_TIMEOUTS:
            proxy.stall()
            with pytest.raises(BrokerUnreachable, match="did not respond within"):
                await MqttClient(
                    proxy_address(proxy), unique_name("web"), options=MqttOptions(timeout=limit)
                ).__aenter__()
            proxy.resume()
            await proxy.until(lambda: all(each.over for each in proxy.connections))
            if any(each.up for each in proxy.connections):
                break
        sent = [bytes(each.up) for each in proxy.connections if each.up]
        assert sent
        assert all(each.endswith(b"\r\n\r\n") for each in sent), "bytes were sent after the request"


async def test_an_unknown_authority_is_not_trusted(broker: Broker) -> None:
    with pytest.raises(UntrustedBroker):
        await MqttClient(broker.wss, unique_name("web")).__aenter__()


async def test_plain_mqtt_and_websocket_listeners_are_not_interchangeable(broker: Broker) -> None:
    for wrong in (replace(broker.mqtt, path="/mqtt"), replace(broker.ws, path=None)):
        with pytest.raises(BrokerUnreachable, match=f"^{wrong}: .+"):
            await MqttClient(wrong, unique_name("web")).__aenter__()


class Http10Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.0"


class Http11Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"


@contextmanager
def web_server(directory: Path, kind: type[SimpleHTTPRequestHandler]) -> Iterator[BrokerAddress]:
    """Serve the files of a directory over HTTP."""
    show = partial(kind, directory=str(directory))
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
    [
        (Http11Handler, "index.html", "HTTP 404"),
        (Http11Handler, "mqtt", "HTTP 200"),
        (Http10Handler, "mqtt", "HTTP"),
    ],
)
async def test_a_server_without_websockets_is_unreachable(
    tmp_path: Path, kind: type[SimpleHTTPRequestHandler], file: str, words: str
) -> None:
    (tmp_path / file).write_text("welcome")
    with (
        web_server(tmp_path, kind) as address,
        pytest.raises(BrokerUnreachable, match=f"^{address}: .*{words}"),
    ):
        await MqttClient(address, unique_name("web")).__aenter__()


@pytest.mark.usefixtures("busy_broker")
async def test_a_batch_may_be_acknowledged_while_the_client_closes(broker: Broker, topic: str) -> None:
    async with Proxy(server_address(broker.ws)) as proxy:
        client = await connect_with_short_timeout(proxy_address(proxy))
        await client.subscribe(topic)
        await client.publish(topic, b"late")
        async with asyncio.timeout(TIMEOUT):
            batch = await client.receive()
        proxy.stall(up=False)  # the close of the broker is held back
        sent = len(proxy.connections[-1].up)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.close())
            await proxy.until(lambda: len(proxy.connections[-1].up) > sent)
            batch.acknowledge()
