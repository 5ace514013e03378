"""What a service is told."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.client.address import BrokerAddress
from meshfleet.rest import BrokerPlace

# How long the past is kept.

_QUARTER_SECONDS: Final = 90 * 86_400
_MONTH_SECONDS: Final = 30 * 86_400


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds for each kind of sample; None: for ever."""

    property: int | None = _QUARTER_SECONDS
    measurement: int | None = _QUARTER_SECONDS
    measurement_error: int | None = _QUARTER_SECONDS
    event: int | None = _QUARTER_SECONDS
    link: int | None = _MONTH_SECONDS
    """How parents heard devices, minute by minute."""
    heartbeat: int | None = _MONTH_SECONDS
    """The same for heartbeats."""
    connectivity: int | None = _QUARTER_SECONDS
    """When devices were connected."""
    request: int | None = _QUARTER_SECONDS
    """What was asked of devices, and what became of it."""


_SQLITE: Final = "sqlite"


class ListenAddress(NamedTuple):
    """Where connections are taken. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(Struct, frozen=True, kw_only=True):
    """How a service runs."""

    data: Path = Path("meshfleet-data")
    http: ListenAddress = ListenAddress("127.0.0.1", 8080)
    mqtt: ListenAddress | None = ListenAddress("127.0.0.1", 1883)
    """Nowhere when another broker takes the place of the embedded one; neither are the next two."""
    mqtt_tls: ListenAddress | None = None
    """Only with a certificate and its key."""
    mqtt_ws: ListenAddress | None = None
    """MQTT in WebSockets; over TLS when there is a certificate."""
    external_broker: BrokerAddress | None = None
    """Another broker, in the place of the embedded one (broker-21)."""
    broker_ca: Path | None = None
    """Who vouches for that broker, if not whom the system trusts."""
    public_url: str | None = None
    """Without a slash at its end."""
    public_mqtt: BrokerPlace | None = None
    topic_prefix: str = ""
    """Without a slash at its end."""
    database: str = _SQLITE
    """Or `postgresql://…`, perhaps with a password in it."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    requests_max_age: float = 60
    """Seconds (rest-166)."""
    requests_at_once: int = 16
    """How many requests a gateway gets at a time (request-36)."""
    firmware_max_size: int = 256 * 1024 * 1024
    """Bytes of an image that somebody uploads."""
    gateways_autoclaim: bool | None = None
    """As somebody set it; what holds is in `autoclaim`."""
    acks: bool = True
    """Whether samples are acknowledged to the devices that made them (ack-17)."""
    limits: BrokerLimits = BrokerLimits()
    retention: Retention = Retention()

    @property
    def gateway_broker(self) -> BrokerPlace | None:
        """Where gateways are told to connect (rest-168); a port of 0 is known only to whoever listens."""
        if self.public_mqtt is not None:
            return self.public_mqtt
        if self.external_broker is not None:
            return BrokerPlace(
                host=self.external_broker.host, port=self.external_broker.port, tls=self.external_broker.tls
            )
        listen = self.mqtt_tls or self.mqtt
        if listen is None:
            return None
        return BrokerPlace(host=listen.host, port=listen.port, tls=self.mqtt_tls is not None)

    @property
    def listen_url(self) -> str:
        """Where HTTP is served; a port of 0 is known only to whoever listens."""
        return f"{'http' if self.tls_cert is None else 'https'}://{self.http}"

    @property
    def url(self) -> str:
        """How others reach this service, as addresses tell it (rest-168)."""
        return self.public_url or self.listen_url

    @property
    def autoclaim(self) -> bool:
        """Whether gateways register themselves at their first message (rest-79)."""
        return self.external_broker is not None and self.gateways_autoclaim is not False

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        database = _SQLITE if self.database == _SQLITE else "…"
        return list({**asdict(self), "database": database}.items())
