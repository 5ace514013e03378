"""Independent MQTT client that records all messages: paho, with payloads decoded by `json` alone."""

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
"""Seconds until an expected message must have arrived."""

_CHECK_INTERVAL = 1.0
"""Seconds without messages after which the recorder checks whether more can arrive."""

_client_numbers = count(1)


@dataclass(frozen=True)
class RecordedMessage:
    """Received message."""

    topic: str
    data: bytes
    qos: int
    retain: bool

    @cached_property
    def payload(self) -> dict[str, Any]:
        """Decoded payload, which must be a JSON object in UTF-8."""
        content = json.loads(self.data.decode("utf-8"))
        assert isinstance(content, dict)
        return content

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Topic levels after `mt/gateway/{g}/`."""
        return tuple(self.topic.partition("mt/gateway/")[2].split("/")[1:])

    def is_report(self, device: str, kind: str, identifier: str | None = None) -> bool:
        """Return whether the message is a report of this device, kind and identifier."""
        return self.parts == ("device", device, kind, *([identifier] if identifier else []))


class Recorder:
    """Client with its own thread that records all messages of its subscriptions."""

    def __init__(self, broker: ServerAddress, *filters: str) -> None:
        self._messages: list[RecordedMessage] = []
        self.failure_reason: Callable[[], str] = lambda: ""
        """Returns why no more messages can arrive; empty if they can."""
        self._changed = Condition()
        self._granted = Event()
        self._client = Client(CallbackAPIVersion.VERSION2, f"recorder-{next(_client_numbers)}")
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe(
            [(topic_filter, 2) for topic_filter in filters]
        )
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
        """Publish a message. Wait until the broker has acknowledged it."""
        publication = self._client.publish(topic, payload, qos=1)
        publication.wait_for_publish(TIMEOUT)
        assert publication.is_published()

    @property
    def mark(self) -> int:
        """Number of messages received up to now."""
        return len(self._messages)

    def messages_since(self, mark: int = 0) -> list[RecordedMessage]:
        """Return the messages received after a mark."""
        return self._messages[mark:]

    def wait_for(self, is_match: Callable[[RecordedMessage], bool], *, after: int = 0) -> RecordedMessage:
        """Wait for the first matching message after a mark."""
        return self.wait_for_many(1, is_match, after=after)[0]

    def wait_for_many(
        self, number: int, is_match: Callable[[RecordedMessage], bool], *, after: int = 0
    ) -> list[RecordedMessage]:
        """Wait for a number of matching messages after a mark. Return them in order of arrival."""
        matches: list[RecordedMessage] = []
        deadline = time.monotonic() + TIMEOUT
        while True:
            with self._changed:
                if len(self._messages) == after:
                    self._changed.wait(_CHECK_INTERVAL)
                new_messages, after = self._messages[after:], len(self._messages)
            for message in new_messages:
                if is_match(message):
                    matches.append(message)
                    if len(matches) == number:
                        return matches
            assert new_messages or not (failure := self.failure_reason()), failure
            assert time.monotonic() < deadline, f"{len(matches)} of {number} arrived, among {after} messages"

    def _on_message(self, _client: Client, _userdata: object, message: MQTTMessage) -> None:
        recorded = RecordedMessage(message.topic, bytes(message.payload), message.qos, bool(message.retain))
        with self._changed:
            self._messages.append(recorded)
            self._changed.notify_all()
