"""The driver of mqtt.js sends and reports correctly, checked from the other side of the connection."""

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
from tests.mqttjs.driver import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


class Peer:
    """Other side of a connection. It sends nothing by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._parser = PacketParser(FROM_CLIENTS)

    def receive_packet(self) -> Packet:
        """Return the next packet, which must arrive alone."""
        packets: list[Packet] = []
        while not packets:
            data = self._connection.recv(65536)
            assert data, "the client has disconnected"
            packets = self._parser.feed(data)
            if self._parser.fault is not None:
                raise self._parser.fault
        (packet,) = packets
        return packet

    def send_packet(self, packet: Packet) -> None:
        self.send(encode_packet(packet))

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Run a thread for calls that block until the test has responded."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def client() -> Iterator[MqttJs]:
    with MqttJs() as client:
        yield client


@contextmanager
def accept_connection(
    pool: ThreadPoolExecutor, client: MqttJs, options: Options | None = None
) -> Iterator[tuple[Peer, Future[bool]]]:
    """Let the client connect, and accept its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT)
        connected = pool.submit(client.connect, f"mqtt://127.0.0.1:{server.getsockname()[1]}", options)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(TIMEOUT)
            yield Peer(connection), connected


def test_every_option_is_in_the_connect(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    options = Options(
        client_id="ours",
        username="käthe",
        password="p@ss",  # noqa: S106 # not a real password
        clean=False,
        keepalive=7,
        will=Will("will", b"\x00\xff", qos=2, retain=True),
    )
    with accept_connection(pool, client, options) as (peer, connected):
        assert peer.receive_packet() == Connect(
            "ours",
            clean=False,
            keep_alive=7,
            will=SentWill("will", b"\x00\xff", qos=2, retain=True),
            user="käthe",
            password=b"p@ss",
        )
        peer.send_packet(Connack(session_present=True))
        assert connected.result(TIMEOUT) is True


def test_options_that_are_not_set_are_not_sent(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with accept_connection(pool, client, Options(client_id="")) as (peer, connected):
        assert peer.receive_packet() == Connect("", keep_alive=60)
        peer.send_packet(Connack())
        assert connected.result(TIMEOUT) is False


@pytest.mark.parametrize(("version", "name"), [(3, "MQTT 3.1"), (5, "MQTT 5")])
def test_another_protocol_version_can_be_requested(
    pool: ThreadPoolExecutor, client: MqttJs, version: int, name: str
) -> None:
    with accept_connection(pool, client, Options(protocol_version=version)) as (peer, connected):
        with pytest.raises(UnsupportedProtocol, match=f"{name} is not supported"):
            peer.receive_packet()
        peer.send_packet(Connack(code=ConnectReturnCode.UNACCEPTABLE_PROTOCOL))
        assert isinstance(failure := connected.exception(TIMEOUT), Failure)
        assert failure.code == 1


def test_a_refusal_has_the_code_of_the_connack(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with accept_connection(pool, client) as (peer, connected):
        peer.receive_packet()
        peer.send_packet(Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE))
        assert isinstance(failure := connected.exception(TIMEOUT), Failure)
        assert failure.code == 3


def test_a_connection_closed_before_connack_is_a_failure(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with accept_connection(pool, client) as (peer, connected):
        peer.receive_packet()
    with pytest.raises(Failure, match="closed without a CONNACK"):
        connected.result(TIMEOUT)


def test_a_refused_filter_is_granted_as_128(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with accept_connection(pool, client) as (peer, connected):
        peer.receive_packet()
        peer.send_packet(Connack())
        connected.result(TIMEOUT)
        granted = pool.submit(client.subscribe, "open", "secret", qos=1)
        packet = peer.receive_packet()
        assert isinstance(packet, Subscribe)
        peer.send_packet(Suback(packet.packet_id, (1, 128)))
        assert granted.result(TIMEOUT) == [1, 128]


def test_bytes_that_are_no_packet_are_reported_as_an_error(pool: ThreadPoolExecutor, client: MqttJs) -> None:
    with accept_connection(pool, client) as (peer, connected):
        peer.send_packet(Connack())
        connected.result(TIMEOUT)
        peer.send(b"\x00\x00")
        assert str(client.expect_error()) == "Not supported"  # packets of type 0


def test_the_end_of_the_program_is_reported_at_once(client: MqttJs) -> None:
    with pytest.raises(Failure, match="ended"):
        client.connect("no address")
