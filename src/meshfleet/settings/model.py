"""What a service is told."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from meshfleet.settings.limits import Limits
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
    mqtt_tls: Listen | None = None
    """Only with a certificate and its key."""
    mqtt_ws: Listen | None = None
    """MQTT in WebSockets; over TLS when there is a certificate."""
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
    limits: Limits = Limits()

    @property
    def broker(self) -> BrokerPlace | None:
        """Where gateways are told to connect (rest-168); a port of 0 is known only to whoever listens."""
        listen = self.mqtt_tls or self.mqtt
        if self.public_mqtt is not None or listen is None:
            return self.public_mqtt
        return BrokerPlace(host=listen.host, port=listen.port, tls=self.mqtt_tls is not None)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        database = _SQLITE if self.database == _SQLITE else "…"
        return list({**asdict(self), "database": database}.items())
