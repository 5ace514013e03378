"""Where MQTT is spoken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from meshfleet.settings import Listen, Settings

ACCOUNT: Final = "account"

_HOST: Final = "localhost"
_ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 # compared with, not bound to
_PATH: Final = "/mqtt"


class Server(NamedTuple):
    """A place where MQTT clients connect."""

    name: str
    host: str
    """With the port."""
    protocol: str
    about: str
    path: str | None = None

    def described(self) -> dict[str, Any]:
        """Describe it."""
        return {
            "host": self.host,
            **({"pathname": self.path} if self.path else {}),
            "protocol": self.protocol,
            "protocolVersion": "3.1.1",
            "description": self.about,
            "security": [{"$ref": f"#/components/securitySchemes/{ACCOUNT}"}],
        }


SOMEWHERE: Final = (
    Server("mqtt", f"{_HOST}:1883", "mqtt", "A service as it listens unless told otherwise."),
)
"""For a document of no installation."""


def servers_of(settings: Settings, reached: str | None = None) -> tuple[Server, ...]:
    """Where clients of this installation connect; `reached` is the host at which somebody found it."""
    if settings.public_mqtt is not None or settings.outside is not None:
        return _elsewhere(settings)
    tls = settings.tls_cert is not None
    wanted = (
        (settings.mqtt, "mqtt", "mqtt", "MQTT over TCP.", None),
        (settings.mqtt_tls, "mqtt-tls", "secure-mqtt", "MQTT over TLS.", None),
        (
            settings.mqtt_ws,
            "mqtt-ws",
            "wss" if tls else "ws",
            "MQTT in WebSockets, subprotocol `mqtt`.",
            _PATH,
        ),
    )
    return tuple(
        Server(name, _place(listen, reached or _HOST), protocol, about, path)
        for listen, name, protocol, about, path in wanted
        if listen is not None
    )


def _elsewhere(settings: Settings) -> tuple[Server, ...]:
    """What is told to gateways, too (rest-168)."""
    if (place := settings.broker) is None:
        return ()
    host = f"[{place.host}]" if ":" in place.host else place.host
    about = "Where gateways are told to connect."
    return (Server("mqtt", f"{host}:{place.port}", "secure-mqtt" if place.tls else "mqtt", about),)


def _place(listen: Listen, reached: str) -> str:
    """Nobody can connect to the address that stands for all of them; then it is where we were found."""
    return str(listen._replace(host=reached) if listen.host in _ALL_ADDRESSES else listen)
