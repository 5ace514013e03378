"""Limits that protect the embedded broker from careless or hostile clients."""

from __future__ import annotations

from msgspec import Struct


class BrokerLimits(Struct, frozen=True, kw_only=True):
    """Limits of the embedded broker; each field is a setting of the service."""

    connections: int = 10_000
    """Maximum concurrent connections."""
    connections_per_address: int = 2000
    """Maximum concurrent connections from one network address."""
    connections_per_account: int = 20
    """Maximum concurrent connections with the credentials of one account."""
    failed_connections: int = 50
    """Maximum connections per second from one network address that end without a login."""
    connect_seconds: int = 10
    """Seconds a client has to send CONNECT after it connected."""
    packet_size: int = 262_144
    """Maximum size of a packet from a client, in bytes."""
    subscriptions: int = 100
    """Maximum topic filters per client."""
    in_flight: int = 100
    """Maximum unacknowledged messages per client."""
    queue_bytes: int = 67_108_864
    """Maximum bytes queued for one client, unacknowledged messages included."""
    queues_bytes: int = 268_435_456
    """Maximum bytes queued for all clients together."""
    publish_rate: int = 2000
    """Maximum packets per second read from one client; further packets wait in its socket."""
    sessions_per_account: int = 20
    """Maximum persistent sessions per account."""
    session_age: int = 604_800
    """Seconds a client may stay disconnected before its session is deleted."""
    retained: int = 10_000
    """Maximum retained messages on all topics."""
