"""Limits that protect the embedded broker from careless or hostile clients."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

_HOME_ASSISTANT_SUBSCRIPTIONS: Final = 20_000
"""Topic filters that Home Assistant may subscribe to. It subscribes to about 70, and one for each entity."""

_HOME_ASSISTANT_PACKET_SIZE: Final = 1_048_576
"""Bytes of a packet of Home Assistant. Before 2024.6 it put the filters of all entities into one packet."""

_HOME_ASSISTANT_CONNECTIONS: Final = 5
"""Concurrent connections with one API key for Home Assistant. Each may have very many subscriptions."""


class BrokerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the embedded broker; each field is a setting of the service."""

    connections: int = 10_000
    """Maximum concurrent connections of MQTT clients."""
    connections_per_address: int = 2000
    """Maximum concurrent connections from one IP address."""
    connections_per_account: int = 20
    """Maximum concurrent MQTT connections that use the credentials of one account."""
    failed_connections: int = 50
    """Maximum connections per second from one IPv4 address or IPv6 /64 network that end without a login."""
    connect_seconds: int = 10
    """Seconds that a client has to send CONNECT after its connection was opened."""
    packet_size: int = 262_144
    """Maximum size of an MQTT packet from a client, in bytes."""
    subscriptions: int = 100
    """Maximum topic filters that one client may subscribe to."""
    in_flight: int = 100
    """Maximum QoS 1 messages sent to one client without a PUBACK."""
    queue_bytes: int = 67_108_864
    """Maximum bytes of messages queued for one client, unacknowledged messages included."""
    queues_bytes: int = 268_435_456
    """Maximum bytes of messages queued for all clients together."""
    publish_rate: int = 2000
    """Maximum packets per second read from one client; further packets stay unread in the socket."""
    sessions_per_account: int = 20
    """Maximum persistent MQTT sessions per account."""
    session_age: int = 604_800
    """Seconds that a client may stay disconnected before its persistent session is deleted."""
    retained: int = 10_000
    """Maximum retained messages of clients on all topics together."""

    def for_home_assistant(self) -> Self:
        """Return the limits of a client with an API key for Home Assistant (broker-33)."""
        return replace(
            self,
            subscriptions=max(self.subscriptions, _HOME_ASSISTANT_SUBSCRIPTIONS),
            packet_size=max(self.packet_size, _HOME_ASSISTANT_PACKET_SIZE),
            connections_per_account=min(self.connections_per_account, _HOME_ASSISTANT_CONNECTIONS),
        )
