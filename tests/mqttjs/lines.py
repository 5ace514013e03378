"""The lines that go to mqttjs.mjs and come from it: commands and events, each one a JSON object."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Will(msgspec.Struct, frozen=True):
    """What the broker publishes when the client vanishes."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """How mqtt.js connects; what is not set is left to it."""

    client_id: str | UnsetType = UNSET
    username: str | UnsetType = UNSET
    password: str | UnsetType = UNSET
    clean: bool = True
    keepalive: int = 60
    will: Will | UnsetType = UNSET
    ca: str | UnsetType = UNSET
    """Whom to trust on mqtts:// and wss://, as PEM."""
    protocol_version: int = 4
    """4 is MQTT 3.1.1."""
    reconnect_period: int = 0
    """After how many milliseconds it connects again by itself; 0 is never."""


class Command(msgspec.Struct, tag_field="do", tag=str.lower):
    """What the client shall do; what comes of it has the same id."""

    id: int


class Connect(Command):
    """Answered by a Connected, or by a Failed, or only by a Closed."""

    url: str
    options: Options


class Subscribe(Command):
    """Answered by a Granted, or by a Done with an error."""

    filters: tuple[str, ...]
    qos: int


class Unsubscribe(Command):
    """Answered by a Done."""

    filters: tuple[str, ...]


class Publish(Command):
    """Answered by a Done: at QoS 0 when it is sent, else when the broker has acknowledged it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class End(Command):
    """Answered by a Done; with force the connection is cut without a DISCONNECT."""

    force: bool


class Event(msgspec.Struct, tag_field="event", frozen=True):
    """What happened to the client."""


class Connected(Event, tag="connect", rename="camel", frozen=True):
    """The broker accepted a connection."""

    session_present: bool


class Message(Event, tag="message", frozen=True):
    """A message has come."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool


class Closed(Event, tag="close", frozen=True):
    """A connection, or the attempt to make one, is over."""


class Failed(Event, tag="error", frozen=True):
    """Something went wrong with a connection. The code is the broker's, or a word of Node's."""

    message: str
    code: int | str | None


class Granted(Event, tag="suback", frozen=True):
    """What the broker granted for each filter; 128 is a refusal."""

    id: int
    granted: list[int]


class Done(Event, tag="done", frozen=True):
    """A command is carried out, or never will be."""

    id: int
    error: str | None


_EVENTS = msgspec.json.Decoder(Connected | Message | Closed | Failed | Granted | Done)


def encode(command: Command) -> bytes:
    """A line for mqttjs.mjs."""
    return msgspec.json.encode(command) + b"\n"


def decode(line: bytes) -> Event:
    """What a line from mqttjs.mjs tells."""
    event: Event = _EVENTS.decode(line)
    return event
