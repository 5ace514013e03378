"""Where MQTT clients come in: TCP, TLS and WebSocket."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from meshfleet.service.sockets import listening

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from meshfleet.settings import Settings


class Entrance(NamedTuple):
    """A socket that listens, and what is spoken there."""

    listener: socket.socket
    scheme: str
    """mqtt, mqtts, ws or wss."""

    def __str__(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"{self.scheme}://[{host}]:{port}" if ":" in host else f"{self.scheme}://{host}:{port}"


@contextmanager
def entrances_of(settings: Settings) -> Iterator[list[Entrance]]:
    """Where MQTT clients will come in; nobody is let in yet."""
    tls = settings.tls_cert is not None
    wanted = (
        (settings.mqtt, "mqtt", "mqtt"),
        (settings.mqtt_tls, "mqtt-tls", "mqtts"),
        (settings.mqtt_ws, "mqtt-ws", "wss" if tls else "ws"),
    )
    with ExitStack() as stack:
        yield [
            Entrance(stack.enter_context(listening(place, name)), scheme)
            for place, name, scheme in wanted
            if place is not None
        ]


def with_ports(settings: Settings, entrances: list[Entrance]) -> Settings:
    """The settings with the ports that we got where any would do: gateways are told them."""
    ports = {each.scheme: each.listener.getsockname()[1] for each in entrances}
    changes = {
        name: listen._replace(port=ports[scheme])
        for name, scheme, listen in (
            ("mqtt", "mqtt", settings.mqtt),
            ("mqtt_tls", "mqtts", settings.mqtt_tls),
            ("mqtt_ws", "ws" if settings.tls_cert is None else "wss", settings.mqtt_ws),
        )
        if listen is not None
    }
    return replace(settings, **changes)
