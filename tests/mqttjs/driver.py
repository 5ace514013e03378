"""Driver of one mqtt.js client in a process of its own."""

from __future__ import annotations

import subprocess
from itertools import count
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Self

from tests.external_tools import MQTTJS, require
from tests.mqttjs.lines import (
    Closed,
    Command,
    Connect,
    Connected,
    Done,
    End,
    Event,
    Failed,
    Granted,
    Message,
    Options,
    Publish,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
)
from tests.node import NODE, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 30.0
"""Seconds within which an expected event must happen; reached only in a failing test."""

_PROGRAM = PROGRAMS / "mqttjs.mjs"


class Failure(Exception):
    """Error that mqtt.js reported. The code is that of the broker, or an error name of Node."""

    def __init__(self, message: str, code: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code


class MqttJs:
    """One client, which connects once. Without `end` the connection is dropped, as in a crash.

    Its methods block, so call them in a thread where an event loop must keep running.
    """

    def __init__(self) -> None:
        require(MQTTJS)
        self._ids = count(1)
        self._events: Queue[Event | None] = Queue()
        self._pending: list[Event] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([NODE, _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = Thread(target=self._read_events, name="mqtt.js")
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # closes its connection as well
        self._reader.join()
        self._process.__exit__(None, None, None)

    def connect(self, url: str, options: Options | None = None) -> bool:
        """Connect to mqtt://, mqtts://, ws:// or wss://. Return the session present flag."""
        self._send(Connect(next(self._ids), url, options or Options()))
        match self._wait_for(lambda event: isinstance(event, Connected | Failed | Closed)):
            case Connected(session_present=present):
                return present
            case Failed(message=message, code=code):
                raise Failure(message, code)
            case _:
                raise Failure("the connection was closed without a CONNACK")

    def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """Subscribe in one packet. Return the return code of each filter, 128 for a refusal."""
        response = self._wait_for_response(self._send(Subscribe(next(self._ids), filters, qos)))
        assert isinstance(response, Granted)
        return response.granted

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe in one packet, and wait for UNSUBACK."""
        self._wait_for_response(self._send(Unsubscribe(next(self._ids), filters)))

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Publish, and wait until the message is sent (QoS 0), acknowledged (1) or complete (2)."""
        self.wait_published(self.begin_publish(topic, payload, qos=qos, retain=retain))

    def begin_publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> int:
        """Publish without waiting, even without a connection. Return the number for `wait_published`."""
        return self._send(Publish(next(self._ids), topic, payload, qos, retain))

    def wait_published(self, number: int) -> None:
        """Wait for the result of `begin_publish`."""
        self._wait_for_response(number)

    def expect_message(self, within: float = TIMEOUT) -> Message:
        """Return the next message."""
        event = self._wait_for(lambda event: isinstance(event, Message), within)
        assert isinstance(event, Message)
        return event

    def expect_connect(self, within: float = TIMEOUT) -> bool:
        """Wait until the client has reconnected. Return the session present flag."""
        event = self._wait_for(lambda event: isinstance(event, Connected), within)
        assert isinstance(event, Connected)
        return event.session_present

    def expect_close(self, within: float = TIMEOUT) -> None:
        """Wait until the connection is closed."""
        self._wait_for(lambda event: isinstance(event, Closed), within)

    def expect_error(self, within: float = TIMEOUT) -> Failure:
        """Return the next error of the connection."""
        event = self._wait_for(lambda event: isinstance(event, Failed), within)
        assert isinstance(event, Failed)
        return Failure(event.message, event.code)

    def end(self) -> None:
        """Send DISCONNECT after the pending packets."""
        self._wait_for_response(self._send(End(next(self._ids), force=False)))

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""
        self._wait_for_response(self._send(End(next(self._ids), force=True)))

    def _send(self, command: Command) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(encode(command))
        self._process.stdin.flush()
        return command.id

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(decode(line))
        self._events.put(None)

    def _wait_for_response(self, number: int) -> Event:
        response = self._wait_for(lambda event: isinstance(event, Granted | Done) and event.id == number)
        if isinstance(response, Done) and response.error is not None:
            raise Failure(response.error)
        return response

    def _wait_for(self, matches: Callable[[Event], bool], within: float = TIMEOUT) -> Event:
        """Return the first event that matches; keep the others for later calls."""
        for event in self._pending:
            if matches(event):
                self._pending.remove(event)
                return event
        deadline = monotonic() + within
        while not matches(event := self._next(deadline)):
            self._pending.append(event)
        return event

    def _next(self, deadline: float) -> Event:
        try:
            event = self._events.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            raise TimeoutError(f"no further event of mqtt.js; pending: {self._pending}") from None
        if event is None:
            raise Failure("the program has ended")
        return event
