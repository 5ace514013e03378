"""What mqtt.js is told is what it sends, and what it gets is what it tells: seen from the other end."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.protocol import UnsupportedProtocol
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, ConnectReturnCode, Packet, Suback, Subscribe
from meshfleet.mqtt.codec.packets import Will as SentWill
from meshfleet.mqtt.codec.parser import PacketParser
from tests.mqttjs import Failure, MqttJs, Options, Will
from tests.mqttjs.driver import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


class Peer:
    """The other end of a connection. It answers nothing by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parser = PacketParser(FROM_CLIENTS)

    def hear(self) -> Packet:
        """The one packet that comes next."""
        packets: list[Packet] = []
        while not packets:
            data = self._connection.recv(65536)
            assert data, "the client has gone"
            packets = self._parser.feed(data)
            if self._parser.fault is not None:
                raise self._parser.fault
        (packet,) = packets
        return packet

    def say(self, packet: Packet) -> None:
        self.send(encode_packet(packet))

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """For what waits until the test has answered."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def client() -> Iterator[MqttJs]:
    with MqttJs() as client:
        yield client


@contextmanager
def connecting(
    pool: ThreadPoolExecutor, client: MqttJs, options: Options | None = None
) -> Iterator[tuple[Peer, Future[bool]]]:
    """A connection that the client waits for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        connected = pool.submit(client.connect, f"mqtt://127.0.0.1:{server.getsockname()[1]}", options)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE)
            yield Peer(connection), connected


def test_every_option_is_in_the_connect(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    options = Options(
        client_id="ours",
        username="käthe",
        password="p@ss",  # noqa: S106 # of nobody
        clean=False,
        keepalive=7,
        will=Will("will", b"\x00\xff", qos=2, retain=True),
    )
    with connecting(pool, client, options) as (peer, connected):
        assert peer.hear() == Connect(
            "ours",
            clean=False,
            keep_alive=7,
            will=SentWill("will", b"\x00\xff", qos=2, retain=True),
            user="käthe",
            password=b"p@ss",
        )
        peer.say(Connack(session_present=True))
        assert connected.result(PATIENCE) is True


def test_what_is_not_set_is_not_sent(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with connecting(pool, client, Options(client_id="")) as (peer, connected):
        assert peer.hear() == Connect("", keep_alive=60)
        peer.say(Connack())
        assert connected.result(PATIENCE) is False


@pytest.mark.parametrize(("version", "name"), [(3, "MQTT 3.1"), (5, "MQTT 5")])
def test_another_version_is_spoken_on_request(
    pool: ThreadPoolExecutor, client: MqttJs, version: int, name: str
) -> None:
    with connecting(pool, client, Options(protocol_version=version)) as (peer, connected):
        with pytest.raises(UnsupportedProtocol, match=f"{name} is not supported"):
            peer.hear()
        peer.say(Connack(code=ConnectReturnCode.UNACCEPTABLE_PROTOCOL))
        assert isinstance(failure := connected.exception(PATIENCE), Failure)
        assert failure.code == 1


def test_a_refusal_has_the_code_of_the_connack(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with connecting(pool, client) as (peer, connected):
        peer.hear()
        peer.say(Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE))
        assert isinstance(failure := connected.exception(PATIENCE), Failure)
        assert failure.code == 3


def test_a_connection_that_is_closed_instead_of_an_answer_has_failed(
    pool: ThreadPoolExecutor, client: MqttJs
) -> None:
    with connecting(pool, client) as (peer, connected):
        peer.hear()
    with pytest.raises(Failure, match="closed without an answer"):
        connected.result(PATIENCE)


def test_a_refused_filter_is_granted_as_128(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with connecting(pool, client) as (peer, connected):
        peer.hear()
        peer.say(Connack())
        connected.result(PATIENCE)
        granted = pool.submit(client.subscribe, "open", "secret", qos=1)
        packet = peer.hear()
        assert isinstance(packet, Subscribe)
        peer.say(Suback(packet.packet_id, (1, 128)))
        assert granted.result(PATIENCE) == [1, 128]


def test_what_is_no_packet_is_told_as_an_error(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with connecting(pool, client) as (peer, connected):
        peer.say(Connack())
        connected.result(PATIENCE)
        peer.send(b"\x00\x00")
        assert str(client.expect_error()) == "Not supported"  # packets of type 0


def test_a_client_that_is_gone_is_told_at_once(client: MqttJs) -> None:
    with pytest.raises(Failure, match="ended"):
        client.connect("no address")
