"""MQTT clients of other implementations with a common interface."""

from __future__ import annotations

import re
import ssl
import subprocess
from abc import ABC, abstractmethod
from contextlib import ExitStack
from queue import Queue
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec import UNSET
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.cli.programs import TEST_TIMEOUT
from tests.external_tools import MOSQUITTO_PUB, MOSQUITTO_SUB, require
from tests.mqttjs.driver import MqttJs
from tests.mqttjs.lines import Options

if TYPE_CHECKING:
    from pathlib import Path

    from paho.mqtt.client import MQTTMessage

    from tests.servers import ServerAddress
    from tests.service.embedded_broker.mqtt_accounts import Credentials

_TIMEOUT = "120"
"""Seconds that mosquitto_sub waits; only reached when an expected message never arrives."""


class BrokerAddress(NamedTuple):
    """Address of a broker, and the CA certificate to trust."""

    scheme: str
    address: ServerAddress
    authority: Path


class Message(NamedTuple):
    """Received or sent message."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class MqttClient(ABC):
    """Client of one implementation, connected with an account. The client id of a gateway is its MAC."""

    schemes: tuple[str, ...] = ("mqtt", "mqtts", "ws", "wss")

    def __init__(self, broker: BrokerAddress, credentials: Credentials) -> None:
        self._broker = broker
        self._credentials = credentials

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 1, and wait until the broker has granted it."""

    @abstractmethod
    def publish(self, message: Message) -> None:
        """Publish a message, and wait until the broker has acknowledged it."""

    @abstractmethod
    def receive(self) -> Message:
        """Wait for the next message."""


class PahoClient(MqttClient):
    """Client with paho-mqtt."""

    def __enter__(self) -> Self:
        scheme, address, authority = self._broker
        transport = "websockets" if scheme.startswith("ws") else "tcp"
        self._client = Client(CallbackAPIVersion.VERSION2, self._credentials.user, transport=transport)  # type: ignore[arg-type] # a literal of two values
        self._client.username_pw_set(*self._credentials)
        if scheme in {"mqtts", "wss"}:
            self._client.tls_set(str(authority), cert_reqs=ssl.CERT_REQUIRED)
        self._received: Queue[Message] = Queue()
        self._acknowledgments: Queue[list[int]] = Queue()
        self._client.on_message = self._on_message
        self._client.on_connect = lambda _, __, ___, code, ____: self._acknowledgments.put([code.value])
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._acknowledgments.put(
            [code.value for code in codes]
        )
        self._client.connect(*address)
        self._client.loop_start()
        assert self._acknowledgments.get(timeout=TEST_TIMEOUT) == [0]
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, topic_filter: str) -> None:
        self._client.subscribe(topic_filter, 1)
        assert self._acknowledgments.get(timeout=TEST_TIMEOUT) == [1]

    def publish(self, message: Message) -> None:
        sent = self._client.publish(*message)
        sent.wait_for_publish(TEST_TIMEOUT)
        assert sent.is_published()

    def receive(self) -> Message:
        return self._received.get(timeout=TEST_TIMEOUT)

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        self._received.put(Message(message.topic, bytes(message.payload), message.qos, message.retain))


class MosquittoClient(MqttClient):
    """Client with mosquitto_sub to subscribe and mosquitto_pub to publish, each with its own connection."""

    schemes = ("mqtt", "mqtts")

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def subscribe(self, topic_filter: str) -> None:
        options = [
            "-t",
            topic_filter,
            "-q",
            "1",
            "-i",
            self._credentials.user,
            "-F",
            "%t %q %r %x",
            "-d",
            "-W",
            _TIMEOUT,
        ]
        command = ["stdbuf", "-oL", str(require(MOSQUITTO_SUB)), *options, *self._connection_options()]
        self._subscriber = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self._stack.callback(self._subscriber.kill)
        self._expect_line(r"Subscribed \(mid: \d+\): 1")

    def publish(self, message: Message) -> None:
        # The second connection of a gateway has its MAC in upper case as client id.
        options = ["-i", self._credentials.user.upper(), "-t", message.topic, "-q", str(message.qos), "-s"]
        command = [
            str(require(MOSQUITTO_PUB)),
            *options,
            *(["-r"] if message.retain else []),
            *self._connection_options(),
        ]
        subprocess.run(command, input=message.payload, check=True, timeout=TEST_TIMEOUT)

    def receive(self) -> Message:
        topic, qos, retain, payload = self._expect_line(r"(\S+) ([012]) ([01]) ([0-9a-f]*)").groups()
        return Message(topic, bytes.fromhex(payload), int(qos), retain == "1")

    def _connection_options(self) -> list[str]:
        scheme, (host, port), authority = self._broker
        options = [
            "-h",
            host,
            "-p",
            str(port),
            "-u",
            self._credentials.user,
            "-P",
            self._credentials.password,
            "-V",
            "311",
        ]
        return [*options, "--cafile", str(authority)] if scheme == "mqtts" else options

    def _expect_line(self, pattern: str) -> re.Match[str]:
        """Wait for the next line of mosquitto_sub that matches a pattern."""
        assert self._subscriber.stdout is not None
        for line in self._subscriber.stdout:
            if match := re.fullmatch(pattern, line.decode().strip()):
                return match
        raise AssertionError(f"mosquitto_sub ended before it printed {pattern}")


class MqttJsClient(MqttClient):
    """Client with mqtt.js, in Node."""

    def __enter__(self) -> Self:
        scheme, (host, port), authority = self._broker
        self._client = MqttJs()
        self._client.__enter__()
        options = Options(
            client_id=self._credentials.user,
            username=self._credentials.user,
            password=self._credentials.password,
            ca=authority.read_text() if scheme in {"mqtts", "wss"} else UNSET,
        )
        assert not self._client.connect(f"{scheme}://{host}:{port}/mqtt", options)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__()

    def subscribe(self, topic_filter: str) -> None:
        assert self._client.subscribe(topic_filter, qos=1) == [1]

    def publish(self, message: Message) -> None:
        topic, payload, qos, retain = message
        self._client.publish(topic, payload, qos=qos, retain=retain)

    def receive(self) -> Message:
        message = self._client.expect_message()
        return Message(message.topic, message.payload, message.qos, message.retain)
