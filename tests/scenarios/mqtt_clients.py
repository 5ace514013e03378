"""MQTT clients of other makes behind one face: what one of them says, another hears."""

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

_LONGEST = "120"
"""Seconds that mosquitto_sub listens; reached only when it never hears what it should."""


class BrokerAddress(NamedTuple):
    """Where a broker is, and whom to trust there."""

    scheme: str
    address: ServerAddress
    authority: Path


class Message(NamedTuple):
    """A message that came."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class MqttClient(ABC):
    """A client of one make, connected as somebody. A gateway's client id is its MAC."""

    schemes: tuple[str, ...] = ("mqtt", "mqtts", "ws", "wss")

    def __init__(self, place: BrokerAddress, who: Credentials) -> None:
        self._place = place
        self._who = who

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def subscribe(self, topic_filter: str) -> None:
        """Subscribe at QoS 1, and wait until it is granted."""

    @abstractmethod
    def publish(self, message: Message) -> None:
        """Publish, and wait until it is acknowledged."""

    @abstractmethod
    def receive(self) -> Message:
        """The next message."""


class PahoClient(MqttClient):
    """paho-mqtt."""

    def __enter__(self) -> Self:
        scheme, address, authority = self._place
        transport = "websockets" if scheme.startswith("ws") else "tcp"
        self._client = Client(CallbackAPIVersion.VERSION2, self._who.user, transport=transport)  # type: ignore[arg-type] # one of two words
        self._client.username_pw_set(*self._who)
        if scheme in {"mqtts", "wss"}:
            self._client.tls_set(str(authority), cert_reqs=ssl.CERT_REQUIRED)
        self._heard: Queue[Message] = Queue()
        self._answers: Queue[list[int]] = Queue()
        self._client.on_message = self._on_message
        self._client.on_connect = lambda _, __, ___, code, ____: self._answers.put([code.value])
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._answers.put(
            [code.value for code in codes]
        )
        self._client.connect(*address)
        self._client.loop_start()
        assert self._answers.get(timeout=TEST_TIMEOUT) == [0]
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def subscribe(self, topic_filter: str) -> None:
        self._client.subscribe(topic_filter, 1)
        assert self._answers.get(timeout=TEST_TIMEOUT) == [1]

    def publish(self, message: Message) -> None:
        sent = self._client.publish(*message)
        sent.wait_for_publish(TEST_TIMEOUT)
        assert sent.is_published()

    def receive(self) -> Message:
        return self._heard.get(timeout=TEST_TIMEOUT)

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        self._heard.put(Message(message.topic, bytes(message.payload), message.qos, message.retain))


class MosquittoClient(MqttClient):
    """mosquitto_sub to listen and mosquitto_pub to speak, each a connection of its own."""

    schemes = ("mqtt", "mqtts")

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def subscribe(self, topic_filter: str) -> None:
        given = [
            "-t",
            topic_filter,
            "-q",
            "1",
            "-i",
            self._who.user,
            "-F",
            "%t %q %r %x",
            "-d",
            "-W",
            _LONGEST,
        ]
        command = ["stdbuf", "-oL", str(require(MOSQUITTO_SUB)), *given, *self._given()]
        self._listening = self._stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        self._stack.callback(self._listening.kill)
        self._line(r"Subscribed \(mid: \d+\): 1")

    def publish(self, message: Message) -> None:
        # The second connection that a gateway may have is the one in upper case.
        given = ["-i", self._who.user.upper(), "-t", message.topic, "-q", str(message.qos), "-s"]
        command = [str(require(MOSQUITTO_PUB)), *given, *(["-r"] if message.retain else []), *self._given()]
        subprocess.run(command, input=message.payload, check=True, timeout=TEST_TIMEOUT)

    def receive(self) -> Message:
        topic, qos, retain, payload = self._line(r"(\S+) ([012]) ([01]) ([0-9a-f]*)").groups()
        return Message(topic, bytes.fromhex(payload), int(qos), retain == "1")

    def _given(self) -> list[str]:
        scheme, (host, port), authority = self._place
        given = ["-h", host, "-p", str(port), "-u", self._who.user, "-P", self._who.password, "-V", "311"]
        return [*given, "--cafile", str(authority)] if scheme == "mqtts" else given

    def _line(self, pattern: str) -> re.Match[str]:
        """The next line that looks so."""
        assert self._listening.stdout is not None
        for line in self._listening.stdout:
            if found := re.fullmatch(pattern, line.decode().strip()):
                return found
        raise AssertionError(f"mosquitto_sub ended before it said {pattern}")


class MqttJsClient(MqttClient):
    """mqtt.js, in Node."""

    def __enter__(self) -> Self:
        scheme, (host, port), authority = self._place
        self._client = MqttJs()
        self._client.__enter__()
        options = Options(
            client_id=self._who.user,
            username=self._who.user,
            password=self._who.password,
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
        came = self._client.expect_message()
        return Message(came.topic, came.payload, came.qos, came.retain)
