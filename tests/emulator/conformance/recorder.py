"""An independent MQTT client that keeps all it hears: paho, with payloads read by nobody but `json`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from threading import Condition, Event
from typing import TYPE_CHECKING, Any, Self

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import MQTTMessage

    from tests.servers import ServerAddress

TIMEOUT = 60.0
"""Seconds until something must have come; reached only when it never does."""

_CHECK_INTERVAL = 1.0
"""Seconds without news after which somebody looks whether more can come."""

_NUMBERS = count(1)


@dataclass(frozen=True)
class RecordedMessage:
    """One message."""

    topic: str
    data: bytes
    qos: int
    retain: bool

    @cached_property
    def payload(self) -> dict[str, Any]:
        """What it says; every payload is a JSON object in UTF-8."""
        found = json.loads(self.data.decode("utf-8"))
        assert isinstance(found, dict)
        return found

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """What stands in the topic behind `mt/gateway/{g}/`."""
        return tuple(self.topic.partition("mt/gateway/")[2].split("/")[1:])

    def is_report(self, device: str, kind: str, identifier: str | None = None) -> bool:
        """Whether it is a report of a device, of a kind and about an identifier."""
        return self.parts == ("device", device, kind, *([identifier] if identifier else []))


class Recorder:
    """A client with a thread of its own that subscribes at once and forgets nothing."""

    def __init__(self, broker: ServerAddress, *filters: str) -> None:
        self._messages: list[RecordedMessage] = []
        self.failure_reason: Callable[[], str] = lambda: ""
        """Says why nothing more can come, if that is so."""
        self._changed = Condition()
        self._granted = Event()
        self._client = Client(CallbackAPIVersion.VERSION2, f"recorder-{next(_NUMBERS)}")
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe([(each, 2) for each in filters])
        self._client.on_subscribe = lambda *_: self._granted.set()
        self._client.connect(*broker)
        self._client.loop_start()
        assert self._granted.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message, and wait until the broker has it."""
        sent = self._client.publish(topic, payload, qos=1)
        sent.wait_for_publish(TIMEOUT)
        assert sent.is_published()

    @property
    def mark(self) -> int:
        """How much was heard up to now."""
        return len(self._messages)

    def messages_since(self, mark: int = 0) -> list[RecordedMessage]:
        """What was heard behind a mark."""
        return self._messages[mark:]

    def wait_for(self, wanted: Callable[[RecordedMessage], bool], *, after: int = 0) -> RecordedMessage:
        """The first message of a kind behind a mark, sooner or later."""
        return self.wait_for_many(1, wanted, after=after)[0]

    def wait_for_many(
        self, number: int, wanted: Callable[[RecordedMessage], bool], *, after: int = 0
    ) -> list[RecordedMessage]:
        """As many, in the order in which they came."""
        found: list[RecordedMessage] = []
        deadline = time.monotonic() + TIMEOUT
        while True:
            with self._changed:
                if len(self._messages) == after:
                    self._changed.wait(_CHECK_INTERVAL)
                news, after = self._messages[after:], len(self._messages)
            for each in news:
                if wanted(each):
                    found.append(each)
                    if len(found) == number:
                        return found
            assert news or not (worry := self.failure_reason()), worry
            assert time.monotonic() < deadline, f"{len(found)} of {number} came, among {after} messages"

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        heard = RecordedMessage(message.topic, bytes(message.payload), message.qos, bool(message.retain))
        with self._changed:
            self._messages.append(heard)
            self._changed.notify_all()
