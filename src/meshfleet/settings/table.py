"""All that can be set: flags, variables and the keys of the file follow from a table (rest-164, rest-165)."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.settings import texts
from meshfleet.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Callable


class Setting(NamedTuple):
    """Something that can be set, under the same name everywhere."""

    name: str
    """In lower case with hyphens; what stands in front of a dot is a table in the file."""
    read: Callable[[str], object]
    """Raises `texts.Unfit`."""
    form: str
    """What its text looks like, in a word."""
    help: str
    is_list: bool = False
    is_switch: bool = False
    kept_as: str = ""
    """The field of `Settings` that holds it, if that is not called like it."""

    @property
    def field(self) -> str:
        """Its name as that of a parameter."""
        return re.sub("[.-]", "_", self.name)

    @property
    def place(self) -> str:
        """Where it is in `Settings`: a field, or with a dot a field of the struct called like the table."""
        if self.kept_as:
            return self.kept_as
        table, _, key = self.name.replace("-", "_").partition(".")
        return f"{table}.{key}" if key and table in Settings.__struct_fields__ else self.field

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('.', '-')}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"MESHFLEET_{self.field.upper()}"

    @property
    def default(self) -> object:
        """What holds when nobody says anything."""
        return attrgetter(self.place)(_DEFAULTS)

    @property
    def default_text(self) -> str:
        """The same as somebody would write it; empty: nothing holds."""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default) if self.default else ""


_DEFAULTS: Final = Settings()


def _limit(name: str, form: str, tells: str, *, least: int = 1, most: int = texts.MOST) -> Setting:
    return Setting(f"limits.{name}", partial(texts.read_whole, least=least, most=most), form, tells)


def _kept(name: str, tells: str) -> Setting:
    return Setting(f"retention.{name}", texts.read_retention, "SECONDS", f"{tells}; or forever.")


SETTINGS: Final = (
    Setting("data", texts.read_path, "DIR", "The data directory: database, images and secrets."),
    Setting("http", texts.read_listen, "HOST:PORT", "Where HTTP is served; port 0 is any that is free."),
    Setting(
        "mqtt",
        texts.read_listen_or_off,
        "HOST:PORT",
        "Where MQTT is served; port 0 is any that is free; or off. With another --broker it is off anyway.",
    ),
    Setting(
        "mqtt-tls",
        texts.read_listen_or_off,
        "HOST:PORT",
        "Where MQTT is served over TLS, with --tls-cert and --tls-key; or off.",
    ),
    Setting(
        "mqtt-ws",
        texts.read_listen_or_off,
        "HOST:PORT",
        "Where MQTT is served in WebSockets, over TLS with --tls-cert; or off.",
    ),
    Setting(
        "broker",
        texts.read_broker,
        "URL",
        "embedded, which it is unless set, or another one: mqtt[s]://[user[:password]@]host[:port]",
        kept_as="outside",
    ),
    Setting(
        "broker-ca",
        texts.read_readable,
        "FILE",
        "Who vouches for another broker with mqtts://, in PEM; without it, whom the system trusts.",
    ),
    Setting("public-url", texts.read_public_url, "URL", "How others reach this service, if not by --http."),
    Setting(
        "public-mqtt",
        texts.read_public_mqtt,
        "URL",
        "How gateways reach the broker, if not by --broker, --mqtt-tls or --mqtt: mqtt[s]://…",
    ),
    Setting(
        "topic-prefix", texts.read_topic_prefix, "TEXT", "What stands in front of all topics, as in TEXT/mt/…"
    ),
    Setting("database", texts.read_database, "URL", "sqlite, in the data directory, or postgresql://…"),
    Setting(
        "tls-cert",
        texts.read_readable,
        "FILE",
        "Serve with this certificate and those that vouch for it, in PEM.",
    ),
    Setting("tls-key", texts.read_readable, "FILE", "The key of the certificate, in PEM."),
    Setting(
        "trusted-proxies",
        texts.read_networks,
        "LIST",
        "Addresses and networks of proxies, with commas, whose word on the client's address counts.",
        is_list=True,
    ),
    Setting(
        "requests.max-age",
        texts.read_seconds,
        "SECONDS",
        "How long requests wait for an absent gateway.",
    ),
    Setting(
        "requests.at-once",
        partial(texts.read_whole, least=1, most=1000),
        "NUMBER",
        "Requests that a gateway gets at a time; others wait for their turn.",
    ),
    Setting(
        "firmware.max-size",
        partial(texts.read_whole, least=1024, most=texts.MOST),
        "BYTES",
        "The largest image of firmware that can be uploaded.",
    ),
    Setting(
        "gateways.autoclaim",
        texts.read_switch,
        "SWITCH",
        "on or off: whether gateways register themselves. With another broker they do unless set.",
        is_switch=True,
    ),
    Setting(
        "acks",
        texts.read_switch,
        "SWITCH",
        "on or off: whether samples are acknowledged end to end, to gateways of version 2.4.0 on.",
        is_switch=True,
    ),
    _kept("property", "How long samples of properties are kept"),
    _kept("measurement", "The same for measurements"),
    _kept("measurement-error", "The same for measurements that failed"),
    _kept("event", "The same for events"),
    _kept("link", "The same for how parents heard devices, minute by minute"),
    _kept("heartbeat", "The same for heartbeats, minute by minute"),
    _kept("connectivity", "The same for when devices were connected"),
    _kept("request", "The same for what was asked of devices"),
    _limit("connections", "NUMBER", "MQTT connections at once."),
    _limit("connections-per-address", "NUMBER", "The same, from one network address."),
    _limit("connections-per-account", "NUMBER", "The same, with one account."),
    _limit("failed-connections", "NUMBER", "Connections without a login per second, from one address."),
    _limit("connect-seconds", "SECONDS", "Time to send CONNECT."),
    _limit("packet-size", "BYTES", "The largest MQTT packet.", least=1024, most=268_435_455),
    _limit("subscriptions", "NUMBER", "Filters of one client."),
    _limit("in-flight", "NUMBER", "Messages sent to a client and not acknowledged.", most=65_535),
    _limit("queue-bytes", "BYTES", "Bytes that wait for one client."),
    _limit("queues-bytes", "BYTES", "Bytes that wait for all clients together."),
    _limit("publish-rate", "NUMBER", "Packets per second from one client."),
    _limit("sessions-per-account", "NUMBER", "Sessions that outlast their connections."),
    _limit("session-age", "SECONDS", "After which the session of an absent client is forgotten."),
    _limit("retained", "NUMBER", "Retained messages in all."),
)
