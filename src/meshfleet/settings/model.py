"""Data structures with the settings of the service."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.rest.gateways import BrokerEndpoint

_QUARTER_SECONDS: Final = 90 * 86_400
_MONTH_SECONDS: Final = 30 * 86_400
_ALARM_SECONDS: Final = 400 * 86_400


class Retention(Struct, frozen=True, kw_only=True):
    """How long each kind of history is kept, in seconds; None means forever."""

    property: int | None = _QUARTER_SECONDS
    measurement: int | None = _QUARTER_SECONDS
    measurement_error: int | None = _QUARTER_SECONDS
    event: int | None = _QUARTER_SECONDS
    link: int | None = _MONTH_SECONDS
    """RSSI with which parents receive devices, rolled up per minute."""
    heartbeat: int | None = _MONTH_SECONDS
    """Number of heartbeats per minute."""
    connectivity: int | None = _QUARTER_SECONDS
    """Connects and disconnects of devices."""
    request: int | None = _QUARTER_SECONDS
    """Requests to devices, with their responses."""
    alarm: int | None = _ALARM_SECONDS
    """Alarms that are over, with what happened to them; long enough to compare a month with last year's."""
    availability: int | None = _ALARM_SECONDS
    """Share of the devices that were online, by hour."""
    readings: int = 3600
    """Single readings of devices by anchors; never forever, because they are also kept in memory."""


_SQLITE: Final = "sqlite"

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("text", "json")


class ListenAddress(NamedTuple):
    """Host and port at which the service accepts connections. Port 0 means any free port."""

    host: str
    port: int

    @property
    def local(self) -> ListenAddress:
        """Address at which programs on this machine connect; for a wildcard address, a loopback address."""
        try:
            host = ip_address(self.host)
        except ValueError:  # a host name
            return self
        if not host.is_unspecified:
            return self
        return self._replace(host="127.0.0.1" if isinstance(host, IPv4Address) else "::1")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class InfluxSettings(Struct, frozen=True, kw_only=True):
    """Settings of the export of samples to InfluxDB."""

    url: str | None = None
    """URL of the server, without a trailing slash; None if samples are not exported."""
    ca: Path | None = None
    """File with the certificate authorities to trust for that server; None: those of the system."""
    token: str = ""
    """Token, `user:password`, or empty for a server without logins."""
    database: str = "meshfleet"
    """Database, which InfluxDB 2 calls a bucket."""
    org: str = ""
    """Organization of InfluxDB 2; empty for the interface of InfluxDB 1."""
    filter: tuple[tuple[str, str], ...] = ()
    """Filter of the exported devices: names and values of query parameters of the device list."""

    def __repr__(self) -> str:
        return f"InfluxSettings(url={self.url!r}, database={self.database!r}, org={self.org!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url), ("database", self.database), ("org", self.org)]


MAIL_TLS_MODES: Final = ("starttls", "tls", "off")
"""`starttls` begins TLS on a plain connection, `tls` connects with TLS; neither continues without it."""


class MailSettings(Struct, frozen=True, kw_only=True):
    """Settings of the mail server through which e-mails about alarms are sent."""

    host: str | None = None
    """Host of the server; None if no e-mails are sent."""
    port: int | None = None
    """Port of the server; None: the usual one. Use `server_port`."""
    user: str = ""
    """User of the login; empty for a server without logins."""
    password: str = ""
    sender: str | None = None
    """Address that e-mails come from."""
    tls: Literal["starttls", "tls", "off"] = "starttls"
    ca: Path | None = None
    """File with the certificate authorities to trust for that server; None: those of the system."""

    @property
    def server_port(self) -> int:
        """Port of the server: 587 for the submission of e-mails, or 465 if it has TLS from the beginning."""
        if self.port is not None:
            return self.port
        return 465 if self.tls == "tls" else 587

    def __repr__(self) -> str:
        return f"MailSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("host", self.host), ("port", self.port), ("sender", self.sender), ("tls", self.tls)]


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """Settings of webhooks: which hosts they may lead to."""

    allow: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks, other than the internet, that webhooks may lead to."""
    allow_http: bool = False
    """Whether webhooks without TLS are possible."""
    ca: Path | None = None
    """File with certificate authorities to trust besides those of the system."""


EMBEDDED: Final = "embedded"
"""Value of a setting that names a broker: the embedded broker of the service."""

DISCOVERY_FORMS: Final = ("device", "entity")


class HomeAssistantSettings(Struct, frozen=True, kw_only=True):
    """Settings of the integration with Home Assistant."""

    broker: BrokerAddress | Literal["embedded"] | None = None
    """Broker that Home Assistant uses; None if the integration is off."""
    broker_ca: Path | None = None
    """File with the certificate authorities to trust for that broker; None: those of the system."""
    discovery_prefix: str = "homeassistant"
    topic: str = "meshfleet"
    """First level of the topics of states and commands."""
    form: Literal["device", "entity"] = "device"
    """Form of discovery messages: one for each device, or one for each entity."""
    devices: tuple[tuple[str, str], ...] = ()
    """Filter of the published devices: names and values of query parameters of the device list."""
    max_devices: int = 2000
    commands: bool = False
    """Whether Home Assistant may write to devices."""
    area_label_prefix: str = ""
    """Prefix of the labels from which the first one becomes the suggested area of a device."""
    table: Path | None = None
    """Identifier table with the user's own entities."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a service."""

    data: Path = Path("meshfleet-data")
    http: ListenAddress = ListenAddress("127.0.0.1", 8080)
    mqtt: ListenAddress | None = ListenAddress("127.0.0.1", 1883)
    """Listener of MQTT without TLS; None if it is off, as always with an external broker."""
    mqtt_tls: ListenAddress | None = None
    """Listener of MQTT over TLS, which needs a certificate and its key; None if it is off."""
    mqtt_ws: ListenAddress | None = None
    """Listener of MQTT over WebSocket, with TLS if there is a certificate; None if it is off."""
    external_broker: BrokerAddress | None = None
    """Address of an external broker (broker-21); None to run the embedded broker."""
    broker_ca: Path | None = None
    """File with the certificate authorities to trust for the external broker; None: those of the system."""
    public_url: str | None = None
    """URL at which clients reach the service, without a trailing slash; None: derived from `http`."""
    public_mqtt: BrokerEndpoint | None = None
    """Address at which gateways reach the broker; None: that of the external broker or of a listener."""
    topic_prefix: str = ""
    """Prefix of all topics, without a trailing slash."""
    database: str = _SQLITE
    """`sqlite`, or a URL `postgresql://…` that may contain a password."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    requests_max_age: float = 60
    """Seconds after which a request to a disconnected gateway is dropped (rest-166)."""
    requests_at_once: int = 16
    """Maximum number of concurrent requests per gateway (request-36)."""
    firmware_max_size: int = 256 * 1024 * 1024
    """Maximum size of an uploaded firmware image in bytes."""
    gateways_autoclaim: bool | None = None
    """Value that the user gave; None if not given. Use `autoclaim`, which considers the broker too."""
    acks: bool = True
    """Whether samples are acknowledged to the devices that sent them (ack-17)."""
    backup_before_migration: bool = True
    metrics_per_gateway: bool = True
    """Whether `/metrics` has time series of single gateways."""
    log_level: str = "warning"
    log_format: str = "text"
    limits: BrokerLimits = BrokerLimits()
    retention: Retention = Retention()
    influx: InfluxSettings = InfluxSettings()
    homeassistant: HomeAssistantSettings = HomeAssistantSettings()
    mail: MailSettings = MailSettings()
    webhooks: WebhookSettings = WebhookSettings()

    @property
    def gateway_broker(self) -> BrokerEndpoint | None:
        """Address at which gateways reach the broker (rest-168); None if there is no listener.

        Port 0 means a free port, which is known only after the service has started to listen.
        """
        if self.public_mqtt is not None:
            return self.public_mqtt
        if self.external_broker is not None:
            return BrokerEndpoint(
                host=self.external_broker.host, port=self.external_broker.port, tls=self.external_broker.tls
            )
        listen = self.mqtt_tls or self.mqtt
        if listen is None:
            return None
        return BrokerEndpoint(host=listen.host, port=listen.port, tls=self.mqtt_tls is not None)

    @property
    def listen_url(self) -> str:
        """URL of the HTTP listener.

        Port 0 means a free port, which is known only after the service has started to listen.
        """
        return f"{'http' if self.tls_cert is None else 'https'}://{self.http}"

    @property
    def url(self) -> str:
        """URL at which clients reach the service, used in links (rest-168)."""
        return self.public_url or self.listen_url

    @property
    def autoclaim(self) -> bool:
        """Whether gateways are claimed automatically at their first message (rest-79)."""
        return self.external_broker is not None and self.gateways_autoclaim is not False

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        database = _SQLITE if self.database == _SQLITE else "…"
        return list({**asdict(self), "database": database}.items())
