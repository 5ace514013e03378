"""Lines sent to mqttjs.mjs and received from it: commands and events, each one a JSON object."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Will(msgspec.Struct, frozen=True):
    """Will message."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False


class Options(msgspec.Struct, frozen=True, rename="camel"):
    """Connection options of mqtt.js; options that are not set keep its defaults."""

    client_id: str | UnsetType = UNSET
    username: str | UnsetType = UNSET
    password: str | UnsetType = UNSET
    clean: bool = True
    keepalive: int = 60
    will: Will | UnsetType = UNSET
    ca: str | UnsetType = UNSET
    """Trusted authority for mqtts:// and wss://, as PEM."""
    protocol_version: int = 4
    """4 is MQTT 3.1.1."""
    reconnect_period: int = 0
    """Milliseconds before it reconnects by itself; 0: never."""


class Command(msgspec.Struct, tag_field="do", tag=str.lower):
    """Command to the client; its events have the same id."""

    id: int


class Connect(Command):
    """Results in Connected, Failed or only Closed."""

    url: str
    options: Options


class Subscribe(Command):
    """Results in Granted, or in Done with an error."""

    filters: tuple[str, ...]
    qos: int


class Unsubscribe(Command):
    """Results in Done."""

    filters: tuple[str, ...]


class Publish(Command):
    """Results in Done: at QoS 0 when it is sent, else when the broker has acknowledged it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class End(Command):
    """Results in Done; with force the connection is closed without DISCONNECT."""

    force: bool


class Event(msgspec.Struct, tag_field="event", frozen=True):
    """Event of the client."""


class Connected(Event, tag="connect", rename="camel", frozen=True):
    """A connection was accepted by the broker."""

    session_present: bool


class Message(Event, tag="message", frozen=True):
    """A message was received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool


class Closed(Event, tag="close", frozen=True):
    """A connection, or an attempt to connect, has ended."""


class Failed(Event, tag="error", frozen=True):
    """A connection failed. The code is that of the broker, or an error name of Node."""

    message: str
    code: int | str | None


class Granted(Event, tag="suback", frozen=True):
    """Return codes of a SUBACK; 128 is a refusal."""

    id: int
    granted: list[int]


class Done(Event, tag="done", frozen=True):
    """A command has ended, with an error or without."""

    id: int
    error: str | None


_EVENTS = msgspec.json.Decoder(Connected | Message | Closed | Failed | Granted | Done)


def encode(command: Command) -> bytes:
    """Encode a command as a line for mqttjs.mjs."""
    return msgspec.json.encode(command) + b"\n"


def decode(line: bytes) -> Event:
    """Decode a line from mqttjs.mjs."""
    event: Event = _EVENTS.decode(line)
    return event
