"""All that can be set: flags, variables and the keys of the file follow from a table (rest-164, rest-165)."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.settings import parsers
from meshfleet.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Callable


class Setting(NamedTuple):
    """Something that can be set, under the same name everywhere."""

    name: str
    """In lower case with hyphens; what stands in front of a dot is a table in the file."""
    parse: Callable[[str], object]
    """Raises `texts.Unfit`."""
    metavar: str
    """What its text looks like, in a word."""
    help: str
    is_list: bool = False
    is_switch: bool = False
    attribute: str = ""
    """The field of `Settings` that holds it, if that is not called like it."""

    @property
    def parameter(self) -> str:
        """Its name as that of a parameter."""
        return re.sub("[.-]", "_", self.name)

    @property
    def attribute_path(self) -> str:
        """Where it is in `Settings`: a field, or with a dot a field of the struct called like the table."""
        if self.attribute:
            return self.attribute
        table, _, key = self.name.replace("-", "_").partition(".")
        return f"{table}.{key}" if key and table in Settings.__struct_fields__ else self.parameter

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('.', '-')}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"MESHFLEET_{self.parameter.upper()}"

    @property
    def default(self) -> object:
        """What holds when nobody says anything."""
        return attrgetter(self.attribute_path)(_DEFAULTS)

    @property
    def default_text(self) -> str:
        """The same as somebody would write it; empty: nothing holds."""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default) if self.default else ""


_DEFAULTS: Final = Settings()


def _limit_setting(
    name: str, form: str, help_text: str, *, least: int = 1, most: int = parsers.MAX_NUMBER
) -> Setting:
    return Setting(f"limits.{name}", partial(parsers.parse_integer, least=least, most=most), form, help_text)


def _retention_setting(name: str, help_text: str) -> Setting:
    return Setting(f"retention.{name}", parsers.parse_retention, "SECONDS", f"{help_text}; or forever.")


SETTINGS: Final = (
    Setting("data", parsers.parse_path, "DIR", "The data directory: database, images and secrets."),
    Setting(
        "http", parsers.parse_listen_address, "HOST:PORT", "Where HTTP is served; port 0 is any that is free."
    ),
    Setting(
        "mqtt",
        parsers.parse_listen_address_or_off,
        "HOST:PORT",
        "Where MQTT is served; port 0 is any that is free; or off. With another --broker it is off anyway.",
    ),
    Setting(
        "mqtt-tls",
        parsers.parse_listen_address_or_off,
        "HOST:PORT",
        "Where MQTT is served over TLS, with --tls-cert and --tls-key; or off.",
    ),
    Setting(
        "mqtt-ws",
        parsers.parse_listen_address_or_off,
        "HOST:PORT",
        "Where MQTT is served in WebSockets, over TLS with --tls-cert; or off.",
    ),
    Setting(
        "broker",
        parsers.parse_broker,
        "URL",
        "embedded, which it is unless set, or another one: mqtt[s]://[user[:password]@]host[:port]",
        attribute="external_broker",
    ),
    Setting(
        "broker-ca",
        parsers.parse_readable_file,
        "FILE",
        "Who vouches for another broker with mqtts://, in PEM; without it, whom the system trusts.",
    ),
    Setting(
        "public-url", parsers.parse_public_url, "URL", "How others reach this service, if not by --http."
    ),
    Setting(
        "public-mqtt",
        parsers.parse_public_mqtt,
        "URL",
        "How gateways reach the broker, if not by --broker, --mqtt-tls or --mqtt: mqtt[s]://…",
    ),
    Setting(
        "topic-prefix",
        parsers.parse_topic_prefix,
        "TEXT",
        "What stands in front of all topics, as in TEXT/mt/…",
    ),
    Setting("database", parsers.parse_database, "URL", "sqlite, in the data directory, or postgresql://…"),
    Setting(
        "tls-cert",
        parsers.parse_readable_file,
        "FILE",
        "Serve with this certificate and those that vouch for it, in PEM.",
    ),
    Setting("tls-key", parsers.parse_readable_file, "FILE", "The key of the certificate, in PEM."),
    Setting(
        "trusted-proxies",
        parsers.parse_networks,
        "LIST",
        "Addresses and networks of proxies, with commas, whose word on the client's address counts.",
        is_list=True,
    ),
    Setting(
        "requests.max-age",
        parsers.parse_seconds,
        "SECONDS",
        "How long requests wait for an absent gateway.",
    ),
    Setting(
        "requests.at-once",
        partial(parsers.parse_integer, least=1, most=1000),
        "NUMBER",
        "Requests that a gateway gets at a time; others wait for their turn.",
    ),
    Setting(
        "firmware.max-size",
        partial(parsers.parse_integer, least=1024, most=parsers.MAX_NUMBER),
        "BYTES",
        "The largest image of firmware that can be uploaded.",
    ),
    Setting(
        "gateways.autoclaim",
        parsers.parse_switch,
        "SWITCH",
        "on or off: whether gateways register themselves. With another broker they do unless set.",
        is_switch=True,
    ),
    Setting(
        "acks",
        parsers.parse_switch,
        "SWITCH",
        "on or off: whether samples are acknowledged end to end, to gateways of version 2.4.0 on.",
        is_switch=True,
    ),
    _retention_setting("property", "How long samples of properties are kept"),
    _retention_setting("measurement", "The same for measurements"),
    _retention_setting("measurement-error", "The same for measurements that failed"),
    _retention_setting("event", "The same for events"),
    _retention_setting("link", "The same for how parents heard devices, minute by minute"),
    _retention_setting("heartbeat", "The same for heartbeats, minute by minute"),
    _retention_setting("connectivity", "The same for when devices were connected"),
    _retention_setting("request", "The same for what was asked of devices"),
    _limit_setting("connections", "NUMBER", "MQTT connections at once."),
    _limit_setting("connections-per-address", "NUMBER", "The same, from one network address."),
    _limit_setting("connections-per-account", "NUMBER", "The same, with one account."),
    _limit_setting(
        "failed-connections", "NUMBER", "Connections without a login per second, from one address."
    ),
    _limit_setting("connect-seconds", "SECONDS", "Time to send CONNECT."),
    _limit_setting("packet-size", "BYTES", "The largest MQTT packet.", least=1024, most=268_435_455),
    _limit_setting("subscriptions", "NUMBER", "Filters of one client."),
    _limit_setting("in-flight", "NUMBER", "Messages sent to a client and not acknowledged.", most=65_535),
    _limit_setting("queue-bytes", "BYTES", "Bytes that wait for one client."),
    _limit_setting("queues-bytes", "BYTES", "Bytes that wait for all clients together."),
    _limit_setting("publish-rate", "NUMBER", "Packets per second from one client."),
    _limit_setting("sessions-per-account", "NUMBER", "Sessions that outlast their connections."),
    _limit_setting("session-age", "SECONDS", "After which the session of an absent client is forgotten."),
    _limit_setting("retained", "NUMBER", "Retained messages in all."),
)
