"""Table of all settings. Flags, environment variables and file keys derive from it (rest-164, rest-165)."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.settings import parsers
from meshfleet.settings.model import DISCOVERY_FORMS, LOG_FORMATS, LOG_LEVELS, MAIL_TLS_MODES, Settings

if TYPE_CHECKING:
    from collections.abc import Callable


class Setting(NamedTuple):
    """Definition of a setting: its name, parser and help text."""

    name: str
    """Name in lower case with hyphens. The part before a dot is the name of a TOML table in the file."""
    parse: Callable[[str], object]
    """Function that parses the text of the value, or raises `InvalidSetting`."""
    metavar: str
    """Placeholder for the value in help texts."""
    help: str
    is_list: bool = False
    is_switch: bool = False
    is_file: bool = False
    """Whether the value is the path of a file."""
    is_secret: bool = False
    """Whether the value may contain a password, so that it can also come from a file of its own."""
    attribute: str = ""
    """Name of the field of `Settings`, if it differs from the name of the setting; else empty."""

    @property
    def parameter(self) -> str:
        """Name of this setting as a Python parameter: dots and hyphens become underscores."""
        return re.sub("[.-]", "_", self.name)

    @property
    def attribute_path(self) -> str:
        """Name of the field of `Settings` with this setting; `table.field` if it is in a nested struct."""
        if self.attribute:
            return self.attribute
        table, _, key = self.name.replace("-", "_").partition(".")
        return f"{table}.{key}" if key and table in Settings.__struct_fields__ else self.parameter

    @property
    def flag(self) -> str:
        """Name of the command-line flag for this setting."""
        return f"--{self.name.replace('.', '-')}"

    @property
    def variable(self) -> str:
        """Name of the environment variable for this setting."""
        return f"MESHFLEET_{self.parameter.upper()}"

    @property
    def file_key(self) -> str:
        """Key in the settings file for the path of a file that contains the value of this secret setting."""
        return f"{self.name}-file"

    @property
    def file_variable(self) -> str:
        """Environment variable with the path of a file that contains the value of this secret setting."""
        return f"{self.variable}_FILE"

    @property
    def default(self) -> object:
        """Value of this setting if the user does not set it."""
        return attrgetter(self.attribute_path)(_DEFAULTS)

    @property
    def default_text(self) -> str:
        """Default value as text, as it would follow the flag; empty if there is no default."""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return str(self.default) if self.default else ""


_DEFAULTS: Final = Settings()


def _listener_setting(name: str, help_text: str) -> Setting:
    return Setting(name, parsers.parse_listen_address_or_off, "HOST:PORT", help_text)


def _file_setting(name: str, help_text: str) -> Setting:
    return Setting(name, parsers.parse_readable_file, "FILE", help_text, is_file=True)


def _limit_setting(
    name: str, form: str, help_text: str, *, least: int = 1, most: int = parsers.MAX_NUMBER
) -> Setting:
    return Setting(f"limits.{name}", partial(parsers.parse_integer, least=least, most=most), form, help_text)


def _retention_setting(name: str, help_text: str) -> Setting:
    return Setting(
        f"retention.{name}",
        parsers.parse_retention,
        "SECONDS",
        f"How long to keep {help_text}, in seconds, or forever.",
    )


SETTINGS: Final = (
    Setting(
        "data", parsers.parse_path, "DIR", "Data directory for the database, firmware images and secrets."
    ),
    Setting(
        "http",
        parsers.parse_listen_address,
        "HOST:PORT",
        "Address and port of the HTTP listener; port 0 selects a free port.",
    ),
    _listener_setting(
        "mqtt",
        "Address and port of the MQTT listener, or off; port 0 selects a free port. Always off with an"
        " external --broker.",
    ),
    _listener_setting(
        "mqtt-tls", "Address and port for MQTT over TLS, or off; needs --tls-cert and --tls-key."
    ),
    _listener_setting(
        "mqtt-ws", "Address and port for MQTT over WebSocket, or off; uses TLS with --tls-cert."
    ),
    Setting(
        "broker",
        parsers.parse_broker,
        "URL",
        "MQTT broker: embedded (default), or the URL of an external broker,"
        " mqtt[s]://[user[:password]@]host[:port].",
        is_secret=True,
        attribute="external_broker",
    ),
    _file_setting(
        "broker-ca",
        "PEM file with the certificate authorities to trust for an mqtts:// broker. Default: those of the"
        " system.",
    ),
    Setting(
        "public-url",
        parsers.parse_public_url,
        "URL",
        "URL at which browsers, programs and gateways reach this service, if it differs from --http.",
    ),
    Setting(
        "public-mqtt",
        parsers.parse_public_mqtt,
        "URL",
        "URL at which gateways reach the MQTT broker (mqtt:// or mqtts://)."
        " Default: --broker, else --mqtt-tls, else --mqtt.",
    ),
    Setting("topic-prefix", parsers.parse_topic_prefix, "TEXT", "Prefix of all MQTT topics, as in TEXT/mt/…"),
    Setting(
        "database",
        parsers.parse_database,
        "URL",
        "Database: sqlite (a file in the data directory), or the URL of a PostgreSQL database, postgresql://…",
        is_secret=True,
    ),
    _file_setting("tls-cert", "PEM file with the TLS certificate of the service and its chain."),
    _file_setting("tls-key", "PEM file with the private key of the certificate in --tls-cert."),
    Setting(
        "trusted-proxies",
        parsers.parse_networks,
        "LIST",
        "Comma-separated IP addresses and networks of HTTP proxies trusted to report the client's address.",
        is_list=True,
    ),
    Setting(
        "requests.max-age",
        parsers.parse_seconds,
        "SECONDS",
        "Seconds after which a request to a disconnected gateway is dropped.",
    ),
    Setting(
        "requests.at-once",
        partial(parsers.parse_integer, least=1, most=1000),
        "NUMBER",
        "Maximum concurrent requests to devices behind one gateway; further requests wait.",
    ),
    Setting(
        "firmware.max-size",
        partial(parsers.parse_integer, least=1024, most=parsers.MAX_NUMBER),
        "BYTES",
        "Maximum size of an uploaded firmware image in bytes.",
    ),
    Setting(
        "gateways.autoclaim",
        parsers.parse_switch,
        "SWITCH",
        "on or off: claim gateways at their first message. Default: on with an external broker; not available"
        " with the embedded broker.",
        is_switch=True,
    ),
    Setting(
        "acks",
        parsers.parse_switch,
        "SWITCH",
        "on or off: acknowledge samples to devices, through gateways with API version 2.4.0 or newer.",
        is_switch=True,
    ),
    Setting(
        "backup-before-migration",
        parsers.parse_switch,
        "SWITCH",
        "on or off: write a backup without samples to the data directory before a newer version changes the"
        " database.",
        is_switch=True,
    ),
    Setting(
        "metrics.per-gateway",
        parsers.parse_switch,
        "SWITCH",
        "on or off: metrics of single gateways in /metrics, with their names; off by itself with more than"
        " 2,000 gateways.",
        is_switch=True,
    ),
    Setting(
        "log-level",
        partial(parsers.parse_choice, choices=LOG_LEVELS),
        "LEVEL",
        f"Lowest level that is logged to standard error: {', '.join(LOG_LEVELS)}.",
    ),
    Setting(
        "log-format",
        partial(parsers.parse_choice, choices=LOG_FORMATS),
        "FORMAT",
        "Format of the log: text, or json with one object per line.",
    ),
    Setting(
        "homeassistant.broker",
        parsers.parse_integration_broker,
        "URL",
        "Broker of Home Assistant, to show devices there: mqtt[s]://[user[:password]@]host[:port], embedded"
        " or off (default).",
        is_secret=True,
    ),
    _file_setting(
        "homeassistant.broker-ca",
        "PEM file with the certificate authorities to trust for the broker of Home Assistant. Default: those"
        " of the system.",
    ),
    Setting(
        "homeassistant.discovery-prefix",
        parsers.parse_topic_levels,
        "TOPIC",
        "Discovery prefix that is set in Home Assistant.",
    ),
    Setting(
        "homeassistant.topic",
        parsers.parse_topic_levels,
        "TOPIC",
        "First level of the topics of states and commands for Home Assistant.",
    ),
    Setting(
        "homeassistant.form",
        partial(parsers.parse_choice, choices=DISCOVERY_FORMS),
        "FORM",
        "device: a discovery message for each device. entity: one for each entity, for Home Assistant before"
        " 2024.11.",
    ),
    Setting(
        "homeassistant.devices",
        parsers.parse_device_filter,
        "FILTER",
        "Devices to show in Home Assistant, such as label=Home&model=0018 (label, model, firmware, hardware,"
        " name, gateway). Default: all.",
    ),
    Setting(
        "homeassistant.max-devices",
        partial(parsers.parse_integer, least=1, most=100_000),
        "NUMBER",
        "Maximum number of devices in Home Assistant. With more, none is published until the filter matches"
        " fewer.",
    ),
    Setting(
        "homeassistant.commands",
        parsers.parse_switch,
        "SWITCH",
        "on or off: let Home Assistant write to devices. Every client of its broker can then write to them"
        " too.",
        is_switch=True,
    ),
    Setting(
        "homeassistant.area-label-prefix",
        parsers.parse_label_prefix,
        "TEXT",
        "Prefix of the labels of which the first one is suggested to Home Assistant as the area of a device.",
    ),
    Setting(
        "homeassistant.table",
        parsers.parse_table_file,
        "FILE",
        "Identifier table with your own identifiers and entities for Home Assistant.",
        is_file=True,
    ),
    _retention_setting("property", "property samples"),
    _retention_setting("measurement", "measurements"),
    _retention_setting("measurement-error", "failed measurements"),
    _retention_setting("event", "events"),
    _retention_setting("link", "the signal strength (RSSI) of links between devices and their mesh parents"),
    _retention_setting("heartbeat", "the number of heartbeats of devices per minute"),
    _retention_setting("connectivity", "the history of connects and disconnects of devices"),
    _retention_setting("request", "the history of requests to devices"),
    _retention_setting("alarm", "alarms that are over"),
    _retention_setting("availability", "how many devices were online in each hour"),
    Setting(
        "retention.readings",
        partial(parsers.parse_integer, least=60, most=86_400),
        "SECONDS",
        "How long to keep single RSSI readings of devices by anchors after they arrived, in seconds. They are"
        " also kept in memory.",
    ),
    Setting(
        "influx.url",
        parsers.parse_public_url,
        "URL",
        "URL of InfluxDB or a compatible server, to which all new samples are sent; https://host:8086.",
    ),
    _file_setting(
        "influx.ca",
        "PEM file with the certificate authorities to trust for an https:// server of InfluxDB. Default:"
        " those of the system.",
    ),
    Setting(
        "influx.token",
        parsers.parse_secret_text,
        "TOKEN",
        "Token for --influx-url, or user:password of InfluxDB 1.",
        is_secret=True,
    ),
    Setting(
        "influx.database",
        str,
        "NAME",
        "Database for the samples, which InfluxDB 2 calls a bucket. It must exist.",
    ),
    Setting("influx.org", str, "NAME", "Organization of InfluxDB 2; without it the interface of 1 is used."),
    Setting(
        "influx.filter",
        parsers.parse_device_filter,
        "FILTER",
        "Devices whose samples are sent, such as label=Home&model=0018 (label, model, firmware, hardware,"
        " name, gateway). Default: all.",
    ),
    Setting(
        "mail.host",
        parsers.parse_host,
        "HOST",
        "Host of the mail server (SMTP) that sends e-mails about alarms; needs --mail-from.",
    ),
    Setting(
        "mail.port",
        partial(parsers.parse_integer, least=1, most=65_535),
        "PORT",
        "Port of the mail server. Default: 587, or 465 with --mail-tls tls.",
    ),
    Setting(
        "mail.user",
        parsers.parse_secret_text,
        "NAME",
        "User of the login at the mail server, if it has logins.",
    ),
    Setting("mail.password", parsers.parse_secret_text, "TEXT", "Password of --mail-user.", is_secret=True),
    Setting(
        "mail.from",
        parsers.parse_mail_address,
        "ADDRESS",
        "Address that e-mails come from, such as meshfleet@example.org.",
        attribute="mail.sender",
    ),
    Setting(
        "mail.tls",
        partial(parsers.parse_choice, choices=MAIL_TLS_MODES),
        "MODE",
        "starttls: plain connection that must change to TLS. tls: TLS from the beginning. off: no TLS, only"
        " for a server on the same machine.",
    ),
    _file_setting(
        "mail.ca",
        "PEM file with the certificate authorities to trust for the mail server. Default: those of the"
        " system.",
    ),
    Setting(
        "webhooks.allow",
        parsers.parse_networks,
        "LIST",
        "Comma-separated addresses and networks, such as 10.20.0.0/16, that webhooks may lead to besides the"
        " internet.",
        is_list=True,
    ),
    Setting(
        "webhooks.allow-http",
        parsers.parse_switch,
        "SWITCH",
        "on or off: allow webhooks with http://, which others on the way can read and change.",
        is_switch=True,
    ),
    _file_setting(
        "webhooks.ca",
        "PEM file with certificate authorities to trust for webhooks, besides those of the system.",
    ),
    _limit_setting("connections", "NUMBER", "Maximum concurrent MQTT connections."),
    _limit_setting(
        "connections-per-address", "NUMBER", "Maximum concurrent MQTT connections per IP address."
    ),
    _limit_setting(
        "connections-per-account",
        "NUMBER",
        "Maximum concurrent MQTT connections per user, API key or gateway.",
    ),
    _limit_setting(
        "failed-connections", "NUMBER", "Maximum failed MQTT connection attempts per second and IP address."
    ),
    _limit_setting("connect-seconds", "SECONDS", "Seconds in which a new MQTT client must send CONNECT."),
    _limit_setting(
        "packet-size", "BYTES", "Maximum size of an MQTT packet in bytes.", least=1024, most=268_435_455
    ),
    _limit_setting("subscriptions", "NUMBER", "Maximum topic subscriptions per MQTT client."),
    _limit_setting("in-flight", "NUMBER", "Maximum unacknowledged messages per MQTT client.", most=65_535),
    _limit_setting("queue-bytes", "BYTES", "Maximum bytes of messages queued for one MQTT client."),
    _limit_setting(
        "queues-bytes", "BYTES", "Maximum bytes of messages queued for all MQTT clients together."
    ),
    _limit_setting(
        "publish-rate", "NUMBER", "Maximum MQTT packets of any type per second read from one client."
    ),
    _limit_setting(
        "sessions-per-account", "NUMBER", "Maximum persistent MQTT sessions per user, API key or gateway."
    ),
    _limit_setting(
        "session-age", "SECONDS", "Seconds after which the MQTT session of a disconnected client is deleted."
    ),
    _limit_setting("retained", "NUMBER", "Maximum retained MQTT messages."),
)
