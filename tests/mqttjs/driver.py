"""Drives one client of mqtt.js in a process of its own."""

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

PATIENCE = 30.0
"""Seconds until something must have happened; reached only when it never does."""

_PROGRAM = PROGRAMS / "mqttjs.mjs"


class Failure(Exception):
    """What mqtt.js could not do, in its words; the code is the broker's, or a word of Node's."""

    def __init__(self, message: str, code: int | str | None = None) -> None:
        super().__init__(message)
        self.code = code


class MqttJs:
    """One client, which connects once. Who leaves it without `end` drops the connection, like a crash.

    Its methods wait, so call them in a thread where an event loop must go on.
    """

    def __init__(self) -> None:
        require(MQTTJS)
        self._ids = count(1)
        self._events: Queue[Event | None] = Queue()
        self._kept: list[Event] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([NODE, _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._listener = Thread(target=self._listen, name="mqtt.js")
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its connection ends with it
        self._listener.join()
        self._process.__exit__(None, None, None)

    def connect(self, url: str, options: Options | None = None) -> bool:
        """Connect to mqtt://, mqtts://, ws:// or wss://; True when the broker kept the session."""
        self._tell(Connect(next(self._ids), url, options or Options()))
        match self._take(lambda event: isinstance(event, Connected | Failed | Closed)):
            case Connected(session_present=present):
                return present
            case Failed(message=message, code=code):
                raise Failure(message, code)
            case _:
                raise Failure("the connection was closed without an answer")

    def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """Subscribe, in one packet; what the broker granted for each filter, 128 for a refusal."""
        answer = self._answer(self._tell(Subscribe(next(self._ids), filters, qos)))
        assert isinstance(answer, Granted)
        return answer.granted

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe, in one packet, and wait until the broker has done it."""
        self._answer(self._tell(Unsubscribe(next(self._ids), filters)))

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Publish, and wait until it is sent (QoS 0), acknowledged (1) or complete (2)."""
        self.wait_published(self.begin_publish(topic, payload, qos=qos, retain=retain))

    def begin_publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> int:
        """Publish without waiting, even without a connection; the number is for `wait_published`."""
        return self._tell(Publish(next(self._ids), topic, payload, qos, retain))

    def wait_published(self, number: int) -> None:
        """Wait for the end of what `begin_publish` began."""
        self._answer(number)

    def expect_message(self, within: float = PATIENCE) -> Message:
        """The next message, in the order in which they came."""
        event = self._take(lambda event: isinstance(event, Message), within)
        assert isinstance(event, Message)
        return event

    def expect_connect(self, within: float = PATIENCE) -> bool:
        """Wait until it has connected again by itself; True when the broker kept the session."""
        event = self._take(lambda event: isinstance(event, Connected), within)
        assert isinstance(event, Connected)
        return event.session_present

    def expect_close(self, within: float = PATIENCE) -> None:
        """Wait until the connection is over."""
        self._take(lambda event: isinstance(event, Closed), within)

    def expect_error(self, within: float = PATIENCE) -> Failure:
        """What goes wrong next with the connection."""
        event = self._take(lambda event: isinstance(event, Failed), within)
        assert isinstance(event, Failed)
        return Failure(event.message, event.code)

    def end(self) -> None:
        """Say goodbye with a DISCONNECT, after what is under way."""
        self._answer(self._tell(End(next(self._ids), force=False)))

    def drop(self) -> None:
        """Cut the connection without a DISCONNECT."""
        self._answer(self._tell(End(next(self._ids), force=True)))

    def _tell(self, command: Command) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(encode(command))
        self._process.stdin.flush()
        return command.id

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(decode(line))
        self._events.put(None)

    def _answer(self, number: int) -> Event:
        answer = self._take(lambda event: isinstance(event, Granted | Done) and event.id == number)
        if isinstance(answer, Done) and answer.error is not None:
            raise Failure(answer.error)
        return answer

    def _take(self, wanted: Callable[[Event], bool], within: float = PATIENCE) -> Event:
        """The first event that is wanted; the others wait for who wants them."""
        for event in self._kept:
            if wanted(event):
                self._kept.remove(event)
                return event
        until = monotonic() + within
        while not wanted(event := self._next(until)):
            self._kept.append(event)
        return event

    def _next(self, until: float) -> Event:
        try:
            event = self._events.get(timeout=max(0.0, until - monotonic()))
        except Empty:
            raise TimeoutError(f"mqtt.js told nothing more; untaken: {self._kept}") from None
        if event is None:
            raise Failure("the program has ended")
        return event
