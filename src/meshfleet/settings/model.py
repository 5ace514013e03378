"""What a service is told."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from meshfleet.link.address import Address
from meshfleet.settings.limits import Limits
from meshfleet.settings.retention import Retention
from meshfleet.wire.rest import BrokerPlace

_SQLITE: Final = "sqlite"


class Listen(NamedTuple):
    """Where connections are taken. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(Struct, frozen=True, kw_only=True):
    """How a service runs."""

    data: Path = Path("meshfleet-data")
    http: Listen = Listen("127.0.0.1", 8080)
    mqtt: Listen | None = Listen("127.0.0.1", 1883)
    """Nowhere when another broker takes the place of the embedded one; neither are the next two."""
    mqtt_tls: Listen | None = None
    """Only with a certificate and its key."""
    mqtt_ws: Listen | None = None
    """MQTT in WebSockets; over TLS when there is a certificate."""
    outside: Address | None = None
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
    limits: Limits = Limits()
    retention: Retention = Retention()

    @property
    def broker(self) -> BrokerPlace | None:
        """Where gateways are told to connect (rest-168); a port of 0 is known only to whoever listens."""
        if self.public_mqtt is not None:
            return self.public_mqtt
        if self.outside is not None:
            return BrokerPlace(host=self.outside.host, port=self.outside.port, tls=self.outside.tls)
        listen = self.mqtt_tls or self.mqtt
        if listen is None:
            return None
        return BrokerPlace(host=listen.host, port=listen.port, tls=self.mqtt_tls is not None)

    @property
    def own_url(self) -> str:
        """Where HTTP is served; a port of 0 is known only to whoever listens."""
        return f"{'http' if self.tls_cert is None else 'https'}://{self.http}"

    @property
    def url(self) -> str:
        """How others reach this service, as addresses tell it (rest-168)."""
        return self.public_url or self.own_url

    @property
    def autoclaim(self) -> bool:
        """Whether gateways register themselves at their first message (rest-79)."""
        return self.outside is not None and self.gateways_autoclaim is not False

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        database = _SQLITE if self.database == _SQLITE else "…"
        return list({**asdict(self), "database": database}.items())
